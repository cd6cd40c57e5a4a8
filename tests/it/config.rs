//! A configuration file is read whole, and every mistake in it is shown where it stands, with a remedy.

use std::{fs, num::NonZeroU32, path::Path, process::ExitCode, time::Duration};

use clap::Parser as _;
use ota_pacer::{
    cli::{check, explain},
    config::{
        self, Config, Errors,
        model::{
            Adaptive, Credential, Http2, KeyPart, KeyType, Limit, LimitKind, OnOutage, PathPattern, Start,
            UnmatchedHost, UnmatchedPath, Window,
        },
        schema,
    },
};
use proptest::prelude::*;
use secrecy::ExposeSecret;

#[test]
fn each_mistake_is_shown_with_a_remedy() {
    let mut names = Vec::new();
    for entry in fs::read_dir("tests/fixtures/config").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    names.sort();
    assert!(names.len() > 40, "only {} fixtures", names.len());
    for name in names {
        let errors = fixture(&name).expect_err(&format!("{name} has a mistake"));
        insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../fixtures/config/messages", omit_expression => true }, {
            insta::assert_snapshot!(name, errors);
        });
    }
}

#[test]
fn every_mistake_is_reported_in_one_run() {
    assert_eq!(fixture("many_mistakes").unwrap_err().count(), 15);
}

#[test]
fn secrets_are_never_shown() {
    for name in
        ["redis_scheme", "redis_secrets_on_one_line", "upstream_proxy", "upstream_proxy_login", "variable_expanded"]
    {
        let text = format!("{0} {0:?}", fixture(name).unwrap_err());
        for secret in ["pa55word", "k3y", SECRET] {
            assert!(!text.contains(secret), "{name} shows {secret}");
        }
    }
    let config = fixture("valid/full").unwrap();
    let text = format!("{config:?} {}", check::summary(&config));
    assert!(!text.contains("redis.internal") && !text.contains("not so secret"));
    assert!(!text.contains("s3cret") && !text.contains("bWU6czNjcmV0"), "{text}");
}

#[test]
fn every_key_is_read() {
    let config = fixture("valid/full").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:0");
    assert_eq!(config.admin.unwrap().to_string(), "[::1]:0");
    assert_eq!(config.gateway.unwrap().to_string(), "127.0.0.1:0");
    let origins = config
        .channels
        .iter()
        .map(|channel| channel.gateway_origin.as_ref().map_or("-".to_owned(), ToString::to_string));
    let wanted = ["-", "https://two.example:8443", "https://three.example", "https://four.example"];
    assert_eq!(origins.take(4).collect::<Vec<_>>(), wanted);
    let redis = config.redis.as_ref().unwrap();
    assert_eq!(redis.url.expose_secret(), "redis://redis.internal");
    assert_eq!(redis.ca_file.as_deref(), Some(Path::new("./redis.pem")));
    assert_eq!(redis.hash_key.as_ref().unwrap().expose_secret(), "not so secret");
    assert_eq!((redis.prefix.as_str(), redis.timeout), ("pace", Duration::from_millis(100)));
    assert_eq!((redis.on_outage, redis.expected_instances.get()), (OnOutage::Closed, 4));
    assert_eq!(config.ca.dir, Path::new("/var/lib/ota-pacer"));
    assert_eq!((config.ca.key_type, config.ca.name_constraints), (KeyType::Rsa2048, true));
    assert_eq!(config.ca.hosts.len(), 7, "those of the intercepted channels");
    let intercepted: Vec<bool> = config.channels.iter().map(|channel| channel.intercept).collect();
    assert_eq!(intercepted, [true, true, false, true, true, true]);
    let http2 = |index: usize| config.channels[index].http2;
    assert_eq!([0, 1].map(http2), [Http2 { clients: false, origin: true }, Http2 { clients: true, origin: false }]);
    assert_eq!(config.upstream.ca_file.as_deref(), Some(Path::new("./roots.pem")));
    assert_eq!(config.upstream.response_timeout, Duration::from_secs(120));
    assert_eq!(config.upstream.idle, Duration::ZERO);
    let proxy = config.upstream.proxy.as_ref().unwrap();
    assert_eq!(proxy.to_string(), "https://proxy.corp:443");
    assert_eq!(proxy.credentials.as_ref().unwrap().expose_secret(), "bWU6czNjcmV0");
    assert_eq!(
        proxy.bypass.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["*.corp", "ota.example:8443", "10.0.0.0/8"]
    );
    assert_eq!(config.unmatched.host, UnmatchedHost::Refuse);
    assert_eq!(config.unmatched.path, UnmatchedPath::Refuse);
    assert_eq!((config.priority.header.as_str(), config.priority.ageing), ("x-class", Duration::from_secs(10)));
    assert!(!config.annotate);
    assert_eq!(config.channels.len(), 6);
    let credentials: Vec<&Credential> = config.channels.iter().map(|channel| &channel.credential).collect();
    assert!(matches!(
        credentials[..],
        [
            Credential::Header(_),
            Credential::Query(_),
            Credential::Label(_),
            Credential::BasicUser,
            Credential::Label(_),
            Credential::AuthorizationParam(_),
        ]
    ));
    let rates = &config.channels[0].endpoints[0];
    let methods: Vec<&str> = rates.matcher.methods.as_ref().unwrap().iter().map(|method| method.as_str()).collect();
    assert_eq!(methods, ["GET", "POST"]);
    assert_eq!(rates.matcher.path, PathPattern::Template("/rates/{id}".to_owned()));
    assert_eq!(rates.limits, config.channels[1].limits, "an alias stands for its anchor");
    let LimitKind::TokenBucket { rate, capacity, start } = config.channels[0].limits[0].kind else { panic!() };
    assert_eq!((rate.to_string().as_str(), capacity.get(), start), ("4.5/s", 9, Start::Empty));
}

#[test]
fn every_kind_of_limit_is_read() {
    let config = fixture("valid/full").unwrap();
    let (channel, rates, token) =
        (&config.channels[5], &config.channels[5].endpoints[0], &config.channels[5].endpoints[1]);
    assert!(token.exempt && !rates.exempt);
    let nonzero = |count| NonZeroU32::new(count).unwrap();
    let window =
        |count, per, window| LimitKind::Window { count: nonzero(count), per: Duration::from_secs(per), window };
    let keyed = |limit: &Limit| limit.key.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(channel.limits[0].kind, window(58, 60, Window::Sliding));
    assert_eq!(channel.limits[1].kind, LimitKind::Concurrent { most: nonzero(3) });
    assert_eq!(channel.limits.iter().map(keyed).collect::<Vec<_>>(), ["credential", "credential", ""]);
    assert_eq!(rates.limits[0].kind, window(1_000, 86_400, Window::Clock));
    assert_eq!(keyed(&rates.limits[0]), "credential path.hotel");
    assert_eq!(keyed(&rates.limits[1]), "path.hotel header.x-property-id query.room");
    let adaptive: Vec<Option<Adaptive>> = rates.limits.iter().map(|limit| limit.adaptive).collect();
    let tuned = Adaptive { cut: 0.5, floor: 0.2, recover: 0.05 };
    assert_eq!(adaptive, [None, None, Some(Adaptive::default()), Some(tuned), None]);
}

#[test]
fn every_kind_of_limit_is_shown() {
    insta::assert_snapshot!(check::summary(&fixture("valid/full").unwrap()));
}

#[test]
fn policies_are_inherited_key_by_key() {
    let config = fixture("valid/full").unwrap();
    let (channel, endpoint) = (&config.channels[0], &config.channels[0].endpoints[0]);
    assert_eq!(config.channels[1].policy.max_wait, Duration::from_secs(7));
    assert_eq!(channel.policy.max_wait, Duration::from_secs(8));
    let queues = [&config.channels[1].policy, &channel.policy, &endpoint.policy].map(|policy| policy.max_queue.get());
    assert_eq!(queues, [700, 800, 120]);
    assert_eq!(channel.policy.retry.attempts.get(), 5);
    assert_eq!(channel.policy.retry.max_retry_after, Duration::from_secs(60));
    assert_eq!(endpoint.policy.max_wait, Duration::from_secs(120));
    assert_eq!(endpoint.policy.retry.attempts.get(), 5);
    assert_eq!(endpoint.policy.retry.max_retry_after, Duration::from_secs(5));
    assert_eq!(endpoint.policy.retry.max_pause, Duration::from_secs(7_200));
    assert_eq!(endpoint.policy.retry.replay_body, 0);
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let config = parse("channels: { ota: { hosts: [ota.example], limits: [{ rate: 2/s }] } }").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert!(config.admin.is_none() && config.redis.is_none() && config.annotate && config.warnings.is_empty());
    assert_eq!(config.ca.dir, Path::new("./ca"));
    let retry = config.channels[0].policy.retry;
    assert_eq!((retry.attempts.get(), retry.replay_body), (4, 1_048_576));
    assert_eq!(config.channels[0].policy.max_queue.get(), 10_000);
    assert_eq!((config.priority.header.as_str(), config.priority.ageing.as_secs()), ("x-pacer-priority", 30));
    assert_eq!(config.channels[0].limits[0].key, [KeyPart::Credential]);
    assert_eq!(retry.max_pause, Duration::from_secs(3_600));
    let LimitKind::TokenBucket { capacity, start, .. } = config.channels[0].limits[0].kind else { panic!() };
    assert_eq!((capacity.get(), start), (1, Start::Full));
}

#[test]
fn what_is_suspect_is_a_warning() {
    insta::assert_snapshot!(fixture("valid/suspect").unwrap().warnings.join("\n\n"));
    let warnings = parse("").unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("nothing is paced"), "{warnings:?}");
}

#[test]
fn the_example_loads_as_it_is() {
    let text = fs::read_to_string("config/ota-pacer.yaml").unwrap();
    let config = config::parse("config/ota-pacer.yaml", &text, |_| None).unwrap();
    assert!(config.redis.is_none() && config.warnings.is_empty());
    insta::assert_snapshot!(check::summary(&config));
}

/// What is commented out in the example is right as well.
#[test]
fn the_example_loads_with_redis_and_a_parent_proxy() {
    let text = fs::read_to_string("config/ota-pacer.yaml").unwrap();
    let text: String = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest == "redis:" || rest.starts_with("  ") => format!("{rest}\n"),
            _ => format!("{}\n", line.replace("  # proxy:", "  proxy:").replace("  # no_proxy:", "  no_proxy:")),
        })
        .collect();
    let config = config::parse("config/ota-pacer.yaml", &text, |_| Some("redis://localhost".to_owned())).unwrap();
    assert_eq!(config.redis.unwrap().expected_instances.get(), 4);
    let proxy = config.upstream.proxy.unwrap();
    assert_eq!((proxy.to_string().as_str(), proxy.bypass.len()), ("http://proxy.corp:3128", 4));
}

#[test]
fn the_checked_in_schema_is_current() {
    let path = Path::new("config/ota-pacer.schema.json");
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(path, schema::json()).unwrap();
    }
    let current = fs::read_to_string(path).unwrap_or_default() == schema::json();
    assert!(current, "run `ota-pacer schema > {}`", path.display());
}

#[test]
fn an_unreadable_file_names_the_way_to_give_one() {
    let error = config::load(Path::new("no/such/file.yaml")).unwrap_err().to_string();
    assert!(error.contains("no/such/file.yaml") && error.contains("`--config FILE`"), "{error}");
    assert!(error.contains("config/ota-pacer.yaml"), "{error}");
    let large = tempfile::NamedTempFile::new().unwrap();
    fs::write(large.path(), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(config::load(large.path()).unwrap_err().to_string().contains("larger than 1 MiB"));
    fs::write(large.path(), [0xff, 0xfe]).unwrap();
    assert!(config::load(large.path()).unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn positions_hold_after_characters_of_several_bytes() {
    let error = parse("# Zürich → 東京\nlisten: nöwhere # ü\n").unwrap_err().to_string();
    assert!(error.contains("test.yaml:2:9") && error.contains("^^^^^^^\n"), "{error}");
}

#[test]
fn an_explanation_says_what_was_passed_over_and_why() {
    let text = fs::read_to_string("config/ota-pacer.yaml").unwrap();
    let config = config::parse("config/ota-pacer.yaml", &text, |_| None).unwrap();
    let explain = |method: &str, url: &str, headers: &[&str]| {
        let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
        let request = explain::Request::new(method.parse().unwrap(), &url.parse().unwrap(), &headers).unwrap();
        explain::explanation(&config, &request)
    };
    let text = [
        explain(
            "POST",
            "https://Supply-XML.booking.com/hotels/%6fta//OTA_HotelAvailNotif?token=hidden",
            &["Authorization: Basic aG90ZWw6cHc="],
        ),
        explain("GET", "http://supply-xml.booking.com:8080/hotels/xml/availability", &[]),
        explain("GET", "https://elsewhere.example", &[]),
    ];
    assert!(!text[0].contains("hidden") && !text[0].contains("aG90") && !text[0].contains("hotel:"));
    insta::assert_snapshot!(text.join("\n----\n\n"));
    for address in ["/path", "http://a:99999/path", "http://a:0/path"] {
        assert!(explain::Request::new(http::Method::GET, &address.parse().unwrap(), &[]).is_err(), "{address}");
    }
    assert!(explain::Request::new(http::Method::GET, &"http://a".parse().unwrap(), &["secret".to_owned()]).is_err());
}

#[test]
fn a_channel_that_is_not_intercepted_is_shown_as_such() {
    let text = "unmatched: { path: refuse }\n\
                channels: { ota: { hosts: [ota.example], intercept: false, limits: [{ rate: 2/s }] } }";
    let config = parse(text).unwrap();
    let request = explain::Request::new(http::Method::GET, &"https://ota.example/rates".parse().unwrap(), &[]).unwrap();
    let explained = explain::explanation(&config, &request);
    for text in [check::summary(&config), explained.clone()] {
        assert!(text.contains("not intercepted: each tunnel takes one slot"), "{text}");
    }
    assert!(explained.contains("takes       1 from ota/*: rate 2/s") && !explained.contains("403"), "{explained}");
}

#[test]
fn an_explanation_says_what_tells_buckets_apart() {
    let config = fixture("valid/full").unwrap();
    let explain = |url: &str, headers: &[&str]| {
        let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
        let request = explain::Request::new(http::Method::GET, &url.parse().unwrap(), &headers).unwrap();
        explain::explanation(&config, &request)
    };
    let text = [
        explain(
            "https://six.example/hotels/4711/rates?room=hidden",
            &["Authorization: EAN APIKey=hidden,Signature=x", "X-Class: batch"],
        ),
        explain("https://six.example/token", &[]),
    ]
    .join("\n----\n\n");
    assert!(!text.contains("hidden"));
    insta::assert_snapshot!(text);
}

/// Exit codes: 0 fine, 2 a mistake in the configuration.
#[test]
fn commands_take_the_file_and_tell_by_their_exit_code() {
    #[derive(clap::Parser)]
    enum Command {
        Check(check::Check),
        Explain(explain::Explain),
    }
    let code = |arguments: &[&str]| {
        let run = match Command::try_parse_from([&["ota-pacer"], arguments].concat()) {
            Ok(Command::Check(check)) => check.run(),
            Ok(Command::Explain(explain)) => explain.run(),
            Err(error) => panic!("{error}"),
        };
        // An exit code can be printed but not compared.
        format!("{:?}", run.expect("standard output takes the text"))
    };
    let (fine, mistaken) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::from(2)));
    let (good, bad) = ("config/ota-pacer.yaml", "tests/fixtures/config/unknown_key.yaml");
    let explain = ["explain", "POST", "https://a.example/b", "-H", "A: b", "-H", "C: d", "--config"];
    assert_eq!(code(&["check", "--config", good]), fine);
    assert_eq!(code(&["check", "--config", bad]), mistaken);
    assert_eq!(code(&[&explain[..], &[good]].concat()), fine);
    assert_eq!(code(&[&explain[..], &[bad]].concat()), mistaken);
    assert_eq!(code(&["check", "--config", "no/such/file.yaml"]), mistaken);
}

#[test]
fn line_ends_of_windows_are_no_mistake() {
    let text = fs::read_to_string("config/ota-pacer.yaml").unwrap().replace('\n', "\r\n");
    let config = config::parse("test.yaml", &format!("\u{feff}{text}"), |_| None).unwrap();
    assert_eq!(config.channels.len(), 2);
    let error = parse("listen: here\r\nadmin: there\r\n").unwrap_err().to_string();
    assert!(error.contains("test.yaml:1:9") && error.contains("test.yaml:2:8"), "{error}");
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-z:{}\\[\\]\\-,&*!|>\"'$ \n\té0-9#]{0,60}") {
        let _ = parse(&text);
    }

    /// A slip of the finger somewhere in a good file.
    #[test]
    fn no_slip_panics(at in 0usize..4_000, cut in 0usize..4, slip in "[:{}\\[\\],*&!\"'$ \n\té0]{0,3}") {
        let text = fs::read_to_string("tests/fixtures/config/valid/full.yaml").unwrap();
        let at = text.floor_char_boundary(at % text.len());
        let end = text.ceil_char_boundary((at + cut).min(text.len()));
        let _ = parse(&format!("{}{slip}{}", &text[..at], &text[end..]));
    }
}

fn parse(text: &str) -> Result<Config, Errors> {
    config::parse("test.yaml", text, |_| None)
}

fn fixture(name: &str) -> Result<Config, Errors> {
    let text = fs::read_to_string(format!("tests/fixtures/config/{name}.yaml")).expect("the fixture is there");
    config::parse(&format!("{name}.yaml"), &text, |variable| match variable {
        "SECRET" => Some(SECRET.to_owned()),
        "REDIS_URL" => Some("redis://redis.internal".to_owned()),
        _ => None,
    })
}

const SECRET: &str = "from-the-environment";

//! `ota-pacer check`: is the configuration right, and what does it amount to.

mod table;

use std::{fmt::Write as _, io::Write as _, process::ExitCode};

use super::config_file::ConfigFile;
use crate::config::{
    Config,
    model::{
        Channel, Credential, Endpoint, Http2, KeyType, Limit, LimitKind, Matcher, OnOutage, Policy, Start, Window,
    },
};

use self::table::Table;

/// Validate the configuration and print the effective limits
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    config: ConfigFile,
}

impl Check {
    /// Prints the effective limits, or every mistake with exit code 2.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.config.with(|config| {
            for warning in &config.warnings {
                eprintln!("{warning}\n");
            }
            std::io::stdout().write_all(summary(&config).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// What `config` amounts to: a table for each channel.
pub fn summary(config: &Config) -> String {
    let mut text = String::new();
    let store = match &config.redis {
        None => "in this process: for a single instance".to_owned(),
        Some(redis) => match redis.on_outage {
            OnOutage::Local => format!("Redis; while it is lost, 1/{} of each rate", redis.expected_instances),
            OnOutage::Closed => "Redis; while it is lost, paced requests are answered 503".to_owned(),
            OnOutage::Open => "Redis; while it is lost, nothing is paced".to_owned(),
        },
    };
    let constrained = if config.ca.name_constraints { ", for the hosts below alone" } else { "" };
    let ca = format!("{}: {}{constrained}", config.ca.dir.display(), key_type(config.ca.key_type));
    let admin = config.admin.map_or_else(|| "nowhere".to_owned(), |admin| admin.to_string());
    let classes = format!(
        "`{}: batch` waits behind the rest, at most {} behind younger requests",
        config.priority.header,
        humantime::format_duration(config.priority.ageing)
    );
    let origins = match &config.upstream.proxy {
        None => "reached directly".to_owned(),
        Some(proxy) => {
            let login = if proxy.credentials.is_some() { ", with its login" } else { "" };
            let bypass: Vec<String> = proxy.bypass.iter().map(ToString::to_string).collect();
            let direct = if bypass.is_empty() { String::new() } else { format!("; {} directly", bypass.join(", ")) };
            format!("reached through {proxy}{login}{direct}")
        }
    };
    let head = [
        ("listen", Some(config.listen.to_string())),
        ("gateway", config.gateway.map(|gateway| gateway.to_string())),
        ("admin", Some(admin)),
        ("buckets", Some(store)),
        ("ca", Some(ca)),
        ("origins", Some(origins)),
        ("classes", Some(classes)),
    ];
    for (name, value) in head.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        writeln!(text, "{name:<8} {value}").expect(STRING);
    }
    for channel in &config.channels {
        let hosts: Vec<String> = channel.hosts.iter().map(ToString::to_string).collect();
        writeln!(text, "\n{}: {}", channel.name, hosts.join(", ")).expect(STRING);
        writeln!(text, "counted by {}", credential(&channel.credential)).expect(STRING);
        if config.gateway.is_some() {
            writeln!(text, "{}", at_gateway(channel)).expect(STRING);
        }
        if !channel.intercept {
            writeln!(text, "{NOT_INTERCEPTED}").expect(STRING);
        }
        if let Some(sides) = http2(channel.http2).filter(|_| channel.intercept) {
            writeln!(text, "HTTP/2 is offered to {sides}").expect(STRING);
        }
        text.push_str(&table(channel).to_string());
    }
    text
}

/// How a channel is asked for at the gateway.
fn at_gateway(channel: &Channel) -> String {
    match &channel.gateway_origin {
        Some(origin) => format!("at the gateway `/{}/` is {origin}/", channel.name),
        None => "at the gateway by its hosts, as in `/https/HOST/`: its name stands for none".to_owned(),
    }
}

/// `RSA 2048`
pub(super) fn key_type(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::P256 => "ECDSA P-256",
        KeyType::Rsa2048 => "RSA 2048",
    }
}

/// What a channel is counted by; never a value.
pub(super) fn credential(credential: &Credential) -> String {
    match credential {
        Credential::BasicUser => "the user of `Authorization: Basic`".to_owned(),
        Credential::Header(name) => format!("the header `{name}`"),
        Credential::Query(name) => format!("the query parameter `{name}`"),
        Credential::AuthorizationParam(name) => format!("the parameter `{name}` of `Authorization`"),
        Credential::Label(_) => "one label for all requests".to_owned(),
    }
}

/// The sides that may speak HTTP/2.
fn http2(offered: Http2) -> Option<&'static str> {
    match offered {
        Http2 { clients: true, origin: true } => Some("clients and the origin"),
        Http2 { clients: true, origin: false } => Some("clients"),
        Http2 { clients: false, origin: true } => Some("the origin"),
        Http2 { clients: false, origin: false } => None,
    }
}

/// `POST /hotels/xml/availability`
pub(super) fn rule(matcher: &Matcher) -> String {
    match &matcher.methods {
        None => matcher.path.to_string(),
        Some(methods) => {
            let methods: Vec<&str> = methods.iter().map(|method| method.as_str()).collect();
            format!("{} {}", methods.join("|"), matcher.path)
        }
    }
}

/// What a limit allows: how much and how often, and how much at once.
pub(super) fn limit(limit: &Limit) -> (String, String) {
    match limit.kind {
        LimitKind::TokenBucket { rate, capacity, start } => {
            let start = if start == Start::Empty { " (starts empty)" } else { "" };
            let adaptive = limit
                .adaptive
                .map_or_else(String::new, |adaptive| format!(" (adaptive, at least {})", rate.scaled(adaptive.floor)));
            (format!("{rate}{adaptive}"), format!("{capacity}{start}"))
        }
        LimitKind::Window { count, per, window } => {
            let per = humantime::format_duration(per);
            let rate = match window {
                Window::Sliding => format!("{count} in any {per}"),
                Window::Clock => format!("{count} in each {per} of the clock"),
            };
            (rate, count.to_string())
        }
        LimitKind::Concurrent { most } => ("any".to_owned(), format!("{most} under way")),
    }
}

/// What tells the buckets of a limit apart, as in the file.
pub(super) fn key(limit: &Limit) -> String {
    let parts: Vec<String> = limit.key.iter().map(ToString::to_string).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(" + ") }
}

fn table(channel: &Channel) -> Table {
    let mut table = Table::new(["endpoint", "matches", "rate", "capacity", "key", "cost", "max_wait", "attempts"]);
    rows(&mut table, ["*", "every request of the channel"], &channel.limits, "", &channel.policy);
    for endpoint in &channel.endpoints {
        let Endpoint { name, matcher, limits, cost, exempt, policy } = &**endpoint;
        if *exempt {
            let attempts = policy.retry.attempts.to_string();
            table.row([name, &rule(matcher), "exempt", "-", "-", "-", "-", &attempts]);
        } else {
            rows(&mut table, [name, &rule(matcher)], limits, &cost.to_string(), policy);
        }
    }
    table
}

/// One row a limit; the first one says whose they are.
fn rows(table: &mut Table, [name, matches]: [&str; 2], limits: &[Limit], cost: &str, policy: &Policy) {
    let max_wait = humantime::format_duration(policy.max_wait).to_string();
    let attempts = policy.retry.attempts.to_string();
    let shown = |one: &Limit| {
        let (rate, capacity) = limit(one);
        [rate, capacity, key(one)]
    };
    let mut limits = limits.iter().map(shown);
    let [rate, capacity, key] = limits.next().unwrap_or_else(|| ["no limit", "-", "-"].map(str::to_owned));
    table.row([name, matches, &rate, &capacity, &key, cost, &max_wait, &attempts]);
    for [rate, capacity, key] in limits {
        table.row(["", "", &rate, &capacity, &key, "", "", ""]);
    }
}

/// What `intercept: false` amounts to.
pub(super) const NOT_INTERCEPTED: &str =
    "not intercepted: each tunnel takes one slot, however many requests it carries";

const STRING: &str = "a String takes every write";

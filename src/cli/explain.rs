//! `ota-pacer explain`: which rule and which limits a request meets, and why.

use std::{fmt::Write as _, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::{
    cli::check::{NOT_INTERCEPTED, credential, limit, rule},
    config::{
        self, Config,
        host::Host,
        model::{Credential, Limit, UnmatchedHost, UnmatchedPath},
        path::normalize,
    },
    route::{Match, Route, Router, Verdict},
};

/// Say which channel, endpoint and limits a request meets, and why
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// The method, for example `POST`
    pub method: Method,
    /// The address, for example `https://supply-xml.booking.com/hotels/xml/availability`
    pub url: Uri,
    /// A header of the request, `Name: value`; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "OTA_PACER_CONFIG", default_value = "config/ota-pacer.yaml")]
    pub config: PathBuf,
}

impl Explain {
    /// Prints the explanation; exit code 2 when the configuration has mistakes.
    ///
    /// # Errors
    /// When the address or a header cannot be read, or standard output not be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let request = Request::new(self.method, &self.url, &self.headers)?;
        match config::load(&self.config) {
            Ok(config) => {
                std::io::stdout().write_all(explanation(&config, &request).as_bytes())?;
                Ok(ExitCode::SUCCESS)
            }
            Err(errors) => {
                eprintln!("{errors}");
                Ok(ExitCode::from(2))
            }
        }
    }
}

/// The request to explain.
#[derive(Debug)]
pub struct Request {
    method: Method,
    scheme: &'static str,
    host: Host,
    port: u16,
    path_and_query: http::uri::PathAndQuery,
    headers: HeaderMap,
}

impl Request {
    /// Puts together what was typed.
    ///
    /// # Errors
    /// When `url` is not absolute, its scheme is neither `http` nor `https`, its host is none, or a header is malformed.
    pub fn new(method: Method, url: &Uri, headers: &[String]) -> anyhow::Result<Self> {
        let (scheme, port) = match url.scheme_str() {
            Some("https") => ("https", 443),
            Some("http") => ("http", 80),
            _ => bail!(
                "the address needs its scheme\n\nhint: for example `https://supply-xml.booking.com/hotels/xml/availability`"
            ),
        };
        let host =
            Host::parse(url.host().unwrap_or_default()).context("the address has no host that can be matched")?;
        let path_and_query = url.path_and_query().cloned().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let mut map = HeaderMap::new();
        for header in headers {
            // The header may hold a password: it is not repeated in the error.
            let parsed = header.split_once(':').and_then(|(name, value)| {
                Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, HeaderValue::from_str(value.trim()).ok()?))
            });
            ensure!(parsed.is_some(), "a header could not be read\n\nhint: write it as `-H 'Name: value'`");
            map.extend(parsed.map(|(name, value)| (Some(name), value)));
        }
        Ok(Self { method, scheme, host, port: url.port_u16().unwrap_or(port), path_and_query, headers: map })
    }
}

/// Which rule and which limits `request` meets under `config`, and why. Holds no credential and no query.
pub fn explanation(config: &Config, request: &Request) -> String {
    let Request { method, scheme, host, port, path_and_query, headers } = request;
    let path = path_and_query.path();
    let router = Router::new(config);
    let mut lines = vec![format!("{method} {scheme}://{host}:{port}{path}")];
    let normal = normalize(path);
    if normal != path {
        lines.push(format!("compared as {normal}"));
    }
    lines.push(String::new());
    match router.route(host, *port, method, path_and_query, headers) {
        Route::Unmatched => lines.push(match config.unmatched.host {
            UnmatchedHost::Tunnel => {
                "no channel claims the host: passed on unpaced (`unmatched.host: tunnel`)".to_owned()
            }
            UnmatchedHost::Refuse => "no channel claims the host: answered 403 (`unmatched.host: refuse`)".to_owned(),
        }),
        Route::Matched(found) => lines.extend(matched(config, &found)),
    }
    let hosts = router.explain_host(host, *port);
    if !hosts.is_empty() {
        lines.extend([String::new(), "hosts, most specific first".to_owned()]);
        let width = hosts.iter().map(|found| found.pattern.to_string().len()).max().unwrap_or_default();
        for found in &hosts {
            let pattern = found.pattern.to_string();
            lines.push(format!("  {pattern:<width$}  {}: {}", found.channel.name, reason(found.verdict)));
        }
    }
    let endpoints = router.explain_path(host, *port, method, path);
    if !endpoints.is_empty() {
        lines.extend([String::new(), "endpoints, most specific first".to_owned()]);
        let width = endpoints.iter().map(|found| rule(&found.endpoint.matcher).len()).max().unwrap_or_default();
        for found in &endpoints {
            let rule = rule(&found.endpoint.matcher);
            lines.push(format!("  {rule:<width$}  {}: {}", found.endpoint.name, reason(found.verdict)));
        }
    }
    lines.join("\n") + "\n"
}

fn matched(config: &Config, found: &Match) -> Vec<String> {
    let Match { channel, endpoint, credential: value } = found;
    let mut lines = vec![format!("channel     {}", channel.name)];
    lines.push(match endpoint {
        _ if !channel.intercept => format!("endpoint    none: {NOT_INTERCEPTED}"),
        Some(endpoint) => format!("endpoint    {} ({})", endpoint.name, rule(&endpoint.matcher)),
        None => match config.unmatched.path {
            UnmatchedPath::Pass => {
                "endpoint    none: only the channel's limits hold (`unmatched.path: pass`)".to_owned()
            }
            UnmatchedPath::Refuse => "endpoint    none: answered 403 (`unmatched.path: refuse`)".to_owned(),
        },
    });
    let counted = credential(&channel.credential);
    lines.push(match (&channel.credential, value) {
        (Credential::Label(_), _) | (_, Some(_)) => format!("counted by  {counted}"),
        (_, None) => format!("counted by  {counted}, which this request does not carry"),
    });
    if channel.intercept && endpoint.is_none() && config.unmatched.path == UnmatchedPath::Refuse {
        return lines;
    }
    let cost = endpoint.as_ref().map_or(1, |endpoint| endpoint.cost.get());
    let own = endpoint.iter().flat_map(|endpoint| endpoint.limits.iter().map(|limit| (endpoint.name.as_str(), limit)));
    let limits: Vec<(&str, &Limit)> = channel.limits.iter().map(|limit| ("*", limit)).chain(own).collect();
    for (bucket, one) in &limits {
        let (rate, capacity) = limit(one);
        lines.push(format!("takes       {cost} from {}/{bucket}: rate {rate}, capacity {capacity}", channel.name));
    }
    if limits.is_empty() {
        lines.push("takes       nothing: no limit holds".to_owned());
    }
    let policy = found.policy();
    let mut waits = format!("waits       at most {}", humantime::format_duration(policy.max_wait));
    write!(waits, ", sent at most {} times", policy.retry.attempts).expect("a String takes every write");
    lines.push(waits);
    lines
}

fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Taken => "taken",
        Verdict::LessSpecific => "passed over, less specific",
        Verdict::OtherPort => "passed over, another port",
        Verdict::OtherMethod => "passed over, another method",
        Verdict::OtherPath => "passed over, another path",
    }
}

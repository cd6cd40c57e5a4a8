//! `ota-pacer explain`: which rule and which limits a request meets, and why.

use std::{fmt::Write as _, io::Write as _, process::ExitCode};

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::{WrongUsage, config_file::ConfigFile};
use crate::{
    cli::check::{NOT_INTERCEPTED, credential, key, limit, rule},
    config::{
        Config,
        host::{self, Host},
        model::{Credential, KeyPart, Limit, LimitKind, UnmatchedHost, UnmatchedPath},
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
    #[arg(value_parser = address)]
    pub url: Uri,
    /// A header of the request, `Name: value`; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    #[command(flatten)]
    config: ConfigFile,
}

impl Explain {
    /// Prints the explanation; exit code 2 when the configuration has mistakes.
    ///
    /// # Errors
    /// When the address or a header cannot be read, or standard output not be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let request = Request::new(self.method, &self.url, &self.headers).map_err(WrongUsage)?;
        self.config.with(|config| {
            std::io::stdout().write_all(explanation(&config, &request).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        })
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
        let named = url.authority().map(host::port).transpose().context("the address cannot be matched")?;
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
        Ok(Self { method, scheme, host, port: named.flatten().unwrap_or(port), path_and_query, headers: map })
    }
}

/// The parser alone says no more than that the text is no address.
fn address(text: &str) -> Result<Uri, String> {
    text.parse().map_err(|error| {
        format!(
            "{error}\n\nhint: write it with its scheme and as it is sent, `https://supply-xml.booking.com/a%20path`"
        )
    })
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
    let Match { channel, endpoint, credential: value, .. } = found;
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
    let policy = found.policy();
    let sent = format!("sent at most {} times", policy.retry.attempts);
    if endpoint.as_ref().is_some_and(|endpoint| endpoint.exempt) {
        lines.push("takes       nothing: the endpoint is exempt, from the channel's limits too".to_owned());
        lines.push(format!("waits       for nothing, {sent}"));
        return lines;
    }
    let own = endpoint.iter().flat_map(|endpoint| endpoint.limits.iter().map(|limit| (endpoint.name.as_str(), limit)));
    let limits: Vec<(&str, &Limit)> = channel.limits.iter().map(|limit| ("*", limit)).chain(own).collect();
    let cost = endpoint.as_ref().map_or(1, |endpoint| endpoint.cost.get());
    lines.extend(limits.iter().map(|(bucket, limit)| taken(found, bucket, limit, cost)));
    if limits.is_empty() {
        lines.push("takes       nothing: no limit holds".to_owned());
    }
    let max_wait = humantime::format_duration(policy.max_wait);
    lines.push(format!("waits       at most {max_wait}, in a line of at most {}, {sent}", policy.max_queue));
    if !limits.is_empty() {
        lines.push(format!("class       named by `{}`: `interactive` or `batch`", config.priority.header));
    }
    lines
}

/// What a request takes from one limit, and from which of its buckets.
fn taken(found: &Match, bucket: &str, one: &Limit, cost: u32) -> String {
    let (rate, capacity) = limit(one);
    let (cost, allows) = match one.kind {
        LimitKind::TokenBucket { .. } => (cost, format!("rate {rate}, capacity {capacity}")),
        LimitKind::Window { .. } => (cost, rate),
        LimitKind::Concurrent { .. } => (1, capacity),
    };
    let mut line = format!("takes       {cost} from {}/{bucket}: {allows}", found.channel.name);
    if one.key.is_empty() {
        line.push_str(", one bucket for all");
    } else if one.key != [KeyPart::Credential] {
        write!(line, ", by key {}", key(one)).expect("a String takes every write");
        let missing = one.key.iter().filter(|part| **part != KeyPart::Credential && found.value(part).is_none());
        let missing: Vec<String> = missing.map(|part| format!("`{part}`")).collect();
        if !missing.is_empty() {
            write!(line, " (this request has no {})", missing.join(", ")).expect("a String takes every write");
        }
    }
    line
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_read_comes_back_with_a_hint() {
        assert!(address("https://ota.test/a").is_ok());
        for text in ["ota.test/a", "https://ota.test/a b", "https://", ""] {
            assert!(address(text).unwrap_err().contains("\n\nhint: "), "{text}");
        }
    }
}

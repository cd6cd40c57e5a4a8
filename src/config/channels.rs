//! `channels`: hosts, credentials, limits and endpoints.

use std::{num::NonZeroU32, rc::Rc, sync::Arc, time::Duration};

use http::{HeaderName, Method};

use super::{
    conflict::{self, Claim},
    document::{Entry, Kind, Node},
    mistake::{Invalid, Mistake, Span, nearest},
    model::{
        Channel, Credential, Endpoint, HostPattern, KeyPart, Limit, LimitKind, Matcher, PathPattern, Policy, Start,
    },
    reader::{Context, Section, count, flag, text, word},
    schema,
    settings::policy,
    units::{Rate, decimal, positive_duration, rate},
};

/// All channels, with their policies over `defaults`.
pub(super) fn channels(file: &Section<'_>, defaults: Policy) -> Vec<Arc<Channel>> {
    let cx = file.context();
    let mut hosts = Vec::new();
    let mut channels = Vec::new();
    for entry in file.named("channels", "for example `channels: { booking_com: { hosts: [supply-xml.booking.com] } }`")
    {
        let what = format!("channel `{}`", entry.key.escape_debug());
        let section = Section::open::<schema::Channel>(cx, &what, &entry.span, Some(&*entry.value), &[]);
        channels.push(Arc::new(channel(&section, &entry.key, &what, defaults, &mut hosts)));
        section.finish();
    }
    conflict::hosts(cx, &hosts);
    if channels.is_empty() {
        let hint = "name the OTAs under `channels`, each with its `hosts` and `limits`";
        cx.warning(Mistake::new(&file.span("channels"), "no channel is configured: nothing is paced", hint));
    }
    channels
}

fn channel(
    section: &Section<'_>,
    name: &str,
    what: &str,
    defaults: Policy,
    claimed: &mut Vec<Claim<HostPattern>>,
) -> Channel {
    let cx = section.context();
    section.require("hosts", what, HOSTS_HINT);
    let items = section.list("hosts", HOSTS_HINT);
    if items.is_empty()
        && matches!(section.entry("hosts"), Some(entry) if matches!(entry.value.kind, Kind::Sequence(_)))
    {
        cx.mistake(Mistake::new(&section.span("hosts"), format!("{what} has no hosts"), HOSTS_HINT));
    }
    let mut hosts = Vec::new();
    for item in items {
        if let Some(pattern) = cx.parse("`hosts`", item, HostPattern::parse) {
            claimed.push(Claim { span: item.span.clone(), rule: pattern.clone() });
            hosts.push(pattern);
        }
    }
    let intercept = section.read("intercept", flag).unwrap_or(true);
    let policy = policy(section, defaults);
    let shared = limits(section);
    let mut claims = Vec::new();
    let mut endpoints = Vec::new();
    for entry in section.named("endpoints", "for example `endpoints: { rates: { match: { path: /rates } } }`") {
        let what = format!("endpoint `{}`", entry.key.escape_debug());
        let section = Section::open::<schema::Endpoint>(cx, &what, &entry.span, Some(&*entry.value), &[]);
        if let Some((endpoint, at)) = endpoint(&section, &entry.key, &what, policy, &shared) {
            claims.push(Claim { span: at, rule: endpoint.matcher.clone() });
            endpoints.push(Arc::new(endpoint));
        }
        section.finish();
    }
    conflict::endpoints(cx, &claims);
    let credential = credential(section);
    if !intercept {
        check_unintercepted(section, what, &credential, &shared);
    }
    Channel {
        name: name.to_owned(),
        hosts,
        intercept,
        credential,
        limits: shared.into_iter().map(|(limit, _)| limit).collect(),
        endpoints,
        policy,
    }
}

/// Of a tunnel that is relayed unread, nothing is known but its host.
fn check_unintercepted(section: &Section<'_>, what: &str, credential: &Credential, limits: &[(Limit, Span)]) {
    let (cx, intercept) = (section.context(), section.span("intercept"));
    let refuse = |key, message: String, hint| {
        cx.mistake(Mistake::new(&section.span(key), message, hint).with(&intercept, "not intercepted"));
    };
    if matches!(section.entry("endpoints"), Some(entry) if matches!(&entry.value.kind, Kind::Mapping(entries) if !entries.is_empty()))
    {
        let hint = "requests inside a tunnel are not seen; move the limits to the channel, or intercept it";
        refuse("endpoints", format!("{what} has endpoints, but is not intercepted"), hint);
    }
    if !matches!(credential, Credential::Label(_)) {
        let hint = "requests inside a tunnel are not seen; count the channel as one with `label`, or leave it out";
        refuse("credential", format!("{what} is counted by its requests, but is not intercepted"), hint);
    }
    for (_, span) in limits.iter().filter(|(limit, _)| limit.key.iter().any(|part| *part != KeyPart::Credential)) {
        let message = format!("a limit is counted by requests, but {what} is not intercepted");
        let hint = "requests inside a tunnel are not seen; leave `key` out";
        cx.mistake(Mistake::new(span, message, hint).with(&intercept, "not intercepted"));
    }
    let message = if limits.is_empty() {
        format!("{what} is not intercepted and has no limits: its tunnels are not paced")
    } else {
        format!("{what} is not intercepted: each tunnel is paced once, however many requests it carries")
    };
    let hint = "set `limits` to what connections may be opened; leave `intercept` out to have each request paced";
    cx.warning(Mistake::new(&intercept, message, hint));
}

/// The endpoint and where its path stands; `None` when there is no path to match by.
fn endpoint(
    section: &Section<'_>,
    name: &str,
    what: &str,
    inherited: Policy,
    shared: &[(Limit, Span)],
) -> Option<(Endpoint, Span)> {
    let cx = section.context();
    section.require("match", what, MATCH_HINT);
    let rule = section.section::<schema::Match>("match", &["host", "header", "query", "body"]);
    if matches!(section.entry("match"), Some(entry) if matches!(entry.value.kind, Kind::Mapping(_))) {
        rule.require("path", "`match`", "`path: /**` matches every path");
    }
    let path = rule.read("path", PathPattern::parse);
    let methods = methods(&rule);
    let at = rule.span("path");
    rule.finish();

    let own = limits(section);
    let cost = section.read("cost", count::<NonZeroU32>).unwrap_or(NonZeroU32::MIN);
    for (limit, span) in own.iter().chain(shared) {
        let LimitKind::TokenBucket { capacity, .. } = limit.kind else { continue };
        if cost > capacity {
            let message = format!("{what} costs {cost}, more than the capacity {capacity} of its limit");
            let hint = "no request could ever be sent; raise `capacity` or lower `cost`";
            cx.mistake(Mistake::new(&section.span("cost"), message, hint).with(span, "this limit"));
        }
    }
    let policy = policy(section, inherited);
    warn_of_short_wait(section, what, cost, &own, shared, policy.max_wait);
    let limits = own.into_iter().map(|(limit, _)| limit).collect();
    Some((
        Endpoint {
            name: name.to_owned(),
            matcher: Matcher { methods, path: path? },
            limits,
            cost,
            exempt: false,
            policy,
        },
        at,
    ))
}

/// A request that finds its bucket spent waits at least for its own refill.
fn warn_of_short_wait(
    section: &Section<'_>,
    what: &str,
    cost: NonZeroU32,
    own: &[(Limit, Span)],
    shared: &[(Limit, Span)],
    max_wait: Duration,
) {
    for (limit, span) in own.iter().chain(shared) {
        let LimitKind::TokenBucket { rate, .. } = limit.kind else { continue };
        let refill = rate.interval_micros() * f64::from(cost.get());
        if refill > max_wait.as_secs_f64() * 1e6 {
            let message = format!(
                "{what} refills one request in {}, longer than its `max_wait` of {}",
                humantime::format_duration(Duration::from_millis((refill / 1e3) as u64)),
                humantime::format_duration(max_wait)
            );
            let hint =
                "once the bucket is spent, requests are answered 429 by the proxy; raise `max_wait` to hold them";
            let warning = Mistake::new(&section.span("max_wait"), message, hint).with(span, "this limit");
            section.context().warning(warning);
            return;
        }
    }
}

fn methods(rule: &Section<'_>) -> Option<Vec<Method>> {
    let cx = rule.context();
    let node = &*rule.entry("method")?.value;
    let one = |node: &Node| cx.parse("`method`", node, method);
    let mut methods: Vec<Method> = match &node.kind {
        Kind::Sequence(items) => items.iter().filter_map(|item| one(item)).collect(),
        _ => one(node).into_iter().collect(),
    };
    if matches!(&node.kind, Kind::Sequence(items) if items.is_empty()) {
        cx.mistake(Mistake::new(&node.span, "`method` is an empty list", "leave `method` out to match any"));
    }
    methods.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    methods.dedup();
    (!methods.is_empty()).then_some(methods)
}

/// Methods are case-sensitive (RFC 9110 section 9.1); CONNECT opens tunnels and is never matched by a path.
fn method(text: &str) -> Result<Method, Invalid> {
    let text = text.trim();
    if METHODS.contains(&text) {
        return Ok(Method::from_bytes(text.as_bytes()).expect("every known method is a token"));
    }
    if text == "CONNECT" {
        return Err(Invalid::new("a tunnel has no path", "requests inside the tunnel are matched by their own method"));
    }
    let upper = text.to_ascii_uppercase();
    let guess = nearest(&upper, METHODS).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    match Method::from_bytes(text.as_bytes()) {
        // PROPFIND and its like: anything that is no slip of a known one.
        Ok(method) if guess.is_empty() && upper == text => Ok(method),
        _ => Err(Invalid::new("unknown method", format!("{guess}for example `POST` or `[GET, HEAD]`"))),
    }
}

fn credential(channel: &Section<'_>) -> Credential {
    let section = channel.section::<schema::Credential>("credential", &["jwt", "body", "xml", "json"]);
    let basic = section.read("basic_user", |text| match flag(text)? {
        true => Ok(Credential::BasicUser),
        false => Err(Invalid::new("can only be `true`", "leave it out to count by something else")),
    });
    let header = section.read("header", |text| {
        let name = HeaderName::from_bytes(text.trim().as_bytes());
        name.map(Credential::Header)
            .map_err(|_| Invalid::new("not the name of a header", "for example `header: X-Api-Key`"))
    });
    let query = section.read("query", text).map(Credential::Query);
    let label = section.read("label", text).map(Credential::Label);
    let written = CREDENTIALS.iter().filter(|key| section.entry(key).is_some()).count();
    if let Some(Entry { span, value, .. }) = channel.entry("credential")
        && let Kind::Mapping(entries) = &value.kind
        && (written > 1 || entries.is_empty())
    {
        let message =
            if written == 0 { "`credential` names nothing" } else { "`credential` names more than one thing" };
        let hint = "an OTA counts by one of `basic_user: true`, `header: NAME`, `query: NAME` and `label: TEXT`";
        section.context().mistake(Mistake::new(span, message, hint));
    }
    section.finish();
    basic.or(header).or(query).or(label).unwrap_or_default()
}

fn limits(section: &Section<'_>) -> Vec<(Limit, Span)> {
    let cx = section.context();
    let items = section.list("limits", "a list, for example `limits: [{ rate: 20/s, capacity: 40 }]`");
    items.iter().filter_map(|item| limit(cx, item).map(|limit| (limit, item.span.clone()))).collect()
}

fn limit(cx: &Context<'_>, item: &Rc<Node>) -> Option<Limit> {
    let later = ["count", "per", "window", "concurrent", "key"];
    let section = Section::open::<schema::Limit>(cx, "a limit", &item.span, Some(item), &later);
    let rate = section.read("rate", rate);
    let interval = section.read("interval", |text| {
        let interval = positive_duration(text)?;
        Rate::new(1.0, interval).ok_or_else(|| Invalid::new("no interval that can be kept", "for example `100ms`"))
    });
    let capacity = section.read("capacity", count::<NonZeroU32>).unwrap_or(NonZeroU32::MIN);
    let start = section.read("start", word(&[("full", Start::Full), ("empty", Start::Empty)])).unwrap_or(Start::Full);
    let safety = section.read("safety", fraction).unwrap_or(1.0);
    if let Kind::Mapping(entries) = &item.kind {
        let has_later = entries.iter().any(|entry| later.contains(&entry.key.as_str()));
        match (section.entry("rate"), section.entry("interval")) {
            (Some(_), Some(other)) => {
                let hint =
                    "`interval: 100ms` is the same as `rate: 1/100ms` with `capacity: 1`; for both, write two limits";
                cx.mistake(Mistake::new(&other.span, "a limit has either `rate` or `interval`", hint));
            }
            (None, None) if !has_later => {
                let hint = "for example `{ rate: 20/s, capacity: 40 }` or `{ interval: 100ms }`";
                cx.mistake(Mistake::new(&item.span, "a limit needs `rate` or `interval`", hint));
            }
            (None, Some(_)) if let Some(capacity) = section.entry("capacity") => {
                let hint = "an interval spaces single requests; write `rate` to allow bursts of `capacity`";
                cx.mistake(Mistake::new(&capacity.span, "`capacity` does not go with `interval`", hint));
            }
            _ => {}
        }
    } else if item.is_null() {
        cx.mistake(Mistake::new(&item.span, "an empty limit", "for example `{ rate: 20/s, capacity: 40 }`"));
    }
    section.finish();
    let kind = LimitKind::TokenBucket { rate: rate.or(interval)?.scaled(safety), capacity, start };
    Some(Limit { kind, key: vec![KeyPart::Credential], adaptive: None })
}

fn fraction(text: &str) -> Result<f64, Invalid> {
    decimal(text)
        .filter(|safety| *safety > 0.0 && *safety <= 1.0)
        .ok_or_else(|| Invalid::new("not a number above 0 and at most 1", "`safety: 0.9` uses nine tenths of the rate"))
}

const CREDENTIALS: [&str; 4] = ["basic_user", "header", "query", "label"];
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
const HOSTS_HINT: &str = "for example `hosts: [supply-xml.booking.com, \"*.booking.test\"]`";
const MATCH_HINT: &str = "for example `match: { method: POST, path: /hotels/xml/availability }`";

//! `channels`: hosts, credentials and endpoints.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderName, Method};

use super::{
    conflict::{self, Claim},
    document::{Entry, Kind, Node},
    gateway,
    limits::{Owner, limits},
    mistake::{Invalid, Mistake, Span, nearest},
    model::{Channel, Credential, Endpoint, HostPattern, KeyPart, Limit, LimitKind, Matcher, PathPattern, Policy},
    reader::{Section, count, flag, text},
    schema,
    settings::{Defaults, http2, policy},
};

/// All channels, with their settings over `defaults`.
pub(super) fn channels(file: &Section<'_>, defaults: Defaults) -> Vec<Arc<Channel>> {
    let cx = file.context();
    let has_gateway = file.entry("gateway").is_some();
    let mut hosts = Vec::new();
    let mut channels = Vec::new();
    for entry in file.named("channels", "for example `channels: { booking_com: { hosts: [supply-xml.booking.com] } }`")
    {
        let what = format!("channel `{}`", entry.key.escape_debug());
        gateway::refuse_scheme(file, entry, has_gateway);
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
    defaults: Defaults,
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
    let gateway_origin = gateway::origin(section, what, &hosts);
    let intercept = section.read("intercept", flag).unwrap_or(true);
    let http2 = http2(section, defaults.http2);
    let policy = policy(section, defaults.policy);
    let shared = limits(section, Owner::Channel);
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
        gateway_origin,
        intercept,
        http2,
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
    if section.entry("http2").is_some() {
        let hint = "client and origin agree on the version between themselves; leave `http2` out, or intercept it";
        refuse("http2", format!("{what} has `http2`, but is not intercepted"), hint);
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
    section.require("match", what, MATCH_HINT);
    let rule = section.section::<schema::Match>("match", &["host", "header", "query", "body"]);
    if matches!(section.entry("match"), Some(entry) if matches!(entry.value.kind, Kind::Mapping(_))) {
        rule.require("path", "`match`", "`path: /**` matches every path");
    }
    let path = rule.read("path", PathPattern::parse);
    let methods = methods(&rule);
    let at = rule.span("path");
    rule.finish();

    let own = limits(section, Owner::Endpoint(path.as_ref()));
    let cost = section.read("cost", count::<NonZeroU32>).unwrap_or(NonZeroU32::MIN);
    let exempt = section.read("exempt", flag).unwrap_or(false);
    let policy = policy(section, inherited);
    if exempt {
        refuse_what_is_exempt(section, what);
    } else {
        refuse_high_cost(section, what, cost, own.iter().chain(shared));
        warn_of_short_wait(section, what, cost, own.iter().chain(shared), policy.max_wait);
    }
    let limits = own.into_iter().map(|(limit, _)| limit).collect();
    Some((
        Endpoint { name: name.to_owned(), matcher: Matcher { methods, path: path? }, limits, cost, exempt, policy },
        at,
    ))
}

/// An exempt endpoint takes from nothing.
fn refuse_what_is_exempt(section: &Section<'_>, what: &str) {
    let exempt = section.span("exempt");
    for key in ["limits", "cost"] {
        if let Some(entry) = section.entry(key) {
            let message = format!("{what} is exempt, yet has `{key}`");
            let hint = format!("requests of an exempt endpoint pass unpaced; leave out `{key}` or `exempt`");
            section.context().mistake(Mistake::new(&entry.span, message, hint).with(&exempt, "exempt here"));
        }
    }
}

/// A request that costs more than a limit ever holds.
fn refuse_high_cost<'l>(
    section: &Section<'_>,
    what: &str,
    cost: NonZeroU32,
    limits: impl Iterator<Item = &'l (Limit, Span)>,
) {
    for (limit, span) in limits {
        let (key, most) = match limit.kind {
            LimitKind::TokenBucket { capacity, .. } => ("capacity", capacity),
            LimitKind::Window { count, .. } => ("count", count),
            LimitKind::Concurrent { .. } => continue,
        };
        if cost > most {
            let message = format!("{what} costs {cost}, more than the {key} {most} of its limit");
            let hint = format!("no request could ever be sent; raise `{key}` or lower `cost`");
            section.context().mistake(Mistake::new(&section.span("cost"), message, hint).with(span, "this limit"));
        }
    }
}

/// A limit that in the long run lets a request through less often than requests are held for.
fn warn_of_short_wait<'l>(
    section: &Section<'_>,
    what: &str,
    cost: NonZeroU32,
    mut limits: impl Iterator<Item = &'l (Limit, Span)>,
    max_wait: Duration,
) {
    // In seconds; as a number, because a rate made tiny by its `safety` exceeds any duration.
    let spacing = |limit: &Limit| match limit.kind {
        LimitKind::TokenBucket { rate, .. } => f64::from(cost.get()) / rate.per_second(),
        LimitKind::Window { count, per, .. } => per.as_secs_f64() * f64::from(cost.get()) / f64::from(count.get()),
        LimitKind::Concurrent { .. } => 0.0,
    };
    let Some((limit, span)) = limits.find(|(limit, _)| spacing(limit) > max_wait.as_secs_f64()) else { return };
    let message = format!(
        "{what} has room for one request in {}, longer than its `max_wait` of {}",
        humantime::format_duration(Duration::from_millis((spacing(limit) * 1e3).round() as u64)),
        humantime::format_duration(max_wait)
    );
    let hint = "once the limit is spent, requests are answered 429 by the proxy; raise `max_wait` to hold them";
    section.context().warning(Mistake::new(&section.span("max_wait"), message, hint).with(span, "this limit"));
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
    let parameter = section.read("authorization_param", |text| match text.trim() {
        name if is_token(name) => Ok(Credential::AuthorizationParam(name.to_owned())),
        _ => Err(Invalid::new("not the name of a parameter", "for example `APIKey` for `Authorization: EAN APIKey=…`")),
    });
    let label = section.read("label", text).map(Credential::Label);
    let written = CREDENTIALS.iter().filter(|key| section.entry(key).is_some()).count();
    if let Some(Entry { span, value, .. }) = channel.entry("credential")
        && let Kind::Mapping(entries) = &value.kind
        && (written > 1 || entries.is_empty())
    {
        let message =
            if written == 0 { "`credential` names nothing" } else { "`credential` names more than one thing" };
        let hint = "an OTA counts by one of `basic_user: true`, `header: NAME`, `query: NAME`, \
                    `authorization_param: NAME` and `label: TEXT`";
        section.context().mistake(Mistake::new(span, message, hint));
    }
    section.finish();
    basic.or(header).or(query).or(parameter).or(label).unwrap_or_default()
}

/// What the name of a parameter is made of (RFC 9110 section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

const CREDENTIALS: [&str; 5] = ["basic_user", "header", "query", "authorization_param", "label"];
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
const HOSTS_HINT: &str = "for example `hosts: [supply-xml.booking.com, \"*.booking.test\"]`";
const MATCH_HINT: &str = "for example `match: { method: POST, path: /hotels/xml/availability }`";

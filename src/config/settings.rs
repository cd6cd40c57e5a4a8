//! The sections beside `channels`: addresses, Redis, certificates, origins, defaults.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    time::Duration,
};

use http::HeaderName;
use secrecy::SecretString;

use super::{
    mistake::{Invalid, Mistake},
    model::{
        Ca, Http2, KeyType, OnOutage, Policy, Priority, Redis, Retry, Unmatched, UnmatchedHost, UnmatchedPath, Upstream,
    },
    parent,
    reader::{Section, count, flag, text, word},
    schema,
    units::{duration, positive_duration, size},
};

/// Where an instance listens.
pub(super) struct Addresses {
    pub(super) listen: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
    pub(super) gateway: Option<SocketAddr>,
}

/// `listen`, `admin` and `gateway`.
pub(super) fn addresses(file: &Section<'_>) -> Addresses {
    let listen = file.read("listen", address).unwrap_or(LISTEN);
    let admin = file.read("admin", address);
    let gateway = file.read("gateway", address);
    let (of_listen, of_admin) = (("listen", Some(listen), "`listen` is here"), ("admin", admin, "`admin` is here"));
    refuse_shared(file, ("admin", admin, "127.0.0.1:9090"), &[of_listen]);
    refuse_shared(file, ("gateway", gateway, "127.0.0.1:8081"), &[of_listen, of_admin]);
    Addresses { listen, admin, gateway }
}

/// Two sockets cannot have one address. A key comes with its address, and with an example or the label of its place.
fn refuse_shared(
    file: &Section<'_>,
    (key, address, example): (&'static str, Option<SocketAddr>, &str),
    others: &[(&'static str, Option<SocketAddr>, &'static str)],
) {
    let Some(address) = address.filter(|address| address.port() != 0) else { return };
    for (other, _, label) in others.iter().filter(|(_, taken, _)| *taken == Some(address)) {
        let hint = format!("give each its own port, for example `{example}` for `{key}`");
        let mistake = Mistake::new(&file.span(key), format!("`{key}` is the same address as `{other}`"), hint);
        file.context().mistake(match file.entry(other) {
            Some(entry) => mistake.with(&entry.value.span, label),
            None => mistake,
        });
    }
}

/// `annotate`.
pub(super) fn annotate(file: &Section<'_>) -> bool {
    file.read("annotate", flag).unwrap_or(true)
}

/// `redis`.
pub(super) fn redis(file: &Section<'_>) -> Option<Redis> {
    let section = file.section::<schema::Redis>("redis", &[]);
    let present = file.entry("redis").is_some();
    if present {
        section.require(
            "url",
            "`redis`",
            "for example `url: ${REDIS_URL}`; leave `redis` out to run one instance without it",
        );
    }
    let url = section.read("url", redis_url);
    let on_outage = section.read("on_outage", word(&ON_OUTAGE)).unwrap_or(OnOutage::Local);
    let expected_instances = section.read("expected_instances", count::<NonZeroU32>);
    if present && on_outage == OnOutage::Local && section.entry("expected_instances").is_none() {
        let message = "`expected_instances` is not set: while Redis is lost, each instance takes the whole limit";
        let hint = "set how many instances run, so that together they stay within the limit";
        section.context().warning(Mistake::new(&file.span("redis"), message, hint));
    }
    let redis = Redis {
        url: SecretString::from(url.unwrap_or_default()),
        ca_file: section.read("ca_file", text).map(PathBuf::from),
        prefix: section.read("prefix", prefix).unwrap_or_else(|| "bkt".to_owned()),
        hash_key: section.read("hash_key", text).map(SecretString::from),
        timeout: section.read("timeout", positive_duration).unwrap_or(REDIS_TIMEOUT),
        on_outage,
        expected_instances: expected_instances.unwrap_or(NonZeroU32::MIN),
    };
    section.finish();
    present.then_some(redis)
}

/// `ca`.
pub(super) fn ca(file: &Section<'_>) -> Ca {
    let section = file.section::<schema::Ca>("ca", &[]);
    let base = Ca::at("./ca");
    let ca = Ca {
        dir: section.read("dir", text).map_or(base.dir, PathBuf::from),
        key_type: section.read("key_type", word(&KEY_TYPE)).unwrap_or(base.key_type),
        name_constraints: section.read("name_constraints", flag).unwrap_or(base.name_constraints),
        hosts: base.hosts,
    };
    section.finish();
    ca
}

/// `upstream`.
pub(super) fn upstream(file: &Section<'_>) -> Upstream {
    let section = file.section::<schema::Upstream>("upstream", &[]);
    let upstream = Upstream {
        ca_file: section.read("ca_file", text).map(PathBuf::from),
        connect_timeout: section.read("connect_timeout", positive_duration).unwrap_or(CONNECT_TIMEOUT),
        response_timeout: section.read("response_timeout", positive_duration).unwrap_or(RESPONSE_TIMEOUT),
        idle: section.read("idle", duration).unwrap_or(IDLE),
        proxy: parent::proxy(&section),
    };
    section.finish();
    upstream
}

/// `unmatched`.
pub(super) fn unmatched(file: &Section<'_>) -> Unmatched {
    let section = file.section::<schema::Unmatched>("unmatched", &[]);
    let unmatched = Unmatched {
        host: section.read("host", word(&UNMATCHED_HOST)).unwrap_or(UnmatchedHost::Tunnel),
        path: section.read("path", word(&UNMATCHED_PATH)).unwrap_or(UnmatchedPath::Pass),
    };
    section.finish();
    unmatched
}

/// `priority`.
pub(super) fn priority(file: &Section<'_>) -> Priority {
    let section = file.section::<schema::Priority>("priority", &[]);
    let default = Priority::default();
    let priority = Priority {
        header: section.read("header", class_header).unwrap_or(default.header),
        ageing: section.read("ageing", duration).unwrap_or(default.ageing),
    };
    section.finish();
    priority
}

/// What channels inherit.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) policy: Policy,
    pub(super) http2: Http2,
}

/// `defaults`.
pub(super) fn defaults(file: &Section<'_>) -> Defaults {
    let section = file.section::<schema::Defaults>("defaults", &[]);
    let defaults = Defaults { policy: policy(&section, Policy::default()), http2: http2(&section, Http2::default()) };
    section.finish();
    defaults
}

/// `http2` of a section, over what it inherits, field by field.
pub(super) fn http2(section: &Section<'_>, inherited: Http2) -> Http2 {
    let section = section.section::<schema::Http2>("http2", &[]);
    let http2 = Http2 {
        clients: section.read("clients", flag).unwrap_or(inherited.clients),
        origin: section.read("origin", flag).unwrap_or(inherited.origin),
    };
    section.finish();
    http2
}

/// `max_wait`, `max_queue` and `retry` of a section, over those it inherits, field by field.
pub(super) fn policy(section: &Section<'_>, inherited: Policy) -> Policy {
    let max_wait = section.read("max_wait", duration).unwrap_or(inherited.max_wait);
    let max_queue = section.read("max_queue", count).unwrap_or(inherited.max_queue);
    let section = section.section::<schema::Retry>("retry", &[]);
    let base = inherited.retry;
    let retry = Retry {
        attempts: section.read("attempts", count).unwrap_or(base.attempts),
        max_retry_after: section.read("max_retry_after", duration).unwrap_or(base.max_retry_after),
        max_pause: section.read("max_pause", positive_duration).unwrap_or(base.max_pause),
        backoff: section.read("backoff", positive_duration).unwrap_or(base.backoff),
        max_backoff: section.read("max_backoff", positive_duration).unwrap_or(base.max_backoff),
        replay_body: section.read("replay_body", size).unwrap_or(base.replay_body),
    };
    let names_one = section.entry("backoff").is_some() || section.entry("max_backoff").is_some();
    if names_one && retry.max_backoff < retry.backoff {
        let at = if section.entry("max_backoff").is_some() { "max_backoff" } else { "backoff" };
        let message = format!(
            "`max_backoff` ({}) is shorter than `backoff` ({})",
            humantime::format_duration(retry.max_backoff),
            humantime::format_duration(retry.backoff)
        );
        let hint = "pauses grow from `backoff` to `max_backoff`; what is not written here is inherited";
        section.context().mistake(Mistake::new(&section.span(at), message, hint));
    }
    section.finish();
    Policy { max_wait, max_queue, retry }
}

/// `IP:port` or `localhost:port`.
fn address(text: &str) -> Result<SocketAddr, Invalid> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    if let Some(port) = port {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let hint = match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        Ok(port) => format!("write `127.0.0.1:{port}` for this machine alone, `0.0.0.0:{port}` for all addresses"),
        Err(_) => "write an IP address and a port: `127.0.0.1:8080`, `0.0.0.0:8080` or `\"[::1]:8080\"`".to_owned(),
    };
    Err(Invalid::new("not an address to listen on", hint))
}

/// The header that names a request's class. It is taken out of the request, so it cannot be one that the OTA needs.
fn class_header(text: &str) -> Result<HeaderName, Invalid> {
    let name = HeaderName::from_bytes(text.trim().as_bytes())
        .map_err(|_| Invalid::new("not the name of a header", "for example `header: X-Pacer-Priority`"))?;
    if STANDARD_HEADERS.contains(&name.as_str()) {
        let hint = "the header is not forwarded; choose one of your own, for example `X-Pacer-Priority`";
        return Err(Invalid::new("the OTA needs this header", hint));
    }
    Ok(name)
}

/// An address with a scheme the Redis client knows; what follows it is the client's to judge.
fn redis_url(text: &str) -> Result<String, Invalid> {
    let text = text.trim();
    match text.split_once("://") {
        Some((scheme, rest)) if is_redis_scheme(scheme) && !rest.is_empty() => Ok(text.to_owned()),
        _ => {
            let hint = "for example `redis://127.0.0.1:6379/0`, `rediss://host`, `redis-sentinel://host:26379`, \
                        `redis-cluster://host` or `redis+unix:///run/redis.sock`";
            Err(Invalid::new("not the address of a Redis", hint))
        }
    }
}

/// As the Redis client reads them: with TLS or without, alone, behind sentinels, in a cluster, or a socket.
fn is_redis_scheme(scheme: &str) -> bool {
    let base = scheme.strip_prefix("redis").or(scheme.strip_prefix("valkey"));
    matches!(base, Some("" | "s" | "-sentinel" | "s-sentinel" | "-cluster" | "s-cluster" | "+unix"))
}

/// Keys read well in `redis-cli`, and a `{` would change the cluster slot.
fn prefix(text: &str) -> Result<String, Invalid> {
    if text.is_empty()
        || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':'))
    {
        return Err(Invalid::new("not a prefix for keys", "letters, digits, `_`, `-`, `.` and `:`, for example `bkt`"));
    }
    Ok(text.to_owned())
}

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const REDIS_TIMEOUT: Duration = Duration::from_millis(250);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);
const IDLE: Duration = Duration::from_secs(4);
/// Headers that most requests need to arrive.
const STANDARD_HEADERS: [&str; 10] = [
    "accept",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "transfer-encoding",
    "user-agent",
];
const ON_OUTAGE: [(&str, OnOutage); 3] =
    [("local", OnOutage::Local), ("closed", OnOutage::Closed), ("open", OnOutage::Open)];
const KEY_TYPE: [(&str, KeyType); 2] = [("p256", KeyType::P256), ("rsa2048", KeyType::Rsa2048)];
const UNMATCHED_HOST: [(&str, UnmatchedHost); 2] =
    [("tunnel", UnmatchedHost::Tunnel), ("refuse", UnmatchedHost::Refuse)];
const UNMATCHED_PATH: [(&str, UnmatchedPath); 2] = [("pass", UnmatchedPath::Pass), ("refuse", UnmatchedPath::Refuse)];

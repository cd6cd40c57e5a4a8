//! The validated configuration: what the rest of the program reads.
//!
//! Values here cannot be wrong. They are built by [`super::load`] from the YAML of the operator, which reports every
//! mistake at once; nothing else constructs them outside of tests.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use http::{HeaderName, Method};
use secrecy::SecretString;

use super::{host::Host, units::Rate};

/// The whole configuration of one instance.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where workers' `HTTP_PROXY` and `HTTPS_PROXY` point.
    pub listen: SocketAddr,
    /// Where clients that can name no proxy send their requests, the origin in the path. `None`: nowhere.
    pub gateway: Option<SocketAddr>,
    /// Where `/metrics`, `/healthz`, `/readyz` and `/status` are served. `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// The store shared by the fleet. `None`: buckets live in this process, for a single instance.
    pub redis: Option<Redis>,
    /// The certificate authority that signs leaves for intercepted hosts.
    pub ca: Ca,
    /// How origins are reached.
    pub upstream: Upstream,
    /// What happens to requests that no channel or endpoint claims.
    pub unmatched: Unmatched,
    /// Who goes first where requests wait.
    pub priority: Priority,
    /// Whether answers carry `X-Pacer-Wait`, `X-Pacer-Attempts` and `X-Pacer-Bucket`.
    pub annotate: bool,
    /// The OTAs, in the order of the file.
    pub channels: Vec<Arc<Channel>>,
    /// What is legal in the file but suspect, each rendered like a mistake, with excerpt and hint.
    pub warnings: Vec<String>,
}

/// Who goes first where requests wait.
#[derive(Debug, Clone)]
pub struct Priority {
    /// The request header whose value names the class; not forwarded. The user name in the proxy's URL names it as well.
    pub header: HeaderName,
    /// A batch request that has waited for this long counts as an interactive one that has just come.
    pub ageing: Duration,
}

impl Default for Priority {
    fn default() -> Self {
        Self { header: HeaderName::from_static("x-pacer-priority"), ageing: Duration::from_secs(30) }
    }
}

/// The class of a request: all interactive requests of the fleet go before its batch requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Nobody does.
    Batch,
}

/// The Redis that holds the buckets of the fleet.
#[derive(Debug, Clone)]
pub struct Redis {
    /// Address with credentials; never logged.
    pub url: SecretString,
    /// Roots trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// First part of every key.
    pub prefix: String,
    /// Keys the hash that hides credentials from readers of Redis. Must be equal on every instance.
    pub hash_key: Option<SecretString>,
    /// How long one call may take before its outcome counts as unknown.
    pub timeout: Duration,
    /// What an instance does while Redis is lost.
    pub on_outage: OnOutage,
    /// How many instances share the limits while Redis is lost: each gets rate / this.
    pub expected_instances: NonZeroU32,
}

/// What an instance does while Redis is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOutage {
    /// Paces alone at its share of each limit (rate / `expected_instances`, burst 1).
    Local,
    /// Answers 503 to every paced request.
    Closed,
    /// Forwards without pacing.
    Open,
}

/// The certificate authority.
#[derive(Debug, Clone)]
pub struct Ca {
    /// Holds `ca.pem`, `ca.key` (0600), `bundle.pem` and `bundle.p12`; made on first start. A relative path is relative to
    /// the working directory, as on the command line.
    pub dir: PathBuf,
    /// The kind of key that leaves have, and the authority where it is made here.
    pub key_type: KeyType,
    /// Whether an authority made here may vouch for [`Ca::hosts`] alone.
    pub name_constraints: bool,
    /// The hosts of all intercepted channels.
    pub hosts: Vec<HostPattern>,
}

impl Ca {
    /// An authority in `dir`, otherwise as by default, for no host in particular.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), key_type: KeyType::P256, name_constraints: false, hosts: Vec::new() }
    }
}

/// A kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// ECDSA on P-256.
    P256,
    /// RSA of 2048 bits.
    Rsa2048,
}

/// How origins are reached.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// PEM file with roots trusted in addition to the system's. A relative path is relative to the working directory.
    pub ca_file: Option<PathBuf>,
    /// Bound on resolving, connecting, the parent proxy's tunnel and the TLS handshake together.
    pub connect_timeout: Duration,
    /// Bound on the time from the request's last byte to the answer's head.
    pub response_timeout: Duration,
    /// How long an idle connection is kept for reuse.
    pub idle: Duration,
    /// The proxy through which origins are reached, where there is one.
    pub proxy: Option<ParentProxy>,
}

/// A proxy between this one and the origins.
#[derive(Debug, Clone)]
pub struct ParentProxy {
    /// Whether it is spoken to over TLS.
    pub tls: bool,
    /// Its host, the only one that is resolved here.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// `user:password` in Base64, as `Basic` wants it (RFC 7617 section 2).
    pub credentials: Option<SecretString>,
    /// What is reached without it.
    pub bypass: Vec<Bypass>,
}

/// Hosts that are reached without a parent proxy. They compare as the client writes them: a name is none of the addresses
/// that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bypass {
    /// A host, or those below it.
    Host(HostPattern),
    /// The addresses of a network.
    Network {
        /// Its first address.
        address: IpAddr,
        /// The length of its prefix in bits.
        prefix: u8,
    },
}

/// What happens to requests that no channel or endpoint claims.
#[derive(Debug, Clone, Copy)]
pub struct Unmatched {
    /// A host of no channel.
    pub host: UnmatchedHost,
    /// A path of no endpoint, on a channel's host.
    pub path: UnmatchedPath,
}

/// What happens to a host of no channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmatchedHost {
    /// CONNECT is tunnelled blind; a plain request is forwarded unpaced.
    Tunnel,
    /// Answered 403.
    Refuse,
}

/// What happens to a path of no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmatchedPath {
    /// Forwarded, taking only the limits of its channel.
    Pass,
    /// Answered 403.
    Refuse,
}

/// An OTA: the hosts that belong to it, what it counts by, and its metered operations.
#[derive(Debug, Clone)]
pub struct Channel {
    /// The name that configs, logs and metrics use.
    pub name: String,
    /// The hosts of the channel, exact or wildcard, as written and validated.
    pub hosts: Vec<HostPattern>,
    /// What its name stands for at the gateway. `None`: nothing, its hosts are named by themselves.
    pub gateway_origin: Option<GatewayOrigin>,
    /// Whether tunnels to its hosts are opened and each request in them is paced. Otherwise they are relayed unread, and
    /// opening one takes from the channel's limits.
    pub intercept: bool,
    /// On which sides HTTP/2 is offered.
    pub http2: Http2,
    /// What the OTA counts by.
    pub credential: Credential,
    /// Limits shared by every request of the channel, taken together with those of the endpoint.
    pub limits: Vec<Limit>,
    /// The metered operations, in the order of the file.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Policy of requests that match the host but no endpoint.
    pub policy: Policy,
}

/// On which sides HTTP/2 is offered beside HTTP/1.1; on neither unless the file says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Http2 {
    /// To clients whose tunnels are opened.
    pub clients: bool,
    /// To origins, whichever version the client speaks.
    pub origin: bool,
}

/// `host`, `*.host`, either with `:port`. Lower-case A-labels, no trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// `true` for `*.host`, which matches any number of labels before `host` but not `host` itself.
    pub wildcard: bool,
    /// The host, without the `*.`; an IPv6 literal without brackets.
    pub host: String,
    /// `None`: any port.
    pub port: Option<u16>,
}

/// An origin that a channel's name stands for at the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayOrigin {
    /// Whether it is spoken to over TLS.
    pub is_tls: bool,
    /// One of the channel's hosts.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// What an OTA counts by. Its value never leaves the process but as a keyed hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The user name of `Authorization: Basic`.
    BasicUser,
    /// The value of a request header.
    Header(HeaderName),
    /// The value of a query parameter.
    Query(String),
    /// The value of one `NAME=value` parameter inside `Authorization`, where signatures change and the key does not.
    AuthorizationParam(String),
    /// The same for every request: one credential for the channel.
    Label(String),
}

/// Without a `credential` in the file, a channel counts as one: all its requests share their buckets, which can only be too
/// slow, never too fast.
impl Default for Credential {
    fn default() -> Self {
        Self::Label("all".to_owned())
    }
}

/// One metered operation of an OTA.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The name that configs, logs and metrics use, unique within the channel.
    pub name: String,
    /// Which requests are this operation.
    pub matcher: Matcher,
    /// Limits of this operation alone.
    pub limits: Vec<Limit>,
    /// What one request takes from each of its limits.
    pub cost: NonZeroU32,
    /// Whether its requests pass unpaced, the channel's limits included.
    pub exempt: bool,
    /// How its requests wait and are retried.
    pub policy: Policy,
}

/// Which requests an endpoint claims.
#[derive(Debug, Clone)]
pub struct Matcher {
    /// `None`: any method. Otherwise not empty, sorted by name, without duplicates.
    pub methods: Option<Vec<Method>>,
    /// The path in the form of [`super::path::normalize`]: exact, a template (`/hotels/{id}`), or a prefix (`/hotels/**`).
    pub path: PathPattern,
}

/// A path rule, from the most specific kind to the least.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// `/hotels/xml/availability`
    Exact(String),
    /// `/hotels/{id}/rates`: each `{name}` matches one non-empty segment.
    Template(String),
    /// `/hotels/**`: the prefix without `**`; matches everything that starts with it, and the prefix without its slash.
    Prefix(String),
}

/// How requests wait and are retried.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Longest hold for a slot before the proxy itself answers 429.
    pub max_wait: Duration,
    /// Most requests that wait in one line of this instance; further ones are answered 429 at once.
    pub max_queue: NonZeroU32,
    /// What happens after a throttle signal.
    pub retry: Retry,
}

/// What happens after a throttle signal.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Sends in all, the first included.
    pub attempts: NonZeroU32,
    /// Longest pause a request is held through; when the OTA asks for longer, its answer is passed on at once.
    pub max_retry_after: Duration,
    /// Cap on how long one throttle answer may stop the fleet.
    pub max_pause: Duration,
    /// First pause where the OTA names none; doubles with every attempt.
    pub backoff: Duration,
    /// Cap on that doubling.
    pub max_backoff: Duration,
    /// Largest request body kept for a replay, in bytes; a larger one is sent once.
    pub replay_body: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(5),
            max_queue: const { NonZeroU32::new(10_000).expect("10,000 is not 0") },
            retry: Retry::default(),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: const { NonZeroU32::new(4).expect("4 is not 0") },
            max_retry_after: Duration::from_secs(30),
            max_pause: Duration::from_secs(3_600),
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            replay_body: 1 << 20,
        }
    }
}

/// One constraint on a bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// What it allows.
    pub kind: LimitKind,
    /// What tells its buckets apart: requests that agree in all of these share one. In the order of the file, without
    /// duplicates; the credential alone unless the file says otherwise.
    pub key: Vec<KeyPart>,
    /// Whether it slows down after throttle answers.
    pub adaptive: Option<Adaptive>,
}

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LimitKind {
    /// Refills at `rate` up to `capacity`.
    TokenBucket {
        /// Refill, after the safety factor.
        rate: Rate,
        /// The most that may be spent at once, in cost units.
        capacity: NonZeroU32,
        /// What a bucket nobody has used yet holds.
        start: Start,
    },
    /// At most `count` units in a window.
    Window {
        /// Cost units, after the safety factor.
        count: NonZeroU32,
        /// The length of the window.
        per: Duration,
        /// Where windows begin.
        window: Window,
    },
    /// At most this many requests under way at once, each from its slot to the end of its answer. Costs do not count.
    Concurrent {
        /// Requests.
        most: NonZeroU32,
    },
}

/// Where the windows of a limit begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Anywhere: no interval of that length holds more.
    Sliding,
    /// At multiples of its length on the store's clock (UTC): the minute, the hour, the day.
    Clock,
}

/// Something of a request that tells buckets apart. Its value never leaves the process but as a keyed hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// What the channel's `credential` says.
    Credential,
    /// What `{NAME}` of the endpoint's path stood for.
    Path(String),
    /// The value of a request header.
    Header(HeaderName),
    /// The value of a query parameter.
    Query(String),
}

/// How a limit slows down after throttle answers and recovers; never above what is configured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adaptive {
    /// The rate is multiplied by this once a storm of throttle answers; above 0, below 1.
    pub cut: f64,
    /// The lowest fraction of the configured rate; above 0, at most 1.
    pub floor: f64,
    /// The fraction of the configured rate regained in each second of use.
    pub recover: f64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { cut: 0.7, floor: 0.1, recover: 0.01 }
    }
}

/// What a bucket nobody has used yet holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Its whole capacity.
    Full,
    /// Nothing.
    Empty,
}

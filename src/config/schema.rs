//! The configuration file as written: its keys and their documentation.
//!
//! These types are the one list of keys. The JSON Schema for editors is generated from them, and the loader takes from them
//! which keys a section may have (`keys`). They hold no values; the validated ones are in [`super::model`].
#![expect(dead_code, reason = "the types are read through their schema, never constructed")]

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The JSON Schema of the configuration file, pretty-printed, with a final line end.
pub fn json() -> String {
    let schema = schemars::schema_for!(File);
    let text = serde_json::to_string_pretty(&schema).expect("a schema holds only strings as keys");
    text + "\n"
}

/// The keys that a section of type `T` may have.
pub(super) fn keys<T: JsonSchema>() -> Vec<String> {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let properties = schema.get("properties").and_then(|properties| properties.as_object());
    properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default()
}

/// Configuration of ota-pacer.
///
/// Every value may hold `${NAME}` or `${NAME:-default}`, replaced from the environment; `$$` is a dollar sign.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, title = "ota-pacer")]
pub(super) struct File {
    /// Address that workers' `HTTP_PROXY` and `HTTPS_PROXY` name; `127.0.0.1:8080` by default. Port 0 takes a free one.
    listen: Option<String>,
    /// Address for clients that can name no proxy: they ask it for `/https/HOST/path`, or for `/CHANNEL/path`, in clear;
    /// nowhere by default.
    gateway: Option<String>,
    /// Address of `/metrics`, `/healthz`, `/readyz` and `/status`; nowhere by default.
    admin: Option<String>,
    /// The Redis that holds the buckets of the fleet. Without it, buckets live in the process: for a single instance.
    redis: Option<Redis>,
    /// The certificate authority that signs certificates for intercepted hosts.
    ca: Option<Ca>,
    /// How origins are reached.
    upstream: Option<Upstream>,
    /// What happens to requests that no channel or endpoint claims.
    unmatched: Option<Unmatched>,
    /// Who goes first where requests wait.
    priority: Option<Priority>,
    /// Whether answers carry `X-Pacer-Wait`, `X-Pacer-Attempts` and `X-Pacer-Bucket`; `true` by default.
    annotate: Option<Flag>,
    /// How requests wait and are retried, and where HTTP/2 is offered, unless a channel or endpoint says otherwise.
    defaults: Option<Defaults>,
    /// The OTAs, by a name of your choice (letters, digits, `_`, `-`) that logs and metrics use.
    #[schemars(extend("propertyNames" = { "pattern": "^[A-Za-z0-9_-]{1,64}$" }))]
    channels: Option<BTreeMap<String, Channel>>,
}

/// The Redis that holds the buckets of the fleet.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Redis {
    /// `redis://`, `rediss://`, `redis-sentinel://`, `redis-cluster://` or `redis+unix://`. Keep passwords in the
    /// environment: `${REDIS_URL}`.
    url: String,
    /// PEM file of roots that `rediss://` trusts in addition to the system's.
    ca_file: Option<String>,
    /// First part of every key; `bkt` by default.
    prefix: Option<String>,
    /// Keys the hash that hides credentials from readers of Redis; equal on every instance.
    hash_key: Option<String>,
    /// How long one call may take; `250ms` by default.
    timeout: Option<Duration>,
    /// What an instance does while Redis is lost; `local` by default.
    on_outage: Option<OnOutage>,
    /// How many instances share the limits while Redis is lost: each gets rate / this.
    expected_instances: Option<Count>,
}

/// The certificate authority.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Ca {
    /// Where `ca.pem`, `ca.key`, `bundle.pem` and `bundle.p12` are kept, made on first start; `./ca` by default, relative to
    /// the working directory.
    dir: Option<String>,
    /// The kind of key that leaves have, and the authority when it is made: `p256` by default, `rsa2048` for clients that
    /// know no ECDSA. An authority that is there already is kept as it is; `ota-pacer ca rotate` makes another.
    key_type: Option<KeyType>,
    /// Whether an authority, when it is made, may vouch for the hosts of the channels alone; `false` by default. A host that
    /// is added later needs `ota-pacer ca rotate`.
    name_constraints: Option<Flag>,
}

/// How origins are reached.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Upstream {
    /// PEM file with roots trusted in addition to the system's, relative to the working directory.
    ca_file: Option<String>,
    /// Bound on resolving, connecting, the parent proxy's tunnel and the TLS handshake together; `10s` by default.
    connect_timeout: Option<Duration>,
    /// Bound on the time from the request's last byte to the head of the answer; `65s` by default.
    response_timeout: Option<Duration>,
    /// How long an idle connection is kept for reuse; `4s` by default.
    idle: Option<Duration>,
    /// The proxy through which origins are reached: `http://` or `https://`, with `user:password@` where it wants a login,
    /// percent-encoded. Keep passwords in the environment: `http://pacer:${PROXY_PASSWORD}@proxy.corp:3128`.
    proxy: Option<String>,
    /// What is reached without it: hosts (`ota.example`), suffixes (`.corp` or `*.corp`, which is not `corp` itself) and
    /// addresses, each with `:port` if need be, and networks (`10.0.0.0/8`). Names are not resolved to see.
    no_proxy: Option<Vec<String>>,
}

/// What happens to requests that no channel or endpoint claims.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Unmatched {
    /// A host of no channel: `tunnel` it unpaced (the default) or `refuse` it with 403.
    host: Option<UnmatchedHost>,
    /// A path of no endpoint on a channel's host: `pass` it with only the channel's limits (the default) or `refuse` it.
    path: Option<UnmatchedPath>,
}

/// Who goes first where requests wait: interactive requests go before batch ones.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Priority {
    /// The request header that says `interactive` (the default) or `batch`; `X-Pacer-Priority` by default. It is not
    /// forwarded. The user name in the proxy's URL says it as well: `http://batch:@127.0.0.1:8080`.
    header: Option<String>,
    /// A batch request that has waited for this long counts as an interactive one that has just come; `30s` by default.
    ageing: Option<Duration>,
}

/// How requests wait and are retried, and on which sides HTTP/2 is offered.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Defaults {
    /// Longest hold for a slot before the proxy itself answers 429; `5s` by default.
    max_wait: Option<Duration>,
    /// Most requests that wait in one line of an instance, further ones being answered 429 at once; `10000` by default.
    max_queue: Option<Count>,
    /// What happens after a throttle answer.
    retry: Option<Retry>,
    /// On which sides HTTP/2 is offered.
    http2: Option<Http2>,
}

/// On which sides HTTP/2 is offered beside HTTP/1.1. What is left out is inherited.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Http2 {
    /// Whether clients may speak it inside their tunnels; `false` by default. Which version they speak is theirs to choose.
    /// There is no `100 Continue` in it: a client that waits for one sends its body when it has waited for long enough.
    clients: Option<Flag>,
    /// Whether the origin may choose it; `false` by default. HTTP/2 has no upper-case letters in the names of headers and no
    /// reason phrases: an origin that gets to see it no longer sees the spelling of a client of HTTP/1.1.
    origin: Option<Flag>,
}

/// What happens after a throttle answer. What is left out is inherited.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Retry {
    /// Sends in all, the first included; `4` by default.
    attempts: Option<Count>,
    /// Longest pause a request is held through; when the OTA asks for longer, its answer is passed on at once. `30s` by
    /// default.
    max_retry_after: Option<Duration>,
    /// Cap on how long one throttle answer may stop the fleet; `1h` by default.
    max_pause: Option<Duration>,
    /// First pause where the OTA names none, doubling with every attempt; `1s` by default.
    backoff: Option<Duration>,
    /// Cap on that doubling; `30s` by default.
    max_backoff: Option<Duration>,
    /// Largest request body kept for a replay; `1MiB` by default. A larger one is sent once.
    replay_body: Option<Size>,
}

/// An OTA: the hosts that belong to it, what it counts by, and its metered operations.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Channel {
    /// `host` or `*.host`, either with `:port`; without one, any port.
    hosts: Vec<String>,
    /// What the channel's name stands for at the gateway, such as `https://supply-xml.booking.com`; by default its only host
    /// that is no wildcard, over TLS.
    gateway_origin: Option<String>,
    /// Whether tunnels to its hosts are opened; `true` by default. `false`: for hosts that pin their certificate or want one
    /// of the client. Their tunnels are relayed unread, and each takes once from the channel's limits, however many requests
    /// it carries.
    intercept: Option<Flag>,
    /// On which sides HTTP/2 is offered.
    http2: Option<Http2>,
    /// What the OTA counts by; the channel as one by default.
    credential: Option<Credential>,
    /// Limits shared by all requests of the channel, taken together with those of the endpoint.
    limits: Option<Vec<Limit>>,
    /// Longest hold for a slot before the proxy itself answers 429.
    max_wait: Option<Duration>,
    /// Most requests that wait in one line of an instance; further ones are answered 429 at once.
    max_queue: Option<Count>,
    /// What happens after a throttle answer.
    retry: Option<Retry>,
    /// The metered operations, by a name of your choice (letters, digits, `_`, `-`).
    #[schemars(extend("propertyNames" = { "pattern": "^[A-Za-z0-9_-]{1,64}$" }))]
    endpoints: Option<BTreeMap<String, Endpoint>>,
}

/// What the OTA counts by: exactly one of these.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("minProperties" = 1, "maxProperties" = 1))]
pub(super) struct Credential {
    /// `true`: the user name of `Authorization: Basic`.
    basic_user: Option<Flag>,
    /// The value of this request header.
    header: Option<String>,
    /// The value of this query parameter.
    query: Option<String>,
    /// The value of this parameter inside `Authorization`, as in `EAN APIKey=…,Signature=…`.
    authorization_param: Option<String>,
    /// The same for every request: the channel counts as one, under this name.
    label: Option<String>,
}

/// One metered operation of an OTA.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Endpoint {
    /// Which requests are this operation.
    r#match: Match,
    /// Limits of this operation alone.
    limits: Option<Vec<Limit>>,
    /// What one request takes from each of its limits; `1` by default. Limits on requests under way count each
    /// request once.
    cost: Option<Count>,
    /// `true`: its requests pass unpaced, the channel's limits included.
    exempt: Option<Flag>,
    /// Longest hold for a slot before the proxy itself answers 429.
    max_wait: Option<Duration>,
    /// Most requests that wait in one line of an instance; further ones are answered 429 at once.
    max_queue: Option<Count>,
    /// What happens after a throttle answer.
    retry: Option<Retry>,
}

/// Which requests an endpoint claims.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Match {
    /// A method or a list of methods; any by default.
    method: Option<Methods>,
    /// `/exact`, `/template/{name}` or `/prefix/**`.
    path: String,
}

/// One constraint: a `rate` with a `capacity`, a `count` in a window, requests under way, or an `interval`.
#[derive(JsonSchema)]
#[schemars(
    deny_unknown_fields,
    extend(
        "oneOf" = [
            { "required": ["rate"] },
            { "required": ["count", "per"] },
            { "required": ["concurrent"] },
            { "required": ["interval"] },
        ],
        "dependentRequired" = { "capacity": ["rate"], "per": ["count"], "window": ["count"] }
    )
)]
pub(super) struct Limit {
    /// Refill: `20/s`, `300/min`, `5000/h`, `10000/d`, `1/90s`.
    rate: Option<String>,
    /// The most that may be sent at once; `1` by default, which spaces requests evenly.
    capacity: Option<Count>,
    /// What a bucket nobody has used yet holds: `full` (the default) or `empty`.
    start: Option<Start>,
    /// The most in a window of the length `per`.
    count: Option<Count>,
    /// The length of the window.
    per: Option<Duration>,
    /// Where windows begin: anywhere (`sliding`, the default), so that no interval of that length holds more, or at
    /// multiples of their length on the clock (`clock`, UTC).
    window: Option<Window>,
    /// The most requests under way at once, each from its sending to the end of its answer.
    concurrent: Option<Count>,
    /// The least time between two requests: the same as a rate of one per interval with capacity 1.
    interval: Option<Duration>,
    /// What tells its buckets apart: `credential`, `path.NAME` (of the endpoint's path), `header.NAME`, `query.NAME`;
    /// `[credential]` by default. An empty list is one bucket for all.
    #[schemars(extend("uniqueItems" = true))]
    key: Option<Vec<KeyPart>>,
    /// The part of the rate or count that is used, above 0 and at most 1; `1` by default.
    safety: Option<Fraction>,
    /// Whether the rate slows down after throttle answers, and how; `false` by default.
    adaptive: Option<Adaptive>,
}

/// How a rate slows down after throttle answers and recovers; never above what is configured.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct AdaptiveSettings {
    /// The rate is multiplied by this once a storm of throttle answers, below 1; `0.7` by default.
    cut: Option<Fraction>,
    /// The lowest part of the configured rate; `0.1` by default.
    floor: Option<Fraction>,
    /// The part of the configured rate regained in each second of use; `0.01` by default.
    recover: Option<Fraction>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Adaptive {
    Switch(Flag),
    Settings(AdaptiveSettings),
}

/// What an instance does while Redis is lost.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum OnOutage {
    /// Paces alone at its share of each limit.
    Local,
    /// Answers 503 to every paced request.
    Closed,
    /// Forwards without pacing.
    Open,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum KeyType {
    P256,
    Rsa2048,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum UnmatchedHost {
    Tunnel,
    Refuse,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum UnmatchedPath {
    Pass,
    Refuse,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Start {
    Full,
    Empty,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
enum Window {
    Sliding,
    Clock,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum Methods {
    One(String),
    Several(Vec<String>),
}

/// A kind of scalar: its schema also admits a reference to the environment.
macro_rules! scalar {
    ($name:ident, $schema:tt) => {
        struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

scalar!(Duration, { "type": "string", "description": "A time with its unit", "examples": ["250ms", "5s", "2m", "1h 30m"] });
scalar!(Size, { "type": ["string", "integer"], "description": "Bytes, maybe with a unit", "examples": ["1MiB", "64KiB", 65536], "minimum": 0 });
scalar!(Count, { "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string", "pattern": "\\$\\{" }], "description": "A whole number, at least 1" });
scalar!(KeyPart, { "type": "string", "pattern": "^credential$|^(path|header|query)\\..|\\$\\{", "description": "A part of the request", "examples": ["credential", "path.hotel_id", "header.X-Property-Id", "query.hotel"] });
scalar!(Flag, { "anyOf": [{ "type": "boolean" }, { "type": "string", "pattern": "\\$\\{" }], "description": "`true` or `false`" });
scalar!(Fraction, { "anyOf": [{ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }, { "type": "string", "pattern": "\\$\\{" }], "description": "A number above 0 and at most 1" });

//! Buckets in Redis: the scripts of `lua/`, each called at most once and for a bounded time.
//!
//! fred replays commands, waits for ever and queues without bound unless told otherwise; everything it is told is in
//! [`builder`].

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::SubscriberClient,
    prelude::{
        Builder, Client, ClientLike, Config, Error, ErrorKind, EventInterface, KeysInterface, LuaInterface,
        PubsubInterface, ReconnectPolicy,
    },
    types::{
        ClusterHash, CustomCommand, FromValue,
        config::{ReconnectError, TcpConfig, TlsConnector, UnresponsiveConfig},
    },
    util::sha1_hash,
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use secrecy::ExposeSecret;
use tokio::{
    sync::{
        Notify,
        broadcast::{Receiver, error::RecvError},
    },
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::config::model::Redis;

use super::{
    bucket::Answer,
    claim::{BucketSpec, Claim},
    wire::{self, Notice},
};

/// The Redis of a fleet.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    client_link: Arc<Link>,
    subscriber: SubscriberClient,
    subscriber_link: Arc<Link>,
    claim: Script,
    pause: Script,
    rejoin: Script,
    notices: String,
    rejoin_key: String,
    check_key: String,
    /// Why the last attempt to connect failed.
    trouble: Arc<Mutex<Failure>>,
    pubsub: Arc<Pubsub>,
    tasks: Mutex<JoinSet<()>>,
}

/// The return of a fleet to Redis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rejoin {
    /// How long until then.
    pub left: Duration,
    /// The instant, in microseconds on the clock of Redis.
    pub at: f64,
    /// For how long Redis will have been lost, in microseconds.
    pub length: f64,
}

/// Why Redis did not do as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer in time: the command may have been executed.
    Timeout,
    /// There is no connection, or it broke.
    Disconnected,
    /// There is no connection, because TLS cannot be agreed on.
    Tls,
    /// The user, the password or an ACL forbids it: `NOAUTH`, `WRONGPASS`, `NOPERM`.
    Forbidden,
    /// `OOM`.
    OutOfMemory,
    /// It is a replica: `READONLY`, `MASTERDOWN`.
    ReadOnly,
    /// It still reads its data set: `LOADING`.
    Loading,
    /// It runs a script without end: `BUSY`.
    Busy,
    /// A part of the cluster is gone: `CLUSTERDOWN`.
    ClusterDown,
    /// Any other error that Redis answered with.
    Refused,
}

impl Failure {
    /// A word for logs and metrics; what Redis wrote stays out of them, since it may quote keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Tls => "tls",
            Self::Forbidden => "forbidden",
            Self::OutOfMemory => "out_of_memory",
            Self::ReadOnly => "read_only",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::ClusterDown => "cluster_down",
            Self::Refused => "refused",
        }
    }

    /// What an operator can do about it; empty where only waiting helps.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Timeout | Self::Disconnected => "check that Redis runs and can be reached under `redis.url`",
            Self::Tls => {
                "name the CA that signed Redis's certificate as `redis.ca_file`, and Redis by a name in its certificate"
            }
            Self::Forbidden => PERMISSIONS,
            Self::OutOfMemory => "raise `maxmemory`, or move to Redis what else fills it elsewhere",
            Self::ReadOnly => "name the master as `redis.url`, or let sentinels find it: `redis-sentinel://`",
            Self::Busy => "`SCRIPT KILL` ends somebody's script that does not end",
            Self::ClusterDown => "bring the missing masters of the cluster back, or promote replicas of theirs",
            Self::Loading | Self::Refused => "",
        }
    }

    /// Whether the server or the way to it is at fault, not one key alone.
    pub fn is_of_the_server(self) -> bool {
        self != Self::Refused
    }
}

/// The Redis of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// Its address is none.
    #[error("`redis.url` cannot be used: {0}\n\nhint: {URL_HINT}")]
    Url(String),
    /// What should vouch for it cannot be read.
    #[error("`redis.ca_file` cannot be used: {path}: {reason}\n\nhint: name a file of PEM certificates")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl RedisStore {
    /// Prepares a store; no connection is made before [`RedisStore::connect`].
    ///
    /// # Errors
    /// When the URL cannot be used.
    pub fn new(config: &Redis) -> Result<Self, UrlError> {
        // fred's message may quote the URL, and with it the password: only the kind of the error is shown.
        let broken = |error: Error| UrlError::Url(error.kind().to_str().to_lowercase());
        let mut fred = Config::from_url(config.url.expose_secret()).map_err(broken)?;
        if fred.tls.is_some() {
            fred.tls = Some(trusting(config.ca_file.as_deref())?.into());
        }
        let builder = builder(fred, config.timeout);
        Ok(Self {
            client: builder.build().map_err(broken)?,
            client_link: Arc::default(),
            subscriber: builder.build_subscriber_client().map_err(broken)?,
            subscriber_link: Arc::default(),
            claim: Script::new(CLAIM),
            pause: Script::new(PAUSE),
            rejoin: Script::new(REJOIN),
            notices: format!("{}:notices", config.prefix),
            rejoin_key: format!("{}:rejoin", config.prefix),
            check_key: format!("{}:check", config.prefix),
            trouble: Arc::new(Mutex::new(Failure::Disconnected)),
            pubsub: Arc::default(),
            tasks: Mutex::default(),
        })
    }

    /// Connects in the background, until the store is dropped, and subscribes to the pauses of the fleet.
    pub fn connect(&self) {
        let mut tasks = self.tasks();
        let (mut errors, trouble) = (self.client.error_rx(), Arc::clone(&self.trouble));
        tasks.spawn(async move {
            loop {
                match errors.recv().await {
                    Ok((error, _)) => *trouble.lock().unwrap_or_else(PoisonError::into_inner) = failure(&error),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
        // Listens before it connects, so as not to miss the first connection.
        let mut connections = self.subscriber.reconnect_rx();
        let (subscriber, channel, pubsub) = (self.subscriber.clone(), self.notices.clone(), Arc::clone(&self.pubsub));
        tasks.spawn(async move {
            // A new connection knows nothing of what the old one had subscribed to. Subscribing twice does no harm.
            while !matches!(connections.recv().await, Err(RecvError::Closed)) {
                while let Err(error) = subscriber.subscribe(channel.as_str()).await {
                    let is_refused = pubsub.is_refused(&error);
                    sleep(if is_refused { REFUSED_AGAIN } else { AGAIN }).await;
                }
            }
        });
        tasks.spawn(keep_connecting(self.client.clone(), Arc::clone(&self.client_link)));
        tasks.spawn(keep_connecting(self.subscriber.clone(), Arc::clone(&self.subscriber_link)));
    }

    /// Whether there is a connection; it may have ceased to answer.
    pub fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Why there is no connection.
    pub fn trouble(&self) -> Failure {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a connection, at most `wait`.
    pub async fn connected(&self, wait: Duration) -> bool {
        self.client.is_connected() || matches!(timeout(wait, self.client.wait_for_connect()).await, Ok(Ok(())))
    }

    /// Claims slots.
    ///
    /// # Errors
    /// When the outcome is unknown: the claim must not be replayed.
    pub async fn claim(&self, claim: &Claim) -> Result<Answer, Failure> {
        let (keys, args) = wire::claim(claim, &self.notices);
        let reply: Vec<i64> = self.call(&self.claim, keys, args).await?;
        wire::answer(claim, &reply).ok_or(Failure::Refused)
    }

    /// Pauses a bucket for at least `wait` from now and tells the fleet.
    ///
    /// # Errors
    /// When the outcome is unknown. Pausing again is harmless.
    pub async fn pause(&self, bucket: &BucketSpec, wait: Duration) -> Result<(), Failure> {
        let (keys, args) = wire::pause(bucket, wait, &self.notices);
        self.call::<i64>(&self.pause, keys, args).await.map(drop)
    }

    /// When the fleet paces through Redis again, now that it takes writes again: in `settle`, unless an instance that came
    /// back before has agreed on less. `lost`: for how long this instance has been without it.
    ///
    /// # Errors
    /// When Redis does not take writes.
    pub async fn rejoin(&self, settle: Duration, lost: Duration) -> Result<Rejoin, Failure> {
        self.rejoin_at(&self.rejoin_key, settle, lost).await
    }

    async fn rejoin_at(&self, key: &str, settle: Duration, lost: Duration) -> Result<Rejoin, Failure> {
        let args = vec![settle.as_millis().to_string(), lost.as_micros().to_string()];
        let reply: Vec<u64> = self.call(&self.rejoin, vec![key.to_owned()], args).await?;
        let [left, at, length] = *reply.as_slice() else { return Err(Failure::Refused) };
        Ok(Rejoin { left: Duration::from_millis(left), at: at as f64, length: length as f64 })
    }

    /// When the fleet returns to Redis, if it is about to; zero if not. The cheapest question that shows that Redis answers.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn rejoining(&self) -> Result<Duration, Failure> {
        self.expiry(&self.rejoin_key).await
    }

    /// Asks the node that holds `key` whether it answers: another node of a cluster may do so while this one does not.
    ///
    /// # Errors
    /// When it does not.
    pub async fn answers(&self, key: &str) -> Result<(), Failure> {
        self.expiry(key).await.map(drop)
    }

    /// Looks for what would make the limits fail one day though everything works now, and says it with its remedy.
    ///
    /// # Errors
    /// When Redis does not answer; then nothing is known. A server that forbids a question is merely not asked.
    pub async fn check(&self) -> Result<(), Failure> {
        // The same commands that coming back after an outage takes, so that it is not then that an ACL forbids them.
        match self.rejoin_at(&self.check_key, Duration::from_secs(1), Duration::ZERO).await {
            Ok(_) => {}
            Err(Failure::Forbidden) => warn!(hint = PERMISSIONS, "redis forbids what ota-pacer needs"),
            Err(failure) => return Err(failure),
        }
        // Nobody reads anything into it.
        if let Err(error) = self.client.publish::<(), _, _>(self.notices.as_str(), "").await {
            self.pubsub.is_refused(&error);
        }
        if let Some(version) = self.client.server_version()
            && (version.major, version.minor) < OLDEST
        {
            warn!(%version, hint = "run Redis 6.2 or newer", "redis is older than what ota-pacer is tested with");
        }
        let memory = CustomCommand::new_static("CONFIG", ClusterHash::Random, false);
        let memory: Result<HashMap<String, String>, Error> =
            self.client.custom(memory, vec!["GET", "maxmemory*"]).await;
        match memory {
            Ok(memory) => {
                let setting = |name: &str| memory.get(name).map_or("", String::as_str);
                let policy = setting("maxmemory-policy");
                if deletes_buckets(setting("maxmemory"), policy) {
                    let hint = "`CONFIG SET maxmemory-policy noeviction`, and in redis.conf; or give ota-pacer a Redis of its own";
                    warn!(
                        policy,
                        hint, "redis may delete buckets when its memory is full, and a deleted bucket is a full one"
                    );
                }
                Ok(())
            }
            Err(error) => match failure(&error) {
                lost @ (Failure::Timeout | Failure::Disconnected) => Err(lost),
                // Managed servers forbid it.
                _ => Ok(()),
            },
        }
    }

    /// Drops connections that no longer answer, so that new ones are tried.
    pub fn reconnect(&self) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(force(self.client.clone(), Arc::clone(&self.client_link)));
        tasks.spawn(force(self.subscriber.clone(), Arc::clone(&self.subscriber_link)));
    }

    /// What the instances of the fleet announce, this one included.
    pub fn notices(&self) -> Notices {
        Notices(self.subscriber.message_rx())
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn expiry(&self, key: &str) -> Result<Duration, Failure> {
        if !self.client.is_connected() {
            return Err(self.trouble());
        }
        let left: i64 = self.client.pttl(key).await.map_err(|error| failure(&error))?;
        Ok(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
    }

    /// Calls a script. Where Redis has forgotten it, its text goes along in a second trip; the first did nothing.
    async fn call<R: FromValue>(&self, script: &Script, keys: Vec<String>, args: Vec<String>) -> Result<R, Failure> {
        if !self.client.is_connected() {
            return Err(self.trouble());
        }
        let asked = self.client.evalsha(script.sha.as_str(), keys.clone(), args.clone()).await;
        let asked = match asked {
            // Another node of the cluster has the bucket now. fred has learnt which, but does not ask it: it counts the
            // answer of the former one as the only attempt.
            Err(error) if error.details() == MOVED => {
                self.client.evalsha(script.sha.as_str(), keys.clone(), args.clone()).await
            }
            answer => answer,
        };
        match asked {
            Err(error) if code(error.details()) == "NOSCRIPT" => {
                self.client.eval(script.text, keys, args).await.map_err(|error| failure(&error))
            }
            Err(error) if code(error.details()) == "WRONGTYPE" => {
                // Whatever somebody put there is no bucket, and no claim would ever succeed.
                warn!(
                    "a key of a bucket holds something else: deleting it, and pacing on from what this instance knows"
                );
                drop(self.client.del::<i64, _>(keys).await);
                Err(Failure::Refused)
            }
            answer => answer.map_err(|error| failure(&error)),
        }
    }
}

/// What the fleet announces.
#[derive(Debug)]
pub struct Notices(Receiver<fred::types::Message>);

impl Notices {
    /// The next notice; `None` when the store is gone.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            match self.0.recv().await {
                Ok(message) => {
                    if let Some(notice) = message.value.as_str().and_then(|text| wire::notice(&text)) {
                        return Some(notice);
                    }
                }
                // What was missed is learnt at the next claim.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[derive(Debug)]
struct Script {
    text: &'static str,
    sha: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: sha1_hash(text) }
    }
}

/// What the tasks that look after one client tell each other.
#[derive(Debug, Default)]
struct Link {
    /// A reconnection was asked for and has not come about yet. Each request for one is served, so there is never a second.
    forced: AtomicBool,
    /// The client does not do anything any more.
    stuck: Notify,
}

/// Whether the fleet may announce anything. It gets by without, since every claim tells of pauses.
#[derive(Debug, Default)]
struct Pubsub {
    is_warned_of: AtomicBool,
}

impl Pubsub {
    /// Whether Redis answered that it forbids this or knows no such command; then that is said once.
    fn is_refused(&self, error: &Error) -> bool {
        let is_refused = matches!(code(error.details()), "NOPERM" | "ERR");
        if is_refused && !self.is_warned_of.swap(true, Ordering::Relaxed) {
            warn!(hint = PERMISSIONS, "redis forbids pub/sub: the fleet shares pauses by claims alone");
        }
        is_refused
    }
}

/// Connects again whenever the client gives up, which it does on errors it takes for final: a configuration that is put
/// right on the server, a redirection it cannot follow.
async fn keep_connecting(client: impl ClientLike, link: Arc<Link>) {
    loop {
        let connection = AbortOnDropHandle::new(client.connect());
        tokio::select! {
            _given_up = connection => {}
            () = link.stuck.notified() => {}
        }
        sleep(AGAIN).await;
    }
}

async fn force(client: impl ClientLike, link: Arc<Link>) {
    if link.forced.swap(true, Ordering::AcqRel) {
        return;
    }
    let mut reconnected = pin!(client.force_reconnection());
    // While Redis is gone this takes as long as that; a client that believes itself connected is stuck.
    while timeout(STUCK_FOR, &mut reconnected).await.is_err() {
        if client.is_connected() {
            link.stuck.notify_one();
            break;
        }
    }
    link.forced.store(false, Ordering::Release);
}

/// Trusts the system's roots and those of `ca_file`.
fn trusting(ca_file: Option<&Path>) -> Result<TlsConnector, UrlError> {
    let mut roots = RootCertStore::empty();
    // Unlike fred's own, which fails on the first root that it cannot read.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let unusable = |reason: String| UrlError::CaFile { path: path.to_owned(), reason };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(unusable("it holds no certificate".to_owned()));
        }
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth().into())
}

fn builder(mut config: Config, timeout: Duration) -> Builder {
    // Start without Redis rather than not at all: the outage rule then applies from the first request.
    config.fail_fast = false;
    let mut builder = Builder::from_config(config);
    builder
        .with_performance_config(|performance| {
            performance.default_command_timeout = timeout;
            performance.broadcast_channel_capacity = 1024;
        })
        .with_connection_config(|connection| {
            connection.connection_timeout = CONNECT_WITHIN;
            connection.internal_command_timeout = CONNECT_WITHIN;
            // One: a command in flight when the connection breaks may have been executed, and must not be sent again.
            connection.max_command_attempts = 1;
            connection.max_command_buffer_len = 4096;
            connection.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            connection.unresponsive =
                UnresponsiveConfig { max_timeout: Some(Duration::from_secs(2)), interval: Duration::from_millis(500) };
            // Without these the client stays with a master that was demoted.
            connection.reconnect_errors =
                vec![ReconnectError::ClusterDown, ReconnectError::ReadOnly, ReconnectError::MasterDown];
        })
        .set_policy(ReconnectPolicy::new_exponential(0, 50, 500, 2));
    builder
}

fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::Timeout => return Failure::Timeout,
        ErrorKind::Auth => return Failure::Forbidden,
        ErrorKind::Tls => return Failure::Tls,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => return Failure::Disconnected,
        _ => {}
    }
    match code(error.details()) {
        "NOPERM" | "NOAUTH" | "WRONGPASS" => Failure::Forbidden,
        "OOM" => Failure::OutOfMemory,
        "READONLY" | "MASTERDOWN" => Failure::ReadOnly,
        "LOADING" => Failure::Loading,
        "BUSY" => Failure::Busy,
        "CLUSTERDOWN" => Failure::ClusterDown,
        _ => Failure::Refused,
    }
}

/// The first word of what Redis said, which tells the kind of error. Up to Redis 6.2 what went wrong in a script stands behind
/// the place where it did: `ERR Error running script (call to f_5c2a): @user_script:7: @user_script: 7: -OOM command not …`.
fn code(said: &str) -> &str {
    let said = match said.strip_prefix("ERR Error running script") {
        Some(said) => {
            said.rsplit("@user_script:").next().and_then(|said| said.split_once(": ")).map_or("", |(_, said)| said)
        }
        None => said,
    };
    said.trim_start_matches('-').split([' ', ':']).next().unwrap_or_default()
}

/// Whether Redis deletes keys that expire, as buckets do, when its memory is full.
fn deletes_buckets(maxmemory: &str, policy: &str) -> bool {
    !matches!(maxmemory, "" | "0") && !matches!(policy, "" | "noeviction")
}

const CLAIM: &str = include_str!("../../lua/claim.lua");
const PAUSE: &str = include_str!("../../lua/pause.lua");
const REJOIN: &str = include_str!("../../lua/rejoin.lua");
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(250);
/// Until what Redis refused is tried again: an operator may have allowed it.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
const STUCK_FOR: Duration = Duration::from_secs(5);
/// The oldest Redis that is tested.
const OLDEST: (u64, u64) = (6, 2);
/// What fred answers a command with that Redis redirected, when it may be attempted once. In no other case: a command that
/// was in flight when its connection broke ends with the error of the connection.
const MOVED: &str = "Too many failed write attempts.";
const PERMISSIONS: &str =
    "check user and password; the user needs `~bkt:* &bkt:* +@all -@dangerous`, `bkt` being `redis.prefix`";
const URL_HINT: &str = "write `redis://[user:password@]host:port[/database]`, `rediss://` for TLS, \
                        `redis-sentinel://host:port?sentinelServiceName=NAME`, `redis-cluster://host:port` or \
                        `redis+unix:///path`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_is_told_apart_by_its_first_word() {
        let said = |text: &str| failure(&Error::new(ErrorKind::Unknown, text.to_owned()));
        assert_eq!(said("OOM command not allowed when used memory > 'maxmemory'. script: 12"), Failure::OutOfMemory);
        assert_eq!(said("READONLY You can't write against a read only replica. script: 12"), Failure::ReadOnly);
        assert_eq!(said("LOADING Redis is loading the dataset in memory"), Failure::Loading);
        assert_eq!(said("BUSY Redis is busy running a script."), Failure::Busy);
        assert_eq!(said("NOPERM User pacer has no permissions to run the 'evalsha' command"), Failure::Forbidden);
        assert_eq!(said("CLUSTERDOWN The cluster is down"), Failure::ClusterDown);
        assert_eq!(said("WRONGTYPE Operation against a key holding the wrong kind of value"), Failure::Refused);
        assert_eq!(said("PACER claim: bad limit"), Failure::Refused);
    }

    #[test]
    fn what_went_wrong_in_a_script_is_found_behind_its_place() {
        let in_script = |text: &str| format!("ERR Error running script (call to f_80c9): @user_script:412: {text}");
        assert_eq!(code(&in_script("WRONGTYPE Operation against a key holding the wrong kind of value")), "WRONGTYPE");
        assert_eq!(
            code(&in_script("@user_script: 412: -OOM command not allowed when used memory > 'maxmemory'.")),
            "OOM"
        );
        assert_eq!(
            code(&in_script("@user_script: 412: -READONLY You can't write against a read only replica.")),
            "READONLY"
        );
        // Since Redis 7.
        assert_eq!(code("OOM command not allowed. script: 80c9, on @user_script:412."), "OOM");
        assert_eq!(code("NOSCRIPT No matching script. Please use EVAL."), "NOSCRIPT");
    }

    #[test]
    fn only_a_bounded_memory_with_another_policy_than_noeviction_deletes_buckets() {
        assert!(deletes_buckets("104857600", "volatile-lru") && deletes_buckets("1", "allkeys-random"));
        assert!(!deletes_buckets("0", "allkeys-lru"), "without a bound nothing is deleted");
        assert!(!deletes_buckets("104857600", "noeviction") && !deletes_buckets("", ""));
    }
}

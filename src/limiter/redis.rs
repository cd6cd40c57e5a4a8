//! Buckets in Redis: the scripts of `lua/`, each called at most once and for a bounded time.
//!
//! fred replays commands, waits for ever and queues without bound unless told otherwise; everything it is told is in
//! [`builder`].

use std::time::Duration;

use fred::{
    clients::SubscriberClient,
    prelude::{
        Builder, Client, ClientLike, Config, Error, ErrorKind, EventInterface, LuaInterface, PubsubInterface,
        ReconnectPolicy,
    },
    types::{
        Value,
        config::{ReconnectError, TcpConfig, UnresponsiveConfig},
    },
    util::sha1_hash,
};
use secrecy::ExposeSecret;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::config::model::Redis;

use super::{
    bucket::Answer,
    store::{BucketSpec, Claim, HORIZON, lead},
};

/// The Redis of a fleet.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    subscriber: SubscriberClient,
    claim: Script,
    pause: Script,
    rejoin: Script,
    pauses_channel: String,
    rejoin_key: String,
    instance: String,
}

/// A pause that some instance of the fleet announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseNotice {
    /// The bucket.
    pub key: String,
    /// How long it stays paused, from the moment the notice was sent.
    pub wait: Duration,
}

/// Why Redis did not do as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer in time: the command may have been executed.
    Timeout,
    /// There is no connection, or it broke.
    Disconnected,
    /// Redis answered with an error: `OOM`, `READONLY`, `LOADING`, `BUSY`, a script error.
    Refused,
}

impl Failure {
    /// A word for logs; what Redis wrote stays out of them, since it may quote keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Refused => "refused",
        }
    }
}

/// The Redis URL of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "`redis.url` cannot be used: {0}\n\nhint: write `redis://[user:password@]host:port[/database]`, `rediss://` for TLS, `redis-sentinel://`, `redis-cluster://` or `redis+unix:///path`"
)]
pub struct UrlError(String);

impl RedisStore {
    /// Prepares a store; no connection is made before [`RedisStore::connect`].
    ///
    /// # Errors
    /// When the URL cannot be used.
    pub fn new(config: &Redis, instance: String) -> Result<Self, UrlError> {
        // fred's message may quote the URL, and with it the password: only the kind of the error is shown.
        let broken = |error: Error| UrlError(error.kind().to_str().to_lowercase());
        let builder = builder(config).map_err(broken)?;
        Ok(Self {
            client: builder.build().map_err(broken)?,
            subscriber: builder.build_subscriber_client().map_err(broken)?,
            claim: Script::new(CLAIM),
            pause: Script::new(PAUSE),
            rejoin: Script::new(REJOIN),
            pauses_channel: format!("{}:pauses", config.prefix),
            rejoin_key: format!("{}:rejoin", config.prefix),
            instance,
        })
    }

    /// Connects in the background, for ever, and subscribes to the pauses of the fleet.
    pub fn connect(&self) {
        drop(self.client.connect());
        drop(self.subscriber.connect());
        drop(self.subscriber.manage_subscriptions());
        let (subscriber, channel) = (self.subscriber.clone(), self.pauses_channel.clone());
        tokio::spawn(async move {
            // The client resubscribes by itself after this first time; until then it has nothing to remember.
            while subscriber.subscribe(channel.as_str()).await.is_err() {
                tokio::time::sleep(PROBE_AGAIN).await;
            }
        });
    }

    /// Waits until there is a connection, at most `wait`.
    pub async fn connected(&self, wait: Duration) -> bool {
        self.client.is_connected()
            || matches!(tokio::time::timeout(wait, self.client.wait_for_connect()).await, Ok(Ok(())))
    }

    /// Claims slots.
    ///
    /// # Errors
    /// When the outcome is unknown: the claim must not be replayed.
    pub async fn claim(&self, claim: &Claim) -> Result<Answer, Failure> {
        let group = &claim.group;
        let mut keys: Vec<&str> = group.buckets.iter().map(|bucket| bucket.key.as_str()).collect();
        keys.push(&group.line);
        let points = claim.ages.arrivals();
        let mut args = vec![
            text(HORIZON),
            text(lead(group)),
            text(claim.rtt),
            self.instance.clone(),
            text(group.cost),
            claim.ages.count().to_string(),
            points.len().to_string(),
        ];
        args.extend(points.iter().copied().map(text));
        let mut witness = claim.witness.iter();
        for bucket in &group.buckets {
            args.push(bucket.limits.len().to_string());
            for limit in &bucket.limits {
                args.push(text(limit.interval));
                args.push(text(limit.capacity));
                args.push(u8::from(limit.starts_full).to_string());
                args.push(text(witness.next().copied().unwrap_or(0.0)));
            }
        }
        let reply: Vec<i64> = self.call(&self.claim, keys, args).await?;
        let debts = 3 + claim.witness.len();
        if reply.len() < debts {
            return Err(Failure::Refused);
        }
        Ok(Answer {
            next: reply[0] as f64,
            pause: reply[1] as f64,
            others: usize::try_from(reply[2]).unwrap_or(0),
            debts: reply[3..debts].iter().map(|debt| *debt as f64).collect(),
            slots: reply[debts..].iter().map(|slot| *slot as f64).collect(),
        })
    }

    /// Pauses a bucket for at least `wait` from now and tells the fleet.
    ///
    /// # Errors
    /// When the outcome is unknown. Pausing again is harmless.
    pub async fn pause(&self, bucket: &BucketSpec, wait: Duration) -> Result<(), Failure> {
        let mut args = vec![text(wait.as_secs_f64() * 1e6), self.pauses_channel.clone()];
        for limit in &bucket.limits {
            args.push(text(limit.interval));
            args.push(text(limit.capacity));
        }
        self.call::<i64>(&self.pause, vec![&bucket.key], args).await.map(drop)
    }

    /// How long until the fleet paces through Redis again, now that it takes writes again; `settle` unless an instance
    /// that came back before has agreed on less.
    ///
    /// # Errors
    /// When Redis does not take writes.
    pub async fn rejoin(&self, settle: Duration) -> Result<Duration, Failure> {
        let args = vec![settle.as_millis().to_string()];
        let left: u64 = self.call(&self.rejoin, vec![&self.rejoin_key], args).await?;
        Ok(Duration::from_millis(left))
    }

    /// Drops a connection that no longer answers, so that a new one is tried.
    pub async fn reconnect(&self) {
        drop(self.client.force_reconnection().await);
    }

    /// The pauses that the instances of the fleet announce, this one included.
    pub fn pauses(&self) -> Pauses {
        Pauses(self.subscriber.message_rx())
    }

    /// Calls a script. Where Redis has forgotten it, its text goes along in a second trip; the first did nothing.
    async fn call<R: fred::types::FromValue>(
        &self,
        script: &Script,
        keys: Vec<&str>,
        args: Vec<String>,
    ) -> Result<R, Failure> {
        if !self.client.is_connected() {
            return Err(Failure::Disconnected);
        }
        match self.client.evalsha(script.sha.as_str(), keys.clone(), args.clone()).await {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                self.client.eval(script.text, keys, args).await.map_err(failure)
            }
            answer => answer.map_err(failure),
        }
    }
}

/// The pauses that the fleet announces.
#[derive(Debug)]
pub struct Pauses(Receiver<fred::types::Message>);

impl Pauses {
    /// The next notice; `None` when the store is gone.
    pub async fn next(&mut self) -> Option<PauseNotice> {
        loop {
            match self.0.recv().await {
                Ok(message) => {
                    if let Some(notice) = notice(&message.value) {
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

fn builder(config: &Redis) -> Result<Builder, Error> {
    let mut fred = Config::from_url(config.url.expose_secret())?;
    // Start without Redis rather than not at all: the outage rule then applies from the first request.
    fred.fail_fast = false;
    let mut builder = Builder::from_config(fred);
    let timeout = config.timeout;
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
    Ok(builder)
}

fn failure(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Timeout => Failure::Timeout,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing | ErrorKind::Tls | ErrorKind::Auth => {
            Failure::Disconnected
        }
        _ => Failure::Refused,
    }
}

/// `<microseconds> <key>`, as `lua/pause.lua` publishes it.
fn notice(value: &Value) -> Option<PauseNotice> {
    let text = value.as_str()?;
    let (wait, key) = text.split_once(' ')?;
    Some(PauseNotice { key: key.to_owned(), wait: Duration::from_micros(wait.parse().ok()?) })
}

fn text(number: f64) -> String {
    number.to_string()
}

const CLAIM: &str = include_str!("../../lua/claim.lua");
const PAUSE: &str = include_str!("../../lua/pause.lua");
const REJOIN: &str = include_str!("../../lua/rejoin.lua");
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
const PROBE_AGAIN: Duration = Duration::from_millis(250);

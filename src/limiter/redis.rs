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
    types::config::{ReconnectError, TcpConfig, UnresponsiveConfig},
    util::sha1_hash,
};
use secrecy::ExposeSecret;
use tokio::sync::broadcast::{Receiver, error::RecvError};

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
    subscriber: SubscriberClient,
    claim: Script,
    pause: Script,
    rejoin: Script,
    notices: String,
    rejoin_key: String,
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
    pub fn new(config: &Redis) -> Result<Self, UrlError> {
        // fred's message may quote the URL, and with it the password: only the kind of the error is shown.
        let broken = |error: Error| UrlError(error.kind().to_str().to_lowercase());
        let builder = builder(config).map_err(broken)?;
        Ok(Self {
            client: builder.build().map_err(broken)?,
            subscriber: builder.build_subscriber_client().map_err(broken)?,
            claim: Script::new(CLAIM),
            pause: Script::new(PAUSE),
            rejoin: Script::new(REJOIN),
            notices: format!("{}:notices", config.prefix),
            rejoin_key: format!("{}:rejoin", config.prefix),
        })
    }

    /// Connects in the background, for ever, and subscribes to the pauses of the fleet.
    pub fn connect(&self) {
        drop(self.client.connect());
        drop(self.subscriber.connect());
        drop(self.subscriber.manage_subscriptions());
        let (subscriber, channel) = (self.subscriber.clone(), self.notices.clone());
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

    /// How long until the fleet paces through Redis again, now that it takes writes again; `settle` unless an instance
    /// that came back before has agreed on less.
    ///
    /// # Errors
    /// When Redis does not take writes.
    pub async fn rejoin(&self, settle: Duration) -> Result<Duration, Failure> {
        let args = vec![settle.as_millis().to_string()];
        let left: u64 = self.call(&self.rejoin, vec![self.rejoin_key.clone()], args).await?;
        Ok(Duration::from_millis(left))
    }

    /// Drops a connection that no longer answers, so that a new one is tried.
    pub async fn reconnect(&self) {
        drop(self.client.force_reconnection().await);
    }

    /// What the instances of the fleet announce, this one included.
    pub fn notices(&self) -> Notices {
        Notices(self.subscriber.message_rx())
    }

    /// Calls a script. Where Redis has forgotten it, its text goes along in a second trip; the first did nothing.
    async fn call<R: fred::types::FromValue>(
        &self,
        script: &Script,
        keys: Vec<String>,
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

const CLAIM: &str = include_str!("../../lua/claim.lua");
const PAUSE: &str = include_str!("../../lua/pause.lua");
const REJOIN: &str = include_str!("../../lua/rejoin.lua");
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
const PROBE_AGAIN: Duration = Duration::from_millis(250);

//! Buckets in Redis: the scripts of `lua/`, each called at most once and for a bounded time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::SubscriberClient,
    prelude::{Client, ClientLike, Error, EventInterface, KeysInterface, LuaInterface, PubsubInterface},
    types::{ClusterHash, CustomCommand, FromValue},
    util::sha1_hash,
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::warn;

use crate::config::model::Redis;

use super::{
    bucket::Answer,
    claim::{BucketSpec, Claim},
    wire::{self, Notice},
};
use connection::{AGAIN, Link, builder, force, keep_connecting, unusable};
use failure::{PERMISSIONS, code, failure};

pub use connection::UrlError;
pub use failure::Failure;

mod connection;
mod failure;

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

impl RedisStore {
    /// Prepares a store; no connection is made before [`RedisStore::connect`].
    ///
    /// # Errors
    /// When the URL cannot be used.
    pub fn new(config: &Redis) -> Result<Self, UrlError> {
        let builder = builder(config)?;
        Ok(Self {
            client: builder.build().map_err(unusable)?,
            client_link: Arc::default(),
            subscriber: builder.build_subscriber_client().map_err(unusable)?,
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
        let reply: Vec<i64> = self.call(&self.claim, || wire::claim(claim, &self.notices)).await?;
        wire::answer(claim, &reply).ok_or(Failure::Refused)
    }

    /// Pauses a bucket for at least `wait` from now and tells the fleet.
    ///
    /// # Errors
    /// When the outcome is unknown. Pausing again is harmless.
    pub async fn pause(&self, bucket: &BucketSpec, wait: Duration) -> Result<(), Failure> {
        self.call::<i64>(&self.pause, || wire::pause(bucket, wait, &self.notices)).await.map(drop)
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
        let arguments = || (vec![key.to_owned()], vec![settle.as_millis().to_string(), lost.as_micros().to_string()]);
        let reply: Vec<u64> = self.call(&self.rejoin, arguments).await?;
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

    /// Calls a script with keys and arguments, which are written again for a second trip: that is rare. Where Redis has
    /// forgotten the script, its text goes along in such a trip; the first did nothing.
    async fn call<R: FromValue>(
        &self,
        script: &Script,
        arguments: impl Fn() -> (Vec<String>, Vec<String>),
    ) -> Result<R, Failure> {
        if !self.client.is_connected() {
            return Err(self.trouble());
        }
        let (keys, args) = arguments();
        let asked = self.client.evalsha(script.sha.as_str(), keys, args).await;
        let asked = match asked {
            // Another node of the cluster has the bucket now. fred has learnt which, but does not ask it: it counts the
            // answer of the former one as the only attempt.
            Err(error) if error.details() == MOVED => {
                let (keys, args) = arguments();
                self.client.evalsha(script.sha.as_str(), keys, args).await
            }
            answer => answer,
        };
        match asked {
            Err(error) if code(error.details()) == "NOSCRIPT" => {
                let (keys, args) = arguments();
                self.client.eval(script.text, keys, args).await.map_err(|error| failure(&error))
            }
            Err(error) if code(error.details()) == "WRONGTYPE" => {
                // Whatever somebody put there is no bucket, and no claim would ever succeed.
                warn!(
                    "a key of a bucket holds something else: deleting it, and pacing on from what this instance knows"
                );
                drop(self.client.del::<i64, _>(arguments().0).await);
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

/// Whether Redis deletes keys that expire, as buckets do, when its memory is full.
fn deletes_buckets(maxmemory: &str, policy: &str) -> bool {
    !matches!(maxmemory, "" | "0") && !matches!(policy, "" | "noeviction")
}

const CLAIM: &str = include_str!("../../../lua/claim.lua");
const PAUSE: &str = include_str!("../../../lua/pause.lua");
const REJOIN: &str = include_str!("../../../lua/rejoin.lua");
/// Until what Redis refused is tried again: an operator may have allowed it.
const REFUSED_AGAIN: Duration = Duration::from_secs(5);
/// The oldest Redis that is tested.
const OLDEST: (u64, u64) = (6, 2);
/// What fred answers a command with that Redis redirected, when it may be attempted once. In no other case: a command that
/// was in flight when its connection broke ends with the error of the connection.
const MOVED: &str = "Too many failed write attempts.";
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bounded_memory_with_another_policy_than_noeviction_deletes_buckets() {
        assert!(deletes_buckets("104857600", "volatile-lru") && deletes_buckets("1", "allkeys-random"));
        assert!(!deletes_buckets("0", "allkeys-lru"), "without a bound nothing is deleted");
        assert!(!deletes_buckets("104857600", "noeviction") && !deletes_buckets("", ""));
    }
}

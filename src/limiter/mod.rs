//! The fleet-wide limiter: how a request waits for its turn.
//!
//! A *bucket* is one shared allowance in the store. A *lane* is the line of the requests in this instance that need the
//! same buckets. Its *pump* claims *slots* for all of them at once, never further ahead than a short horizon, and binds
//! each slot at its instant to the oldest waiter: the store decides when, the instance decides who. An unknown outcome is
//! spent, a stale slot is void, and whoever leaves the line costs nothing.

pub mod bucket;
mod fleet;
mod key;
mod lane;
mod memory;
mod metrics;
mod pump;
mod quote;
mod redis;
mod status;
mod store;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::config::{
    Config,
    model::{Channel, Endpoint, KeyPart},
};

use self::{
    fleet::FleetStore,
    key::{KeyMaker, NO_ENDPOINT},
    lane::{Order, Pause},
    memory::MemoryStore,
    metrics::{LaneMetrics, StoreMetrics},
    store::Store,
};

pub use self::{
    lane::{Lane, Permit, Refused, Turn},
    metrics::describe as describe_metrics,
    redis::UrlError,
    status::LineStatus,
};

/// The lanes of this instance and the store behind them.
#[derive(Debug, Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    keys: KeyMaker,
    ageing: Duration,
    lanes: Mutex<HashMap<String, Entry>>,
    announce: mpsc::UnboundedSender<Pause>,
}

#[derive(Debug)]
struct Entry {
    lane: Lane,
    used: Instant,
}

impl Limiter {
    /// Opens the store that the configuration names: Redis for a fleet, this process for a single instance.
    ///
    /// Returns even if Redis cannot be reached; the outage rule then holds from the first request.
    ///
    /// # Errors
    /// When the Redis URL cannot be used.
    pub async fn open(config: &Config) -> Result<Self, UrlError> {
        let ageing = config.priority.ageing;
        let Some(redis) = &config.redis else {
            StoreMetrics::new().mode("memory");
            return Ok(Self::with(Store::Memory(Arc::new(MemoryStore::new())), KeyMaker::new("bkt", None), ageing));
        };
        let store = Arc::new(FleetStore::new(redis, format!("{:016x}", rand::random::<u64>()))?);
        let limiter =
            Self::with(Store::Fleet(Arc::clone(&store)), KeyMaker::new(&redis.prefix, redis.hash_key.as_ref()), ageing);
        let (mut notices, announce) = (store.redis().pauses(), limiter.inner.announce.clone());
        tokio::spawn(async move {
            while let Some(notice) = notices.next().await {
                let pause = Pause { key: notice.key, until: Instant::now() + notice.wait };
                if announce.send(pause).is_err() {
                    return;
                }
            }
        });
        store.connect().await;
        Ok(limiter)
    }

    /// The waiting line for a request, or `None` when nothing limits it and no endpoint could be paused.
    ///
    /// `value` says what a part of a limit's key is in the request; only a keyed hash of it reaches the store.
    pub fn lane<'v>(
        &self,
        channel: &Channel,
        endpoint: Option<&Arc<Endpoint>>,
        value: impl Fn(&KeyPart) -> Option<&'v [u8]>,
    ) -> Option<Lane> {
        if endpoint.map_or(channel.limits.is_empty(), |endpoint| endpoint.exempt) {
            return None;
        }
        let inner = &self.inner;
        let scope = inner.keys.scope(&channel.name, value(&KeyPart::Credential));
        let id = KeyMaker::line(&scope, endpoint);
        let now = Instant::now();
        let mut lanes = inner.lanes();
        if let Some(entry) = lanes.get_mut(&id) {
            entry.used = now;
            return Some(entry.lane.clone());
        }
        let group = Arc::new(key::group(&scope, channel, endpoint)?);
        let policy = endpoint.map_or(&channel.policy, |endpoint| &endpoint.policy);
        let max_queue = usize::try_from(policy.max_queue.get()).unwrap_or(usize::MAX);
        let endpoint = endpoint.map_or(NO_ENDPOINT, |endpoint| &endpoint.name);
        let metrics = LaneMetrics::new(&channel.name, endpoint);
        let name = format!("{}/{endpoint}", channel.name);
        let order = Order { max_queue, ageing: inner.ageing };
        let lane = Lane::open(name, inner.store.clone(), group, metrics, order, inner.announce.clone());
        lanes.insert(id, Entry { lane: lane.clone(), used: now });
        Some(lane)
    }

    /// Whether paced requests can be served now.
    pub fn is_usable(&self) -> bool {
        match &self.inner.store {
            Store::Memory(_) => true,
            Store::Fleet(store) => store.is_usable(),
        }
    }

    /// Which store decides now: `memory`, `redis`, or what `on_outage` says.
    pub fn mode(&self) -> &'static str {
        match &self.inner.store {
            Store::Memory(_) => "memory",
            Store::Fleet(store) => store.mode(),
        }
    }

    /// How every line stands, by name.
    pub fn status(&self) -> Vec<LineStatus> {
        status::lines(self.inner.lanes().values().map(|entry| &entry.lane), Instant::now())
    }

    /// Sets the gauges that depend on the moment of the look: oldest wait, pause, tokens.
    pub fn refresh_gauges(&self) {
        self.status().iter().for_each(LineStatus::show);
    }

    fn with(store: Store, keys: KeyMaker, ageing: Duration) -> Self {
        let (announce, mut announced) = mpsc::unbounded_channel::<Pause>();
        let inner = Arc::new(Inner { store, keys, ageing, lanes: Mutex::default(), announce });
        let keeper = Arc::downgrade(&inner);
        tokio::spawn(async move {
            let mut ticks = interval(SWEEP);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    pause = announced.recv() => {
                        let (Some(inner), Some(pause)) = (keeper.upgrade(), pause) else { return };
                        inner.paused(&pause);
                    }
                    now = ticks.tick() => {
                        let Some(inner) = keeper.upgrade() else { return };
                        inner.sweep(now);
                    }
                }
            }
        });
        Self { inner }
    }
}

impl Inner {
    fn lanes(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every lane that takes from the bucket.
    fn paused(&self, pause: &Pause) {
        self.lanes()
            .values()
            .filter(|entry| entry.lane.takes_from(&pause.key))
            .for_each(|entry| entry.lane.paused(pause.until));
    }

    /// Closes lanes that nobody has used for a while: credentials come and go, memory must not grow with them.
    fn sweep(&self, now: Instant) {
        self.lanes().retain(|_, entry| !entry.lane.is_idle() || now - entry.used < IDLE);
    }
}

const SWEEP: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(600);

//! The fleet-wide limiter: how a request waits for its turn.
//!
//! A *bucket* is one shared allowance in the store. A *lane* is the line of the requests in this instance that need the
//! same buckets. Its *pump* claims *slots* for all of them at once, never further ahead than a short horizon, and binds
//! each slot at its instant to the oldest waiter: the store decides when, the instance decides who. An unknown outcome is
//! spent, a stale slot is void, and whoever leaves the line costs nothing.

pub mod bucket;
mod claim;
mod fleet;
mod key;
mod lane;
mod leases;
mod limit;
mod line;
mod memory;
mod metrics;
mod pump;
mod quote;
mod redis;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod waiter;
mod wire;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
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
    lane::{News, Order},
    memory::MemoryStore,
    metrics::{LaneMetrics, StoreMetrics},
    store::Store,
    wire::Notice,
};

pub use self::{
    lane::{Lane, Turn},
    metrics::describe as describe_metrics,
    redis::UrlError,
    status::LineStatus,
    waiter::{Permit, Refused},
};

/// The lanes of this instance and the store behind them.
#[derive(Debug, Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    /// Unique in the fleet.
    instance: String,
    /// Lanes opened so far.
    opened: AtomicU64,
    keys: KeyMaker,
    ageing: Duration,
    lanes: Mutex<HashMap<String, Entry>>,
    announce: mpsc::UnboundedSender<News>,
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
        let store = Arc::new(FleetStore::new(redis)?);
        let limiter =
            Self::with(Store::Fleet(Arc::clone(&store)), KeyMaker::new(&redis.prefix, redis.hash_key.as_ref()), ageing);
        let (mut notices, announce) = (store.redis().notices(), limiter.inner.announce.clone());
        tokio::spawn(async move {
            while let Some(notice) = notices.next().await {
                let news = match notice {
                    Notice::Pause { key, wait } => News::Paused { key, until: Instant::now() + wait },
                    Notice::Wake { line } => News::Ended { line },
                };
                if announce.send(news).is_err() {
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
        let group = inner.keys.group(channel, endpoint, value)?;
        let policy = endpoint.map_or(&channel.policy, |endpoint| &endpoint.policy);
        let max_queue = usize::try_from(policy.max_queue.get()).unwrap_or(usize::MAX);
        let now = Instant::now();
        let mut lanes = inner.lanes();
        // A lane whose limits have changed is replaced; whoever waits in it goes by the old ones.
        if let Some(entry) = lanes.get_mut(&group.line).filter(|entry| entry.lane.takes_as(&group)) {
            entry.used = now;
            // A reload may have changed it.
            entry.lane.bound(max_queue);
            return Some(entry.lane.clone());
        }
        let endpoint = endpoint.map_or(NO_ENDPOINT, |endpoint| &endpoint.name);
        let metrics = LaneMetrics::new(&channel.name, endpoint);
        let name = format!("{}/{endpoint}", channel.name);
        let number = inner.opened.fetch_add(1, Ordering::Relaxed);
        let order = Order { lane: format!("{}:{number}", inner.instance).into(), max_queue, ageing: inner.ageing };
        let (line, group) = (group.line.clone(), Arc::new(group));
        let lane = Lane::open(name, inner.store.clone(), group, metrics, order, inner.announce.clone());
        lanes.insert(line, Entry { lane: lane.clone(), used: now });
        Some(lane)
    }

    /// Whether paced requests can be served now.
    pub fn is_usable(&self) -> bool {
        match &self.inner.store {
            Store::Fleet(store) => store.is_usable(),
            _ => true,
        }
    }

    /// Which store decides now: `memory`, `redis`, or what `on_outage` says.
    pub fn mode(&self) -> &'static str {
        match &self.inner.store {
            Store::Fleet(store) => store.mode(),
            _ => "memory",
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
        let (announce, mut announced) = mpsc::unbounded_channel::<News>();
        let instance = format!("{:016x}", rand::random::<u64>());
        let inner = Arc::new(Inner {
            store,
            instance,
            opened: AtomicU64::new(0),
            keys,
            ageing,
            lanes: Mutex::default(),
            announce,
        });
        let keeper = Arc::downgrade(&inner);
        tokio::spawn(async move {
            let mut ticks = interval(SWEEP);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    news = announced.recv() => {
                        let (Some(inner), Some(news)) = (keeper.upgrade(), news) else { return };
                        inner.spread(&news);
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

    /// Tells every lane that it concerns.
    fn spread(&self, news: &News) {
        let lanes = self.lanes();
        let lanes = lanes.values().map(|entry| &entry.lane);
        match news {
            News::Paused { key, until } => {
                lanes.filter(|lane| lane.takes_from(key)).for_each(|lane| lane.paused(*until))
            }
            News::Ended { line } => lanes.filter(|lane| lane.stands_in(line)).for_each(Lane::woken),
        }
    }

    /// Closes lanes that nobody has used for a while: credentials come and go, memory must not grow with them.
    fn sweep(&self, now: Instant) {
        self.lanes().retain(|_, entry| {
            let is_kept = !entry.lane.is_idle() || now - entry.used < IDLE;
            if !is_kept {
                entry.lane.state().metrics.settle();
            }
            is_kept
        });
    }
}

const SWEEP: Duration = Duration::from_secs(30);
/// What a closed lane knew is in the store; a new one learns it with its first claim.
const IDLE: Duration = Duration::from_secs(120);

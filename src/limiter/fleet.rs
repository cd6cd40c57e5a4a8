//! The store of a fleet: Redis while it answers, this instance's share of every limit while it does not.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::RngExt;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::config::model::{OnOutage, Redis};

use super::{
    bucket::{Level, LimitSpec},
    claim::{BucketSpec, Claim, Grant, Group, StoreError},
    memory::MemoryStore,
    metrics::StoreMetrics,
    redis::{Failure, RedisStore, UrlError},
};

/// Redis, and what to do without it.
#[derive(Debug)]
pub struct FleetStore {
    redis: RedisStore,
    share: MemoryStore,
    on_outage: OnOutage,
    instances: f64,
    health: Mutex<Health>,
    down: AtomicBool,
    metrics: StoreMetrics,
}

#[derive(Debug, Default)]
struct Health {
    /// The first of the failures since the last success, and how many there were.
    failing: Option<(Instant, u32)>,
    /// When Redis last came back.
    recovered_at: Option<Instant>,
}

impl FleetStore {
    /// Prepares the store of a fleet.
    ///
    /// # Errors
    /// When the URL of the configuration cannot be used.
    pub fn new(config: &Redis) -> Result<Self, UrlError> {
        let metrics = StoreMetrics::new();
        metrics.mode("redis");
        Ok(Self {
            redis: RedisStore::new(config)?,
            share: MemoryStore::new(),
            on_outage: config.on_outage,
            instances: f64::from(config.expected_instances.get()),
            health: Mutex::default(),
            down: AtomicBool::new(false),
            metrics,
        })
    }

    /// Connects, waiting a moment for the first connection so that a healthy start does not begin with an outage.
    pub async fn connect(self: &Arc<Self>) {
        self.redis.connect();
        if !self.redis.connected(FIRST_CONNECT).await {
            self.go_down(Failure::Disconnected);
        }
    }

    /// The Redis behind this store.
    pub fn redis(&self) -> &RedisStore {
        &self.redis
    }

    /// Which store decides now.
    pub fn mode(&self) -> &'static str {
        if self.is_down() { mode(self.on_outage) } else { "redis" }
    }

    /// Whether paced requests can be served now.
    pub fn is_usable(&self) -> bool {
        !self.is_down() || self.on_outage != OnOutage::Closed
    }

    /// Claims slots from Redis, or from this instance's share while Redis is lost.
    ///
    /// # Errors
    /// When the outcome is unknown, or Redis is lost and the configuration says to refuse.
    pub async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Grant, StoreError> {
        if self.is_down() {
            return match self.on_outage {
                OnOutage::Local => Ok(self.share.claim(&self.shared_out(claim))),
                OnOutage::Closed => Err(StoreError::Closed),
                OnOutage::Open => Ok(unlimited(claim)),
            };
        }
        let mut claim = claim.clone();
        self.remember_outage(&mut claim);
        let asked = Instant::now();
        let answer = self.redis.claim(&claim).await;
        self.metrics.called("claim", asked.elapsed());
        match answer {
            Ok(answer) => {
                self.succeeded();
                Ok(Grant::new(&claim, answer, true))
            }
            Err(failure) => {
                self.failed(failure);
                Err(StoreError::Lost)
            }
        }
    }

    /// Pauses a bucket for the fleet, or for this instance while Redis is lost.
    pub async fn pause(self: &Arc<Self>, bucket: &BucketSpec, wait: Duration) {
        // In any case here too: an outage that begins during the pause must not end it.
        self.share.pause(&self.share_of(bucket), wait);
        if self.is_down() {
            return;
        }
        let asked = Instant::now();
        let answer = self.redis.pause(bucket, wait).await;
        self.metrics.called("pause", asked.elapsed());
        match answer {
            Ok(()) => self.succeeded(),
            Err(failure) => self.failed(failure),
        }
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    fn succeeded(&self) {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).failing = None;
    }

    fn failed(self: &Arc<Self>, failure: Failure) {
        self.metrics.failed(failure.as_str());
        let now = Instant::now();
        let lost = {
            let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            let (since, times) = health.failing.map_or((now, 1), |(since, times)| (since, times + 1));
            health.failing = Some((since, times));
            times >= FAILURES || now - since >= FAILING_FOR
        };
        if lost {
            self.go_down(failure);
        }
    }

    fn go_down(self: &Arc<Self>, failure: Failure) {
        if self.down.swap(true, Ordering::Relaxed) {
            return;
        }
        self.share.forget_levels();
        let mode = mode(self.on_outage);
        self.metrics.mode(mode);
        self.metrics.transition(mode);
        let reason = failure.as_str();
        match self.on_outage {
            OnOutage::Local => {
                error!(reason, mode, share = %format_args!("1/{}", self.instances), "redis is lost: pacing alone at this instance's share of every limit");
            }
            OnOutage::Closed => error!(reason, mode, "redis is lost: refusing paced requests with 503"),
            OnOutage::Open => error!(reason, mode, "redis is lost: forwarding without pacing"),
        }
        let store = Arc::clone(self);
        tokio::spawn(async move { store.recover(failure).await });
    }

    async fn recover(self: Arc<Self>, failure: Failure) {
        if failure == Failure::Timeout {
            // A server that is stopped keeps its connections; only a new one shows when it is back.
            self.redis.reconnect().await;
        }
        let mut stuck_since = Instant::now();
        loop {
            let wait = rand::rng().random_range(PROBE_AFTER);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            match self.redis.rejoin(SETTLE).await {
                // Until then at this instance's share: others may not have noticed yet, and do the same.
                Ok(left) => break tokio::time::sleep(left).await,
                Err(Failure::Timeout) if stuck_since.elapsed() > STUCK_FOR => {
                    self.redis.reconnect().await;
                    stuck_since = Instant::now();
                }
                Err(_) => {}
            }
        }
        {
            let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
            health.failing = None;
            health.recovered_at = Some(Instant::now());
        }
        self.down.store(false, Ordering::Relaxed);
        self.metrics.mode("redis");
        self.metrics.transition("redis");
        warn!(mode = "redis", "redis is back: pacing with the fleet again, every bucket spent down to one request");
    }

    /// After an outage every bucket counts as spent down to one request, refilling since Redis came back: the buckets in
    /// Redis do not know what the fleet sent in the meantime, or are gone.
    fn remember_outage(&self, claim: &mut Claim) {
        let recovered_at = self.health.lock().unwrap_or_else(PoisonError::into_inner).recovered_at;
        let Some(recovered_at) = recovered_at else { return };
        let since = recovered_at.elapsed().as_secs_f64() * 1e6;
        for (witness, limit) in claim.witness.iter_mut().zip(claim.group.limits()) {
            if let LimitSpec::Bucket { interval, capacity, .. } = limit {
                *witness = witness.max((capacity - claim.group.cost) * interval - since);
            }
        }
    }

    /// The claim with every limit cut to this instance's share.
    fn shared_out(&self, claim: &Claim) -> Claim {
        let group = &claim.group;
        let buckets = group.buckets.iter().map(|bucket| self.share_of_cost(bucket, group.cost)).collect();
        Claim {
            group: Arc::new(Group { buckets, line: group.line.clone(), cost: group.cost }),
            witness: vec![0.0; claim.witness.len()],
            ..claim.clone()
        }
    }

    fn share_of(&self, bucket: &BucketSpec) -> BucketSpec {
        self.share_of_cost(bucket, 1.0)
    }

    fn share_of_cost(&self, bucket: &BucketSpec, cost: f64) -> BucketSpec {
        let limits = bucket.limits.iter().map(|limit| share(limit, self.instances, cost)).collect();
        BucketSpec { key: bucket.key.clone(), limits }
    }
}

/// One of so many instances' share of a limit, with no burst, starting empty: what the fleet spent just before is not known.
fn share(limit: &LimitSpec, instances: f64, cost: f64) -> LimitSpec {
    match *limit {
        LimitSpec::Bucket { interval, .. } => {
            LimitSpec::Bucket { interval: interval * instances, capacity: cost, starts_full: false, adaptive: None }
        }
        // Whole requests only: where the share is less than one, one in as many windows.
        LimitSpec::Window { count, per, margin, .. } => {
            let share = (count / instances).floor().max(cost);
            LimitSpec::Window { count: share, per: per * (share * instances / count).max(1.0), margin, is_clock: false }
        }
        LimitSpec::Concurrent { most } => LimitSpec::Concurrent { most: (most / instances).floor() },
    }
}

/// Everybody at once: `on_outage: open`.
fn unlimited(claim: &Claim) -> Grant {
    let levels = claim.group.limits().map(|spec| (Level { level: 0.0, more: 0.0 }, *spec)).collect();
    Grant { slots: vec![Duration::ZERO; claim.ages.count()], levels, ..Grant::default() }
}

fn mode(on_outage: OnOutage) -> &'static str {
    match on_outage {
        OnOutage::Local => "local",
        OnOutage::Closed => "closed",
        OnOutage::Open => "open",
    }
}

/// Redis counts as lost after this many failures in a row, or after failing for this long.
const FAILURES: u32 = 3;
const FAILING_FOR: Duration = Duration::from_secs(1);
const FIRST_CONNECT: Duration = Duration::from_secs(1);
/// Milliseconds between two probes of a lost Redis.
const PROBE_AFTER: std::ops::Range<u64> = 250..500;
/// Longer than it takes every instance to notice that Redis is back: a reconnect every 500 ms and a probe.
const SETTLE: Duration = Duration::from_secs(2);
const STUCK_FOR: Duration = Duration::from_secs(2);

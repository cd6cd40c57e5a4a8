//! The store of a fleet: Redis while it answers, this instance's share of every limit while it does not.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::RngExt;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{error, warn};

use crate::config::model::{OnOutage, Redis};

use super::{
    bucket::{Level, LimitSpec, Outage},
    claim::{BucketSpec, Claim, Grant, Group, StoreError},
    memory::MemoryStore,
    metrics::StoreMetrics,
    redis::{Failure, RedisStore, Rejoin, UrlError},
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
    /// What has only failed since, by the part of the keys that is hashed to a node: another node of a cluster may be well.
    failing: HashMap<String, Failing>,
    /// When Redis last answered.
    answered_at: Option<Instant>,
    /// Since when Redis is lost, while it is.
    lost_since: Option<Instant>,
    /// The last time that it was.
    outage: Option<Outage>,
}

#[derive(Debug, Clone, Copy)]
struct Failing {
    /// When the first of the failed calls was made.
    since: Instant,
    /// When the last of them failed.
    last: Instant,
}

/// Why this instance paces on its own.
#[derive(Debug)]
enum Cause {
    /// Calls on this key failed.
    Lost { failure: Failure, key: Option<String> },
    /// Others had lost Redis; all return to it at one instant.
    Ending,
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
            self.go_down(Cause::Lost { failure: self.redis.trouble(), key: None });
        } else if self.redis.rejoining().await.is_ok_and(|left| left > Duration::ZERO) {
            self.go_down(Cause::Ending);
        }
        tokio::spawn(watch(Arc::downgrade(self)));
        tokio::spawn(check(Arc::downgrade(self)));
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
    pub async fn claim(self: &Arc<Self>, mut claim: Claim) -> Result<Grant, StoreError> {
        if self.is_down() {
            return match self.on_outage {
                OnOutage::Local => Ok(self.share.claim(&self.shared_out(claim))),
                OnOutage::Closed => Err(StoreError::Closed),
                OnOutage::Open => Ok(unlimited(&claim)),
            };
        }
        // Buckets in Redis do not know what the fleet sent while it was lost.
        claim.outage = self.health().outage;
        let asked = Instant::now();
        let answer = self.redis.claim(&claim).await;
        self.metrics.called("claim", asked.elapsed());
        match answer {
            Ok(answer) => {
                self.succeeded(&claim.group.line);
                Ok(Grant::new(&claim, answer, true))
            }
            Err(failure) => {
                self.failed(failure, &claim.group.line, asked);
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
            Ok(()) => self.succeeded(&bucket.key),
            Err(failure) => self.failed(failure, &bucket.key, asked),
        }
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn succeeded(&self, key: &str) {
        self.health().succeeded(key, Instant::now());
    }

    /// `asked` is when the call on `key` was made.
    fn failed(self: &Arc<Self>, failure: Failure, key: &str, asked: Instant) {
        self.metrics.failed(failure.as_str());
        let place = if failure.is_of_the_server() { key } else { "" };
        if self.health().failed(place, asked, Instant::now()) {
            self.go_down(Cause::Lost { failure, key: Some(key.to_owned()) });
        }
    }

    fn go_down(self: &Arc<Self>, cause: Cause) {
        if self.down.swap(true, Ordering::Relaxed) {
            return;
        }
        self.share.forget_levels();
        self.health().lost_since = Some(Instant::now());
        let mode = mode(self.on_outage);
        self.metrics.mode(mode);
        self.metrics.transition(mode);
        match &cause {
            Cause::Lost { failure, .. } => {
                let (reason, hint) = (failure.as_str(), failure.hint());
                match self.on_outage {
                    OnOutage::Local => {
                        error!(reason, mode, share = %format_args!("1/{}", self.instances), hint, "redis is lost: pacing alone at this instance's share of every limit");
                    }
                    OnOutage::Closed => {
                        error!(reason, mode, hint, "redis is lost: refusing paced requests with 503");
                    }
                    OnOutage::Open => error!(reason, mode, hint, "redis is lost: forwarding without pacing"),
                }
            }
            Cause::Ending => warn!(mode, "the fleet is about to return to redis after an outage: waiting with it"),
        }
        tokio::spawn(recover(Arc::downgrade(self), cause));
    }

    fn come_back(&self, rejoin: Rejoin) {
        {
            let mut health = self.health();
            health.failing.clear();
            health.lost_since = None;
            health.outage = Some(Outage { at: rejoin.at, length: rejoin.length, instances: self.instances });
        }
        self.down.store(false, Ordering::Relaxed);
        self.metrics.mode("redis");
        self.metrics.transition("redis");
        warn!(mode = "redis", "redis is back: pacing with the fleet again, every bucket as it was when redis was lost");
    }

    /// When the fleet returns to Redis, if it can.
    async fn returning(&self, key: Option<&str>) -> Result<Rejoin, Failure> {
        if let Some(key) = key {
            self.redis.answers(key).await?;
        }
        let lost = self.health().lost_since.map_or(Duration::ZERO, |since| since.elapsed() + FAILING_FOR);
        self.redis.rejoin(SETTLE, lost).await
    }

    /// The claim with every limit cut to this instance's share.
    fn shared_out(&self, claim: Claim) -> Claim {
        let group = &claim.group;
        let buckets = group.buckets.iter().map(|bucket| self.share_of_cost(bucket, group.cost)).collect();
        Claim {
            group: Arc::new(Group { buckets, line: group.line.clone(), cost: group.cost }),
            witness: vec![0.0; claim.witness.len()],
            // The store in this process never knew of its lease.
            is_registered: false,
            ..claim
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

impl Health {
    fn succeeded(&mut self, key: &str, now: Instant) {
        self.failing.remove(node_part(key));
        self.failing.remove("");
        self.answered_at = Some(now);
    }

    /// Whether Redis counts as lost now. Time decides, not the number of failures: when a connection breaks, all that was
    /// under way fails at once, and a moment later there is a new one.
    fn failed(&mut self, key: &str, asked: Instant, now: Instant) -> bool {
        // What failed long ago and was not asked since says nothing of now.
        self.failing.retain(|_, failing| asked.saturating_duration_since(failing.last) < FORGET);
        let failing = self.failing.entry(node_part(key).to_owned()).or_insert(Failing { since: asked, last: now });
        failing.last = now;
        now.saturating_duration_since(failing.since) >= FAILING_FOR
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.answered_at.is_none_or(|answered| now.saturating_duration_since(answered) >= QUIET)
    }
}

/// Asks after Redis whenever nobody else has for a while: an instance without traffic, too, notices an outage and does not
/// go on at the full rate while the others are at their shares.
async fn watch(store: Weak<FleetStore>) {
    let mut ticks = interval(WATCH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(store) = store.upgrade() else { return };
        let asked = Instant::now();
        if store.is_down() || !store.health().is_quiet(asked) {
            continue;
        }
        match store.redis.rejoining().await {
            Ok(left) => {
                store.succeeded("");
                if left > Duration::ZERO {
                    store.go_down(Cause::Ending);
                }
            }
            Err(failure) => store.failed(failure, "", asked),
        }
    }
}

/// Says once what is wrong with the Redis of the configuration, as soon as it answers.
async fn check(store: Weak<FleetStore>) {
    loop {
        {
            let Some(store) = store.upgrade() else { return };
            if store.redis.is_connected() && store.redis.check().await.is_ok() {
                return;
            }
        }
        sleep(CHECK_AGAIN).await;
    }
}

/// Tries Redis until it takes writes, then returns to it together with the fleet.
async fn recover(store: Weak<FleetStore>, cause: Cause) {
    let (mut failure, key) = match cause {
        Cause::Lost { failure, key } => (Some(failure), key),
        Cause::Ending => (None, None),
    };
    let mut reconnected = None;
    let rejoin = loop {
        let Some(store) = store.upgrade() else { return };
        if failure == Some(Failure::Timeout)
            && reconnected.is_none_or(|reconnected: Instant| reconnected.elapsed() > STUCK_FOR)
        {
            // A server that is stopped keeps its connections; only a new one shows when it is back.
            store.redis.reconnect();
            reconnected = Some(Instant::now());
        }
        if failure.is_some() {
            let wait = rand::rng().random_range(PROBE_AFTER);
            sleep(Duration::from_millis(wait)).await;
        }
        match store.returning(key.as_deref()).await {
            Ok(rejoin) => break rejoin,
            Err(now) => {
                if failure != Some(now) && !matches!(now, Failure::Timeout | Failure::Disconnected) {
                    warn!(reason = now.as_str(), hint = now.hint(), "redis can be reached, but not used yet");
                }
                failure = Some(now);
            }
        }
    };
    // Until then at this instance's share: others may not have noticed yet, and do the same.
    sleep(rejoin.left).await;
    if let Some(store) = store.upgrade() {
        store.come_back(rejoin);
    }
}

/// The part of a key that decides on which node of a cluster it is.
fn node_part(key: &str) -> &str {
    key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or(key, |(part, _)| part)
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

/// Redis counts as lost when all calls have failed for this long.
const FAILING_FOR: Duration = Duration::from_millis(750);
/// Longer than a lane waits before it asks again.
const FORGET: Duration = Duration::from_secs(1);
/// Without an answer for this long, an instance asks after Redis by itself.
const QUIET: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_millis(250);
const CHECK_AGAIN: Duration = Duration::from_secs(1);
const FIRST_CONNECT: Duration = Duration::from_secs(1);
/// Milliseconds between two probes of a lost Redis.
const PROBE_AFTER: std::ops::Range<u64> = 250..500;
/// Longer than it takes every instance to notice that Redis is back: a reconnect every 500 ms and a probe.
const SETTLE: Duration = Duration::from_secs(2);
const STUCK_FOR: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_one_failure_however_many_calls_were_under_way() {
        let (start, mut health) = (Instant::now(), Health::default());
        for lane in 0..100 {
            assert!(!health.failed(&format!("bkt:{{ota:{lane}}}:x"), start, start + ms(3)));
            assert!(!health.failed("bkt:{ota}:x", start, start + ms(3)));
        }
    }

    #[test]
    fn redis_is_lost_when_nothing_else_has_happened_for_three_quarters_of_a_second() {
        let (start, mut health) = (Instant::now(), Health::default());
        for (asked, failed) in [(0, 250), (270, 520)] {
            assert!(!health.failed("bkt:{ota}:x", start + ms(asked), start + ms(failed)));
        }
        assert!(health.failed("bkt:{ota}:y", start + ms(560), start + ms(810)), "another line on the same node");
        health.succeeded("bkt:{ota}:z", start + ms(820));
        assert!(!health.failed("bkt:{ota}:x", start + ms(830), start + ms(1_080)), "an answer in between");
        assert!(!health.failed("bkt:{ota}:x", start + ms(9_000), start + ms(9_250)), "long after");
    }

    #[test]
    fn one_node_of_a_cluster_is_lost_while_another_answers() {
        let (start, mut health) = (Instant::now(), Health::default());
        let lost = (0..3_u64).any(|call| {
            health.succeeded("bkt:{well}:x", start + ms(call * 300));
            health.failed("bkt:{ill}:x", start + ms(call * 300), start + ms(call * 300 + 250))
        });
        assert!(lost);
    }

    #[test]
    fn an_error_on_one_key_does_not_lose_a_redis_that_answers() {
        let (start, mut health) = (Instant::now(), Health::default());
        for call in 0..20_u64 {
            assert!(!health.failed("", start + ms(call * 100), start + ms(call * 100 + 1)));
            health.succeeded("bkt:{ota}:x", start + ms(call * 100 + 2));
        }
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }
}

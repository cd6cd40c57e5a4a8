//! What every store of buckets does, and the store that this instance uses.

use std::{sync::Arc, time::Duration};

use super::{
    bucket::{LimitSpec, Queue},
    fleet::FleetStore,
    memory::MemoryStore,
};

/// The buckets that the requests of one lane take from, all or none, and the line before them.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Widest first: what the channel shares, then what the endpoint has alone.
    pub buckets: Vec<BucketSpec>,
    /// Key of the line: who waits for this set of buckets, instance by instance.
    pub line: String,
    /// Units one request takes from every limit.
    pub cost: f64,
}

impl Group {
    /// Every limit of every bucket, in the order of witnesses and levels.
    pub fn limits(&self) -> impl Iterator<Item = &LimitSpec> {
        self.buckets.iter().flat_map(|bucket| bucket.limits.iter())
    }

    /// The bucket that an OTA's throttle answer pauses: the narrowest.
    pub fn narrowest(&self) -> &BucketSpec {
        self.buckets.last().expect("a group has at least one bucket")
    }
}

/// One shared allowance.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketSpec {
    /// Key in the store, the same on every instance.
    pub key: String,
    /// All of them hold.
    pub limits: Vec<LimitSpec>,
}

/// What a lane asks for. Durations are microseconds, as in [`super::bucket`].
#[derive(Debug, Clone)]
pub struct Claim {
    /// The buckets.
    pub group: Arc<Group>,
    /// The waiting requests, with ages (before now) in place of arrivals, oldest first.
    pub ages: Queue,
    /// What one call takes, as measured.
    pub rtt: f64,
    /// For every limit: the debt known to be left.
    pub witness: Vec<f64>,
}

/// What a lane got. Durations count from the instant of the claim on the store's clock.
#[derive(Debug, Clone, Default)]
pub struct Grant {
    /// When to ask again, if waiters are left.
    pub next: Duration,
    /// How long the buckets stay paused.
    pub pause: Duration,
    /// How many requests wait in other instances.
    pub others: usize,
    /// What is left to pay on every limit.
    pub levels: Vec<Level>,
    /// When each slot may be used, never decreasing.
    pub slots: Vec<Duration>,
    /// Whether the fleet's store granted, not this instance's fallback.
    pub shared: bool,
}

/// The state of one limit after a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Microseconds until the limit holds its whole capacity again.
    pub debt: f64,
    /// The parameters that were in force: an instance on its own paces at its share.
    pub spec: LimitSpec,
}

/// Why a store did not answer a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The outcome is unknown: what the call may have been granted is spent.
    #[error("the store did not answer")]
    Lost,
    /// The store is lost and the configuration says to refuse meanwhile.
    #[error("the store is lost and `on_outage` is `closed`")]
    Closed,
}

/// The store that this instance uses. Every call is made at most once and ends in bounded time.
#[derive(Debug, Clone)]
pub enum Store {
    /// One instance, buckets in this process.
    Memory(Arc<MemoryStore>),
    /// A fleet, buckets in Redis.
    Fleet(Arc<FleetStore>),
}

impl Store {
    /// Claims slots.
    ///
    /// # Errors
    /// When the outcome is unknown or the store is closed; the claim must not be replayed.
    pub async fn claim(&self, claim: &Claim) -> Result<Grant, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.claim(claim)),
            Self::Fleet(store) => store.claim(claim).await,
        }
    }

    /// Pauses the narrowest bucket of `group` for at least `wait` from now.
    pub async fn pause(&self, group: &Group, wait: Duration) {
        match self {
            Self::Memory(store) => store.pause(group.narrowest(), wait),
            Self::Fleet(store) => store.pause(group.narrowest(), wait).await,
        }
    }
}

/// How far ahead a slot may lie, in microseconds: what a dead instance may burn, and how far two instances may overtake.
pub const HORIZON: f64 = 200_000.0;

/// How long before its turn a waiter asks again, in microseconds. Where units refill faster than that, half a horizon keeps
/// slots in hand while the next claim is under way.
pub fn lead(group: &Group) -> f64 {
    let slowest = group.limits().fold(0.0_f64, |slowest, limit| slowest.max(group.cost * limit.interval));
    if slowest < HORIZON / 2.0 { HORIZON / 2.0 } else { HORIZON }
}

/// Microseconds as a duration; negative counts as zero.
pub fn micros(micros: f64) -> Duration {
    Duration::try_from_secs_f64((micros / 1e6).max(0.0)).unwrap_or(Duration::MAX)
}

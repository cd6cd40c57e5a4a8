//! What a lane and a store say to each other.

use std::{sync::Arc, time::Duration};

use super::bucket::{Answer, Level, LimitSpec, Outage, Queue};

/// The buckets that the requests of one lane take from, all or none, and the line before them.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Widest first: what the channel shares, then what the endpoint has alone.
    pub buckets: Vec<BucketSpec>,
    /// Key of the line: who waits for this set of buckets, lane by lane.
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

    /// Whether a limit counts requests under way, so that the end of each matters.
    pub fn counts_requests(&self) -> bool {
        self.limits().any(|limit| matches!(limit, LimitSpec::Concurrent { .. }))
    }

    /// How long before its turn a waiter asks again, in microseconds. Where units refill faster than that, half a horizon
    /// keeps slots in hand while the next claim is under way.
    pub fn lead(&self) -> f64 {
        let slowest = self.limits().fold(0.0_f64, |slowest, limit| match limit {
            LimitSpec::Bucket { interval, .. } => slowest.max(self.cost * interval),
            LimitSpec::Window { .. } | LimitSpec::Concurrent { .. } => slowest,
        });
        if slowest < HORIZON / 2.0 { HORIZON / 2.0 } else { HORIZON }
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
    /// The lane, unique in the fleet.
    pub lane: Arc<str>,
    /// The buckets.
    pub group: Arc<Group>,
    /// The waiting requests, with ages (before now) in place of arrivals, oldest first.
    pub ages: Queue,
    /// Requests under way or with a slot in hand.
    pub held: usize,
    /// Whether the store is known to hold the lane's lease.
    pub is_registered: bool,
    /// What one call takes, as measured.
    pub rtt: f64,
    /// For every limit: the debt known to be left, or the units known to be used.
    pub witness: Vec<f64>,
    /// How long ago that was known.
    pub witness_age: f64,
    /// The last outage of the store that this instance lived through.
    pub outage: Option<Outage>,
}

/// What a lane got. Durations count from the instant of the claim on the store's clock.
#[derive(Debug, Clone, Default)]
pub struct Grant {
    /// When to ask again, if waiters are left.
    pub next: Duration,
    /// How long the buckets stay paused.
    pub pause: Duration,
    /// How many requests wait in other lanes.
    pub others: usize,
    /// How many of them go before a request that comes now.
    pub older: usize,
    /// How every limit stands, and with which parameters: an instance on its own paces at its share.
    pub levels: Vec<(Level, LimitSpec)>,
    /// When each slot may be used, never decreasing.
    pub slots: Vec<Duration>,
    /// Whether the fleet's store granted, not this instance's fallback.
    pub shared: bool,
}

impl Grant {
    /// The answer of a store to `claim`.
    pub fn new(claim: &Claim, answer: Answer, shared: bool) -> Self {
        Self {
            next: micros(answer.next),
            pause: micros(answer.pause),
            others: answer.others,
            older: answer.older,
            levels: answer.levels.into_iter().zip(claim.group.limits().copied()).collect(),
            slots: answer.slots.into_iter().map(micros).collect(),
            shared,
        }
    }
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

/// How far ahead a slot may lie, in microseconds: what a dead instance may burn, and how far two instances may overtake.
pub const HORIZON: f64 = 200_000.0;

/// Microseconds as a duration; negative counts as zero.
pub fn micros(micros: f64) -> Duration {
    Duration::try_from_secs_f64((micros / 1e6).max(0.0)).unwrap_or(Duration::MAX)
}

//! Buckets in this process: the store of a single instance, and of one that has lost its fleet.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    bucket::{self, Ask, BucketState, LineState, Point, Queue},
    claim::{BucketSpec, Claim, Grant, HORIZON},
};

/// Buckets in this process.
#[derive(Debug)]
pub struct MemoryStore {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    buckets: HashMap<String, BucketState>,
    sweep_at: f64,
}

impl MemoryStore {
    /// An empty store: every bucket starts as its configuration says.
    pub fn new() -> Self {
        Self { started: Instant::now(), state: Mutex::default() }
    }

    /// Claims slots.
    pub fn claim(&self, claim: &Claim) -> Grant {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that time never runs backwards between two claims.
        let now = self.now();
        state.sweep(now);
        let group = &claim.group;
        let mut taken: Vec<(BucketState, &BucketSpec)> =
            group.buckets.iter().map(|spec| (state.buckets.remove(&spec.key).unwrap_or_default(), spec)).collect();
        let mut buckets: Vec<_> = taken.iter_mut().map(|(state, spec)| (state, spec.limits.as_slice())).collect();
        // The line orders lanes of several instances; here there is one.
        let mut line = LineState::default();
        let answer = bucket::claim(&mut buckets, &mut line, &ask(claim, now), now);
        for (bucket, spec) in taken {
            state.buckets.insert(spec.key.clone(), bucket);
        }
        Grant::new(claim, answer, false)
    }

    /// Pauses one bucket for at least `wait` from now.
    pub fn pause(&self, spec: &BucketSpec, wait: Duration) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        let bucket = state.buckets.entry(spec.key.clone()).or_default();
        bucket::pause(bucket, &spec.limits, wait.as_secs_f64() * 1e6, now);
    }

    /// Forgets what every bucket holds, but not its pause: each starts again as its limits say.
    pub fn forget_levels(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.buckets.values_mut().for_each(BucketState::forget_levels);
    }

    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * 1e6
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Forgets buckets that have long been settled: credentials come and go, memory must not grow with them.
    fn sweep(&mut self, now: f64) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.buckets.retain(|_, bucket| bucket.settled_at() + KEEP > now);
    }
}

/// The question of a claim, on the clock of the store that reads `now`.
pub(super) fn ask(claim: &Claim, now: f64) -> Ask<'_> {
    let ages = claim.ages.points().iter();
    let points = ages.map(|age| Point { place: age.place, arrival: now - age.arrival }).collect();
    Ask {
        lane: &claim.lane,
        cost: claim.group.cost,
        queue: Queue::new(claim.ages.count(), points),
        held: claim.held,
        is_registered: claim.is_registered,
        horizon: HORIZON,
        lead: claim.group.lead(),
        rtt: claim.rtt,
        witness: &claim.witness,
        witness_age: claim.witness_age,
        outage: None,
    }
}

/// As in the scripts: state outlives its debt by this, so that a bucket that starts empty keeps what it refilled.
const KEEP: f64 = 600e6;
const SWEEP: f64 = 60e6;

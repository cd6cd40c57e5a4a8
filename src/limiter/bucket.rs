//! The arithmetic of a claim and of a pause: `lua/claim.lua` and `lua/pause.lua` in Rust, exactly.
//!
//! Pure: no clock, no I/O. Times and durations are microseconds as `f64`, instants on the clock of the store. The in-process
//! store runs this; the Lua is tested against it.

use super::{
    leases::Leases,
    limit::{LimitState, Settling},
};

pub use super::{
    limit::{AdaptiveSpec, Level, LimitSpec, Outage},
    line::{LineState, MOST_POINTS, Point, Queue},
};

/// What the store remembers of one bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketState {
    seen: Option<f64>,
    pause_until: Option<f64>,
    /// By the place of the limit; `None`: nothing is known of it.
    limits: Vec<Option<LimitState>>,
    leases: Leases,
    /// The outage it last put right.
    healed: Option<f64>,
}

/// What one claim asks for.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Unique in the fleet.
    pub lane: &'a str,
    /// Units one request takes from every limit.
    pub cost: f64,
    /// The waiting requests of the lane.
    pub queue: Queue,
    /// Requests of the lane that are under way or have a slot in hand.
    pub held: usize,
    /// Whether the store is known to hold the lane's lease.
    pub is_registered: bool,
    /// How far ahead a slot may lie.
    pub horizon: f64,
    /// How long before its turn a waiter asks again.
    pub lead: f64,
    /// What one call takes: a slot due within it goes to whoever asks.
    pub rtt: f64,
    /// For every limit of every bucket in order: the debt, or the units used, that the caller knows of.
    pub witness: &'a [f64],
    /// How long ago it saw them.
    pub witness_age: f64,
    /// The last outage of the store that the caller lived through.
    pub outage: Option<Outage>,
}

/// What one claim got. Durations count from the instant of the claim.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// How long until the caller should ask again.
    pub next: f64,
    /// How long the buckets stay paused.
    pub pause: f64,
    /// How many requests wait in other lanes.
    pub others: usize,
    /// How many of them go before a request that comes now.
    pub older: usize,
    /// How every limit stands.
    pub levels: Vec<Level>,
    /// When each slot may be used, never decreasing.
    pub slots: Vec<f64>,
}

/// Grants slots to the waiters of `ask` from all of `buckets` or none, oldest of the fleet first.
///
/// `ask.witness` holds one entry for each limit of each bucket.
pub fn claim(
    buckets: &mut [(&mut BucketState, &[LimitSpec])],
    line: &mut LineState,
    ask: &Ask<'_>,
    now: f64,
) -> Answer {
    let mut witness = ask.witness.iter();
    let mut pause = 0.0_f64;
    for (state, specs) in buckets.iter_mut() {
        let paused = state.settle(specs, ask, now, witness.by_ref().take(specs.len()));
        pause = pause.max(paused);
    }
    let free = buckets
        .iter_mut()
        .flat_map(|(state, specs)| {
            specs.iter().filter_map(|spec| {
                let LimitSpec::Concurrent { most } = *spec else { return None };
                Some(state.leases.free(most, ask.lane, ask.held, ask.is_registered, now))
            })
        })
        .fold(f64::INFINITY, f64::min);
    let under_way: Vec<f64> = buckets.iter().map(|(state, _)| state.leases.under_way(ask.lane, ask.held)).collect();
    line.settle(ask.lane, now);

    let (mut next_at, mut slots, mut is_turn_known) = (now, Vec::<f64>::new(), true);
    let most = ask.queue.count().min(MOST_SLOTS);
    let oldest = line.oldest_of_others(ask.lane);
    while slots.len() < most {
        let arrival = ask.queue.arrival(slots.len() as f64);
        let ahead = line.ahead_of(ask.lane, arrival);
        // Whoever waits for the end of another request waits in order of age, and is woken.
        if (slots.len() + ahead) as f64 >= free {
            (next_at, is_turn_known) = (now + ask.horizon, false);
            break;
        }
        let slot = first_instant(buckets, now.max(pause), ask.cost, now);
        let mut turn = slot;
        let yields = slot > now + ask.rtt && ahead > 0;
        if yields {
            turn = first_instant(buckets, now.max(pause), ask.cost * (1 + ahead) as f64, now);
        }
        if turn > now + ask.horizon {
            next_at = (turn - ask.lead).max(now + 2.0 * ask.rtt);
            break;
        }
        // Within the horizon order is that of the calls, but nobody goes before one that is older by much.
        if yields && arrival - oldest > ask.horizon / 2.0 {
            next_at = (turn - ask.lead).max(now + ask.horizon / 4.0);
            break;
        }
        for (state, _) in buckets.iter_mut() {
            state.limits.iter_mut().flatten().for_each(|limit| limit.take(ask.cost, slot));
        }
        slots.push(slot - now);
    }
    if slots.len() < most && is_turn_known {
        // Whoever is behind others asks again in time to notice that they are gone; while a bucket is paused nobody goes.
        let from = now.max(pause);
        let limits = buckets.iter().flat_map(|(state, _)| state.limits.iter().flatten());
        let spacing: f64 = limits.fold(0.0_f64, |spacing, limit| spacing.max(limit.spacing(ask.cost)));
        match line.heads_before(ask.lane, ask.queue.arrival(slots.len() as f64)) {
            0 => {}
            1 => next_at = next_at.min(from + spacing.max(1e6)),
            _ => next_at = next_at.min(from + (4.0 * spacing).max(4e6)),
        }
    }
    for (state, specs) in buckets.iter_mut() {
        if specs.iter().any(|spec| matches!(spec, LimitSpec::Concurrent { .. })) {
            state.leases.register(ask.lane, ask.held + slots.len(), now);
        }
    }
    line.promise(ask.lane, &ask.queue, slots.len(), next_at);
    let levels = buckets
        .iter()
        .zip(under_way)
        .flat_map(|((state, specs), under_way)| {
            state.limits.iter().flatten().zip(*specs).map(move |(limit, spec)| {
                limit.level(spec, ask.cost, now).unwrap_or(Level { level: under_way, more: 0.0 })
            })
        })
        .collect();
    Answer {
        next: next_at - now,
        pause: (pause - now).max(0.0),
        others: line.others(ask.lane),
        older: line.ahead_of(ask.lane, now),
        levels,
        slots,
    }
}

/// Pauses a bucket until at least `wait` from now, spent down to one unit at its end; returns how long it stays paused.
pub fn pause(state: &mut BucketState, specs: &[LimitSpec], wait: f64, now: f64) -> f64 {
    let shift = state.shift(now);
    let paused = state.pause_until.map_or(now + shift, |until| until + shift);
    let until = (now + wait).max(paused);
    state.limits.resize(specs.len(), None);
    for (spec, limit) in specs.iter().zip(&mut state.limits) {
        if matches!(spec, LimitSpec::Bucket { .. }) {
            *limit = Some(LimitState::pause(limit.as_ref(), spec, paused <= now, until, shift, now));
        }
    }
    state.seen = Some(now);
    state.pause_until = Some(until);
    until - now
}

/// The first instant from `t` on that suits `units` of every limit: each may move it on, so they are asked until none does.
fn first_instant(buckets: &[(&mut BucketState, &[LimitSpec])], mut t: f64, units: f64, now: f64) -> f64 {
    for _ in 0..ROUNDS {
        let at = t;
        for (state, specs) in buckets {
            for (limit, spec) in state.limits.iter().flatten().zip(*specs) {
                t = limit.at(spec, t, units, now);
            }
        }
        if t == at {
            break;
        }
    }
    t
}

impl BucketState {
    /// The instant at which nothing of the state matters any more.
    pub fn settled_at(&self) -> f64 {
        let leases = self.leases.ends();
        self.limits
            .iter()
            .flatten()
            .map(LimitState::settled_at)
            .chain(self.pause_until)
            .chain(leases)
            .fold(0.0, f64::max)
    }

    /// Forgets what the limits hold, but neither the pause nor what is under way.
    pub fn forget_levels(&mut self) {
        self.limits.clear();
    }

    /// A clock that went back takes every instant with it, or the bucket would stall for as long.
    fn shift(&self, now: f64) -> f64 {
        (now - self.seen.unwrap_or(now)).min(0.0)
    }

    /// Settles every limit to now, and tells when the pause ends, at least now.
    fn settle<'a>(
        &mut self,
        specs: &[LimitSpec],
        ask: &Ask<'_>,
        now: f64,
        witness: impl Iterator<Item = &'a f64>,
    ) -> f64 {
        let shift = self.shift(now);
        let resumes = self.pause_until.map(|until| until + shift);
        let paused = now.max(resumes.unwrap_or(now));
        // The first claim after an outage puts it right, once for the fleet.
        let outage = ask.outage.filter(|outage| outage.at <= now && self.healed != Some(outage.at));
        let settling = Settling {
            now,
            shift,
            paused,
            resumes,
            cost: ask.cost,
            horizon: ask.horizon,
            is_used: ask.queue.count() > 0,
            witness_age: ask.witness_age,
            outage,
        };
        self.healed = outage.map_or(self.healed, |outage| Some(outage.at));
        self.limits = specs
            .iter()
            .zip(witness)
            .enumerate()
            .map(|(i, (spec, witness))| {
                let stored = self.limits.get(i).and_then(Option::as_ref);
                Some(LimitState::settle(stored, spec, *witness, &settling))
            })
            .collect();
        self.seen = Some(now);
        self.pause_until = resumes;
        paused
    }
}

/// Edges of clock windows of several lengths may move an instant on more than once; two or three are the rule.
const ROUNDS: usize = 32;
/// Slots one claim may get.
pub const MOST_SLOTS: usize = 64;

#[cfg(test)]
mod tests;

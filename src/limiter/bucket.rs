//! The arithmetic of a bucket and of the line before it: `lua/claim.lua` and `lua/pause.lua` in Rust, exactly.
//!
//! Pure: no clock, no I/O. Times and durations are microseconds as `f64`, instants on the clock of the store. The state of
//! a limit is `full_at`, the instant at which it will hold its whole capacity (GCRA's theoretical arrival time, ITU-T
//! I.371). The in-process store runs this; the Lua is tested against it.

use std::collections::BTreeMap;

/// The parameters of one limit, as the store sees them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitSpec {
    /// The time one unit takes to refill.
    pub interval: f64,
    /// In units, at least the cost of a request.
    pub capacity: f64,
    /// Whether a bucket that nobody used yet is full.
    pub starts_full: bool,
}

/// What the store remembers of one bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketState {
    seen: Option<f64>,
    pause_until: Option<f64>,
    limits: Vec<LimitState>,
}

#[derive(Debug, Clone, Copy)]
struct LimitState {
    full_at: f64,
    interval: f64,
}

/// Who waits for one set of buckets, instance by instance.
#[derive(Debug, Clone, Default)]
pub struct LineState {
    entries: BTreeMap<String, Promise>,
}

#[derive(Debug, Clone)]
struct Promise {
    asks_again_at: f64,
    queue: Queue,
}

/// A queue in brief: how many wait and when up to [`MOST_POINTS`] of them, evenly spaced, arrived. Oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    count: usize,
    arrivals: Vec<f64>,
}

/// What one claim asks for.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Unique in the fleet.
    pub instance: &'a str,
    /// Units one request takes from every limit.
    pub cost: f64,
    /// The caller's waiting requests.
    pub queue: Queue,
    /// How far ahead a slot may lie.
    pub horizon: f64,
    /// How long before its turn a waiter asks again.
    pub lead: f64,
    /// What one call takes: a slot due within it goes to whoever asks.
    pub rtt: f64,
    /// For every limit of every bucket in order: the debt that the caller knows to be left.
    pub witness: &'a [f64],
}

/// What one claim got. Durations count from the instant of the claim.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// How long until the caller should ask again.
    pub next: f64,
    /// How long the buckets stay paused.
    pub pause: f64,
    /// How many requests wait in other instances.
    pub others: usize,
    /// For every limit: how long until it is full again.
    pub debts: Vec<f64>,
    /// When each slot may be used, never decreasing.
    pub slots: Vec<f64>,
}

impl Queue {
    /// The queue in brief. `arrivals` of `count` waiters, oldest first, at [`Queue::place`] of each of its points.
    ///
    /// # Panics
    /// Unless there is a point, and no more points than waiters.
    pub fn new(count: usize, arrivals: Vec<f64>) -> Self {
        assert!(!arrivals.is_empty() && arrivals.len() <= count.min(MOST_POINTS), "a point for at most each waiter");
        Self { count, arrivals }
    }

    /// Which waiter (from 0) stands at a point (from 0) of `points`, for a queue of `count`; may lie between two.
    pub fn place(count: usize, points: usize, point: usize) -> f64 {
        if points == 1 { 0.0 } else { point as f64 * (count - 1) as f64 / (points - 1) as f64 }
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.count
    }

    /// When the waiters at the points arrived.
    pub fn arrivals(&self) -> &[f64] {
        &self.arrivals
    }

    /// When the `k`-th waiter (from 0) arrived; between two points by interpolation.
    fn arrival(&self, k: f64) -> f64 {
        let points = self.arrivals.len();
        if self.count == 1 || points == 1 {
            return self.arrivals[0];
        }
        // The order of operations is that of the script, so that both round alike.
        let place = 1.0 + k * (points - 1) as f64 / (self.count - 1) as f64;
        let low = (place.floor() as usize).min(points - 1);
        let from = self.arrivals[low - 1];
        from + (self.arrivals[low] - from) * (place - low as f64)
    }

    /// How many arrived before `instant`.
    fn older(&self, instant: f64) -> usize {
        let points = self.arrivals.len();
        if self.arrivals[0] >= instant {
            return 0;
        }
        if self.arrivals[points - 1] < instant {
            return self.count;
        }
        (1..points)
            .rev()
            .find(|&low| self.arrivals[low - 1] < instant)
            .map(|low| {
                let (from, to) = (self.arrivals[low - 1], self.arrivals[low]);
                let place = (low - 1) as f64 + (instant - from) / (to - from);
                (1.0 + place * (self.count - 1) as f64 / (points - 1) as f64).floor() as usize
            })
            .unwrap_or(0)
    }

    /// The queue without its `served` oldest, in at most as many points.
    fn rest(&self, served: usize) -> Option<Self> {
        let left = self.count - served;
        if left == 0 {
            return None;
        }
        let points = left.min(self.arrivals.len());
        let arrivals = (0..points)
            .map(|point| {
                let k = if points == 1 { 0.0 } else { point as f64 * (left - 1) as f64 / (points - 1) as f64 };
                self.arrival(served as f64 + k)
            })
            .collect();
        Some(Self { count: left, arrivals })
    }
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
        state.settle(specs, ask, now, witness.by_ref().take(specs.len()));
        pause = pause.max(state.pause_until.unwrap_or(now));
    }
    let spacing = buckets
        .iter()
        .flat_map(|(_, specs)| specs.iter())
        .fold(0.0_f64, |spacing, spec| spacing.max(ask.cost * spec.interval));
    line.entries.retain(|instance, promise| {
        instance == ask.instance
            || (promise.asks_again_at + PROMISE_GRACE >= now && promise.asks_again_at <= now + PROMISE_LIMIT)
    });
    let others: Vec<&Queue> = line
        .entries
        .iter()
        .filter(|(instance, _)| instance.as_str() != ask.instance)
        .map(|(_, promise)| &promise.queue)
        .collect();

    let (mut next_at, mut slots) = (now, Vec::new());
    let most = ask.queue.count.min(MOST_SLOTS);
    while slots.len() < most {
        let slot =
            buckets.iter().fold(now.max(pause), |slot, (state, specs)| slot.max(state.earliest(specs, ask.cost)));
        let mut turn = slot;
        if slot > now + ask.rtt {
            let me = ask.queue.arrival(slots.len() as f64);
            let ahead: usize = others.iter().map(|other| other.older(me)).sum();
            turn = slot + ahead as f64 * spacing;
        }
        if turn > now + ask.horizon {
            next_at = (turn - ask.lead).max(now + 2.0 * ask.rtt);
            break;
        }
        for (state, specs) in buckets.iter_mut() {
            state.take(specs, ask.cost, slot);
        }
        slots.push(slot - now);
    }
    if slots.len() < most && pause <= now {
        let me = ask.queue.arrival(slots.len() as f64);
        match others.iter().filter(|other| other.arrivals[0] < me).count() {
            0 => {}
            1 => next_at = next_at.min(now + spacing.max(1e6)),
            _ => next_at = next_at.min(now + (4.0 * spacing).max(4e6)),
        }
    }
    let others = others.iter().map(|other| other.count).sum();
    match ask.queue.rest(slots.len()) {
        Some(queue) => {
            line.entries.insert(ask.instance.to_owned(), Promise { asks_again_at: next_at, queue });
        }
        None => {
            line.entries.remove(ask.instance);
        }
    }
    let debts = buckets.iter().flat_map(|(state, _)| state.limits.iter()).map(|limit| limit.full_at - now).collect();
    Answer { next: next_at - now, pause: (pause - now).max(0.0), others, debts, slots }
}

/// Pauses a bucket until at least `wait` from now, spent down to one unit at its end; returns how long it stays paused.
pub fn pause(state: &mut BucketState, specs: &[LimitSpec], wait: f64, now: f64) -> f64 {
    let shift = state.shift(now);
    let until = (now + wait).max(state.pause_until.map_or(now, |until| until + shift));
    state.limits = specs
        .iter()
        .enumerate()
        .map(|(i, spec)| {
            let full_at = state.limits.get(i).map_or(now, |limit| limit.carried(spec, shift, now));
            LimitState { full_at: full_at.max(until + (spec.capacity - 1.0) * spec.interval), interval: spec.interval }
        })
        .collect();
    state.seen = Some(now);
    state.pause_until = Some(until);
    until - now
}

impl BucketState {
    /// The instant at which nothing of the state matters any more.
    pub fn settled_at(&self) -> f64 {
        self.limits.iter().map(|limit| limit.full_at).chain(self.pause_until).fold(0.0, f64::max)
    }

    /// Forgets what the limits hold, but not the pause.
    pub fn forget_levels(&mut self) {
        self.limits.clear();
    }

    /// A clock that went back takes every instant with it, or the bucket would stall for as long.
    fn shift(&self, now: f64) -> f64 {
        (now - self.seen.unwrap_or(now)).min(0.0)
    }

    fn settle<'a>(&mut self, specs: &[LimitSpec], ask: &Ask<'_>, now: f64, witness: impl Iterator<Item = &'a f64>) {
        let shift = self.shift(now);
        let paused = self.pause_until.map_or(now, |until| now.max(until + shift));
        self.seen = Some(now);
        self.pause_until = (paused > now).then_some(paused);
        self.limits = specs
            .iter()
            .zip(witness)
            .enumerate()
            .map(|(i, (spec, witness))| {
                let full_at = match self.limits.get(i) {
                    Some(limit) => limit.carried(spec, shift, now),
                    None if spec.starts_full => now,
                    None => now + spec.capacity * spec.interval,
                };
                // No honest debt is larger: what lies above is a clock's or a former capacity's doing.
                let ceiling = paused + (spec.capacity + ask.cost) * spec.interval + ask.horizon;
                LimitState { full_at: full_at.min(ceiling).max(now).max(now + witness), interval: spec.interval }
            })
            .collect();
    }

    fn earliest(&self, specs: &[LimitSpec], cost: f64) -> f64 {
        self.limits
            .iter()
            .zip(specs)
            .map(|(limit, spec)| limit.full_at - (spec.capacity - cost) * spec.interval)
            .fold(f64::NEG_INFINITY, f64::max)
    }

    fn take(&mut self, specs: &[LimitSpec], cost: f64, slot: f64) {
        for (limit, spec) in self.limits.iter_mut().zip(specs) {
            limit.full_at = limit.full_at.max(slot) + cost * spec.interval;
        }
    }
}

impl LimitState {
    /// A new rate keeps the units that were spent, not the time they took at the old one.
    fn carried(&self, spec: &LimitSpec, shift: f64, now: f64) -> f64 {
        let full_at = self.full_at + shift;
        if self.interval == spec.interval { full_at } else { now + (full_at - now) * spec.interval / self.interval }
    }
}

/// Slots one claim may get.
pub const MOST_SLOTS: usize = 64;
/// Points that describe a queue: fewer let younger requests overtake at low rates.
pub const MOST_POINTS: usize = 8;
/// A promise to ask again may be this late.
const PROMISE_GRACE: f64 = 100_000.0;
/// A promise further off than this was made on another clock.
const PROMISE_LIMIT: f64 = 3_600_000_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_A_SECOND: LimitSpec = LimitSpec { interval: 100_000.0, capacity: 5.0, starts_full: true };

    fn ask(count: usize, now: f64) -> Ask<'static> {
        Ask {
            instance: "a",
            cost: 1.0,
            queue: Queue::new(count, vec![now; count.min(MOST_POINTS)]),
            horizon: 200_000.0,
            lead: 100_000.0,
            rtt: 1_000.0,
            witness: &[0.0],
        }
    }

    fn one(state: &mut BucketState, line: &mut LineState, spec: LimitSpec, ask: &Ask<'_>, now: f64) -> Answer {
        claim(&mut [(state, &[spec])], line, ask, now)
    }

    #[test]
    fn a_full_bucket_gives_its_capacity_at_once_and_then_its_rate_up_to_the_horizon() {
        let (mut state, mut line) = Default::default();
        let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(20, 1e15), 1e15);
        assert_eq!(answer.slots, [0.0, 0.0, 0.0, 0.0, 0.0, 100_000.0, 200_000.0]);
        assert_eq!(answer.next, 200_000.0, "the next slot lies 300 ms off, and is asked for a lead before");
    }

    #[test]
    fn a_bucket_that_starts_empty_gives_its_first_unit_after_one_interval() {
        let (mut state, mut line) = Default::default();
        let spec = LimitSpec { starts_full: false, ..TEN_A_SECOND };
        assert_eq!(one(&mut state, &mut line, spec, &ask(1, 0.0), 0.0).slots, [100_000.0]);
    }

    #[test]
    fn several_limits_are_taken_together_or_not_at_all() {
        let hourly = LimitSpec { interval: 3_600e6, capacity: 1.0, starts_full: true };
        let (mut fast, mut slow, mut line) = <(BucketState, BucketState, LineState)>::default();
        let ask = Ask { witness: &[0.0, 0.0], ..ask(3, 0.0) };
        let answer = claim(&mut [(&mut fast, &[TEN_A_SECOND]), (&mut slow, &[hourly])], &mut line, &ask, 0.0);
        assert_eq!(answer.slots, [0.0]);
        assert_eq!(answer.debts, [100_000.0, 3_600e6], "what could not be had from both was taken from neither");
    }

    #[test]
    fn a_pause_is_never_shortened_and_ends_with_one_unit() {
        let (mut state, mut line) = Default::default();
        assert_eq!(pause(&mut state, &[TEN_A_SECOND], 2e6, 0.0), 2e6);
        assert_eq!(pause(&mut state, &[TEN_A_SECOND], 1e6, 500_000.0), 1.5e6);
        let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(9, 1e6), 1e6);
        assert_eq!((answer.slots.len(), answer.pause, answer.next), (0, 1e6, 900_000.0));
        let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(9, 2e6), 2e6);
        assert_eq!(answer.slots, [0.0, 100_000.0, 200_000.0]);
    }

    #[test]
    fn a_witness_restores_what_the_store_forgot() {
        let (mut state, mut line) = Default::default();
        let ask = Ask { witness: &[450_000.0], ..ask(9, 0.0) };
        assert_eq!(one(&mut state, &mut line, TEN_A_SECOND, &ask, 0.0).slots, [50_000.0, 150_000.0]);
    }

    #[test]
    fn a_new_rate_keeps_the_units_that_were_spent() {
        let (mut state, mut line) = Default::default();
        one(&mut state, &mut line, TEN_A_SECOND, &ask(5, 0.0), 0.0);
        let slower = LimitSpec { interval: 500_000.0, ..TEN_A_SECOND };
        assert_eq!(one(&mut state, &mut line, slower, &ask(1, 0.0), 0.0).debts, [2_500_000.0]);
        let back = one(&mut state, &mut line, TEN_A_SECOND, &ask(1, 0.0), 0.0);
        assert_eq!((back.slots, back.debts), (vec![100_000.0], vec![600_000.0]), "five are spent, and the sixth");
    }

    #[test]
    fn a_clock_that_steps_back_or_forth_neither_stalls_nor_overflows() {
        let (mut state, mut line) = Default::default();
        one(&mut state, &mut line, TEN_A_SECOND, &ask(7, 1e13), 1e13);
        let debt = one(&mut state, &mut line, TEN_A_SECOND, &ask(1, 0.0), 1e13 - 3.6e9).debts[0];
        assert!(debt <= (5.0 + 1.0) * 100_000.0 + 200_000.0, "{debt}");
        assert_eq!(one(&mut state, &mut line, TEN_A_SECOND, &ask(5, 0.0), 2e13).slots, [0.0; 5]);
    }

    #[test]
    fn older_waiters_of_another_instance_go_first_and_a_due_slot_goes_to_whoever_asks() {
        let (mut state, mut line) = Default::default();
        let spec = LimitSpec { capacity: 1.0, ..TEN_A_SECOND };
        one(&mut state, &mut line, spec, &Ask { queue: Queue::new(1, vec![-2e6]), ..ask(1, 0.0) }, 0.0);
        let older = Ask { instance: "b", queue: Queue::new(8, vec![-1e6; 8]), ..ask(1, 0.0) };
        assert_eq!(one(&mut state, &mut line, spec, &older, 0.0).slots, [100_000.0, 200_000.0]);
        let younger = one(&mut state, &mut line, spec, &ask(1, 0.0), 1_000.0);
        assert!(younger.slots.is_empty());
        assert_eq!(younger.others, 6);
        assert_eq!(younger.next, 299_000.0 + 600_000.0 - 100_000.0, "behind six others, a lead before its turn");
        assert_eq!(one(&mut state, &mut line, spec, &ask(1, 0.0), 300_000.0).slots, [0.0]);
    }

    #[test]
    fn an_instance_that_breaks_its_promise_holds_up_nobody() {
        let (mut state, mut line) = Default::default();
        let spec = LimitSpec { capacity: 1.0, ..TEN_A_SECOND };
        let dead = Ask { instance: "b", queue: Queue::new(8, vec![-1e6; 8]), ..ask(1, 0.0) };
        one(&mut state, &mut line, spec, &dead, 0.0);
        let answer = one(&mut state, &mut line, spec, &ask(3, 1e6), 1e6);
        assert_eq!((answer.slots.len(), answer.others), (3, 0));
    }

    #[test]
    fn fractional_rates_lose_nothing_to_rounding() {
        let third = LimitSpec { interval: 1e6 / 3.0, capacity: 1.0, starts_full: true };
        let (mut state, mut line) = Default::default();
        let start = 1.764e15;
        let sent = (0..600).filter(|poll| {
            let now = start + f64::from(*poll) * 100_000.0;
            let ask = Ask { horizon: 0.0, ..ask(1, now) };
            !one(&mut state, &mut line, third, &ask, now).slots.is_empty()
        });
        // Polled every 100 ms a slot is taken up to 100 ms late; the bucket holds only one, so that time is lost.
        assert_eq!(sent.count(), 150);
        let (mut state, mut line) = Default::default();
        let roomy = LimitSpec { capacity: 2.0, ..third };
        let sent = (0..600).filter(|poll| {
            let now = start + f64::from(*poll) * 100_000.0;
            let ask = Ask { horizon: 0.0, ..ask(1, now) };
            !one(&mut state, &mut line, roomy, &ask, now).slots.is_empty()
        });
        let sent = sent.count();
        assert!((179..=181).contains(&sent), "{sent}");
    }

    #[test]
    fn ranks_in_a_queue_interpolate_between_its_points() {
        let queue = Queue::new(15, (0..8).map(|point| f64::from(point) * 2.0).collect());
        assert_eq!(
            (0..15).map(|k| queue.arrival(f64::from(k))).collect::<Vec<_>>(),
            (0..15).map(f64::from).collect::<Vec<_>>()
        );
        assert_eq!([-1.0, 0.0, 0.5, 7.0, 7.5, 14.0, 15.0].map(|instant| queue.older(instant)), [0, 0, 1, 8, 8, 15, 15]);
        let rest = queue.rest(13).expect("two are left");
        assert_eq!(rest, Queue::new(2, vec![13.0, 14.0]));
    }
}

//! The arithmetic of single limits: `lua/claim.lua` and `lua/pause.lua` in Rust, kind by kind.
//!
//! Pure. Times and durations are microseconds as `f64`, instants on the clock of the store. The order of operations is that
//! of the scripts, so that both round alike.

/// The parameters of one limit, as the store sees them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LimitSpec {
    /// A token bucket.
    Bucket {
        /// The time one unit takes to refill.
        interval: f64,
        /// In units, at least the cost of a request.
        capacity: f64,
        /// Whether a bucket that nobody used yet is full.
        starts_full: bool,
        /// How it slows down after throttle answers.
        adaptive: Option<AdaptiveSpec>,
    },
    /// So many units in a window.
    Window {
        /// Units, at least the cost of a request.
        count: f64,
        /// The length of the window.
        per: f64,
        /// Kept from the edges.
        margin: f64,
        /// Whether windows begin at multiples of their length; otherwise anywhere.
        is_clock: bool,
    },
    /// So many requests under way.
    Concurrent {
        /// Requests.
        most: f64,
    },
}

/// How a token bucket slows down and recovers, as fractions of its configured rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveSpec {
    /// What one storm of throttle answers multiplies the rate by.
    pub cut: f64,
    /// The lowest rate.
    pub floor: f64,
    /// Regained in a second of use.
    pub recover: f64,
}

/// How a limit stands after a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Bucket: the debt, how long until it is full. Window: units used. Concurrent: requests under way.
    pub level: f64,
    /// Bucket: the time one unit takes now. Window: how long until one more request fits. Concurrent: 0.
    pub more: f64,
}

/// What the store remembers of one limit.
#[derive(Debug, Clone)]
pub(super) enum LimitState {
    Bucket(TokenBucket),
    Sliding(SlidingWindow),
    Clock(ClockWindow),
    /// Its state is the leases of the bucket.
    Concurrent,
}

/// What the caller of a claim brings to every limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settling {
    pub(super) now: f64,
    /// What every stored instant moves by, since the clock went back; never positive.
    pub(super) shift: f64,
    /// When the pause of the bucket ends, at least now.
    pub(super) paused: f64,
    pub(super) cost: f64,
    pub(super) horizon: f64,
    pub(super) is_used: bool,
    /// How long ago the caller saw its witness.
    pub(super) witness_age: f64,
    /// The outage that the bucket does not know of yet.
    pub(super) outage: Option<Outage>,
}

/// A time during which the store was lost and every instance sent its share of each limit, which no bucket knows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outage {
    /// When the fleet came back, on the clock of the store.
    pub at: f64,
    /// How long the store had been lost.
    pub length: f64,
    /// How many instances there may have been.
    pub instances: f64,
}

impl Outage {
    /// Units of a window of length `per` that the instances may have sent meanwhile.
    fn sent(&self, count: f64, per: f64, cost: f64) -> f64 {
        (count * (self.length / per).min(1.0)).ceil() + self.instances * cost
    }
}

impl LimitState {
    /// Settles what is stored of a limit, if anything, to the instant of a claim.
    pub(super) fn settle(stored: Option<&Self>, spec: &LimitSpec, witness: f64, settling: &Settling) -> Self {
        match *spec {
            LimitSpec::Bucket { .. } => {
                let stored = match stored {
                    Some(Self::Bucket(bucket)) => Some(bucket),
                    _ => None,
                };
                Self::Bucket(TokenBucket::settle(stored, spec, witness, settling))
            }
            LimitSpec::Window { is_clock: false, .. } => {
                let stored = match stored {
                    Some(Self::Sliding(window)) => Some(window),
                    _ => None,
                };
                Self::Sliding(SlidingWindow::settle(stored, spec, witness, settling))
            }
            LimitSpec::Window { is_clock: true, .. } => {
                let stored = match stored {
                    Some(Self::Clock(window)) => Some(window),
                    _ => None,
                };
                Self::Clock(ClockWindow::settle(stored, spec, witness, settling))
            }
            LimitSpec::Concurrent { .. } => Self::Concurrent,
        }
    }

    /// The first instant from `t` on that suits `units`, and suits itself.
    pub(super) fn at(&self, spec: &LimitSpec, t: f64, units: f64, now: f64) -> f64 {
        match (self, *spec) {
            (Self::Bucket(bucket), _) => t.max(bucket.full_at - (bucket.capacity - units) * bucket.pace),
            (Self::Sliding(window), LimitSpec::Window { count, margin, .. }) => window.at(count, margin, t, units, now),
            (Self::Clock(window), LimitSpec::Window { count, margin, .. }) => window.at(count, margin, t, units, now),
            _ => t,
        }
    }

    /// A token bucket at a throttle answer: see [`TokenBucket::pause`].
    pub(super) fn pause(
        stored: Option<&Self>,
        spec: &LimitSpec,
        is_new: bool,
        until: f64,
        shift: f64,
        now: f64,
    ) -> Self {
        let stored = match stored {
            Some(Self::Bucket(bucket)) => Some(bucket),
            _ => None,
        };
        Self::Bucket(TokenBucket::pause(stored, spec, is_new, until, shift, now))
    }

    /// Spends `cost` at `slot`.
    pub(super) fn take(&mut self, cost: f64, slot: f64) {
        match self {
            Self::Bucket(bucket) => bucket.full_at = bucket.full_at.max(slot) + cost * bucket.pace,
            Self::Sliding(window) => window.take(cost, slot),
            Self::Clock(window) => window.take(cost, slot),
            Self::Concurrent => {}
        }
    }

    /// How it stands; `None` for one whose state is elsewhere.
    pub(super) fn level(&self, spec: &LimitSpec, cost: f64, now: f64) -> Option<Level> {
        let used = match self {
            Self::Bucket(bucket) => return Some(Level { level: bucket.full_at - now, more: bucket.pace }),
            Self::Sliding(window) => window.used,
            Self::Clock(window) if (now / window.per).floor() * window.per > window.start => 0.0,
            Self::Clock(window) => window.used,
            Self::Concurrent => return None,
        };
        Some(Level { level: used, more: self.at(spec, now, cost, now) - now })
    }

    /// The time one request takes to refill, where that is a property of the limit.
    pub(super) fn spacing(&self, cost: f64) -> f64 {
        match self {
            Self::Bucket(bucket) => cost * bucket.pace,
            _ => 0.0,
        }
    }

    /// The instant at which nothing of the state matters any more.
    pub(super) fn settled_at(&self) -> f64 {
        match self {
            Self::Bucket(bucket) => bucket.full_at,
            Self::Sliding(window) => window.log.last().map_or(0.0, |taken| taken.at + window.per),
            Self::Clock(window) => window.start + window.per,
            Self::Concurrent => 0.0,
        }
    }
}

/// The state of a token bucket.
#[derive(Debug, Clone)]
pub(super) struct TokenBucket {
    /// When it will hold its whole capacity (GCRA's theoretical arrival time, ITU-T I.371).
    full_at: f64,
    /// The time one unit takes now.
    pace: f64,
    interval: f64,
    capacity: f64,
    /// When an instance last said that interval and capacity are configured so.
    asserted: f64,
    /// The fraction of the configured rate that holds, and when it last changed.
    rate: f64,
    rate_at: f64,
    cut_at: Option<f64>,
}

impl TokenBucket {
    fn settle(stored: Option<&Self>, spec: &LimitSpec, witness: f64, settling: &Settling) -> Self {
        let LimitSpec::Bucket { mut interval, mut capacity, starts_full, adaptive } = *spec else {
            unreachable!("called for token buckets only")
        };
        let Settling { now, shift, paused, cost, horizon, is_used, outage, .. } = *settling;
        // Of two configurations the stricter holds, so that an old instance cannot undo a reload; a looser one once nobody
        // asserts the stricter any more.
        let mut asserted = now;
        if let Some(stored) = stored
            && stored.asserted + shift + ASSERTED > now
            && (stored.interval > interval || stored.capacity < capacity)
        {
            interval = interval.max(stored.interval);
            capacity = capacity.min(stored.capacity).max(cost);
            asserted = stored.asserted + shift;
        }
        // An adaptive limit regains its rate by use.
        let (mut rate, mut rate_at) = stored.map_or((1.0, now), |stored| (stored.rate, stored.rate_at));
        match adaptive {
            Some(adaptive) if rate < 1.0 => {
                rate_at += shift;
                if is_used && now >= rate_at + SECOND {
                    (rate, rate_at) = ((rate + adaptive.recover).min(1.0), now);
                }
            }
            _ => {}
        }
        let pace = interval / if adaptive.is_some() { rate } else { 1.0 };
        let full_at = match stored {
            None if starts_full => now,
            None => now + capacity * pace,
            Some(stored) => stored.full_at_pace(pace, shift, now),
        };
        // No honest debt is larger: what lies above is a clock's or a former capacity's doing.
        let ceiling = paused + (capacity + cost) * pace + horizon;
        let mut full_at = full_at.min(ceiling).max(now).max(now + witness);
        if let Some(outage) = outage {
            // While the store was lost the bucket refilled for no one: as of the return, it holds what it held at the loss,
            // less a burst of each instance. One that is new may have been spent.
            let most = (capacity - cost) * pace;
            let spent = if stored.is_some() { outage.length + outage.instances * cost * pace } else { most };
            full_at = full_at.max(outage.at + ((full_at - outage.at).max(0.0) + spent).min(most));
        }
        Self {
            full_at,
            pace,
            interval,
            capacity,
            asserted,
            rate,
            rate_at,
            cut_at: stored.and_then(|stored| stored.cut_at),
        }
    }

    /// Spends it down to one unit at `until`, where a pause ends; `is_new` where the throttle answer begins a pause.
    pub(super) fn pause(
        stored: Option<&Self>,
        spec: &LimitSpec,
        is_new: bool,
        until: f64,
        shift: f64,
        now: f64,
    ) -> Self {
        let LimitSpec::Bucket { interval, capacity, adaptive, .. } = *spec else {
            unreachable!("called for token buckets only")
        };
        let fresh = || Self {
            full_at: now - shift,
            pace: interval,
            interval,
            capacity,
            asserted: now,
            rate: 1.0,
            rate_at: now,
            cut_at: None,
        };
        let mut bucket = stored.cloned().unwrap_or_else(fresh);
        let mut rate = 1.0;
        if let Some(adaptive) = adaptive {
            // One storm, one cut.
            if is_new && bucket.cut_at.is_none_or(|cut_at| now >= cut_at + shift + SECOND) {
                bucket.rate = adaptive.floor.max(bucket.rate * adaptive.cut);
            }
            (bucket.rate_at, bucket.cut_at) = (until, Some(until));
            rate = bucket.rate;
        }
        let pace = bucket.interval / rate;
        bucket.full_at = bucket.full_at_pace(pace, shift, now).max(until + (bucket.capacity - 1.0) * pace);
        bucket.pace = pace;
        bucket
    }

    /// A new rate keeps the units that were spent, not the time they took at the old one.
    fn full_at_pace(&self, pace: f64, shift: f64, now: f64) -> f64 {
        let full_at = self.full_at + shift;
        if self.pace == pace { full_at } else { now + (full_at - now) * pace / self.pace }
    }
}

/// The state of a sliding window: what was taken, and when, oldest first.
#[derive(Debug, Clone)]
pub(super) struct SlidingWindow {
    per: f64,
    log: Vec<Taken>,
    used: f64,
}

/// Units taken at an instant or just before it.
#[derive(Debug, Clone, Copy)]
struct Taken {
    at: f64,
    units: f64,
}

impl SlidingWindow {
    fn settle(stored: Option<&Self>, spec: &LimitSpec, witness: f64, settling: &Settling) -> Self {
        let LimitSpec::Window { count, per, margin, .. } = *spec else { unreachable!("called for windows only") };
        let Settling { now, shift, cost, horizon, witness_age, outage, .. } = *settling;
        let log: Vec<Taken> = match stored {
            Some(stored) => stored
                .log
                .iter()
                .map(|taken| Taken { at: taken.at + shift, ..*taken })
                .filter(|taken| taken.at + per + margin > now)
                .collect(),
            None if witness > 0.0 && witness_age < per => {
                vec![Taken { at: now - witness_age + horizon, units: witness }]
            }
            None => Vec::new(),
        };
        let used = log.iter().map(|taken| taken.units).sum();
        let mut window = Self { per, log, used };
        if let Some(outage) = outage.filter(|outage| outage.at + per + margin > now) {
            let units = outage.sent(count, per, cost).min(count - cost - used);
            if units > 0.0 {
                window.take(units, outage.at);
            }
        }
        window
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.log.len()
    }

    fn at(&self, count: f64, margin: f64, t: f64, units: f64, now: f64) -> f64 {
        let (per, (whole, units)) = (self.per, whole_windows(count, units));
        let (mut at, mut used) = (now, self.used);
        for taken in &self.log {
            if used + units <= count {
                break;
            }
            used -= taken.units;
            at = taken.at + per + margin;
        }
        t.max(at + whole * (per + margin))
    }

    fn take(&mut self, units: f64, slot: f64) {
        self.used += units;
        let is_long = self.log.len() >= ENTRIES;
        match self.log.last_mut() {
            // With many entries, neighbours are one: all taken at the latest, so that none is forgotten too early.
            Some(last) if is_long && slot >= last.at && slot - last.at <= self.per / ENTRIES as f64 => {
                *last = Taken { at: slot, units: last.units + units };
            }
            _ => {
                let place = self.log.iter().rposition(|taken| taken.at <= slot).map_or(0, |before| before + 1);
                self.log.insert(place, Taken { at: slot, units });
            }
        }
    }
}

/// The state of a clock window: when the newest one began and what it holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockWindow {
    per: f64,
    start: f64,
    used: f64,
}

impl ClockWindow {
    fn settle(stored: Option<&Self>, spec: &LimitSpec, witness: f64, settling: &Settling) -> Self {
        let LimitSpec::Window { count, per, .. } = *spec else { unreachable!("called for windows only") };
        let Settling { now, cost, witness_age, outage, .. } = *settling;
        let mut window = match stored {
            // Windows are the clock's own: one that goes back begins a former window anew.
            Some(stored) if stored.start > now + per => {
                Self { per, start: (now / per).floor() * per, used: stored.used }
            }
            Some(stored) => Self { per, ..*stored },
            None => Self { per, start: ((now - witness_age) / per).floor() * per, used: witness },
        };
        let start = (now / per).floor() * per;
        if let Some(outage) = outage.filter(|outage| outage.at >= start)
            && window.start <= start
        {
            let used = if window.start == start { window.used } else { 0.0 };
            window = Self { per, start, used: used.max((used + outage.sent(count, per, cost)).min(count - cost)) };
        }
        window
    }

    fn at(&self, count: f64, margin: f64, t: f64, units: f64, now: f64) -> f64 {
        let (per, (whole, units)) = (self.per, whole_windows(count, units));
        let mut start = ((now / per).floor() * per).max(self.start);
        if start == self.start && self.used + units > count {
            start += per;
        }
        let at = t.max(start + whole * per + margin);
        let start = (at / per).floor() * per;
        if at < start + margin {
            start + margin
        } else if at > start + per - margin {
            start + per + margin
        } else {
            at
        }
    }

    fn take(&mut self, cost: f64, slot: f64) {
        let start = (slot / self.per).floor() * self.per;
        if start > self.start {
            *self = Self { start, used: 0.0, ..*self };
        }
        self.used += cost;
    }
}

/// Whole windows that more than one window's worth of units takes, and what is left.
fn whole_windows(count: f64, units: f64) -> (f64, f64) {
    let whole = ((units - 1.0) / count).floor();
    (whole, units - whole * count)
}

/// The stricter of two configurations holds until nobody has asserted it for this many microseconds.
const ASSERTED: f64 = 60e6;
const SECOND: f64 = 1e6;
/// A sliding window remembers up to this many takings one by one, more in groups.
const ENTRIES: usize = 128;

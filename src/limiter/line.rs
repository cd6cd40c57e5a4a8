//! The line before a set of buckets: who waits in which lane, and since when, in brief.

use std::collections::BTreeMap;

/// A queue in brief: how many wait and when up to [`MOST_POINTS`] of them, evenly spaced, arrived. Oldest first. Empty where
/// nobody waits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    count: usize,
    arrivals: Vec<f64>,
}

/// Who waits for one set of buckets, lane by lane.
#[derive(Debug, Clone, Default)]
pub struct LineState {
    entries: BTreeMap<String, Promise>,
}

#[derive(Debug, Clone)]
struct Promise {
    asks_again_at: f64,
    queue: Queue,
}

impl Queue {
    /// A queue of `count` waiters, with the arrivals of those at [`Queue::place`] of each of its points, oldest first.
    ///
    /// # Panics
    /// Unless there is a point where somebody waits, and no more points than waiters.
    pub fn new(count: usize, arrivals: Vec<f64>) -> Self {
        assert!(
            arrivals.len() <= count.min(MOST_POINTS) && arrivals.is_empty() == (count == 0),
            "a point for each waiter at most"
        );
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
    pub(super) fn arrival(&self, k: f64) -> f64 {
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

    /// The queue without its `served` oldest, in at most as many points; `None` when nobody is left.
    fn rest(&self, served: usize) -> Option<Self> {
        let left = self.count - served;
        if left == 0 {
            return None;
        }
        let points = left.min(self.arrivals.len());
        let arrivals =
            (0..points).map(|point| self.arrival(served as f64 + Self::place(left, points, point))).collect();
        Some(Self { count: left, arrivals })
    }
}

impl LineState {
    /// Forgets lanes that broke their promise to ask again: they are gone, and hold up nobody.
    pub(super) fn settle(&mut self, lane: &str, now: f64) {
        self.entries.retain(|name, promise| {
            name == lane
                || (promise.asks_again_at + PROMISE_GRACE >= now && promise.asks_again_at <= now + PROMISE_LIMIT)
        });
    }

    /// How many wait in other lanes.
    pub(super) fn others(&self, lane: &str) -> usize {
        self.of_others(lane).map(|queue| queue.count).sum()
    }

    /// How many of them arrived before `instant`.
    pub(super) fn ahead_of(&self, lane: &str, instant: f64) -> usize {
        self.of_others(lane).map(|queue| queue.older(instant)).sum()
    }

    /// How many other lanes have an older head than `instant`.
    pub(super) fn heads_before(&self, lane: &str, instant: f64) -> usize {
        self.of_others(lane).filter(|queue| queue.arrivals[0] < instant).count()
    }

    /// Who is left of a lane after it was served, and when it asks again.
    pub(super) fn promise(&mut self, lane: &str, queue: &Queue, served: usize, asks_again_at: f64) {
        match queue.rest(served) {
            Some(queue) => {
                self.entries.insert(lane.to_owned(), Promise { asks_again_at, queue });
            }
            None => {
                self.entries.remove(lane);
            }
        }
    }

    fn of_others(&self, lane: &str) -> impl Iterator<Item = &Queue> {
        self.entries.iter().filter(move |(name, _)| *name != lane).map(|(_, promise)| &promise.queue)
    }
}

/// Points that describe a queue: fewer let younger requests overtake at low rates.
pub const MOST_POINTS: usize = 8;
/// Microseconds: a promise to ask again may be this late.
const PROMISE_GRACE: f64 = 100_000.0;
/// Microseconds: a promise further off than this was made on another clock.
const PROMISE_LIMIT: f64 = 3_600_000_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_interpolate_between_points() {
        let queue = Queue::new(15, (0..8).map(|point| f64::from(point) * 2.0).collect());
        let ranks: Vec<_> = (0..15).map(|k| queue.arrival(f64::from(k))).collect();
        assert_eq!(ranks, (0..15).map(f64::from).collect::<Vec<_>>());
        assert_eq!([-1.0, 0.0, 0.5, 7.0, 7.5, 14.0, 15.0].map(|instant| queue.older(instant)), [0, 0, 1, 8, 8, 15, 15]);
        assert_eq!(queue.rest(13), Some(Queue::new(2, vec![13.0, 14.0])));
        assert_eq!(queue.rest(15), None);
    }
}

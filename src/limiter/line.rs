//! The line before a set of buckets: who waits in which lane, and since when, in brief.

use std::collections::BTreeMap;

/// A queue in brief: how many wait, and when some of them arrived. Empty where nobody waits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queue {
    count: usize,
    points: Vec<Point>,
}

/// One of those who wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where in the queue it stands, from 0.
    pub place: f64,
    /// When it arrived.
    pub arrival: f64,
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
    /// A queue of `count` waiters, with the points of those who stand at some places, oldest first.
    ///
    /// # Panics
    /// Unless the first and the last are among them, and nobody where nobody waits.
    pub fn new(count: usize, points: Vec<Point>) -> Self {
        let ends = points.first().zip(points.last()).map(|(first, last)| (first.place, last.place));
        assert_eq!(ends, count.checked_sub(1).map(|last| (0.0, last as f64)), "the ends of a queue are described");
        Self { count, points }
    }

    /// A queue of `count`, described by those of its waiters from whom the others are guessed best: the first few, the last,
    /// and in between always the one that is guessed worst, the more so the sooner its turn comes.
    pub fn describe(count: usize, arrival: impl Fn(usize) -> f64) -> Self {
        let front = if count <= MOST_POINTS { count } else { FRONT };
        let mut queue = Self { count, points: Vec::with_capacity(count.min(MOST_POINTS)) };
        let point = |place| Point { place: place as f64, arrival: arrival(place) };
        queue.points.extend((0..front).map(point));
        if count > front {
            queue.points.push(point(count - 1));
        }
        while queue.points.len() < count.min(MOST_POINTS) {
            let error = |at: Point| (at.arrival - queue.arrival(at.place)).abs() / (1.0 + at.place / NEAR);
            let worst = (front..count.min(FAR)).map(point).max_by(|a, b| error(*a).total_cmp(&error(*b)));
            let Some(worst) = worst.filter(|worst| error(*worst) > TOLERANCE) else { break };
            let place = queue.points.partition_point(|point| point.place < worst.place);
            queue.points.insert(place, worst);
        }
        queue
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Some of those who wait, oldest first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// When the waiter at `place` arrived; between two points by interpolation.
    pub(super) fn arrival(&self, place: f64) -> f64 {
        let low = self.points.partition_point(|point| point.place <= place).saturating_sub(1);
        let from = self.points[low];
        let Some(to) = self.points.get(low + 1) else { return from.arrival };
        // The order of operations is that of the script, so that both round alike.
        from.arrival + (to.arrival - from.arrival) * ((place - from.place) / (to.place - from.place))
    }

    /// How many arrived before `instant`.
    fn older(&self, instant: f64) -> usize {
        let [first, .., last] = self.points[..] else {
            return self.points.iter().filter(|only| only.arrival < instant).count();
        };
        if first.arrival >= instant {
            return 0;
        }
        if last.arrival < instant {
            return self.count;
        }
        let between = self.points.windows(2).rev().find(|pair| pair[0].arrival < instant);
        between.map_or(0, |pair| {
            let part = (instant - pair[0].arrival) / (pair[1].arrival - pair[0].arrival);
            (1.0 + pair[0].place + part * (pair[1].place - pair[0].place)).floor() as usize
        })
    }

    /// The queue without its `served` oldest; `None` when nobody is left.
    fn rest(&self, served: usize) -> Option<Self> {
        let left = self.count.checked_sub(served).filter(|left| *left > 0)?;
        let served = served as f64;
        let behind = self.points.iter().filter(|point| point.place > served);
        let points = std::iter::once(Point { place: 0.0, arrival: self.arrival(served) })
            .chain(behind.map(|point| Point { place: point.place - served, arrival: point.arrival }))
            .collect();
        Some(Self { count: left, points })
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

    /// When the first of them arrived; never, where nobody waits.
    pub(super) fn oldest_of_others(&self, lane: &str) -> f64 {
        self.of_others(lane).map(|queue| queue.points[0].arrival).fold(f64::INFINITY, f64::min)
    }

    /// How many other lanes have an older head than `instant`.
    pub(super) fn heads_before(&self, lane: &str, instant: f64) -> usize {
        self.of_others(lane).filter(|queue| queue.points[0].arrival < instant).count()
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

/// Points that describe a queue.
pub const MOST_POINTS: usize = 12;
/// As many from the front are always among them: where few requests may go, their order must not be guessed.
const FRONT: usize = 4;
/// An error counts half at this place, a third at twice it: the queue is described anew before the turn of those behind.
const NEAR: f64 = 5.0;
/// Microseconds: a smaller error changes no order that anybody notices.
const TOLERANCE: f64 = 1_000.0;
/// Who stands behind is looked at as one.
const FAR: usize = 256;
/// Microseconds: a promise to ask again may be this late.
const PROMISE_GRACE: f64 = 100_000.0;
/// Microseconds: a promise further off than this was made on another clock.
const PROMISE_LIMIT: f64 = 3_600_000_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_described_by_its_front_its_end_and_its_steps() {
        let described = |count, arrival: fn(usize) -> f64| {
            let queue = Queue::describe(count, arrival);
            queue.points.iter().map(|point| point.place as usize).collect::<Vec<_>>()
        };
        assert!(described(0, |_| 0.0).is_empty());
        assert_eq!(described(1, |_| 5.0), [0]);
        assert_eq!(described(12, |_| 5.0), (0..12).collect::<Vec<_>>());
        assert_eq!(described(1_000, |place| place as f64 * 7e3), [0, 1, 2, 3, 999], "nothing needs more");
        let burst = |place| if (10..60).contains(&place) { 10e5 } else { place as f64 * 1e5 };
        let places = described(100, burst);
        assert!([10, 59, 60].iter().all(|place| places.contains(place)), "{places:?}");
        let queue = Queue::describe(100, burst);
        assert!((0..100).all(|place| (queue.arrival(place as f64) - burst(place)).abs() < 1.0));
        let jagged = |place: usize| place as f64 + 1e6 * (place / 7 % 2) as f64;
        assert_eq!(described(10_000, jagged).len(), MOST_POINTS);
    }

    #[test]
    fn ranks_interpolate_between_points() {
        let queue = |points: &[(f64, f64)]| {
            let points: Vec<_> = points.iter().map(|&(place, arrival)| Point { place, arrival }).collect();
            Queue::new(points.last().map_or(0, |last| last.place as usize + 1), points)
        };
        let steps = queue(&[(0.0, 0.0), (1.0, 10.0), (4.0, 40.0), (14.0, 50.0)]);
        assert_eq!(
            [0.0, 1.0, 2.0, 4.0, 9.0, 14.0].map(|place| steps.arrival(place)),
            [0.0, 10.0, 20.0, 40.0, 45.0, 50.0]
        );
        assert_eq!(
            [-1.0, 0.0, 0.5, 10.0, 10.5, 45.0, 50.0, 51.0].map(|instant| steps.older(instant)),
            [0, 0, 1, 2, 2, 10, 15, 15]
        );
        assert_eq!(steps.rest(2), Some(queue(&[(0.0, 20.0), (2.0, 40.0), (12.0, 50.0)])));
        assert_eq!(steps.rest(14), Some(queue(&[(0.0, 50.0)])));
        assert_eq!(steps.rest(15), None);
        assert_eq!([4.0, 6.0].map(|instant| queue(&[(0.0, 5.0)]).older(instant)), [0, 1]);
    }
}

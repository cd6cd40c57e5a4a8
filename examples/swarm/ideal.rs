//! What one bucket with one line would have done with the same requests: the measure of what a fleet can do.

use crate::judge::{Limit, Request};

/// When each of `requests` (in the order they came) would have gone, in microseconds; `None` for those that would still
/// wait at `end`, or that left before their turn.
pub(crate) fn single_line(requests: &[Request], limit: Limit, end: u64) -> Vec<Option<u64>> {
    let mut bucket = Bucket::full(limit);
    requests
        .iter()
        .map(|request| {
            let turn = bucket.ready_at().max(request.came as f64);
            let left = request.left.unwrap_or(end).min(end) as f64;
            (turn <= left).then(|| {
                bucket.take(turn);
                turn as u64
            })
        })
        .collect()
}

/// A bucket on its own clock; nobody else takes from it.
pub(crate) struct Bucket {
    limit: Limit,
    full_at: f64,
}

impl Bucket {
    /// One that nobody has used yet.
    pub(crate) fn full(limit: Limit) -> Self {
        Self { limit, full_at: 0.0 }
    }

    /// From when on it holds a token.
    pub(crate) fn ready_at(&self) -> f64 {
        self.full_at - (self.limit.capacity - 1.0) * self.limit.interval
    }

    /// Takes one token, there or not.
    pub(crate) fn take(&mut self, at: f64) {
        self.full_at = self.full_at.max(at) + self.limit.interval;
    }

    /// What it holds; negative where more was taken than there was.
    pub(crate) fn tokens(&self, at: f64) -> f64 {
        self.limit.capacity - (self.full_at - at).max(0.0) / self.limit.interval
    }
}

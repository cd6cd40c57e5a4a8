//! Numbers that sum up many.

use std::fmt;

use serde::Serialize;

/// How something is spread, in seconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of values in microseconds; all zero where there is none.
    pub(crate) fn of(mut micros: Vec<f64>) -> Self {
        micros.sort_by(f64::total_cmp);
        let Some(last) = micros.len().checked_sub(1) else { return Self::default() };
        let at = |part: f64| micros[(part * last as f64).round() as usize] / 1e6;
        Self { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p99, max } = self;
        write!(f, "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms", p50 * 1e3, p99 * 1e3, max * 1e3)
    }
}

/// Jain's fairness index: 1 where all shares are equal, 1/n where one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The most that `sends` (microseconds, in order) exceed `capacity + t / interval` in any window of length t; negative
/// where even the worst window had room.
pub(crate) fn worst_excess(sends: &[u64], interval: f64, capacity: f64) -> f64 {
    let Some(first) = sends.first() else { return -capacity };
    let mut head_start = f64::NEG_INFINITY;
    let mut worst = f64::NEG_INFINITY;
    for (place, at) in sends.iter().enumerate() {
        let refilled = (at - first) as f64 / interval;
        head_start = head_start.max(refilled - place as f64);
        worst = worst.max(place as f64 + 1.0 - refilled + head_start);
    }
    worst - capacity
}

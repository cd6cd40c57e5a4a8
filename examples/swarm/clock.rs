//! The clock that all processes of a machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Microseconds on CLOCK_MONOTONIC, which counts from the same instant in every process.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec) * 1_000_000 + part(time.tv_nsec) / 1_000
}

/// How long until `instant`; zero once it has come.
pub(crate) fn until(instant: u64) -> Duration {
    Duration::from_micros(instant.saturating_sub(now()))
}

/// A duration in microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

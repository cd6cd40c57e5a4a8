//! How long to pause where the OTA names no time.

use std::time::Duration;

/// Pauses that double up to a cap.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Backoff {
    /// The pauses of one request: `first`, then twice as long each time, up to `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { next: first.min(cap), cap }
    }

    /// The next pause. `random`, from 0 to 1, lengthens it by up to half, so that instances throttled together do not
    /// return together; it never shortens it, and the cap holds for the sum.
    pub fn pause(&mut self, random: f64) -> Duration {
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.cap);
        let jitter = (base / 2).mul_f64(if random.is_finite() { random.clamp(0.0, 1.0) } else { 0.0 });
        base.saturating_add(jitter).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let pauses: Vec<u64> = (0..5).map(|_| backoff.pause(0.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn a_first_pause_above_the_cap_is_the_cap() {
        assert_eq!(Backoff::new(Duration::from_secs(9), Duration::from_secs(5)).pause(1.0), Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn jitter_only_lengthens_and_the_cap_holds(first in 0u64..=u64::MAX, cap in 0u64..=u64::MAX, random in any::<f64>()) {
            let (first, cap) = (Duration::from_millis(first), Duration::from_millis(cap));
            let mut plain = Backoff::new(first, cap);
            let mut jittered = Backoff::new(first, cap);
            for _ in 0..70 {
                let (low, high) = (plain.pause(0.0), jittered.pause(random));
                prop_assert!(low <= high && high <= cap);
            }
        }
    }
}

//! How long a request would wait: what its lane last saw, told before it waits.

use std::time::Duration;

use tokio::time::Instant;

use super::store::{Level, micros};

/// What a lane last saw of its buckets.
#[derive(Debug, Clone)]
pub struct View {
    at: Instant,
    cost: f64,
    levels: Vec<Level>,
    paused_until: Option<Instant>,
    others: usize,
}

impl View {
    /// Nothing is known yet: every quote is zero.
    pub fn unknown(cost: f64, now: Instant) -> Self {
        Self { at: now, cost, levels: Vec::new(), paused_until: None, others: 0 }
    }

    /// Takes what a claim answered.
    pub fn saw(&mut self, levels: Vec<Level>, others: usize, now: Instant) {
        self.at = now;
        self.levels = levels;
        self.others = others;
    }

    /// Takes a pause; never shortens one.
    pub fn paused(&mut self, until: Instant) {
        self.paused_until = Some(self.paused_until.map_or(until, |known| known.max(until)));
    }

    /// Until when the bucket is paused, if it is.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    /// How many requests wait in other instances, as far as that is still true.
    pub fn others(&self, now: Instant) -> usize {
        if now - self.at < OTHERS_STAY { self.others } else { 0 }
    }

    /// The least that a request waits with `ahead` others before it.
    pub fn wait(&self, ahead: usize, now: Instant) -> Duration {
        let elapsed = (now - self.at).as_secs_f64() * 1e6;
        let pause = self.paused_until(now).map_or(0.0, |until| (until - now).as_secs_f64() * 1e6);
        let before = ahead as f64 * self.cost;
        let wait = self.levels.iter().fold(pause, |wait, Level { debt, spec }| {
            let mut debt = (debt - elapsed).max(0.0);
            if pause > 0.0 {
                debt = debt.max(pause + (spec.capacity - 1.0) * spec.interval);
            }
            wait.max(debt + (before + self.cost - spec.capacity) * spec.interval)
        });
        micros(wait)
    }

    /// Units that the tightest limit holds now.
    pub fn tokens(&self, now: Instant) -> Option<f64> {
        let elapsed = (now - self.at).as_secs_f64() * 1e6;
        let held = |level: &Level| level.spec.capacity - (level.debt - elapsed).max(0.0) / level.spec.interval;
        self.levels.iter().map(held).reduce(f64::min)
    }
}

const OTHERS_STAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::bucket::LimitSpec;

    fn view(debt: f64, now: Instant) -> View {
        let spec = LimitSpec { interval: 100_000.0, capacity: 3.0, starts_full: true };
        let mut view = View::unknown(1.0, now);
        view.saw(vec![Level { debt, spec }], 0, now);
        view
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_bucket_holds_goes_first_then_its_rate() {
        let now = Instant::now();
        let view = view(100_000.0, now);
        assert_eq!([0, 1, 2, 3].map(|ahead| view.wait(ahead, now).as_millis()), [0, 0, 100, 200]);
        assert_eq!(view.wait(3, now + Duration::from_millis(50)).as_millis(), 150);
        assert_eq!(view.tokens(now), Some(2.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_waited_out_and_followed_by_the_rate() {
        let now = Instant::now();
        let mut view = view(0.0, now);
        view.paused(now + Duration::from_secs(2));
        view.paused(now + Duration::from_secs(1));
        assert_eq!([0, 1].map(|ahead| view.wait(ahead, now).as_millis()), [2_000, 2_100]);
        assert_eq!(view.wait(0, now + Duration::from_secs(3)).as_millis(), 0);
    }
}

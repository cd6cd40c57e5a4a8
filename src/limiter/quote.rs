//! How long a request would wait: what its lane last saw, told before it waits.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    bucket::{Level, LimitSpec},
    claim::{HORIZON, micros},
};

/// What a lane last saw of its buckets.
#[derive(Debug, Clone)]
pub struct View {
    at: Instant,
    cost: f64,
    levels: Vec<(Level, LimitSpec)>,
    paused_until: Option<Instant>,
    others: usize,
    older: usize,
}

impl View {
    /// Nothing is known yet: every quote is zero.
    pub fn unknown(cost: f64, now: Instant) -> Self {
        Self { at: now, cost, levels: Vec::new(), paused_until: None, others: 0, older: 0 }
    }

    /// Takes what a claim answered: how the limits stand, how many wait in other instances, and how many of those went
    /// before a request that came then.
    pub fn saw(&mut self, levels: Vec<(Level, LimitSpec)>, (others, older): (usize, usize), now: Instant) {
        self.at = now;
        self.levels = levels;
        (self.others, self.older) = (others, older);
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

    /// How many requests of other instances surely go before one that `arrived`, as far as that is still true: all before
    /// one of the batch class, whose arrival lies ahead; none before one that is sent again.
    pub fn ahead_of(&self, arrived: Instant, now: Instant) -> usize {
        if arrived > now {
            self.others(now)
        } else if now - self.at < OTHERS_STAY && arrived + micros(HORIZON / 2.0) >= self.at {
            self.older
        } else {
            0
        }
    }

    /// The least that a request waits with `ahead` others before it.
    pub fn wait(&self, ahead: usize, now: Instant) -> Duration {
        let elapsed = (now - self.at).as_secs_f64() * 1e6;
        let pause = self.paused_until(now).map_or(0.0, |until| (until - now).as_secs_f64() * 1e6);
        let before = ahead as f64 * self.cost;
        let waits = self.levels.iter().map(|(Level { level, more }, spec)| match *spec {
            LimitSpec::Bucket { capacity, .. } => {
                let mut debt = (level - elapsed).max(0.0);
                if pause > 0.0 {
                    debt = debt.max(pause + (capacity - 1.0) * more);
                }
                debt + (before + self.cost - capacity) * more
            }
            LimitSpec::Window { count, per, .. } => (more - elapsed).max(0.0) + (before / count).floor() * per,
            // It ends when another request does.
            LimitSpec::Concurrent { .. } => 0.0,
        });
        micros(waits.fold(pause, f64::max))
    }

    /// Units that the tightest limit holds now.
    pub fn tokens(&self, now: Instant) -> Option<f64> {
        let elapsed = (now - self.at).as_secs_f64() * 1e6;
        let held = |(Level { level, more }, spec): &(Level, LimitSpec)| match *spec {
            LimitSpec::Bucket { capacity, .. } => capacity - (level - elapsed).max(0.0) / more,
            LimitSpec::Window { count, per, .. } => count - if elapsed < per { *level } else { 0.0 },
            LimitSpec::Concurrent { most } => most - level,
        };
        self.levels.iter().map(held).reduce(f64::min)
    }

    /// The lowest fraction of its configured rate at which an adaptive limit paces now; `None` without one.
    pub fn adaptive_rate(&self) -> Option<f64> {
        let rates = self.levels.iter().filter_map(|(Level { more, .. }, spec)| match *spec {
            LimitSpec::Bucket { interval, adaptive: Some(_), .. } => Some((interval / more).min(1.0)),
            _ => None,
        });
        rates.reduce(f64::min)
    }
}

const OTHERS_STAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn view(debt: f64, now: Instant) -> View {
        let spec = LimitSpec::Bucket { interval: 100_000.0, capacity: 3.0, starts_full: true, adaptive: None };
        let mut view = View::unknown(1.0, now);
        view.saw(vec![(Level { level: debt, more: 100_000.0 }, spec)], (0, 0), now);
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

//! How the lines of this instance stand, for operators.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{lane::Lane, metrics::LaneMetrics};

/// How the lines of one channel and endpoint stand; those of several credentials together.
#[derive(Debug, Clone)]
pub struct LineStatus {
    /// `channel/endpoint`.
    pub name: String,
    /// Requests that wait.
    pub waiting: usize,
    /// How long the oldest of them has waited.
    pub oldest_wait: Duration,
    /// How long the bucket stays paused; the longest of all credentials.
    pub pause: Duration,
    /// Units that the tightest limit holds, as last seen; the lowest of all credentials. `None` before the first claim.
    pub tokens: Option<f64>,
    /// The fraction of the configured rate at which an adaptive limit paces; the lowest of all. `None` without one.
    pub adaptive_rate: Option<f64>,
    metrics: LaneMetrics,
}

impl LineStatus {
    /// Sets the gauges that nothing else keeps.
    pub(super) fn show(&self) {
        self.metrics.oldest_wait.set(self.oldest_wait.as_secs_f64());
        self.metrics.pause_remaining.set(self.pause.as_secs_f64());
        if let Some(tokens) = self.tokens {
            self.metrics.tokens.set(tokens);
        }
        if let Some(rate) = self.adaptive_rate {
            self.metrics.adaptive_rate(rate);
        }
    }
}

/// The status of every name among `lanes`, in alphabetical order.
pub(super) fn lines<'a>(lanes: impl Iterator<Item = &'a Lane>, now: Instant) -> Vec<LineStatus> {
    let mut lines: BTreeMap<&str, LineStatus> = BTreeMap::new();
    for lane in lanes {
        let line = lines.entry(lane.name()).or_insert_with(|| LineStatus {
            name: lane.name().to_owned(),
            waiting: 0,
            oldest_wait: Duration::ZERO,
            pause: Duration::ZERO,
            tokens: None,
            adaptive_rate: None,
            metrics: lane.state().metrics.clone(),
        });
        line.waiting += lane.state().waiting();
        let seen = lane.state().seen();
        if let Some((oldest, _)) = seen.ends {
            line.oldest_wait = line.oldest_wait.max(now.saturating_duration_since(oldest));
        }
        if let Some(until) = seen.view.paused_until(now) {
            line.pause = line.pause.max(until - now);
        }
        line.adaptive_rate = [line.adaptive_rate, seen.view.adaptive_rate()].into_iter().flatten().reduce(f64::min);
        line.tokens = [line.tokens, seen.view.tokens(now)].into_iter().flatten().reduce(f64::min);
    }
    lines.into_values().collect()
}

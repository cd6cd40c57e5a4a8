//! What is written down about one request: its metrics and its line in the access log.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tokio::time::Instant;

use super::metrics::{Open, Outcome, RouteMetrics};
use crate::limiter::Permit;

/// The account of one request, closed when it is dropped: with the last byte of the answer, or when the client leaves.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) metrics: Arc<RouteMetrics>,
    /// When the request's head was complete; its place in every line it waits in.
    pub(super) arrived: Instant,
    /// Held for slots and pauses so far; `None` where nothing limits the request.
    wait: Option<Duration>,
    /// Since when it is being held.
    waiting: Option<Instant>,
    /// Sends so far.
    pub(super) attempts: u32,
    /// The slot it is sent in, or its answer comes in.
    pub(super) slot: Option<Slot>,
    status: Option<StatusCode>,
    outcome: Outcome,
    is_complete: bool,
    _inflight: Open,
}

/// Permission to send one request. Kept to the end of the answer: until then the request counts as under way.
#[derive(Debug)]
pub(super) struct Slot {
    taken: Instant,
    permit: Permit,
}

impl Slot {
    /// A slot that was granted just now.
    pub(super) fn new(permit: Permit) -> Self {
        Self { taken: Instant::now(), permit }
    }

    /// Whether it is still the instant for which it was granted.
    pub(super) fn is_fresh(&self) -> bool {
        self.taken.elapsed() <= GRACE
    }

    /// The request goes on elsewhere, and counts as under way until this is dropped.
    pub(super) fn into_permit(self) -> Permit {
        self.permit
    }
}

impl Record {
    /// Opens the account of a request that has just arrived.
    pub(super) fn new(metrics: Arc<RouteMetrics>) -> Self {
        let inflight = metrics.enter();
        Self {
            metrics,
            arrived: Instant::now(),
            wait: None,
            waiting: None,
            attempts: 0,
            slot: None,
            status: None,
            outcome: Outcome::ClientGone,
            is_complete: false,
            _inflight: inflight,
        }
    }

    /// The request is held from now on.
    pub(super) fn hold(&mut self) {
        self.waiting.get_or_insert_with(Instant::now);
    }

    /// It goes on.
    pub(super) fn release(&mut self) {
        if let Some(since) = self.waiting.take() {
            self.wait = Some(self.wait.unwrap_or_default() + since.elapsed());
        }
    }

    /// Held for slots and pauses so far.
    pub(super) fn waited(&self) -> Duration {
        self.wait.unwrap_or_default() + self.waiting.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The head of the client's answer is known.
    pub(super) fn answer(&mut self, status: StatusCode, outcome: Outcome) {
        self.status = Some(status);
        self.outcome = outcome;
    }

    /// The answer ended whole.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// The origin broke off in the middle of its answer.
    pub(super) fn broken(&mut self) {
        self.outcome = Outcome::AnswerBroken;
        self.is_complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.release();
        let outcome = if self.is_complete { self.outcome } else { Outcome::ClientGone };
        self.metrics.request(outcome);
        if let Some(wait) = self.wait {
            self.metrics.held(wait);
        }
        let (channel, endpoint) = (self.metrics.channel.as_str(), self.metrics.endpoint.as_str());
        let status = self.status.map_or(0, |status| status.as_u16());
        let (wait_ms, total_ms) =
            (self.wait.unwrap_or_default().as_millis() as u64, self.arrived.elapsed().as_millis() as u64);
        let is_usual = outcome == Outcome::Answered && self.attempts <= 1;
        let (outcome, attempts) = (outcome.name(), self.attempts);
        // What went as it should is of interest to few; no text of the traffic is ever logged.
        if is_usual {
            tracing::debug!(channel, endpoint, outcome, status, attempts, wait_ms, total_ms, "request");
        } else {
            tracing::info!(channel, endpoint, outcome, status, attempts, wait_ms, total_ms, "request");
        }
    }
}

/// How long a slot is good for once it was granted.
const GRACE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

    use super::*;
    use crate::proxy::metrics::Metrics;

    fn recorded(request: impl FnOnce(Record)) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle: PrometheusHandle = recorder.handle();
        let metrics = metrics::with_local_recorder(&recorder, || Metrics::new(&[]));
        request(Record::new(metrics.unmatched().clone()));
        let rendered = handle.render();
        let counted =
            rendered.lines().filter(|line| line.starts_with("ota_pacer_requests_total") && line.ends_with(" 1"));
        counted.map(|line| line.split("outcome=").nth(1).unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_request_counts_as_what_became_of_it() {
        assert_eq!(recorded(drop), "\"client_gone\"} 1");
        assert_eq!(recorded(|mut record| record.answer(StatusCode::OK, Outcome::Answered)), "\"client_gone\"} 1");
        let answered = recorded(|mut record| {
            record.answer(StatusCode::OK, Outcome::Answered);
            record.complete();
        });
        assert_eq!(answered, "\"answered\"} 1");
        let broken = recorded(|mut record| {
            record.answer(StatusCode::OK, Outcome::Answered);
            record.broken();
        });
        assert_eq!(broken, "\"answer_broken\"} 1");
    }

    #[tokio::test(start_paused = true)]
    async fn holds_add_up() {
        let mut record = Record::new(Metrics::new(&[]).unmatched().clone());
        for seconds in [2, 3] {
            record.hold();
            let before = record.waited();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(record.waited(), before + Duration::from_secs(seconds), "this hold included");
            // Held already: the first begin counts.
            record.hold();
            record.release();
            tokio::time::advance(Duration::from_secs(7)).await;
        }
        assert_eq!(record.waited(), Duration::from_secs(5));
    }
}

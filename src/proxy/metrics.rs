//! The proxy's metric families, with a handle for each configured name taken once: a request looks nothing up in the
//! recorder. Labels come from the configuration alone; `-` stands for none.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::interception::{Failures, INTERCEPTION_FAILURES};
use crate::{
    config::model::{Channel, Endpoint},
    feedback::ThrottleSignal,
};

/// All handles of the proxy.
#[derive(Debug)]
pub(super) struct Metrics {
    channels: HashMap<String, ChannelMetrics>,
    unmatched: Arc<RouteMetrics>,
    tunnels: Gauge,
    interception_failures: Failures,
}

impl Metrics {
    /// Registers the families for the configured names, in the recorder installed at this moment.
    pub(super) fn new(channels: &[Arc<Channel>]) -> Self {
        describe();
        let by_name = channels.iter().map(|channel| (channel.name.clone(), ChannelMetrics::new(channel))).collect();
        Self {
            channels: by_name,
            unmatched: Arc::new(RouteMetrics::new(NONE, NONE)),
            tunnels: gauge!(TUNNELS),
            interception_failures: Failures::new(channels),
        }
    }

    /// The handles of a matched request.
    pub(super) fn route(&self, channel: &Channel, endpoint: Option<&Endpoint>) -> &Arc<RouteMetrics> {
        let Some(channel) = self.channels.get(&channel.name) else { return &self.unmatched };
        endpoint.and_then(|endpoint| channel.endpoints.get(&endpoint.name)).unwrap_or(&channel.other)
    }

    /// The handles of a request to a host of no channel.
    pub(super) fn unmatched(&self) -> &Arc<RouteMetrics> {
        &self.unmatched
    }

    /// The connections to configured hosts that could not be intercepted.
    pub(super) fn interception_failures(&self) -> &Failures {
        &self.interception_failures
    }

    /// One more open tunnel, until the guard is dropped.
    pub(super) fn tunnel(&self) -> Open {
        Open::new(self.tunnels.clone())
    }
}

#[derive(Debug)]
struct ChannelMetrics {
    endpoints: HashMap<String, Arc<RouteMetrics>>,
    /// Paths of no endpoint.
    other: Arc<RouteMetrics>,
}

impl ChannelMetrics {
    fn new(channel: &Channel) -> Self {
        let route = |endpoint: &str| Arc::new(RouteMetrics::new(&channel.name, endpoint));
        Self {
            endpoints: channel
                .endpoints
                .iter()
                .map(|endpoint| (endpoint.name.clone(), route(&endpoint.name)))
                .collect(),
            other: route(NONE),
        }
    }
}

/// The handles of one endpoint, or of what matches none.
#[derive(Debug)]
pub(super) struct RouteMetrics {
    /// The `channel` label.
    pub(super) channel: String,
    /// The `endpoint` label.
    pub(super) endpoint: String,
    requests: [Counter; Outcome::ALL.len()],
    retries: [Counter; RetryReason::ALL.len()],
    skipped: [Counter; SkipReason::ALL.len()],
    responses: [Counter; STATUS_CLASSES.len()],
    throttled: Counter,
    wait: Histogram,
    upstream: Histogram,
    inflight: Gauge,
}

impl RouteMetrics {
    fn new(channel: &str, endpoint: &str) -> Self {
        let labels = [("channel", channel.to_owned()), ("endpoint", endpoint.to_owned())];
        let with = |family: &'static str, label: &'static str, value: &'static str| {
            let [channel, endpoint] = labels.clone();
            counter!(family, &[channel, endpoint, (label, value.to_owned())])
        };
        Self {
            channel: channel.to_owned(),
            endpoint: endpoint.to_owned(),
            requests: Outcome::ALL.map(|outcome| with(REQUESTS, "outcome", outcome.name())),
            retries: RetryReason::ALL.map(|reason| with(RETRIES, "reason", reason.name())),
            skipped: SkipReason::ALL.map(|reason| with(RETRIES_SKIPPED, "reason", reason.name())),
            responses: STATUS_CLASSES.map(|class| with(UPSTREAM_RESPONSES, "status", class)),
            throttled: with(UPSTREAM_THROTTLED, "signal", ThrottleSignal::TooManyRequests.name()),
            wait: histogram!(THROTTLE_WAIT, &labels),
            upstream: histogram!(UPSTREAM_SECONDS, &labels),
            inflight: gauge!(INFLIGHT, &labels),
        }
    }

    pub(super) fn request(&self, outcome: Outcome) {
        self.requests[outcome as usize].increment(1);
    }

    pub(super) fn retry(&self, reason: RetryReason) {
        self.retries[reason as usize].increment(1);
    }

    pub(super) fn retry_skipped(&self, reason: SkipReason) {
        self.skipped[reason as usize].increment(1);
    }

    /// The head of an answer came, `after` its request was sent.
    pub(super) fn response(&self, status: StatusCode, after: Duration) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.responses.get(class) {
            counter.increment(1);
        }
        self.upstream.record(after);
        match ThrottleSignal::of(status) {
            Some(ThrottleSignal::TooManyRequests) => self.throttled.increment(1),
            None => {}
        }
    }

    /// How long a request was held for slots and pauses in all.
    pub(super) fn held(&self, wait: Duration) {
        self.wait.record(wait);
    }

    /// One more request in the proxy, until the guard is dropped.
    pub(super) fn enter(&self) -> Open {
        Open::new(self.inflight.clone())
    }
}

/// Counts something open in a gauge.
#[derive(Debug)]
pub(super) struct Open(Gauge);

impl Open {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Declares a label's values, so that an enum, its names and its number agree.
macro_rules! label {
    ($(#[$doc:meta])* $label:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum $label { $($(#[$variant_doc])* $variant,)+ }

        impl $label {
            const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The value of the label.
            pub(super) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

label! {
    /// How a request ended.
    Outcome {
        /// The origin's answer was passed on.
        Answered = "answered",
        /// The origin's last throttle answer was passed on.
        Throttled = "throttled",
        /// No slot within `max_wait`, or what the client would wait: the proxy answered 429.
        WaitTooLong = "wait_too_long",
        /// As many wait in the line as `max_queue` allows: the proxy answered 429.
        QueueFull = "queue_full",
        /// The store is lost and `on_outage` is `closed`: 503.
        StoreClosed = "store_closed",
        /// Refused by configuration: 403.
        Refused = "refused",
        /// No proxy request, or not one for this tunnel: 400, 405, 421.
        BadRequest = "bad_request",
        /// The origin could not be reached, or broke off before its answer: 502, 504.
        UpstreamFailed = "upstream_failed",
        /// The origin broke off in the middle of its answer.
        AnswerBroken = "answer_broken",
        /// The client left before its answer was complete.
        ClientGone = "client_gone",
    }
}

label! {
    /// Why a request was sent again.
    RetryReason {
        /// The origin answered with a throttle signal.
        Throttled = "throttled",
        /// The connection was lost before anything was sent on it, or the request is safe to repeat.
        ConnectionLost = "connection_lost",
    }
}

label! {
    /// Why a throttled request was not sent again.
    SkipReason {
        /// `retry.attempts` were made.
        AttemptsSpent = "attempts_spent",
        /// The body passed `retry.replay_body`.
        BodyTooLarge = "body_too_large",
        /// The answer came before the client had sent its whole body.
        BodyUnfinished = "body_unfinished",
        /// The origin asked for more than `retry.max_retry_after`.
        RetryAfterTooLong = "retry_after_too_long",
        /// The client would not wait through the pause, by its `X-Pacer-Max-Wait`.
        ClientMaxWait = "client_max_wait",
        /// There was no slot, or no connection, for one more send.
        NoSecondChance = "no_second_chance",
        /// The throttle answer itself is too large or too slow to be held back.
        AnswerTooLarge = "answer_too_large",
    }
}

fn describe() {
    describe_counter!(REQUESTS, "Requests, by how they ended");
    describe_counter!(UPSTREAM_THROTTLED, "Answers of origins that mean `too fast`, retried or not");
    describe_counter!(UPSTREAM_RESPONSES, "Answers of origins, by class of their status");
    describe_counter!(RETRIES, "Requests sent again, by reason");
    describe_counter!(RETRIES_SKIPPED, "Throttled requests not sent again, by reason");
    describe_counter!(INTERCEPTION_FAILURES, "Connections to configured hosts that could not be intercepted");
    describe_histogram!(THROTTLE_WAIT, metrics::Unit::Seconds, "Time requests were held for slots and pauses");
    describe_histogram!(
        UPSTREAM_SECONDS,
        metrics::Unit::Seconds,
        "Time from sending a request to the head of its answer"
    );
    describe_gauge!(INFLIGHT, "Requests in the proxy, waiting ones included");
    describe_gauge!(TUNNELS, "Open tunnels that are relayed unread");
}

const REQUESTS: &str = "ota_pacer_requests_total";
const UPSTREAM_THROTTLED: &str = "ota_pacer_upstream_throttled_total";
const UPSTREAM_RESPONSES: &str = "ota_pacer_upstream_responses_total";
const RETRIES: &str = "ota_pacer_retries_total";
const RETRIES_SKIPPED: &str = "ota_pacer_retries_skipped_total";
const THROTTLE_WAIT: &str = "ota_pacer_throttle_wait_seconds";
const UPSTREAM_SECONDS: &str = "ota_pacer_upstream_seconds";
const INFLIGHT: &str = "ota_pacer_inflight";
const TUNNELS: &str = "ota_pacer_tunnels";

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The label of what has no name in the configuration.
const NONE: &str = "-";

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use http::HeaderMap;

    use super::*;
    use crate::{
        config,
        proxy::interception::{Failure, Trust},
    };

    const CONFIG: &str = "
listen: 127.0.0.1:0
channels:
  ota:
    hosts: [ota.test, '*.ota.test:8443']
    endpoints:
      rooms: { match: { path: /rooms }, limits: [{ rate: 1/s, capacity: 1 }] }
";

    #[test]
    fn families_carry_the_names_of_the_configuration() {
        let config = config::parse("test.yaml", CONFIG, |_| None).unwrap();
        let channel = &config.channels[0];
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = metrics::with_local_recorder(&recorder, || Metrics::new(&config.channels));
        let rooms = metrics.route(channel, Some(&channel.endpoints[0]));
        rooms.request(Outcome::Answered);
        rooms.retry(RetryReason::Throttled);
        rooms.retry_skipped(SkipReason::BodyTooLarge);
        rooms.response(StatusCode::TOO_MANY_REQUESTS, Duration::from_millis(3));
        rooms.held(Duration::from_millis(5));
        metrics.route(channel, None).request(Outcome::Refused);
        metrics.unmatched().request(Outcome::BadRequest);
        metrics.interception_failures().report(
            &channel.hosts[1],
            &Failure::Opaque,
            Trust::of(&HeaderMap::new()),
            "ca".as_ref(),
        );
        let (inflight, tunnel) = (rooms.enter(), metrics.tunnel());
        let text = recorder.handle().render();
        let route = r#"channel="ota",endpoint="rooms""#;
        for line in [
            format!(r#"ota_pacer_requests_total{{{route},outcome="answered"}} 1"#),
            r#"ota_pacer_requests_total{channel="ota",endpoint="-",outcome="refused"} 1"#.to_owned(),
            r#"ota_pacer_requests_total{channel="-",endpoint="-",outcome="bad_request"} 1"#.to_owned(),
            format!(r#"ota_pacer_retries_total{{{route},reason="throttled"}} 1"#),
            format!(r#"ota_pacer_retries_skipped_total{{{route},reason="body_too_large"}} 1"#),
            format!(r#"ota_pacer_upstream_throttled_total{{{route},signal="429"}} 1"#),
            format!(r#"ota_pacer_upstream_responses_total{{{route},status="4xx"}} 1"#),
            format!(r#"ota_pacer_throttle_wait_seconds_count{{{route}}} 1"#),
            format!(r#"ota_pacer_upstream_seconds_count{{{route}}} 1"#),
            format!(r#"ota_pacer_inflight{{{route}}} 1"#),
            "ota_pacer_tunnels 1".to_owned(),
            r#"ota_pacer_interception_failures_total{host="ota.test"} 0"#.to_owned(),
            r#"ota_pacer_interception_failures_total{host="*.ota.test:8443"} 1"#.to_owned(),
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is not in\n{text}");
        }
        drop((inflight, tunnel));
        let text = recorder.handle().render();
        assert!(text.contains("ota_pacer_tunnels 0") && text.contains(&format!("ota_pacer_inflight{{{route}}} 0")));
    }
}

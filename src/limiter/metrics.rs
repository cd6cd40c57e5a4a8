//! The metric families of the limiter. Label values come from the configuration or are fixed here.

use std::time::Duration;

use metrics::{Gauge, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

/// The gauges of one channel and endpoint.
#[derive(Debug, Clone)]
pub struct LaneMetrics {
    /// Requests that wait for a slot.
    pub queue_depth: Gauge,
    /// Seconds the oldest of them has waited.
    pub oldest_wait: Gauge,
    /// Seconds until the bucket may send again.
    pub pause_remaining: Gauge,
    /// Units the tightest limit holds, as last seen.
    pub tokens: Gauge,
    labels: [(&'static str, String); 2],
}

impl LaneMetrics {
    /// Registers the gauges.
    pub fn new(channel: &str, endpoint: &str) -> Self {
        let labels = [("channel", channel.to_owned()), ("endpoint", endpoint.to_owned())];
        Self {
            queue_depth: gauge!("ota_pacer_queue_depth", &labels),
            oldest_wait: gauge!("ota_pacer_oldest_wait_seconds", &labels),
            pause_remaining: gauge!("ota_pacer_pause_remaining_seconds", &labels),
            tokens: gauge!("ota_pacer_bucket_tokens", &labels),
            labels,
        }
    }

    /// The fraction of its configured rate at which an adaptive limit paces; the family holds endpoints that have one.
    pub fn adaptive_rate(&self, rate: f64) {
        gauge!("ota_pacer_adaptive_rate_ratio", &self.labels).set(rate);
    }
}

/// What is told of the store.
#[derive(Debug)]
pub struct StoreMetrics;

impl StoreMetrics {
    /// Registers the families, so that they read zero before anything happens.
    pub fn new() -> Self {
        for mode in MODES {
            counter!("ota_pacer_store_transitions_total", "to" => mode).absolute(0);
        }
        Self
    }

    /// One call ended, with an answer or without.
    pub fn called(&self, call: &'static str, took: Duration) {
        histogram!("ota_pacer_store_call_seconds", "call" => call).record(took);
    }

    /// One call failed.
    pub fn failed(&self, reason: &'static str) {
        counter!("ota_pacer_store_failures_total", "reason" => reason).increment(1);
    }

    /// Which store decides now.
    pub fn mode(&self, current: &'static str) {
        gauge!("ota_pacer_store_up").set(f64::from(u8::from(current == "redis" || current == "memory")));
        for mode in MODES {
            gauge!("ota_pacer_store_mode", "mode" => mode).set(f64::from(u8::from(mode == current)));
        }
    }

    /// The store that decides changed.
    pub fn transition(&self, to: &'static str) {
        counter!("ota_pacer_store_transitions_total", "to" => to).increment(1);
    }
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Describes the families for the metrics page.
pub fn describe() {
    describe_gauge!("ota_pacer_queue_depth", "Requests that wait for a slot");
    describe_gauge!("ota_pacer_oldest_wait_seconds", "How long the oldest waiting request has waited");
    describe_gauge!("ota_pacer_pause_remaining_seconds", "How long the bucket stays paused because the OTA said so");
    describe_gauge!("ota_pacer_bucket_tokens", "Units the tightest limit holds, the lowest of all credentials");
    describe_gauge!(
        "ota_pacer_adaptive_rate_ratio",
        "The fraction of its configured rate at which an adaptive limit paces"
    );
    describe_histogram!("ota_pacer_store_call_seconds", "How long one call to Redis took");
    describe_counter!("ota_pacer_store_failures_total", "Calls to Redis whose outcome is unknown or refused");
    describe_gauge!("ota_pacer_store_up", "1 while the store answers");
    describe_gauge!("ota_pacer_store_mode", "1 for the store that decides now");
    describe_counter!("ota_pacer_store_transitions_total", "Changes of the store that decides");
}

const MODES: [&str; 5] = ["memory", "redis", "local", "closed", "open"];

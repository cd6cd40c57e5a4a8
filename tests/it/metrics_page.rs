//! `/metrics` holds every documented family, with the labels that dashboards count on, and nothing of the traffic.

use crate::support::{http, mock_ota::MockOta, proxy::Settings, redis::Redis};

#[test]
fn every_family_is_there_once_a_request_has_passed() {
    let (redis, ota) = (Redis::start(), MockOta::start(&[]));
    let proxy = Settings::for_ota(&ota).redis(&redis, 1).endpoint("availability", PATH, "20/s", 40).start();
    let target = format!("{}{PATH}?apikey=not-a-secret", ota.http);
    let request = format!("GET {target} HTTP/1.0\r\nAuthorization: Basic aG90ZWw6cHc=\r\n\r\n");
    assert_eq!(http::exchange(proxy.address(), &request).status, 200);

    let metrics = proxy.metrics();
    let route = [("channel", "booking_com"), ("endpoint", "availability")];
    let with = |label, value| [route[0], route[1], (label, value)];
    for (family, labels, value) in [
        ("requests_total", &with("outcome", "answered")[..], Some(1.0)),
        ("upstream_responses_total", &with("status", "2xx"), Some(1.0)),
        ("upstream_throttled_total", &with("signal", "429"), Some(0.0)),
        ("retries_total", &with("reason", "throttled"), Some(0.0)),
        ("retries_total", &with("reason", "connection_lost"), Some(0.0)),
        ("retries_skipped_total", &with("reason", "attempts_spent"), Some(0.0)),
        // Buckets, so that instances can be added up; without them the exporter writes quantiles.
        ("throttle_wait_seconds_bucket", &with("le", "5"), Some(1.0)),
        ("upstream_seconds_bucket", &with("le", "65"), Some(1.0)),
        ("store_call_seconds_bucket", &[("call", "claim"), ("le", "+Inf")], Some(1.0)),
        ("inflight", &route, Some(0.0)),
        ("queue_depth", &route, Some(0.0)),
        ("oldest_wait_seconds", &route, Some(0.0)),
        ("pause_remaining_seconds", &route, Some(0.0)),
        ("bucket_tokens", &route, None),
        ("tunnels", &[], Some(0.0)),
        // By the host as it is configured, not as it was asked for.
        ("interception_failures_total", &[("host", "localhost")], Some(0.0)),
        ("store_up", &[], Some(1.0)),
        ("store_mode", &[("mode", "redis")], Some(1.0)),
        ("store_mode", &[("mode", "local")], Some(0.0)),
        ("store_transitions_total", &[("to", "local")], Some(0.0)),
        ("build_info", &[("version", env!("CARGO_PKG_VERSION"))], Some(1.0)),
    ] {
        let there = metrics.sum(&format!("ota_pacer_{family}"), labels);
        assert!(there.is_some() && (value.is_none() || there == value), "{family}{labels:?} is {there:?}");
    }
    let page = format!("{metrics:?}");
    for part in [PATH, "localhost:", "not-a-secret", "aG90ZWw6cHc", "hotel"] {
        assert!(!page.contains(part), "`{part}` is on the page");
    }
}

const PATH: &str = "/xml/rooms";

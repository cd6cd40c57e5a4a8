//! One 429 stops the whole fleet on that bucket for as long as the OTA asked, and nobody notices but by waiting.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    clock::wait_for,
    mock_ota::{Arrival, MockOta},
    proxy::Settings,
    redis::Redis,
    worker::Worker,
};

#[test]
fn a_429_with_seconds_pauses_the_fleet() {
    assert_pauses_for_two_seconds("2");
}

#[test]
fn a_429_with_an_http_date_pauses_the_fleet() {
    assert_pauses_for_two_seconds("date+2");
}

#[track_caller]
fn assert_pauses_for_two_seconds(retry_after: &str) {
    let redis = Redis::start();
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota)
        .redis(&redis, 2)
        .endpoint("availability", PAUSED, "20/s", 40)
        .endpoint("rates", OTHER, "10/s", 10);
    let fleet = [settings.start(), settings.start()];
    let mut workers = Vec::new();
    for proxy in &fleet {
        for path in [PAUSED, PAUSED, OTHER] {
            workers.push(Worker::start(proxy, &ota.https, path, &["--seconds", "8"]));
        }
    }

    // Past the capacity, so that the pause falls on a fleet that is queueing.
    wait_for("the bucket is spent", PATIENCE, || (ota.arrivals(PAUSED).len() > 50).then_some(()));
    ota.script(PAUSED, json!([{ "status": 429, "retry_after": retry_after }]));
    for worker in workers {
        worker.finish().assert_only_200();
    }

    let arrivals = ota.arrivals(PAUSED);
    let throttled: Vec<_> = arrivals.iter().filter(|arrival| arrival.status == 429).collect();
    assert_eq!(throttled.len(), 1, "the request that met the 429 is not sent again before its time");
    let told = throttled[0].answered_us.expect("the 429 was answered");
    let after = |arrivals: &[Arrival], from: u64, to: u64| {
        arrivals.iter().filter(|arrival| (told + from..told + to).contains(&arrival.at_us)).count()
    };
    assert_eq!(after(&arrivals, IN_FLIGHT, TWO_SECONDS), 0, "nothing reaches the bucket that was told to wait");
    let in_flight = after(&arrivals, 1, IN_FLIGHT) as f64;
    assert!(in_flight <= RATE * IN_FLIGHT as f64 / 1e6, "{in_flight} were on their way, more than the rate allows");

    let resumed = arrivals.iter().find(|arrival| arrival.at_us >= told + TWO_SECONDS).expect("sending goes on").at_us;
    let first_second = after(&arrivals, resumed - told, resumed - told + 1_000_000);
    assert!(first_second as f64 <= RATE + 1.0, "{first_second} in the first second are a burst");

    let meanwhile = after(&ota.arrivals(OTHER), IN_FLIGHT, TWO_SECONDS);
    assert!(meanwhile >= 5, "the other bucket had {meanwhile} requests meanwhile");
}

const PAUSED: &str = "/hotels/xml/availability";
const OTHER: &str = "/hotels/xml/rates";
const RATE: f64 = 20.0;
const TWO_SECONDS: u64 = 2_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// In microseconds: what the 429 takes to the proxy and the store, and one horizon (200 ms) of slots that other proxies
/// hold by then; the rest is for a slow machine.
const IN_FLIGHT: u64 = 500_000;

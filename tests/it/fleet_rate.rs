//! However many workers and proxies there are, the OTA sees one client that keeps its limit and uses it.

use crate::support::{
    mock_ota::{Arrival, MockOta},
    proxy::Proxy,
    proxy::Settings,
    redis::Redis,
    worker::Worker,
};

#[test]
fn two_proxies_on_one_redis_keep_one_limit_over_tls() {
    let redis = Redis::start();
    let ota = MockOta::start(&[&ota_limit()]);
    let settings = settings(&ota).redis(&redis, 2);
    let fleet = [settings.start(), settings.start()];
    assert_paced(&ota, &ota.https, &fleet, 12);
}

#[test]
fn one_proxy_without_redis_keeps_the_limit_over_tls() {
    let ota = MockOta::start(&[&ota_limit()]);
    let fleet = [settings(&ota).start()];
    assert_paced(&ota, &ota.https, &fleet, 9);
}

#[test]
fn two_proxies_on_one_redis_keep_one_limit_over_plain_http() {
    let redis = Redis::start();
    let ota = MockOta::start(&[&ota_limit()]);
    let settings = settings(&ota).redis(&redis, 2);
    let fleet = [settings.start(), settings.start()];
    assert_paced(&ota, &ota.http, &fleet, 9);
}

/// Runs six workers on each proxy of the fleet for `seconds`, and asks the OTA what it saw.
#[track_caller]
fn assert_paced(ota: &MockOta, ota_url: &str, fleet: &[Proxy], seconds: u64) {
    let arguments = ["--seconds", &seconds.to_string()];
    let workers: Vec<_> = fleet
        .iter()
        .flat_map(|proxy| std::iter::repeat_n(proxy, WORKERS))
        .map(|proxy| Worker::start(proxy, ota_url, PATH, &arguments))
        .collect();
    let mut answered = 0;
    for worker in workers {
        let summary = worker.finish();
        summary.assert_only_200();
        answered += summary.requests;
    }

    let arrivals = ota.arrivals(PATH);
    let throttled = arrivals.iter().filter(|arrival| arrival.status == 429).count();
    assert_eq!(throttled, 0, "the OTA never had to say 429");
    assert_eq!(arrivals.len() as u64, answered, "each request is sent once");
    assert!(arrivals.iter().all(|arrival| arrival.body_bytes > 0), "bodies arrive");
    assert!(arrivals.iter().all(|arrival| arrival.credential == "hotel-machine"), "credentials arrive as they were");
    let excess = ota.worst_excess(PATH, RATE, CAPACITY);
    assert!(excess <= JITTER, "a window held {excess} more than {CAPACITY} + {RATE}/s");

    // While the workers start there may be too few to spend a full bucket, so the best window of the length is looked for.
    // It begins by the time that the last one has started, and ends before the first one has ended.
    let window = (seconds - STARTING) as f64;
    let within = |start: &Arrival| {
        let end = start.at_us as f64 + window * 1e6;
        arrivals.iter().filter(|arrival| arrival.at_us >= start.at_us && arrival.at_us as f64 <= end).count()
    };
    let used = arrivals.iter().map(within).max().expect("workers send") as f64;
    let allowance = f64::from(CAPACITY) + RATE * window;
    assert!(used >= 0.95 * allowance, "no {window} s had more than {used} of the {allowance} allowed");
}

fn settings(ota: &MockOta) -> Settings {
    Settings::for_ota(ota).endpoint("availability", PATH, "20/s", CAPACITY)
}

/// What the OTA truly allows: the proxy's limit, and one more for the jitter between a slot and an arrival.
fn ota_limit() -> String {
    format!("{PATH}=bucket:{RATE}/s:{}", f64::from(CAPACITY) + JITTER)
}

const PATH: &str = "/hotels/xml/availability";
const WORKERS: usize = 6;

/// In seconds: what a dozen of Python processes take to start.
const STARTING: u64 = 4;
const RATE: f64 = 20.0;
const CAPACITY: u32 = 40;

/// How many requests may arrive closer together than they were sent.
const JITTER: f64 = 1.0;

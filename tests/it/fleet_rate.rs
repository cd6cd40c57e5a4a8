//! However many workers and proxies there are, the OTA sees one client that keeps its limit and uses it.

use crate::support::{mock_ota::MockOta, proxy::Proxy, proxy::Settings, redis::Redis, worker::Worker};

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
    assert_eq!(arrivals.len() as u64, answered, "each request is sent once");
    assert!(arrivals.iter().all(|arrival| arrival.status == 200), "the OTA never had to say 429");
    assert!(arrivals.iter().all(|arrival| arrival.body_bytes > 0), "bodies arrive");
    assert!(arrivals.iter().all(|arrival| arrival.credential == "hotel-machine"), "credentials arrive as they were");
    let excess = ota.worst_excess(PATH, RATE, CAPACITY);
    assert!(excess <= JITTER, "a window held {excess} more than {CAPACITY} + {RATE}/s");

    // A worker lasts `seconds` from its own start, so up to the end of the first one there are always requests waiting.
    let first = arrivals.first().expect("workers send").at_us;
    let window = (seconds - 1) as f64;
    let used = arrivals.iter().filter(|arrival| (arrival.at_us - first) as f64 <= window * 1e6).count() as f64;
    let allowance = f64::from(CAPACITY) + RATE * window;
    assert!(used >= 0.95 * allowance, "{used} of {allowance} were used in {window} s");
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
const RATE: f64 = 20.0;
const CAPACITY: u32 = 40;

/// How many requests may arrive closer together than they were sent.
const JITTER: f64 = 1.0;

//! A lost Redis slows nobody below their share, speeds nobody above the limit, and fails no request.

use std::{thread::sleep, time::Duration};

use crate::support::{
    clock::wait_for,
    mock_ota::MockOta,
    proxy::{Proxy, Settings},
    redis::Redis,
    worker::Worker,
};

#[test]
fn a_killed_redis_is_outlived() {
    assert_outlived(Redis::kill, Redis::restart);
}

#[test]
fn a_hanging_redis_is_outlived() {
    assert_outlived(|redis| redis.pause(), |redis| redis.resume());
}

#[track_caller]
fn assert_outlived(lose: impl Fn(&mut Redis), bring_back: impl Fn(&mut Redis)) {
    let mut redis = Redis::start();
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).redis(&redis, 2).endpoint("availability", PATH, "20/s", CAPACITY);
    let fleet = [settings.start(), settings.start()];
    let workers: Vec<_> = fleet
        .iter()
        .flat_map(|proxy| std::iter::repeat_n(proxy, 3))
        .map(|proxy| Worker::start(proxy, &ota.https, PATH, &["--seconds", "13"]))
        .collect();
    wait_for("the bucket is spent", PATIENCE, || (ota.arrivals(PATH).len() > 40).then_some(()));
    let transitions = |fleet: &[Proxy]| -> Vec<f64> { fleet.iter().map(transitions).collect() };
    let before = transitions(&fleet);

    lose(&mut redis);
    wait_for("every proxy has noticed", PATIENCE, || fleet.iter().all(|proxy| !store_is_up(proxy)).then_some(()));
    let lost = ota.now_us();
    sleep(OBSERVED);
    let outage = ota.arrivals(PATH).iter().filter(|arrival| arrival.at_us > lost).count() as f64;
    let outage_seconds = (ota.now_us() - lost) as f64 / 1e6;

    bring_back(&mut redis);
    wait_for("every proxy has it back", PATIENCE, || fleet.iter().all(store_is_up).then_some(()));
    let back = ota.now_us();
    sleep(OBSERVED);
    let recovered = ota.arrivals(PATH).iter().filter(|arrival| arrival.at_us > back).count() as f64;
    let recovered_seconds = (ota.now_us() - back) as f64 / 1e6;
    let after = transitions(&fleet);

    for worker in workers {
        worker.finish().assert_only_200();
    }
    let excess = ota.worst_excess(PATH, RATE, CAPACITY);
    assert!(excess <= TRANSITION, "over the whole run a window held {excess} more than {CAPACITY} + {RATE}/s");
    let allowed = RATE * outage_seconds + TRANSITION;
    assert!(outage <= allowed, "{outage} requests in {outage_seconds} s without Redis, {allowed} allowed");
    assert!(outage >= 0.5 * RATE * outage_seconds, "only {outage} requests in {outage_seconds} s without Redis");
    let expected = RATE * recovered_seconds;
    assert!(recovered >= 0.8 * expected, "{recovered} requests of {expected} after Redis came back");
    assert!(before.iter().zip(&after).all(|(before, after)| after >= &(before + 2.0)), "{before:?} to {after:?}");
}

fn store_is_up(proxy: &Proxy) -> bool {
    proxy.metrics().sum("ota_pacer_store_up", &[]) == Some(1.0)
}

fn transitions(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("ota_pacer_store_transitions_total", &[]).unwrap_or(0.0)
}

const PATH: &str = "/hotels/xml/availability";
const RATE: f64 = 20.0;
const CAPACITY: u32 = 20;

/// How many requests more may arrive around a loss: alone, each of the two proxies has a burst of 1; and as many again for
/// those on their way when it learns of the loss.
const TRANSITION: f64 = 4.0;
const OBSERVED: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);

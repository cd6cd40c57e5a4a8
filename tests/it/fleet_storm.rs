//! A storm of throttle answers stops a busy fleet for as long as the OTA asks, slows it down once, and ends without a burst:
//! also where Redis forbids pub/sub, and instances hear of a pause only as they claim.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::json;

use crate::support::{
    clock::wait_for,
    http,
    mock_ota::MockOta,
    proxy::{Proxy, Settings},
    redis::Redis,
};

#[test]
fn a_storm_of_throttle_answers_is_one_pause() {
    let redis = Redis::start();
    let fleet = weather(&redis, redis.url());
    assert_eq!(redis.listeners(), FLEET as u64, "all hear of pauses");
    assert!(fleet.iter().all(|proxy| warning(proxy).is_none()));
}

#[test]
fn a_storm_of_throttle_answers_is_one_pause_without_pubsub() {
    let redis = Redis::start();
    redis.command("ACL SETUSER pacer on >secret ~bkt:* resetchannels +@all -@dangerous");
    let fleet = weather(&redis, redis.url_for("pacer", "secret"));
    assert_eq!(redis.listeners(), 0, "nobody hears of pauses");
    for proxy in &fleet {
        let warned = wait_for("the warning", PATIENCE, || warning(proxy));
        assert!(warned.contains("&bkt:*"), "{warned}");
        let again = proxy.log().text().lines().filter(|line| line.contains(FORBIDDEN)).count();
        assert_eq!(again, 1, "it is said once");
    }
}

/// Has a fleet send through a storm, asks the OTA what it saw, and returns the fleet for further questions.
#[track_caller]
fn weather(redis: &Redis, url: String) -> Vec<Proxy> {
    let ota = MockOta::start(&[]);
    let limit = format!("rate: {RATE}/s, capacity: {CAPACITY}, adaptive: {{ cut: {CUT} }}");
    let settings = Settings::for_ota(&ota).redis_at(url, FLEET as u32).defaults("max_wait: 60s").limited(
        "availability",
        PATH,
        &limit,
    );
    let fleet: Vec<_> = std::iter::repeat_with(|| settings.start()).take(FLEET).collect();
    let started = ota.now_us();
    let crowd = Crowd::start(&fleet, &ota);
    let spent = CAPACITY as usize + 25;
    wait_for("the bucket is spent", PATIENCE, || (ota.arrivals(PATH).len() > spent).then_some(()));

    // Many are on their way when it is first told to wait. Its first answer names the longest wait, as those of an OTA that
    // counts down; so the pause ends as that one says.
    ota.script(
        PATH,
        json!([
            { "status": 429, "retry_after": "2", "latency_ms": 150 },
            { "status": 429, "retry_after": "1", "latency_ms": 150, "for_ms": 1000 },
        ]),
    );
    let bucket = wait_for("the bucket is paused", PATIENCE, || paused(redis));
    let rate: f64 = field(redis, &bucket, "rate.1");
    assert!((rate - CUT).abs() < 1e-9, "one storm is one cut, to {CUT} and not {rate}");
    let told =
        ota.arrivals(PATH).iter().find(|one| one.status == 429).and_then(|one| one.answered_us).expect("the storm");
    wait_for("sending goes on", PATIENCE, || {
        (ota.arrivals(PATH).iter().filter(|one| one.at_us > told + PAUSE + SECOND).count() > 10).then_some(())
    });
    crowd.disperse();

    let arrivals = ota.arrivals(PATH);
    let within = |from: u64, to: u64| arrivals.iter().filter(|one| (from..to).contains(&one.at_us)).count() as f64;
    // When the store knew of the pause, on the OTA's clock. All slots that it gave away before lie within one horizon.
    let until = field::<f64>(redis, &bucket, "pause_until") as i64 + ota.epoch_us();
    let until = u64::try_from(until).expect("the pause ended after the start");
    let known = until - PAUSE;
    let granted = f64::from(CAPACITY) + RATE * seconds(known + HORIZON - started) + 1.0;
    let throttled = arrivals.iter().filter(|one| one.status == 429).count();
    assert!(throttled >= FLEET, "{throttled} throttle answers are no storm");
    let before = within(0, until);
    assert!(before <= granted, "{before} requests before the end of the pause, {granted} slots");
    let (after_it, allowed) = (within(told + 1, until), RATE * seconds(known + HORIZON - told) + 1.0 + ON_THE_WAY);
    assert!(after_it <= allowed, "{after_it} requests after the first 429, {allowed} allowed");
    assert_eq!(within(told + SECOND, until), 0.0, "nothing is sent in the rest of the pause");

    let resumed = arrivals.iter().find(|one| one.at_us >= until).expect("sending goes on").at_us;
    assert!(resumed >= told + PAUSE, "{} us early", told + PAUSE - resumed);
    // The limit regains nothing before its first second is over.
    let (first_second, allowed) = (within(until, until + SECOND), CUT * RATE + 1.0);
    assert!(first_second <= allowed, "{first_second} in the first second, {allowed} allowed");
    let excess = ota.worst_excess(PATH, RATE, CAPACITY);
    assert!(excess <= ON_THE_WAY, "a window held {excess} more than {CAPACITY} + {RATE}/s");
    assert!(arrivals.iter().all(|one| one.status != 429 || one.at_us < told + PAUSE), "the storm was over");
    let rate: f64 = field(redis, &bucket, "rate.1");
    assert!((CUT..1.0).contains(&rate), "one cut, and what was regained since: {rate}");
    for proxy in &fleet {
        let ratio = proxy.metrics().sum("ota_pacer_adaptive_rate_ratio", &[]).expect("the limit is adaptive");
        assert!((CUT..1.0).contains(&ratio), "a proxy tells of {ratio}");
        assert_eq!(proxy.metrics().sum("ota_pacer_store_failures_total", &[]), None, "redis did all it was asked");
    }
    fleet
}

/// Clients that send one request after the other, each of which must be answered 200.
struct Crowd {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn start(fleet: &[Proxy], ota: &MockOta) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let request = format!("GET {}{PATH} HTTP/1.0\r\nAuthorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n", ota.http);
        let each = |proxy: &Proxy| {
            let (is_over, request, address) = (Arc::clone(&is_over), request.clone(), proxy.address());
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(http::exchange(address, &request).status, 200);
                }
            })
        };
        let clients = fleet.iter().flat_map(|proxy| std::iter::repeat_n(proxy, CLIENTS)).map(each).collect();
        Self { is_over, clients }
    }

    /// Waits until all have had their last answer.
    #[track_caller]
    fn disperse(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("a client is answered 200");
        }
    }
}

/// The key of the bucket, once the OTA's storm is known to the store.
#[track_caller]
fn paused(redis: &Redis) -> Option<String> {
    let keys = redis.command("KEYS bkt:*:availability");
    let key = keys.lines().find(|line| line.starts_with("bkt:"))?;
    redis.command(&format!("HEXISTS {key} pause_until")).starts_with(":1").then(|| key.to_owned())
}

#[track_caller]
fn field<T: std::str::FromStr>(redis: &Redis, bucket: &str, name: &str) -> T {
    let answer = redis.command(&format!("HGET {bucket} {name}"));
    let value = answer.lines().nth(1).and_then(|line| line.parse().ok());
    value.unwrap_or_else(|| panic!("the bucket has `{name}`: {answer}"))
}

fn warning(proxy: &Proxy) -> Option<String> {
    proxy.log().find(|line| line.contains(FORBIDDEN).then(|| line.to_owned()))
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

const PATH: &str = "/hotels/xml/availability";
const FLEET: usize = 3;
/// At each proxy: more than the rate serves, so that slots are used as soon as they come.
const CLIENTS: usize = 8;
const RATE: f64 = 50.0;
const CAPACITY: u32 = 100;
const CUT: f64 = 0.5;
/// In microseconds, as is all that comes from the OTA.
const PAUSE: u64 = 2_000_000;
const SECOND: u64 = 1_000_000;
const HORIZON: u64 = 200_000;
/// Requests that were sent before the first 429 and arrive after it: five take 100 ms on their way.
const ON_THE_WAY: f64 = 5.0;
const FORBIDDEN: &str = "redis forbids pub/sub";
const PATIENCE: Duration = Duration::from_secs(30);

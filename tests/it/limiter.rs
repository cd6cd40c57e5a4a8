//! One suite over both stores: what the limiter promises holds in this process and across a fleet on Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ota_pacer::{
    config::{self, Config, model::Class},
    limiter::{Lane, Limiter, Refused, Turn},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::support::redis::Redis;

/// Runs a test on the in-process store with one instance, and on a real Redis with two.
macro_rules! over_both_stores {
    ($($test:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Fleet::in_process().await).await;
            })*
        }
        mod on_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(super::Fleet::on_redis().await).await;
            })*
        }
    };
}

over_both_stores!(
    no_window_holds_more_than_the_limit,
    a_pause_holds_for_every_instance_and_ends_without_a_burst,
    credentials_have_buckets_of_their_own,
    a_channel_limit_is_shared_by_its_endpoints,
    a_quote_is_true_and_told_at_once,
    what_nobody_waits_for_any_more_is_not_spent,
    a_sliding_window_never_holds_one_too_many,
    requests_under_way_are_counted_to_their_end,
);

async fn no_window_holds_more_than_the_limit(fleet: Fleet) {
    let start = Instant::now();
    let waits = wait_in((0..100).map(|place| fleet.lane(place, "fast", "user")));
    let mut sent = all(waits).await;
    assert_within(&mut sent, 50.0, 10.0);
    // 100 requests, 10 at once, then 50 a second: no request waits longer than it must, within reason.
    assert!(start.elapsed() >= Duration::from_millis(1_780), "{:?}", start.elapsed());
}

async fn a_pause_holds_for_every_instance_and_ends_without_a_burst(fleet: Fleet) {
    let lane = fleet.lane(0, "fast", "user");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    let waits = wait_in((0..60).map(|place| fleet.lane(place, "fast", "user")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = Instant::now();
    lane.pause(PAUSE).await;
    let known = Instant::now();
    let other = fleet.lane(0, "slow", "user");
    timeout(PAUSE / 2, slot(&other, Instant::now(), LONG)).await.expect("other buckets go on").unwrap();
    let mut after = Vec::new();
    for wait in waits {
        let at = wait.await.unwrap();
        // The notice of a pause takes a moment to reach the other instances.
        assert!(
            at < known + Duration::from_millis(100) || at >= before + PAUSE,
            "sent {:?} into the pause",
            at - before
        );
        if at >= before + PAUSE {
            after.push(at);
        }
    }
    assert!(after.len() > 20, "the pause came too late to be a test");
    // One unit at its end, then the rate: whatever delays a claim, what was sent since is no more than that.
    after.sort_unstable();
    for (sent, at) in after.iter().enumerate() {
        let allowed = 1.0 + 50.0 * (*at - before - PAUSE).as_secs_f64();
        assert!((sent + 1) as f64 <= allowed, "{} in {:?} after the pause", sent + 1, *at - before - PAUSE);
    }
    assert_within(&mut after, 50.0, 10.0);
}

async fn credentials_have_buckets_of_their_own(fleet: Fleet) {
    for user in ["one", "two", "three"] {
        slot(&fleet.lane(0, "slow", user), Instant::now(), Duration::ZERO).await.unwrap();
        let again = slot(&fleet.lane(1, "slow", user), Instant::now(), Duration::ZERO).await;
        assert!(matches!(again, Err(Refused::TooLong { .. })), "{again:?}");
    }
}

async fn a_channel_limit_is_shared_by_its_endpoints(fleet: Fleet) {
    let free = |endpoint| {
        let lane = fleet.lane_of("shared", 0, endpoint, "user");
        async move { slot(&lane, Instant::now(), Duration::ZERO).await.is_ok() }
    };
    assert!(free("a").await && free("b").await, "two for the channel");
    assert!(!free("a").await && !free("b").await, "spent for both");
    assert!(slot(&fleet.lane_of("shared", 1, "other", "user"), Instant::now(), Duration::ZERO).await.is_err());
}

async fn a_quote_is_true_and_told_at_once(fleet: Fleet) {
    let lane = fleet.lane(0, "slow", "user");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    let asked = Instant::now();
    let Err(Refused::TooLong { retry_after }) = slot(&lane, asked, Duration::from_millis(100)).await else {
        panic!("the next slot is two seconds off")
    };
    assert!(retry_after > Duration::from_secs(1) && retry_after <= Duration::from_secs(2), "{retry_after:?}");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    // The store's answer took its way, by which the quote is too long.
    assert!(asked.elapsed() + TRIP >= retry_after, "quoted {retry_after:?}, went after {:?}", asked.elapsed());
}

async fn what_nobody_waits_for_any_more_is_not_spent(fleet: Fleet) {
    let lane = fleet.lane(0, "slow", "user");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    for _ in 0..20 {
        let gone = slot(&lane, Instant::now(), LONG);
        assert!(timeout(Duration::from_millis(10), gone).await.is_err(), "the next slot is two seconds off");
    }
    let Err(Refused::TooLong { retry_after }) = slot(&lane, Instant::now(), Duration::ZERO).await else {
        panic!("the next slot is more than a second off")
    };
    assert!(retry_after <= Duration::from_secs(2), "{retry_after:?}: those who left still count");
}

async fn a_sliding_window_never_holds_one_too_many(fleet: Fleet) {
    let waits = wait_in((0..50).map(|place| fleet.lane(place, "window", "user")));
    let mut sent = all(waits).await;
    sent.sort_unstable();
    for twenty_one in sent.windows(21) {
        let span = twenty_one[20] - twenty_one[0];
        // A slot may be used up to 50 ms late, then this task has to run.
        assert!(span > Duration::from_millis(850), "21 in {span:?}");
    }
}

async fn requests_under_way_are_counted_to_their_end(fleet: Fleet) {
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut calls = Vec::new();
    for place in 0..40 {
        let (lane, under_way) = (fleet.lane(place, "few", "user"), Arc::clone(&under_way));
        calls.push(tokio::spawn(async move {
            let turn = Turn { arrived: Instant::now(), class: Class::Interactive, max_wait: LONG };
            let permit = lane.slot(turn).await.unwrap();
            let most = under_way.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
            most
        }));
    }
    for call in calls {
        let most = call.await.unwrap();
        assert!(most <= 3, "{most} under way");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_instance_does_not_undo_a_reload() {
    let redis = Redis::start();
    let old = config(Some(&redis.url()), "closed");
    let new = old.replace("rate: 50/s, capacity: 10", "rate: 20/s, capacity: 5");
    let (old, new) = (parse(&old), parse(&new));
    let fleet = [(Limiter::open(&old).await.unwrap(), old), (Limiter::open(&new).await.unwrap(), new)];
    let lanes = fleet.each_ref().map(|(limiter, config)| lane_in(config, limiter, "booking_com", "fast", "user"));
    slot(&lanes[1], Instant::now(), LONG).await.unwrap();
    let waits = wait_in((0..60).map(|place| lanes[place % 2].clone()));
    let mut sent = all(waits).await;
    assert_within(&mut sent, 20.0, 5.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_how_many_may_wait() {
    let yaml = config(None, "closed");
    let (old, new) = (parse(&format!("defaults: {{ max_queue: 1 }}\n{yaml}")), parse(&yaml));
    let limiter = Limiter::open(&old).await.unwrap();
    let lane = lane_in(&old, &limiter, "booking_com", "slow", "user");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    let waits = wait_in(std::iter::once(lane.clone()));
    while !matches!(slot(&lane, Instant::now(), Duration::ZERO).await, Err(Refused::QueueFull { .. })) {
        tokio::task::yield_now().await;
    }
    let lane = lane_in(&new, &limiter, "booking_com", "slow", "user");
    let refused = slot(&lane, Instant::now(), Duration::ZERO).await;
    assert!(matches!(refused, Err(Refused::TooLong { .. })), "{refused:?}");
    all(waits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_without_its_notice_too() {
    let redis = Redis::start();
    let config = parse(&config(Some(&redis.url()), "closed"));
    let fleet = [Limiter::open(&config).await.unwrap(), Limiter::open(&config).await.unwrap()];
    let lanes = fleet.each_ref().map(|limiter| lane_in(&config, limiter, "booking_com", "fast", "user"));
    let waits = wait_in((0..60).map(|place| lanes[place % 2].clone()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Nobody hears of it, as if every notice were lost.
    redis.command("CLIENT KILL TYPE pubsub");
    let before = Instant::now();
    lanes[0].pause(PAUSE).await;
    let known = Instant::now();
    let mut after = Vec::new();
    let mut late = 0;
    for wait in waits {
        let at = wait.await.unwrap();
        late += usize::from(at > known && at < before + PAUSE);
        // What was claimed before lies within a horizon of 200 ms; then every claim tells of the pause.
        assert!(
            at < known + Duration::from_millis(250) || at >= before + PAUSE,
            "sent {:?} into the pause",
            at - before
        );
        if at >= before + PAUSE {
            after.push(at);
        }
    }
    assert!(late <= 12, "{late} sent into the pause: more than the horizon holds");
    assert!(after.len() > 20, "the pause came too late to be a test");
    assert_within(&mut after, 50.0, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_are_small() {
    let config = parse(&config(None, ""));
    let limiter = Limiter::open(&config).await.unwrap();
    let lane = lane_in(&config, &limiter, "booking_com", "slow", "user");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    let before = resident_kib();
    let waits: Vec<_> = (0..10_000)
        .map(|_| {
            let lane = lane.clone();
            tokio::spawn(async move { slot(&lane, Instant::now(), LONG * 1_000).await })
        })
        .collect();
    crate::support::clock::wait_for("all wait", LONG, || {
        limiter.status().iter().any(|line| line.waiting > 9_900).then_some(())
    });
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 100 * 1024, "{grown} KiB");
    waits.into_iter().for_each(|wait| wait.abort());
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn without_redis_requests_are_refused_passed_or_paced_as_configured() {
    let nowhere = "redis://127.0.0.1:9";
    let open =
        |outage: &'static str| async move { Limiter::open(&parse(&config(Some(nowhere), outage))).await.unwrap() };
    let closed = open("closed").await;
    assert!(!closed.is_usable());
    let refused = slot(&lane(&closed, "booking_com", "fast", "user"), Instant::now(), LONG).await;
    assert_eq!(refused, Err(Refused::StoreClosed));

    let unpaced = open("open").await;
    assert!(unpaced.is_usable());
    for _ in 0..50 {
        slot(&lane(&unpaced, "booking_com", "slow", "user"), Instant::now(), LONG).await.unwrap();
    }

    let local = open("local, expected_instances: 5").await;
    let (start, mut sent) = (Instant::now(), Vec::new());
    let lane = lane(&local, "booking_com", "fast", "user");
    for _ in 0..10 {
        slot(&lane, Instant::now(), LONG).await.unwrap();
        sent.push(Instant::now());
    }
    assert!(
        sent[0] - start >= Duration::from_millis(100),
        "the first waits too: what the fleet sent before is not known"
    );
    assert_within(&mut sent, 10.0, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgets_its_scripts_costs_no_request_anything() {
    let redis = Redis::start();
    let limiter = Limiter::open(&parse(&config(Some(&redis.url()), "closed"))).await.unwrap();
    let lane = lane(&limiter, "booking_com", "fast", "user");
    for _ in 0..20 {
        redis.command("SCRIPT FLUSH");
        slot(&lane, Instant::now(), LONG).await.unwrap();
    }
    assert_eq!(limiter.mode(), "redis");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_loses_its_buckets_gives_no_second_burst() {
    let redis = Redis::start();
    let limiter = Limiter::open(&parse(&config(Some(&redis.url()), "closed"))).await.unwrap();
    let lane = lane(&limiter, "booking_com", "fast", "user");
    let mut sent = Vec::new();
    for place in 0..60 {
        if place % 5 == 0 {
            redis.command("FLUSHALL");
        }
        slot(&lane, Instant::now(), LONG).await.unwrap();
        sent.push(Instant::now());
    }
    assert_within(&mut sent, 50.0, 11.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_reach_redis_only_as_hashes() {
    let redis = Redis::start();
    let limiter = Limiter::open(&parse(&config(Some(&redis.url()), "closed"))).await.unwrap();
    let lane = lane(&limiter, "booking_com", "fast", "machine-account-7");
    slot(&lane, Instant::now(), LONG).await.unwrap();
    lane.pause(Duration::from_millis(10)).await;
    let keys = redis.command("KEYS *");
    assert!(keys.contains("bkt:{booking_com:") && keys.contains("}:fast"), "{keys}");
    assert!(!keys.contains("machine-account-7"), "{keys}");
}

/// Instances of one fleet: one on its own, or two on a Redis.
struct Fleet {
    instances: Vec<Limiter>,
    config: Config,
    _redis: Option<Redis>,
}

impl Fleet {
    async fn in_process() -> Self {
        let config = parse(&config(None, ""));
        Self { instances: vec![Limiter::open(&config).await.unwrap()], config, _redis: None }
    }

    async fn on_redis() -> Self {
        let redis = Redis::start();
        let config = parse(&config(Some(&redis.url()), "closed"));
        let instances = vec![Limiter::open(&config).await.unwrap(), Limiter::open(&config).await.unwrap()];
        Self { instances, config, _redis: Some(redis) }
    }

    /// The lane in the instance whose turn it is.
    fn lane(&self, turn: usize, endpoint: &str, user: &str) -> Lane {
        self.lane_of("booking_com", turn, endpoint, user)
    }

    fn lane_of(&self, channel: &str, turn: usize, endpoint: &str, user: &str) -> Lane {
        lane_in(&self.config, &self.instances[turn % self.instances.len()], channel, endpoint, user)
    }
}

fn lane(limiter: &Limiter, channel: &str, endpoint: &str, user: &str) -> Lane {
    lane_in(&parse(&config(None, "")), limiter, channel, endpoint, user)
}

fn lane_in(config: &Config, limiter: &Limiter, channel: &str, endpoint: &str, user: &str) -> Lane {
    let channel = config.channels.iter().find(|known| known.name == channel).unwrap();
    let endpoint = channel.endpoints.iter().find(|known| known.name == endpoint).map(Arc::clone);
    limiter.lane(channel, endpoint.as_ref(), |_| Some(user.as_bytes())).unwrap()
}

/// One request in each of these lanes; each task tells when it got its slot.
fn wait_in(lanes: impl Iterator<Item = Lane>) -> Vec<JoinHandle<Instant>> {
    let wait = |lane: Lane| async move {
        slot(&lane, Instant::now(), LONG).await.unwrap();
        Instant::now()
    };
    lanes.map(|lane| tokio::spawn(wait(lane))).collect()
}

async fn all(waits: Vec<JoinHandle<Instant>>) -> Vec<Instant> {
    let mut sent = Vec::with_capacity(waits.len());
    for wait in waits {
        sent.push(wait.await.unwrap());
    }
    sent
}

async fn slot(lane: &Lane, arrived: Instant, max_wait: Duration) -> Result<(), Refused> {
    lane.slot(Turn { arrived, class: Class::Interactive, max_wait }).await.map(drop)
}

fn parse(yaml: &str) -> Config {
    config::parse("test.yaml", yaml, |_| None).unwrap()
}

fn config(redis: Option<&str>, outage: &str) -> String {
    let redis = redis.map_or(String::new(), |url| format!("redis: {{ url: '{url}', on_outage: {outage} }}\n"));
    format!(
        "listen: 127.0.0.1:0\n{redis}\
         channels:\n\
         \x20 booking_com:\n\
         \x20   hosts: [ota.test]\n\
         \x20   endpoints:\n\
         \x20     fast: {{ match: {{ path: /fast }}, limits: [{{ rate: 50/s, capacity: 10 }}] }}\n\
         \x20     slow: {{ match: {{ path: /slow }}, limits: [{{ rate: 0.5/s, capacity: 1 }}] }}\n\
         \x20     window: {{ match: {{ path: /window }}, limits: [{{ count: 20, per: 1s, window: sliding }}] }}\n\
         \x20     few: {{ match: {{ path: /few }}, limits: [{{ concurrent: 3 }}] }}\n\
         \x20 shared:\n\
         \x20   hosts: [shared.test]\n\
         \x20   limits: [{{ rate: 1/h, capacity: 2 }}]\n\
         \x20   endpoints:\n\
         \x20     a: {{ match: {{ path: /a }}, limits: [{{ rate: 100/s, capacity: 100 }}] }}\n\
         \x20     b: {{ match: {{ path: /b }} }}\n"
    )
}

/// Asserts that every window holds at most `capacity` + `rate` · its length, and what the grace of a slot adds.
#[track_caller]
fn assert_within(sent: &mut [Instant], rate: f64, capacity: f64) {
    sent.sort_unstable();
    // A slot may be used up to 10 ms late, or a quarter of the interval; then this task has to run.
    let grace = (1.0 / rate / 4.0).clamp(0.010, 0.050) + TASK;
    for first in 0..sent.len() {
        for last in first..sent.len() {
            let held = (last - first + 1) as f64;
            let allowed = capacity + rate * ((sent[last] - sent[first]).as_secs_f64() + grace);
            assert!(held <= allowed, "{held} in {:?}, {allowed} allowed", sent[last] - sent[first]);
        }
    }
}

const LONG: Duration = Duration::from_secs(60);
const TRIP: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_secs(2);
/// Seconds between a slot and the clock being read after it, on a busy machine.
const TASK: f64 = 0.050;

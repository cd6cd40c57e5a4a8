//! Whatever goes wrong with Redis, nothing is sent from a claim whose outcome is unknown, nothing goes above the limit, and
//! the fleet comes back by itself.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::support::{
    clock::wait_for,
    cutter::Cutter,
    limiter::{CAPACITY, Instance, RATE, Traffic, slot},
    redis::{Redis, free_port},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_get_lost_are_spent_and_never_asked_for_again() {
    let redis = Redis::start();
    let cutter = Cutter::start(redis.port());
    let instance = Instance::on(&cutter.url()).await;
    let traffic = Traffic::start((0..3).map(|user| instance.lane(&user.to_string())));
    wait_for("the buckets are spent", PATIENCE, || (traffic.count() > 60).then_some(()));
    cutter.cut_every(40);
    let cut = traffic.count();
    wait_for("connections break under way", PATIENCE, || (traffic.count() > cut + 300).then_some(()));
    cutter.cut_every(0);
    wait_for("it is back", PATIENCE, || instance.is_on_redis().then_some(()));
    // Three buckets: what one instance sends, all told, stays within three times the limit.
    traffic.assert_within(3.0 * RATE, 3.0 * (f64::from(CAPACITY) + TRANSITION));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_holds_something_else_is_put_right() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let traffic = Traffic::start([instance.lane("user")]);
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 20).then_some(()));
    let keys = redis.command("KEYS bkt:*");
    let key = keys.lines().find(|line| line.starts_with("bkt:{") && line.ends_with('}') || line.ends_with("fast"));
    let key = key.unwrap_or_else(|| panic!("a bucket among {keys}"));
    redis.command(&format!("SET {key} junk"));
    wait_for("it is a bucket again", PATIENCE, || redis.command(&format!("TYPE {key}")).contains("hash").then_some(()));
    let before = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > before + 20).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_field_that_holds_something_else_is_put_right() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let traffic = Traffic::start([instance.lane("user")]);
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 20).then_some(()));
    let keys = redis.command("KEYS bkt:*");
    let bucket = keys.lines().find(|key| key.ends_with(":fast")).unwrap_or_else(|| panic!("a bucket among {keys}"));
    let (line, errors) = (format!("{bucket}:line"), redis.errors("ERR"));
    for length in [5, 40, 100] {
        redis.command(&format!("HSET {line} somebody {}", "x".repeat(length)));
        let asked = format!("HEXISTS {line} somebody");
        wait_for("it is gone", PATIENCE, || redis.command(&asked).contains('0').then_some(()));
    }
    for field in ["full_at.1", "pace.1", "interval.1", "capacity.1", "asserted.1", "seen", "pause_until"] {
        let before = traffic.count();
        redis.command(&format!("HSET {bucket} {field} junk"));
        wait_for("requests go on", PATIENCE, || (traffic.count() > before + 2).then_some(()));
    }
    assert_eq!(redis.errors("ERR"), errors, "every claim was answered");
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_answer_is_lost_is_executed_once() {
    let redis = Redis::start();
    let cutter = Cutter::start(redis.port());
    let instance = Instance::on(&cutter.url()).await;
    let lane = instance.lane("user");
    wait_for("the check at the start is over", PATIENCE, || redis.is_checked().then_some(()));
    slot(&lane).await.unwrap();
    let before = redis.calls("evalsha") + redis.calls("eval");
    // The pause is executed, its answer lost with the connection. The caller learns that nothing is known, once.
    cutter.cut_every(1);
    timeout(PATIENCE, lane.pause(Duration::from_millis(10))).await.expect("a bounded time");
    cutter.cut_every(0);
    wait_for("it connects again", PATIENCE, || (redis.listeners() == 1).then_some(()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let executed = redis.calls("evalsha") + redis.calls("eval") - before;
    assert_eq!(executed, 1, "a replay would have been a second execution");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_redis_is_replaced_by_the_share_and_taken_back() {
    assert_survives(&mut Redis::start(), |redis| redis.pause(), |redis| redis.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_swallowed_are_an_outage_that_ends() {
    let mut redis = Redis::start();
    let cutter = Cutter::start(redis.port());
    let instance = Instance::on(&cutter.url()).await;
    survive(&mut redis, &instance, |_| cutter.silence(true), |_| cutter.silence(false)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_too_late_are_an_outage_that_ends() {
    let mut redis = Redis::start();
    let cutter = Cutter::start(redis.port());
    let instance = Instance::on(&cutter.url()).await;
    survive(&mut redis, &instance, |_| cutter.delay(Duration::from_millis(400)), |_| cutter.delay(Duration::ZERO))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_no_writes_is_not_taken_for_an_answer() {
    let mut redis = Redis::start();
    let nowhere = format!("REPLICAOF 127.0.0.1 {}", free_port());
    let make_replica = |redis: &mut Redis| drop(redis.command(&nowhere));
    assert_survives(&mut redis, make_replica, |redis| drop(redis.command("REPLICAOF NO ONE"))).await;
    assert!(redis.script_errors("READONLY") > 0, "it was a replica that was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_still_loading_is_not_taken_for_an_answer() {
    // Large values, so that it looks after its connections at every key. It would load for minutes.
    let slow =
        ["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"];
    let mut redis = Redis::start_with(free_port(), &slow);
    redis.command("EVAL \"for i = 1, 20000 do redis.call('SET', 'other:' .. i, string.rep('x', 1000)) end\" 0");
    assert_survives(&mut redis, Redis::reload, |redis| {
        assert!(redis.errors("LOADING") > 0, "nobody has asked it");
        redis.command("CONFIG SET key-load-delay 0");
    })
    .await;
}

/// A script that has written may go on writing, so a claim may succeed; what counts is that it is never more than allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_allows_nothing_more() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let traffic = Traffic::start([instance.lane("user"), instance.lane("user")]);
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 30).then_some(()));
    redis.command("CONFIG SET maxmemory 1");
    let full = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > full + 30).then_some(()));
    assert!(redis.script_errors("OOM") > 0, "its memory was full");
    redis.command("CONFIG SET maxmemory 0");
    wait_for("redis decides", PATIENCE, || instance.is_on_redis().then_some(()));
    let free = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > free + 50).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_busy_with_a_script_is_not_taken_for_an_answer() {
    // The name that all versions know for `busy-reply-threshold`.
    let mut redis = Redis::start_with(free_port(), &["--lua-time-limit", "100"]);
    let spin = |redis: &mut Redis| {
        let port = redis.port();
        std::thread::spawn(move || crate::support::redis::ask(port, "EVAL \"while true do end\" 0"));
    };
    assert_survives(&mut redis, spin, |redis| drop(redis.command("SCRIPT KILL"))).await;
    assert!(redis.errors("BUSY") > 0, "it was busy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_is_not_taken_for_an_answer() {
    let lock = |redis: &mut Redis| {
        redis.command("CONFIG SET requirepass secret");
        redis.command("AUTH secret\r\nCLIENT KILL TYPE normal SKIPME yes");
    };
    let unlock = |redis: &mut Redis| drop(redis.command("AUTH secret\r\nCONFIG SET requirepass \"\""));
    assert_survives(&mut Redis::start(), lock, unlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_instance_notices_an_outage_and_its_end() {
    let mut redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    redis.kill();
    wait_for("the outage is noticed", PATIENCE, || (!instance.is_on_redis()).then_some(()));
    redis.restart();
    wait_for("it is back", PATIENCE, || instance.is_on_redis().then_some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_while_the_fleet_returns_waits_with_it() {
    let redis = Redis::start();
    redis.command("SET bkt:rejoin '1000000 1000000' PX 3000");
    let instance = Instance::on(&redis.url()).await;
    assert!(!instance.is_on_redis());
    wait_for("it returns", PATIENCE, || instance.is_on_redis().then_some(()));
    assert!(!redis.command("EXISTS bkt:rejoin").contains(":1"), "not before the fleet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_cost_one_trip_more() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let lane = instance.lane_of("brisk", "user");
    wait_for("the check at the start is over", PATIENCE, || redis.is_checked().then_some(()));
    slot(&lane).await.unwrap();
    let (asked, sent) = (redis.calls("evalsha"), redis.calls("eval"));
    const ROUNDS: u64 = 20;
    for _ in 0..ROUNDS {
        redis.command("SCRIPT FLUSH");
        slot(&lane).await.unwrap();
    }
    assert!(redis.calls("evalsha") - asked <= ROUNDS && redis.calls("eval") - sent <= ROUNDS);
    assert!(instance.is_on_redis());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_credentials_leave_nothing_that_does_not_expire() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let mut asking = tokio::task::JoinSet::new();
    for user in 0..10_000 {
        let lane = instance.lane(&user.to_string());
        asking.spawn(async move { slot(&lane).await.is_ok() });
        if asking.len() >= 200 {
            asking.join_next().await;
        }
    }
    while asking.join_next().await.is_some() {}
    wait_for("nothing is held for ever", PATIENCE, || {
        let keyspace = redis.command("INFO keyspace");
        let field = |name: &str| -> Option<u64> {
            keyspace.split_once(name)?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let (keys, expiring) = (field("keys=")?, field("expires=")?);
        assert_eq!(keys, expiring, "keys without an end");
        (keys >= 5_000).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_redis_hangs_leaves_nothing_behind() {
    let redis = Redis::start();
    let instance = Instance::on(&redis.url()).await;
    let lane = instance.lane("user");
    slot(&lane).await.unwrap();
    redis.pause();
    for _ in 0..1_000 {
        assert!(timeout(Duration::from_millis(1), slot(&lane)).await.is_err() || !instance.is_on_redis());
    }
    redis.resume();
    wait_for("it is back", PATIENCE, || instance.is_on_redis().then_some(()));
    let status = instance.limiter.status();
    assert!(status.iter().all(|line| line.waiting == 0), "{status:?}");
    timeout(PATIENCE, slot(&lane)).await.expect("nobody is ahead").unwrap();
}

/// Runs traffic through an outage of `redis` from `lose` to `bring_back`.
async fn assert_survives(redis: &mut Redis, lose: impl FnOnce(&mut Redis), bring_back: impl FnOnce(&mut Redis)) {
    let instance = Instance::on(&redis.url()).await;
    survive(redis, &instance, lose, bring_back).await;
}

async fn survive(
    redis: &mut Redis,
    instance: &Instance,
    lose: impl FnOnce(&mut Redis),
    bring_back: impl FnOnce(&mut Redis),
) {
    assert!(instance.is_on_redis());
    let traffic = Traffic::start([instance.lane("user"), instance.lane("user")]);
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 30).then_some(()));
    lose(redis);
    wait_for("the outage is noticed", PATIENCE, || (!instance.is_on_redis()).then_some(()));
    let (lost, sent) = (Instant::now(), traffic.count());
    wait_for("requests go on at the share", PATIENCE, || (traffic.count() > sent + 10).then_some(()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!instance.is_on_redis(), "it came back too soon");
    let (now, alone) = (Instant::now(), traffic.between(lost, Instant::now()) as f64);
    let allowed = RATE / 5.0 * (now - lost).as_secs_f64() + TRANSITION;
    assert!(alone <= allowed, "{alone} in {:?} alone, {allowed} allowed", now - lost);
    bring_back(redis);
    wait_for("it is back", PATIENCE, || instance.is_on_redis().then_some(()));
    let back = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > back + 50).then_some(()));
    wait_for("it hears of pauses", PATIENCE, || (redis.listeners() == 1).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

/// How many requests more may come around a loss: the burst of 1 when alone, and those under way.
const TRANSITION: f64 = 4.0;
const PATIENCE: Duration = Duration::from_secs(30);

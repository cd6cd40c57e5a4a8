//! Limits on requests under way hold across the fleet, survive calls longer than a lease, and heal when an instance dies.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    clock::wait_for,
    mock_ota::MockOta,
    proxy::{Proxy, Settings},
    redis::Redis,
};

#[test]
fn a_place_is_kept_by_a_call_longer_than_its_lease_and_freed_by_the_death_of_its_instance() {
    let redis = Redis::start();
    let ota = MockOta::start(&[]);
    let settings =
        Settings::for_ota(&ota).redis(&redis, 2).defaults("max_wait: 60s").limited("call", PATH, "concurrent: 1");
    let fleet = [settings.start(), settings.start()];
    ota.script(PATH, json!([{ "status": 200, "latency_ms": 17_000 }, { "status": 200, "latency_ms": 60_000 }]));

    let mut long = ask(&fleet[0], &ota);
    wait_for("the long call is under way", PATIENCE, || (ota.arrivals(PATH).len() == 1).then_some(()));
    let mut second = ask(&fleet[1], &ota);
    assert!(long.wait().unwrap().success());
    wait_for("the second call is under way", PATIENCE, || (ota.arrivals(PATH).len() == 2).then_some(()));
    let arrivals = ota.arrivals(PATH);
    let ended = arrivals[0].answered_us.expect("the long call was answered");
    assert!(
        arrivals[1].at_us >= ended,
        "a second call began during the first, {} us before its end",
        ended - arrivals[1].at_us
    );
    let handed_on = Duration::from_micros(arrivals[1].at_us - ended);
    assert!(handed_on < Duration::from_secs(5), "the place lay idle for {handed_on:?}");

    // The second call hangs, and its instance dies.
    let mut third = ask(&fleet[0], &ota);
    wait_for("the third call waits", PATIENCE, || {
        (fleet[0].metrics().sum("ota_pacer_queue_depth", &[]) == Some(1.0)).then_some(())
    });
    fleet[1].signal("KILL");
    let killed = Instant::now();
    assert!(third.wait().unwrap().success());
    let healed = killed.elapsed();
    // Leases are renewed every 5 s and last 15.
    assert!(healed >= Duration::from_secs(9), "its lease was not over: {healed:?}");
    assert!(healed < Duration::from_secs(30), "{healed:?}");
    let _ = second.kill();
    let _ = second.wait();
}

#[test]
fn calls_of_two_instances_stay_within_the_limit_and_leave_no_place_idle() {
    let redis = Redis::start();
    assert_three_at_once(redis.url());
}

#[test]
fn places_are_handed_on_where_redis_forbids_pubsub() {
    let redis = Redis::start();
    redis.command("ACL SETUSER pacer on >secret ~bkt:* resetchannels +@all -@dangerous");
    assert_three_at_once(redis.url_for("pacer", "secret"));
}

#[track_caller]
fn assert_three_at_once(redis: String) {
    let ota = MockOta::start(&[&format!("{PATH}=concurrent:3")]);
    ota.set(json!({ "latency_ms": 100 }));
    let settings =
        Settings::for_ota(&ota).redis_at(redis, 2).defaults("max_wait: 60s").limited("call", PATH, "concurrent: 3");
    let fleet = [settings.start(), settings.start()];
    let mut calls: Vec<Child> = (0..30).map(|turn| ask(&fleet[turn % 2], &ota)).collect();
    for call in &mut calls {
        assert!(call.wait().unwrap().success());
    }
    let arrivals = ota.arrivals(PATH);
    assert_eq!(arrivals.len(), 30);
    assert!(arrivals.iter().all(|arrival| arrival.status == 200), "more than three at once");
    let failures = |proxy: &Proxy| proxy.metrics().sum("ota_pacer_store_failures_total", &[]);
    assert!(fleet.iter().all(|proxy| failures(proxy).is_none()), "redis did all it was asked");
}

/// One request through `proxy`, as a process that succeeds if it is answered 200.
fn ask(proxy: &Proxy, ota: &MockOta) -> Child {
    Command::new("curl")
        .args([
            "--silent",
            "--fail",
            "--output",
            "/dev/null",
            "--max-time",
            "90",
            "--noproxy",
            "",
            "--user",
            "user:secret",
        ])
        .arg("--proxy")
        .arg(proxy.url())
        .arg("--cacert")
        .arg(proxy.ca_file())
        .arg(format!("{}{PATH}", ota.https))
        .stdin(Stdio::null())
        .spawn()
        .expect("curl is installed")
}

const PATH: &str = "/hotels/xml/call";
const PATIENCE: Duration = Duration::from_secs(30);

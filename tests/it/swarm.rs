//! Many processes on one bucket: never above the limit, never idle below it, in order of age, and cheap in calls, whatever
//! befalls an instance or Redis.
//!
//! Bounds are those that hold on a machine that is busy with other things; `examples/swarm` prints the true figures.

use std::{process::Command, time::Duration};

use serde_json::Value;

use crate::support::{example::example, process::Process};

#[test]
fn two_instances_keep_and_use_one_limit() {
    let report = swarm("--instances 2 --rate 50/s --capacity 10 --load 1.5 --seconds 8");
    assert_kept(&report);
    assert_used(&report);
    assert_calls(&report, 1.5);
    assert_in_order_of_age(&report);
}

#[test]
fn eight_instances_keep_and_use_one_limit() {
    let report = swarm("--instances 8 --rate 100/s --capacity 20 --load 1.3 --seconds 8");
    assert_kept(&report);
    assert_used(&report);
    assert_calls(&report, 1.5);
    assert_in_order_of_age(&report);
}

#[test]
fn thirty_two_instances_keep_and_use_one_limit() {
    let report = swarm("--instances 32 --rate 100/s --capacity 20 --load 1.5 --seconds 6");
    assert_kept(&report);
    assert_used(&report);
    assert_calls(&report, 2.5);
    assert_in_order_of_age(&report);
}

#[test]
fn slots_that_are_few_cost_few_calls() {
    let report = swarm("--instances 4 --rate 2/s --capacity 1 --load 2 --burst 3 --seconds 12");
    assert_kept(&report);
    assert_used(&report);
    assert_calls(&report, 4.0);
    assert_in_order_of_age(&report);
}

#[test]
fn a_killed_instance_takes_no_more_with_it_than_a_horizon_of_slots() {
    let report = swarm("--instances 8 --rate 100/s --capacity 20 --load 2 --seconds 8 --kill");
    assert_kept(&report);
    let killed = aftermath(&report, "killed");
    // What every busy machine loses in the two seconds that are looked at comes on top.
    let lost = number(killed, "slots_lost");
    assert!(lost <= 100.0 * HORIZON + 20.0, "{lost} slots lost: {report:#}");
    let silence = number(killed, "longest_silence_seconds");
    assert!(silence <= 1.2 + SLACK, "nobody sent for {silence} s: {report:#}");
}

#[test]
fn an_instance_that_stood_still_sends_nothing_stale() {
    // The one that is stopped has most of the demand, and so of the slots: some thirty of them go stale.
    let report = swarm("--instances 2 --zipf 2 --rate 200/s --capacity 5 --load 2 --seconds 14 --stop");
    assert_kept(&report);
    let stopped = aftermath(&report, "stopped");
    let woken = number(stopped, "sent_on_waking");
    assert!(woken <= 5.0 + 200.0 * 0.05 + 1.0, "{woken} sent in the first 50 ms are a burst: {report:#}");
    assert!(number(stopped, "sent_after") > 0.0, "it goes on: {report:#}");
}

#[test]
fn a_redis_that_forgets_is_reminded() {
    let report = swarm("--instances 4 --rate 100/s --capacity 60 --load 2 --seconds 9 --flush");
    let excess = number(aftermath(&report, "flushed"), "over_issue");
    // 15 % of the capacity, a claim of each instance on its way, and jitter: far below the burst of a new bucket.
    assert!(excess <= 0.15 * 60.0 + 4.0 + allowed_jitter(&report), "{excess} tokens above the limit: {report:#}");
    assert_used(&report);
}

/// Runs the swarm with these arguments and returns its report.
#[track_caller]
fn swarm(arguments: &str) -> Value {
    let mut command = Command::new(example("swarm"));
    command.arg("--json").args(arguments.split(' '));
    let ended = Process::start("swarm", &mut command).wait(PATIENCE);
    assert!(ended.status.success(), "swarm {arguments}: {}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).expect("the swarm reports in JSON");
    assert_eq!(number(&report, "refused"), 0.0, "nobody is refused: {report:#}");
    report
}

#[track_caller]
fn assert_kept(report: &Value) {
    let excess = number(report, "over_issue");
    assert!(excess <= allowed_jitter(report), "{excess} tokens above the limit: {report:#}");
}

#[track_caller]
fn assert_used(report: &Value) {
    let used = number(report, "utilisation");
    assert!(used >= 0.9, "only {used} of the limit was used while somebody waited: {report:#}");
}

#[track_caller]
fn assert_calls(report: &Value, budget: f64) {
    let calls = number(report, "calls_per_grant");
    assert!(calls <= budget, "{calls} calls a grant: {report:#}");
}

#[track_caller]
fn assert_in_order_of_age(report: &Value) {
    for (quantile, bound) in [("p99", HORIZON), ("max", 2.0 * HORIZON)] {
        let overtaking = number(&report["overtaking"], quantile);
        assert!(overtaking <= bound + SLACK, "a request overtook one that was {overtaking} s older: {report:#}");
    }
}

/// One token, and what refills while a slot ages: the end of its grace at most, and the trip of its claim.
fn allowed_jitter(report: &Value) -> f64 {
    1.0 + JITTER * number(report, "rate")
}

#[track_caller]
fn aftermath<'a>(report: &'a Value, what: &str) -> &'a Value {
    let incidents = report["incidents"].as_array().expect("incidents are a list");
    incidents.iter().find(|incident| incident["what"] == what).unwrap_or_else(|| panic!("no `{what}` in {report:#}"))
}

#[track_caller]
fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {value:#}"))
}

/// In seconds: how far ahead slots are claimed.
const HORIZON: f64 = 0.2;
/// In seconds: grace and trip, both as long as a busy machine makes them.
const JITTER: f64 = 0.1;
/// In seconds: what a busy machine may keep a process waiting.
const SLACK: f64 = 0.8;
const PATIENCE: Duration = Duration::from_secs(60);

//! What a claim and a pause answer, instant by instant.

use super::*;

const TEN_A_SECOND: LimitSpec = bucket(100_000.0, 5.0);

const fn bucket(interval: f64, capacity: f64) -> LimitSpec {
    LimitSpec::Bucket { interval, capacity, starts_full: true, adaptive: None }
}

fn ask(count: usize, now: f64) -> Ask<'static> {
    Ask {
        lane: "a",
        cost: 1.0,
        queue: arrived(count, now),
        held: 0,
        is_registered: false,
        horizon: 200_000.0,
        lead: 100_000.0,
        rtt: 1_000.0,
        witness: &[0.0],
        witness_age: 0.0,
        outage: None,
    }
}

/// So many who arrived at one instant.
fn arrived(count: usize, arrival: f64) -> Queue {
    Queue::describe(count, |_| arrival)
}

fn one(state: &mut BucketState, line: &mut LineState, spec: LimitSpec, ask: &Ask<'_>, now: f64) -> Answer {
    claim(&mut [(state, &[spec])], line, ask, now)
}

#[test]
fn a_full_bucket_gives_its_capacity_at_once_and_then_its_rate_up_to_the_horizon() {
    let (mut state, mut line) = Default::default();
    let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(20, 1e15), 1e15);
    assert_eq!(answer.slots, [0.0, 0.0, 0.0, 0.0, 0.0, 100_000.0, 200_000.0]);
    assert_eq!(answer.next, 200_000.0, "the next slot lies 300 ms off, and is asked for a lead before");
}

#[test]
fn a_bucket_that_starts_empty_gives_its_first_unit_after_one_interval() {
    let (mut state, mut line) = Default::default();
    let spec = LimitSpec::Bucket { interval: 100_000.0, capacity: 5.0, starts_full: false, adaptive: None };
    assert_eq!(one(&mut state, &mut line, spec, &ask(1, 0.0), 0.0).slots, [100_000.0]);
}

#[test]
fn several_limits_are_taken_together_or_not_at_all() {
    let hourly = bucket(3_600e6, 1.0);
    let (mut fast, mut slow, mut line) = <(BucketState, BucketState, LineState)>::default();
    let ask = Ask { witness: &[0.0, 0.0], ..ask(3, 0.0) };
    let answer = claim(&mut [(&mut fast, &[TEN_A_SECOND]), (&mut slow, &[hourly])], &mut line, &ask, 0.0);
    assert_eq!(answer.slots, [0.0]);
    assert_eq!(debts(&answer), [100_000.0, 3_600e6], "what could not be had from both was taken from neither");
}

#[test]
fn a_pause_is_never_shortened_and_ends_with_one_unit() {
    let (mut state, mut line) = Default::default();
    assert_eq!(pause(&mut state, &[TEN_A_SECOND], 2e6, 0.0), 2e6);
    assert_eq!(pause(&mut state, &[TEN_A_SECOND], 1e6, 500_000.0), 1.5e6);
    let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(9, 1e6), 1e6);
    assert_eq!((answer.slots.len(), answer.pause, answer.next), (0, 1e6, 900_000.0));
    let answer = one(&mut state, &mut line, TEN_A_SECOND, &ask(9, 2e6), 2e6);
    assert_eq!(answer.slots, [0.0, 100_000.0, 200_000.0]);
}

#[test]
fn a_witness_restores_what_the_store_forgot() {
    let (mut state, mut line) = Default::default();
    let ask = Ask { witness: &[450_000.0], ..ask(9, 0.0) };
    assert_eq!(one(&mut state, &mut line, TEN_A_SECOND, &ask, 0.0).slots, [50_000.0, 150_000.0]);
}

#[test]
fn a_new_rate_keeps_the_units_that_were_spent_and_the_stricter_of_two_holds() {
    let (mut state, mut line) = Default::default();
    let slower = bucket(500_000.0, 5.0);
    one(&mut state, &mut line, TEN_A_SECOND, &ask(5, 0.0), 0.0);
    assert_eq!(debts(&one(&mut state, &mut line, slower, &ask(1, 0.0), 0.0)), [2_500_000.0]);
    let old = one(&mut state, &mut line, TEN_A_SECOND, &ask(1, 0.0), 1e6);
    assert_eq!(
        old.levels,
        [Level { level: 1_500_000.0 + 500_000.0, more: 500_000.0 }],
        "an old instance undoes nothing"
    );
    let later = one(&mut state, &mut line, TEN_A_SECOND, &ask(1, 0.0), 62e6);
    assert_eq!(later.levels, [Level { level: 100_000.0, more: 100_000.0 }], "once nobody asserts the slower rate");
}

#[test]
fn a_clock_that_steps_back_or_forth_neither_stalls_nor_overflows() {
    let (mut state, mut line) = Default::default();
    one(&mut state, &mut line, TEN_A_SECOND, &ask(7, 1e13), 1e13);
    let debt = one(&mut state, &mut line, TEN_A_SECOND, &ask(1, 0.0), 1e13 - 3.6e9).levels[0].level;
    assert!(debt <= (5.0 + 1.0) * 100_000.0 + 200_000.0, "{debt}");
    assert_eq!(one(&mut state, &mut line, TEN_A_SECOND, &ask(5, 0.0), 2e13).slots, [0.0; 5]);
}

#[test]
fn older_waiters_of_another_instance_go_first_and_a_due_slot_goes_to_whoever_asks() {
    let (mut state, mut line) = Default::default();
    let spec = bucket(100_000.0, 1.0);
    one(&mut state, &mut line, spec, &Ask { queue: arrived(1, -2e6), ..ask(1, 0.0) }, 0.0);
    let older = Ask { lane: "b", queue: arrived(8, -1e6), ..ask(1, 0.0) };
    assert_eq!(one(&mut state, &mut line, spec, &older, 0.0).slots, [100_000.0, 200_000.0]);
    let younger = one(&mut state, &mut line, spec, &ask(1, 0.0), 1_000.0);
    assert!(younger.slots.is_empty());
    assert_eq!(younger.others, 6);
    assert_eq!(younger.next, 299_000.0 + 600_000.0 - 100_000.0, "behind six others, a lead before its turn");
    assert_eq!(one(&mut state, &mut line, spec, &ask(1, 0.0), 300_000.0).slots, [0.0]);
}

#[test]
fn nobody_goes_before_one_that_is_older_by_more_than_half_the_horizon() {
    let spec = bucket(50_000.0, 1.0);
    let after = |age: f64| {
        let (mut state, mut line) = Default::default();
        one(&mut state, &mut line, spec, &Ask { lane: "c", ..ask(1, 0.0) }, 0.0);
        // One that is told of, and has to ask again for its slot.
        let older = Ask { lane: "b", queue: arrived(1, -age), horizon: 0.0, ..ask(1, 0.0) };
        assert!(one(&mut state, &mut line, spec, &older, 0.0).slots.is_empty());
        let answer = one(&mut state, &mut line, spec, &ask(1, 0.0), 0.0);
        (answer.slots, answer.next)
    };
    assert_eq!(after(90_000.0), (vec![50_000.0], 0.0), "within it, whoever asks first");
    assert_eq!(after(110_000.0), (vec![], 50_000.0), "asks again when the older one has had its chance");
}

#[test]
fn who_waits_behind_others_in_a_pause_asks_again_soon_after_it() {
    let (mut state, mut line) = Default::default();
    let spec = bucket(1e6, 1.0);
    pause(&mut state, &[spec], 60e6, 0.0);
    let older = Ask { lane: "b", queue: arrived(100, -1e6), ..ask(1, 0.0) };
    one(&mut state, &mut line, spec, &older, 0.0);
    let answer = one(&mut state, &mut line, spec, &ask(1, 0.0), 1e6);
    assert_eq!((answer.pause, answer.next), (59e6, 60e6), "the older ones may have left by then");
}

#[test]
fn an_instance_that_breaks_its_promise_holds_up_nobody() {
    let (mut state, mut line) = Default::default();
    let spec = bucket(100_000.0, 1.0);
    let dead = Ask { lane: "b", queue: arrived(8, -1e6), ..ask(1, 0.0) };
    one(&mut state, &mut line, spec, &dead, 0.0);
    let answer = one(&mut state, &mut line, spec, &ask(3, 1e6), 1e6);
    assert_eq!((answer.slots.len(), answer.others), (3, 0));
}

#[test]
fn a_step_of_the_clock_forgets_no_request_under_way() {
    let spec = LimitSpec::Concurrent { most: 2.0 };
    for step in [-3_600e6, -20e6, 20e6, 3_600e6] {
        let (mut state, mut line) = Default::default();
        for lane in ["a", "b"] {
            let granted = one(&mut state, &mut line, spec, &Ask { lane, ..ask(1, 1e12) }, 1e12);
            assert_eq!(granted.slots, [0.0]);
        }
        let now = 1e12 + step;
        let more = Ask { held: 1, is_registered: true, ..ask(1, now) };
        assert!(one(&mut state, &mut line, spec, &more, now).slots.is_empty(), "after a step of {step}");
    }
}

#[test]
fn fractional_rates_lose_nothing_to_rounding() {
    let third = bucket(1e6 / 3.0, 1.0);
    let (mut state, mut line) = Default::default();
    let start = 1.764e15;
    let sent = (0..600).filter(|poll| {
        let now = start + f64::from(*poll) * 100_000.0;
        let ask = Ask { horizon: 0.0, ..ask(1, now) };
        !one(&mut state, &mut line, third, &ask, now).slots.is_empty()
    });
    // Polled every 100 ms a slot is taken up to 100 ms late; the bucket holds only one, so that time is lost.
    assert_eq!(sent.count(), 150);
    let (mut state, mut line) = Default::default();
    let roomy = bucket(1e6 / 3.0, 2.0);
    let sent = (0..600).filter(|poll| {
        let now = start + f64::from(*poll) * 100_000.0;
        let ask = Ask { horizon: 0.0, ..ask(1, now) };
        !one(&mut state, &mut line, roomy, &ask, now).slots.is_empty()
    });
    let sent = sent.count();
    assert!((179..=181).contains(&sent), "{sent}");
}

#[test]
fn a_sliding_window_never_holds_one_too_many() {
    let spec = LimitSpec::Window { count: 10.0, per: 1e6, margin: 5_000.0, is_clock: false };
    let (mut state, mut line) = Default::default();
    let mut sent: Vec<f64> = Vec::new();
    let mut now = 0.0;
    while sent.len() < 500 {
        let answer = one(&mut state, &mut line, spec, &ask(7, now), now);
        sent.extend(answer.slots.iter().map(|slot| now + slot));
        now += 37_000.0;
    }
    assert!(sent.windows(11).all(|eleven| eleven[10] - eleven[0] > 1e6), "eleven in a second");
    let ideal = now / 1e6 * 10.0;
    assert!(sent.len() as f64 > 0.97 * ideal, "{} of {ideal}", sent.len());
}

#[test]
fn a_large_sliding_window_stays_small_and_true() {
    let spec = LimitSpec::Window { count: 5_000.0, per: 10e6, margin: 50_000.0, is_clock: false };
    let (mut state, mut line) = Default::default();
    let (mut sent, mut now) = (Vec::new(), 0.0);
    while now < 60e6 {
        let answer = one(&mut state, &mut line, spec, &ask(64, now), now);
        sent.extend(answer.slots.iter().map(|slot| now + slot));
        now += 20_000.0;
    }
    assert!(sent.windows(5_001).all(|window| window[5_000] - window[0] > 10e6));
    assert!(sent.len() as f64 > 0.96 * 60.0 * 500.0, "{}", sent.len());
    let Some(LimitState::Sliding(window)) = &state.limits[0] else { panic!("a sliding window") };
    assert!(window.entries() <= 260, "{} entries", window.entries());
}

#[test]
fn a_sliding_window_resumes_evenly_after_a_pause() {
    let spec = LimitSpec::Window { count: 10.0, per: 1e6, margin: 5_000.0, is_clock: false };
    let (mut state, mut line) = Default::default();
    pause(&mut state, &[spec], 2e6, 0.0);
    let wide = Ask { horizon: 5e6, ..ask(13, 0.0) };
    let slots = one(&mut state, &mut line, spec, &wide, 0.0).slots;
    let even: Vec<f64> = (0..10).map(|place| 2e6 + f64::from(place) * 100_000.0).collect();
    assert_eq!(slots[..10], even);
    assert!(slots[10] > 3e6, "{slots:?}");
}

#[test]
fn a_clock_window_begins_with_the_clock_and_keeps_off_its_edges() {
    let spec = LimitSpec::Window { count: 3.0, per: 60e6, margin: 500_000.0, is_clock: true };
    let seconds = |waiting: usize, now: f64| {
        let (mut state, mut line) = Default::default();
        let wide = Ask { horizon: 90e6, ..ask(waiting, now * 1e6) };
        let slots = one(&mut state, &mut line, spec, &wide, now * 1e6).slots;
        slots.iter().map(|slot| (now * 1e6 + slot) / 1e6).collect::<Vec<_>>()
    };
    assert_eq!(seconds(7, 6_059.0), [6_059.0, 6_059.0, 6_059.0, 6_060.5, 6_060.5, 6_060.5, 6_120.5]);
    assert_eq!(seconds(1, 6_059.75), [6_060.5], "not on the edge");
}

#[test]
fn requests_under_way_are_bounded_across_lanes_and_heal() {
    let spec = LimitSpec::Concurrent { most: 3.0 };
    let (mut state, mut line) = Default::default();
    let a = |count, held| Ask { held, is_registered: held > 0, ..ask(count, 0.0) };
    let b = |count, held| Ask { lane: "b", held, is_registered: held > 0, ..ask(count, 0.0) };
    assert_eq!(one(&mut state, &mut line, spec, &a(2, 0), 0.0).slots.len(), 2);
    assert_eq!(one(&mut state, &mut line, spec, &b(2, 0), 0.0).slots.len(), 1);
    let blocked = one(&mut state, &mut line, spec, &b(1, 1), 0.0);
    assert_eq!((blocked.slots.len(), blocked.next, blocked.levels[0].level), (0, 200_000.0, 3.0));
    // Its own renewal, then a's end; then a says nothing more.
    assert_eq!(one(&mut state, &mut line, spec, &a(0, 1), 1e6).slots.len(), 0);
    assert_eq!(one(&mut state, &mut line, spec, &b(1, 1), 1e6).slots.len(), 1);
    assert_eq!(one(&mut state, &mut line, spec, &b(1, 2), 15.9e6).slots.len(), 0);
    assert_eq!(one(&mut state, &mut line, spec, &b(1, 2), 16.1e6).slots.len(), 1, "a's lease is over");
}

#[test]
fn a_store_that_forgot_its_leases_grants_nothing_until_they_are_renewed() {
    let spec = LimitSpec::Concurrent { most: 2.0 };
    let (mut state, mut line) = <(BucketState, LineState)>::default();
    let known = Ask { held: 1, is_registered: true, ..ask(1, 0.0) };
    assert_eq!(one(&mut state, &mut line, spec, &known, 0.0).slots.len(), 0);
    let other = Ask { lane: "b", held: 1, is_registered: true, ..ask(0, 0.0) };
    one(&mut state, &mut line, spec, &other, 1e6);
    assert_eq!(one(&mut state, &mut line, spec, &known, 6.1e6).slots.len(), 0, "both are under way");
}

#[test]
fn an_adaptive_rate_is_cut_once_a_storm_and_regained_by_use() {
    let adaptive = Some(AdaptiveSpec { cut: 0.5, floor: 0.2, recover: 0.1 });
    let spec = LimitSpec::Bucket { interval: 100_000.0, capacity: 1.0, starts_full: true, adaptive };
    let (mut state, mut line) = Default::default();
    let rate = |answer: &Answer| 100_000.0 / answer.levels[0].more;
    for now in [0.0, 100.0, 900_000.0] {
        pause(&mut state, &[spec], 1e6, now);
    }
    assert_eq!(rate(&one(&mut state, &mut line, spec, &ask(1, 2e6), 2e6)), 0.5, "one storm, one cut");
    pause(&mut state, &[spec], 1e6, 4e6);
    assert_eq!(rate(&one(&mut state, &mut line, spec, &ask(1, 5e6), 5e6)), 0.25);
    pause(&mut state, &[spec], 1e6, 8e6);
    assert_eq!(rate(&one(&mut state, &mut line, spec, &ask(1, 9e6), 9e6)), 0.2, "the floor");
    let idle = Ask { queue: Queue::default(), ..ask(1, 30e6) };
    assert_eq!(rate(&one(&mut state, &mut line, spec, &idle, 30e6)), 0.2, "idling regains nothing");
    let mut now = 30e6;
    while now < 60e6 {
        one(&mut state, &mut line, spec, &ask(1, now), now);
        now += 500_000.0;
    }
    assert_eq!(rate(&one(&mut state, &mut line, spec, &ask(1, now), now)), 1.0, "never above the configuration");
}

#[test]
fn an_outage_freezes_what_a_bucket_held_once_for_the_fleet() {
    let (mut state, mut line) = Default::default();
    one(&mut state, &mut line, TEN_A_SECOND, &ask(2, 0.0), 0.0);
    let outage = Some(Outage { at: 10e6, length: 9e6, instances: 2.0 });
    let back = Ask { outage, ..ask(9, 10e6) };
    let answer = one(&mut state, &mut line, TEN_A_SECOND, &back, 10e6);
    assert_eq!(answer.slots, [0.0, 100_000.0, 200_000.0], "spent down to one");
    let answer = one(&mut state, &mut line, TEN_A_SECOND, &back, 11e6);
    assert_eq!(answer.slots.len(), 5 + 2, "once");
    // A daily quota is not gone for a moment's outage.
    let daily = bucket(8_640_000.0, 10_000.0);
    let (mut state, mut line) = Default::default();
    one(&mut state, &mut line, daily, &ask(1, 0.0), 0.0);
    let brief = Ask { outage: Some(Outage { at: 60e6, length: 5e6, instances: 2.0 }), ..ask(1, 60e6) };
    let answer = one(&mut state, &mut line, daily, &brief, 60e6);
    assert!(answer.levels[0].level < 4.0 * 8_640_000.0, "{answer:?}");
}

#[test]
fn joint_limits_of_every_kind_are_taken_together_or_not_at_all() {
    let window = LimitSpec::Window { count: 4.0, per: 10e6, margin: 1_000.0, is_clock: false };
    let specs = [TEN_A_SECOND, window, LimitSpec::Concurrent { most: 3.0 }];
    let (mut state, mut line) = <(BucketState, LineState)>::default();
    let ask = Ask { witness: &[0.0, 0.0, 0.0], ..ask(9, 0.0) };
    let answer = claim(&mut [(&mut state, &specs)], &mut line, &ask, 0.0);
    assert_eq!(answer.slots, [0.0; 3]);
    assert_eq!(answer.levels[0].level, 300_000.0);
    assert_eq!(answer.levels[1], Level { level: 3.0, more: 0.0 });
}

fn debts(answer: &Answer) -> Vec<f64> {
    answer.levels.iter().map(|level| level.level).collect()
}

//! Pauses of which an instance and the store do not know the same, in a process where time stands still.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::config::model::Class;

use super::{
    super::{
        bucket::LimitSpec,
        lane::{Lane, Turn},
        memory::MemoryStore,
        store::Store,
    },
    bucket, lane, refills,
};

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_store_has_forgotten_does_not_use_up_a_window() {
    let hourly = LimitSpec::Window { count: 100.0, per: 3_600e6, margin: 50_000.0, is_clock: false };
    let lane = lane(Store::Memory(Arc::default()), hourly, "lane", "line");
    let until = Instant::now() + Duration::from_secs(2);
    lane.paused(until);
    let waits: Vec<_> = (0..10).map(|_| tokio::spawn(slot(lane.clone()))).collect();
    for wait in waits {
        let at = wait.await.unwrap();
        assert!(at >= until && at < until + Duration::from_millis(5), "{:?} after the pause", at - until);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_ends_a_little_later_here_than_in_the_store_costs_no_slot() {
    let (store, slow) = (Arc::<MemoryStore>::default(), refills(90e6, 1.0));
    let lane = lane(Store::Memory(Arc::clone(&store)), slow, "lane", "line");
    let pause = Duration::from_secs(2);
    store.pause(&bucket(slow), pause);
    // A notice is as old as its way was long, on arrival.
    let until = Instant::now() + pause + Duration::from_millis(3);
    lane.paused(until);
    let wait = tokio::spawn(slot(lane.clone()));
    // So is one that is told again while the slot is in hand.
    sleep(pause - Duration::from_millis(50)).await;
    let until = until + Duration::from_millis(3);
    lane.paused(until);
    let at = wait.await.unwrap();
    assert!(at >= until && at < until + Duration::from_millis(5), "{:?} after the pause", at - until);
}

/// When a request goes that comes now.
async fn slot(lane: Lane) -> Instant {
    let turn = Turn { arrived: Instant::now(), class: Class::Interactive, max_wait: Duration::from_secs(600) };
    drop(lane.slot(turn).await.unwrap());
    Instant::now()
}

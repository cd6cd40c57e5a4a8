//! Requests under way in one process where time stands still: places are kept as long as a call lasts, and no longer.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::config::model::Class;

use super::super::{
    bucket::LimitSpec,
    lane::{Lane, Turn},
    memory::MemoryStore,
    store::Store,
    waiter::{Permit, Refused},
};

#[tokio::test(start_paused = true)]
async fn a_call_longer_than_a_lease_keeps_its_place_from_the_other_endpoints_of_a_channel() {
    let store = Arc::new(MemoryStore::new());
    let (rates, bookings) = (lane(&store, "rates"), lane(&store, "bookings"));
    let call = slot(&rates, Duration::ZERO).await.unwrap();
    let refused = slot(&bookings, Duration::from_secs(60)).await;
    assert!(matches!(refused, Err(Refused::TooLong { .. })), "two at once");
    drop(call);
    sleep(A_MOMENT).await;
    drop(slot(&bookings, Duration::ZERO).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_replaced_frees_the_place_of_its_last_call() {
    let store = Arc::new(MemoryStore::new());
    let former = lane(&store, "former");
    let call = slot(&former, Duration::ZERO).await.unwrap();
    drop(former);
    let current = lane(&store, "current");
    sleep(Duration::from_secs(1)).await;
    drop(call);
    let freed = Instant::now();
    drop(slot(&current, Duration::from_secs(60)).await.unwrap());
    assert!(freed.elapsed() < A_MOMENT, "the place lay idle for {:?}", freed.elapsed());
}

/// One of several lines before a bucket of one request at once.
fn lane(store: &Arc<MemoryStore>, name: &str) -> Lane {
    super::lane(Store::Memory(Arc::clone(store)), LimitSpec::Concurrent { most: 1.0 }, name, name)
}

async fn slot(lane: &Lane, max_wait: Duration) -> Result<Permit, Refused> {
    lane.slot(Turn { arrived: Instant::now(), class: Class::Interactive, max_wait }).await
}

const A_MOMENT: Duration = Duration::from_millis(500);

//! Lines that share a bucket, as the endpoints of a channel do, in a process where time stands still.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use crate::config::model::Class;

use super::{
    super::{
        lane::{Lane, Turn},
        memory::MemoryStore,
        store::Store,
    },
    lane, refills,
};

#[tokio::test(start_paused = true)]
async fn a_busy_line_does_not_starve_another_on_its_bucket() {
    for interval in [20_000.0, 50_000.0, 100_000.0, 150_000.0, 1e6] {
        let store = Arc::new(MemoryStore::new());
        let open = |name| lane(Store::Memory(Arc::clone(&store)), refills(interval, 1.0), name, name);
        let (busy, quiet) = (open("busy"), open("quiet"));
        let crowd: Vec<_> = (0..200).map(|_| tokio::spawn(slot(busy.clone()))).collect();
        sleep(Duration::from_millis(330)).await;
        for _ in 0..5 {
            let asked = Instant::now();
            slot(quiet.clone()).await;
            let most = Duration::from_secs_f64(interval / 1e6) * 6 + Duration::from_millis(500);
            assert!(asked.elapsed() < most, "{:?} at {interval} us for one", asked.elapsed());
        }
        crowd.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn slot(lane: Lane) {
    let turn = Turn { arrived: Instant::now(), class: Class::Interactive, max_wait: Duration::from_secs(3_600) };
    drop(lane.slot(turn).await.unwrap());
}

//! Lanes whose time stands still, so that instants are exact, whatever the speed of the machine.

mod lines;
mod pauses;
mod places;
pub(super) mod together;

use std::time::Duration;

use tokio::sync::mpsc;

use super::{
    bucket::LimitSpec,
    claim::{BucketSpec, Group},
    lane::{Lane, Order},
    metrics::LaneMetrics,
    store::Store,
};

/// A lane that calls itself `lane` and stands in `line`, before the one bucket of these tests.
fn lane(store: Store, limit: LimitSpec, lane: &str, line: &str) -> Lane {
    let group = Group { buckets: vec![bucket(limit)], line: line.to_owned(), cost: 1.0 };
    let order = Order { lane: lane.into(), max_queue: 100_000, ageing: Duration::from_secs(30) };
    let (announce, _) = mpsc::unbounded_channel();
    Lane::open(format!("test/{lane}"), store, group.into(), LaneMetrics::new("test", "lane"), order, announce)
}

fn bucket(limit: LimitSpec) -> BucketSpec {
    BucketSpec { key: "bucket".to_owned(), limits: vec![limit] }
}

/// Units that refill, one at once.
fn refills(interval: f64, capacity: f64) -> LimitSpec {
    LimitSpec::Bucket { interval, capacity, starts_full: true, adaptive: None }
}

//! The waiting line of one bucket set in this instance, as its requests see it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use crate::config::model::Class;

use super::{
    claim::Group,
    metrics::LaneMetrics,
    pump::Pump,
    store::Store,
    waiter::{LaneState, Message, Permit, Place, Refused, Verdict, Waiter},
};

/// The line of the requests in this instance that need the same set of buckets.
#[derive(Debug, Clone)]
pub struct Lane {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    store: Store,
    group: Arc<Group>,
    state: Arc<LaneState>,
    max_queue: AtomicUsize,
    ageing: Duration,
    messages: mpsc::UnboundedSender<Message>,
    announce: mpsc::UnboundedSender<News>,
}

/// What one lane tells the others.
#[derive(Debug)]
pub(super) enum News {
    /// A bucket may send nothing before an instant.
    Paused { key: String, until: Instant },
    /// A request ended that the lanes in a line wait for.
    Ended { line: String },
}

/// How a lane is called, ordered and bounded.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// The name of the lane in the store, unique in the fleet.
    pub(super) lane: Arc<str>,
    /// Most that wait.
    pub(super) max_queue: usize,
    /// By how much interactive requests precede batch ones.
    pub(super) ageing: Duration,
}

/// How a request takes its place in a line.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// When it came: the oldest goes first. A request that is sent again keeps it.
    pub arrived: Instant,
    /// All interactive requests go before batch ones.
    pub class: Class,
    /// Longest wait from now; zero: only what is free now.
    pub max_wait: Duration,
}

impl Lane {
    /// Opens a lane; its pump ends when the last handle is gone.
    pub(super) fn open(
        name: String,
        store: Store,
        group: Arc<Group>,
        metrics: LaneMetrics,
        order: Order,
        announce: mpsc::UnboundedSender<News>,
    ) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let state = Arc::new(LaneState::new(metrics, group.cost));
        let (lane, outbox) = (Arc::clone(&order.lane), messages.downgrade());
        tokio::spawn(Pump::new(lane, store.clone(), Arc::clone(&group), Arc::clone(&state), outbox, inbox).run());
        Self {
            inner: Arc::new(Inner {
                name,
                store,
                group,
                state,
                max_queue: AtomicUsize::new(order.max_queue),
                ageing: order.ageing,
                messages,
                announce,
            }),
        }
    }

    /// Waits for a slot. The caller sends its request as soon as this returns.
    ///
    /// A wait that is known to be too long is refused at once. Dropping the future leaves the line at once and costs nothing.
    ///
    /// # Errors
    /// When the wait would be, or was, longer than it may be, the line is full, or the store is closed.
    pub async fn slot(&self, turn: Turn) -> Result<Permit, Refused> {
        let begun = Instant::now();
        let Turn { class, max_wait, .. } = turn;
        // Whoever can wait is ordered as if it had come later: one order for all, in which nobody starves.
        let arrived = match class {
            Class::Interactive => turn.arrived,
            Class::Batch => turn.arrived + self.inner.ageing,
        };
        let deadline = begun + max_wait;
        if self.inner.state.waiting() >= self.inner.max_queue.load(Ordering::Relaxed) {
            return Err(Refused::QueueFull { retry_after: self.inner.state.quote(begun) });
        }
        if let Some(wait) = self.quote_for(arrived, begun)
            && wait > max_wait
        {
            return Err(Refused::TooLong { retry_after: wait });
        }
        // Even a request that may not wait is worth one question to the store.
        let give_up = deadline.max(begun + ONE_CLAIM);
        loop {
            let place = Place::take(&self.inner.state);
            let (verdict, told) = oneshot::channel();
            // The pump outlives every handle, this one included.
            drop(self.inner.messages.send(Message::Join(Waiter { arrived, deadline, verdict })));
            let told = timeout_at(give_up, told).await;
            place.leave(told.is_ok());
            match told {
                // This task may have been held up since: a stale slot is void.
                Ok(Ok(Verdict::Slot(permit))) if !permit.is_fresh() => {}
                Ok(Ok(Verdict::Slot(permit))) => return Ok(permit),
                Ok(Ok(Verdict::Refused(refused))) => return Err(refused),
                Ok(Err(_)) => return Err(Refused::StoreClosed),
                Err(_) => return Err(Refused::TooLong { retry_after: self.inner.state.quote(Instant::now()) }),
            }
        }
    }

    /// Stops the whole fleet on this lane's narrowest bucket for at least `pause` from now; never shortens a pause.
    ///
    /// Returns once the store knows, or is known to be lost.
    pub async fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        self.paused(until);
        let key = self.inner.group.narrowest().key.clone();
        // The table of lanes is gone only with the process.
        drop(self.inner.announce.send(News::Paused { key, until }));
        self.inner.store.pause(&self.inner.group, pause).await;
    }

    /// Whether few enough wait that a connection may be made ready before the slot is taken.
    pub fn is_short(&self) -> bool {
        self.inner.state.waiting() < SHORT
    }

    /// The channel and endpoint, for answers and logs.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether a pause of the bucket `key` concerns this lane.
    pub(super) fn takes_from(&self, key: &str) -> bool {
        self.inner.group.buckets.iter().any(|bucket| bucket.key == key)
    }

    /// Voids what is held before `until` and sends nothing before.
    pub(super) fn paused(&self, until: Instant) {
        drop(self.inner.messages.send(Message::Paused(until)));
    }

    /// Asks the store again: a request that others waited for has ended.
    pub(super) fn woken(&self) {
        drop(self.inner.messages.send(Message::Woken));
    }

    /// Whether `line` is the one before this lane's buckets.
    pub(super) fn stands_in(&self, line: &str) -> bool {
        self.inner.group.line == line
    }

    /// Whether the lane takes from these buckets, with these limits.
    pub(super) fn takes_as(&self, group: &Group) -> bool {
        *self.inner.group == *group
    }

    /// Changes how many may wait; whoever waits stays.
    pub(super) fn bound(&self, max_queue: usize) {
        self.inner.max_queue.store(max_queue, Ordering::Relaxed);
    }

    /// Whether nobody holds this lane but the table that asks.
    pub(super) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// What the gauges should say.
    pub(super) fn state(&self) -> &LaneState {
        &self.inner.state
    }

    /// What a request that `arrived` would wait at least. `None` where it would join before the end of the line.
    fn quote_for(&self, arrived: Instant, now: Instant) -> Option<Duration> {
        let seen = self.inner.state.seen();
        if seen.ends.is_some_and(|(_, youngest)| arrived < youngest) {
            return None;
        }
        Some(self.inner.state.quote_from(&seen, arrived, now))
    }
}

const SHORT: usize = 32;
const ONE_CLAIM: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use tokio::{
        task::JoinHandle,
        time::{advance, sleep},
    };

    use super::*;
    use crate::limiter::{bucket::LimitSpec, claim::BucketSpec, memory::MemoryStore};

    /// Ten a second, one at once, in a process of its own; time is paused, so that instants are exact.
    fn lane() -> Lane {
        let limit = LimitSpec::Bucket { interval: 100_000.0, capacity: 1.0, starts_full: true, adaptive: None };
        let buckets = vec![BucketSpec { key: "bucket".to_owned(), limits: vec![limit] }];
        let group = Arc::new(Group { buckets, line: "line".to_owned(), cost: 1.0 });
        let (announce, _) = mpsc::unbounded_channel();
        let store = Store::Memory(Arc::new(MemoryStore::new()));
        let order = Order { lane: "lane".into(), max_queue: 10_000, ageing: Duration::from_secs(30) };
        Lane::open("test/lane".to_owned(), store, group, LaneMetrics::new("test", "lane"), order, announce)
    }

    async fn slot(lane: &Lane, arrived: Instant, max_wait: Duration) -> Result<(), Refused> {
        lane.slot(Turn { arrived, class: Class::Interactive, max_wait }).await.map(drop)
    }

    /// Waits in a task and tells when it got its slot, in milliseconds from `start`.
    fn wait(lane: &Lane, start: Instant, max_wait: Duration) -> JoinHandle<Result<u128, Refused>> {
        let (lane, arrived) = (lane.clone(), Instant::now());
        tokio::spawn(async move { slot(&lane, arrived, max_wait).await.map(|()| (Instant::now() - start).as_millis()) })
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn slots_go_to_the_oldest_at_the_pace_of_the_limit() {
        let (lane, start) = (lane(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..20 {
            waits.push(wait(&lane, start, LONG));
            tokio::task::yield_now().await;
        }
        for (place, wait) in waits.into_iter().enumerate() {
            let at = wait.await.unwrap().unwrap();
            let due = place as u128 * 100;
            assert!((due..due + 5).contains(&at), "request {place} went at {at} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_head_middle_or_tail_costs_nothing() {
        let (lane, start) = (lane(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..10 {
            waits.push(wait(&lane, start, LONG));
            tokio::task::yield_now().await;
        }
        sleep(Duration::from_millis(50)).await;
        for place in [1, 5, 9] {
            waits[place].abort();
        }
        let mut went = Vec::new();
        for wait in waits {
            if let Ok(at) = wait.await {
                went.push(at.unwrap() / 100);
            }
        }
        assert_eq!(went, [0, 1, 2, 3, 4, 5, 6], "nobody waited for a slot of those who left");
        assert_eq!(lane.state().waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_request_that_returns_goes_before_younger_ones() {
        let (lane, start) = (lane(), Instant::now());
        let first = Instant::now();
        slot(&lane, first, LONG).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let young: Vec<_> = (0..5).map(|_| wait(&lane, start, LONG)).collect();
        sleep(Duration::from_millis(10)).await;
        slot(&lane, first, LONG).await.unwrap();
        assert_eq!((Instant::now() - start).as_millis() / 10, 10, "the next slot");
        assert!(young.iter().all(|wait| !wait.is_finished()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_known_to_be_too_long_is_refused_at_once_with_the_true_wait() {
        let (lane, start) = (lane(), Instant::now());
        let waits: Vec<_> = (0..30).map(|_| wait(&lane, start, LONG)).collect();
        sleep(Duration::from_millis(150)).await;
        let asked = Instant::now();
        let refused = slot(&lane, asked, Duration::from_secs(1)).await;
        assert_eq!(asked, Instant::now(), "at once");
        let Err(Refused::TooLong { retry_after }) = refused else { panic!("{refused:?}") };
        for wait in waits {
            wait.await.unwrap().unwrap();
        }
        slot(&lane, Instant::now(), LONG).await.unwrap();
        let truth = (Instant::now() - asked).as_millis();
        assert!((truth - 5..=truth).contains(&retry_after.as_millis()), "quoted {retry_after:?}, waited {truth} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_kept_even_when_the_quote_was_shorter() {
        let (lane, start) = (lane(), Instant::now());
        let waits: Vec<_> = (0..10).map(|_| wait(&lane, start, Duration::from_millis(450))).collect();
        let mut went = 0;
        for wait in waits {
            match wait.await.unwrap() {
                Ok(at) => {
                    went += 1;
                    assert!(at <= 450, "{at}");
                }
                Err(refused) => assert!(matches!(refused, Refused::TooLong { .. })),
            }
        }
        assert_eq!(went, 5, "those whose turn came in time");
        assert!((Instant::now() - start).as_millis() <= 450);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_back_what_waits_and_what_comes_and_ends_without_a_burst() {
        let (lane, start) = (lane(), Instant::now());
        let mut waits: Vec<_> = (0..5).map(|_| wait(&lane, start, LONG)).collect();
        sleep(Duration::from_millis(150)).await;
        lane.pause(Duration::from_secs(2)).await;
        lane.pause(Duration::from_secs(1)).await;
        waits.extend((0..5).map(|_| wait(&lane, start, LONG)));
        let mut went = Vec::new();
        for wait in waits {
            went.push(wait.await.unwrap().unwrap());
        }
        assert!(went[1] < 150, "before the pause");
        for (place, at) in went[2..].iter().enumerate() {
            let due = 2_150 + place as u128 * 100;
            assert!((due..due + 5).contains(at), "request {place} after the pause went at {at} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_longer_than_a_waiter_may_wait_refuses_it_at_once() {
        let (lane, start) = (lane(), Instant::now());
        let waits: Vec<_> = (0..3).map(|_| wait(&lane, start, Duration::from_secs(5))).collect();
        sleep(Duration::from_millis(50)).await;
        lane.pause(Duration::from_secs(7200)).await;
        let mut refused = 0;
        for wait in waits {
            if let Err(Refused::TooLong { retry_after }) = wait.await.unwrap() {
                refused += 1;
                assert!(retry_after.as_secs() >= 7_199, "{retry_after:?}");
            }
        }
        assert_eq!(refused, 2, "the first went before the pause");
        assert!((Instant::now() - start).as_millis() < 100, "at once");
    }

    #[tokio::test(start_paused = true)]
    async fn slots_that_a_stopped_process_could_not_use_are_void() {
        let (lane, start) = (lane(), Instant::now());
        let waits: Vec<_> = (0..6).map(|_| wait(&lane, start, LONG)).collect();
        sleep(Duration::from_millis(10)).await;
        // Two slots are in hand, for 100 and 200 ms. The process stops, and wakes when both are stale.
        advance(Duration::from_secs(5)).await;
        let mut went = Vec::new();
        for wait in waits {
            went.push(wait.await.unwrap().unwrap());
        }
        went.sort_unstable();
        assert_eq!(went[0], 0);
        assert!(went[1] >= 5_010, "{went:?}");
        assert!(went[1..].windows(2).all(|pair| pair[1] - pair[0] >= 99), "one at a time: {went:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_may_not_wait_gets_what_is_free_and_nothing_else() {
        let (lane, start) = (lane(), Instant::now());
        slot(&lane, start, Duration::ZERO).await.unwrap();
        for _ in 0..100 {
            assert!(matches!(slot(&lane, Instant::now(), Duration::ZERO).await, Err(Refused::TooLong { .. })));
        }
        sleep(Duration::from_millis(101)).await;
        slot(&lane, Instant::now(), Duration::ZERO).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn interactive_requests_go_before_batch_ones_until_those_have_aged() {
        let (lane, start) = (lane(), Instant::now());
        let wait = |class| {
            let (lane, arrived) = (lane.clone(), Instant::now());
            tokio::spawn(async move {
                drop(lane.slot(Turn { arrived, class, max_wait: LONG }).await.unwrap());
                (Instant::now() - start).as_millis()
            })
        };
        slot(&lane, start, LONG).await.unwrap();
        let batch = wait(Class::Batch);
        tokio::task::yield_now().await;
        let interactive: Vec<_> = (0..5).map(|_| wait(Class::Interactive)).collect();
        for wait in interactive {
            assert!(wait.await.unwrap() < 550);
        }
        assert!((600..650).contains(&batch.await.unwrap()), "after them");

        // Interactive requests without end: the batch request goes once it has aged, half a minute on.
        let batch = wait(Class::Batch);
        let asked = Instant::now();
        let mut stream = Vec::new();
        while !batch.is_finished() {
            stream.push(wait(Class::Interactive));
            sleep(Duration::from_millis(90)).await;
        }
        let waited = asked.elapsed().as_secs_f64();
        assert!((29.0..36.0).contains(&waited), "{waited} s");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_may_not_wait_do_not_starve_those_that_do() {
        let (lane, start) = (lane(), Instant::now());
        let patient: Vec<_> = (0..20).map(|_| wait(&lane, start, LONG)).collect();
        let hasty = tokio::spawn({
            let lane = lane.clone();
            async move {
                let mut served = 0;
                for _ in 0..200 {
                    for _ in 0..100 {
                        served += usize::from(slot(&lane, Instant::now(), Duration::ZERO).await.is_ok());
                    }
                    sleep(Duration::from_millis(10)).await;
                }
                served
            }
        });
        for (place, wait) in patient.into_iter().enumerate() {
            let at = wait.await.unwrap().unwrap();
            assert!(at < place as u128 * 100 + 5, "request {place} went at {at} ms");
        }
        assert_eq!(hasty.await.unwrap(), 0, "nothing was free while others waited");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_line_takes_nobody_more() {
        let (lane, start) = (lane(), Instant::now());
        let mut waits: Vec<_> = (0..10_000).map(|_| wait(&lane, start, LONG * 60)).collect();
        sleep(Duration::from_millis(50)).await;
        // One of them has gone.
        waits.push(wait(&lane, start, LONG * 60));
        sleep(Duration::from_millis(1)).await;
        let refused = slot(&lane, Instant::now(), LONG * 60).await;
        let Err(Refused::QueueFull { retry_after }) = refused else { panic!("{refused:?}") };
        assert!((999..=1_001).contains(&retry_after.as_secs()), "{retry_after:?}");
        drop(waits);
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_wait_and_go_in_order() {
        let (lane, start) = (lane(), Instant::now());
        let waits: Vec<_> = (0..10_000).map(|_| wait(&lane, start, LONG * 60)).collect();
        let mut before = 0;
        for wait in waits {
            let at = wait.await.unwrap().unwrap();
            assert!(at >= before);
            before = at;
        }
        let due = 9_999 * 100;
        assert!((due..due + 1_000).contains(&before), "nothing was lost: the last went at {before} ms");
    }
}

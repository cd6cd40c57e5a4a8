//! The waiting line of one bucket set in this instance, as its requests see it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use super::{
    metrics::LaneMetrics,
    pump::{Message, Pump, Verdict, Waiter},
    quote::View,
    store::{Group, Store},
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
    messages: mpsc::UnboundedSender<Message>,
    announce: mpsc::UnboundedSender<Pause>,
}

/// A bucket may send nothing for a while; for every lane that takes from it.
#[derive(Debug)]
pub(super) struct Pause {
    pub(super) key: String,
    pub(super) until: Instant,
}

/// What the handles of a lane and its pump share.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) metrics: LaneMetrics,
    waiting: AtomicUsize,
    seen: Mutex<Seen>,
}

/// What the pump last made known.
#[derive(Debug)]
pub(super) struct Seen {
    /// The buckets.
    pub(super) view: View,
    /// Slots in hand for waiters.
    pub(super) held: usize,
    /// Arrivals of the oldest and the youngest waiter.
    pub(super) ends: Option<(Instant, Instant)>,
}

/// Why a request got no slot. Not an error: the limit works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It would wait longer than it may.
    TooLong {
        /// How long a request that came now would wait.
        retry_after: Duration,
    },
    /// The store is lost and the configuration says to refuse meanwhile.
    StoreClosed,
}

impl Lane {
    /// Opens a lane; its pump ends when the last handle is gone.
    pub(super) fn open(
        name: String,
        store: Store,
        group: Arc<Group>,
        metrics: LaneMetrics,
        announce: mpsc::UnboundedSender<Pause>,
    ) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let view = View::unknown(group.cost, Instant::now());
        let state = Arc::new(LaneState {
            metrics,
            waiting: AtomicUsize::new(0),
            seen: Mutex::new(Seen { view, held: 0, ends: None }),
        });
        tokio::spawn(Pump::new(store.clone(), Arc::clone(&group), Arc::clone(&state), inbox).run());
        Self { inner: Arc::new(Inner { name, store, group, state, messages, announce }) }
    }

    /// Waits for a slot, at most `max_wait` from now. The caller sends its request as soon as this returns.
    ///
    /// Slots go to the request that `arrived` first. A wait that is known to be too long is refused at once. Dropping the
    /// future leaves the line at once and costs nothing.
    ///
    /// # Errors
    /// When the wait would be, or was, longer than `max_wait`, or the store is closed.
    pub async fn slot(&self, arrived: Instant, max_wait: Duration) -> Result<(), Refused> {
        let begun = Instant::now();
        let deadline = begun + max_wait;
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
            drop(place);
            match told {
                // This task may have been held up since: a stale slot is void.
                Ok(Ok(Verdict::Slot { use_before })) if Instant::now() > use_before => {}
                Ok(Ok(Verdict::Slot { .. })) => return Ok(()),
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
        drop(self.inner.announce.send(Pause { key, until }));
        self.inner.store.pause(&self.inner.group, pause).await;
    }

    /// Whether few enough wait that a connection may be made ready before the slot is taken.
    pub fn is_short(&self) -> bool {
        self.inner.state.waiting.load(Ordering::Relaxed) < SHORT
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
        Some(self.inner.state.quote_from(&seen, now))
    }
}

impl LaneState {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request that came now would wait at least.
    pub(super) fn quote(&self, now: Instant) -> Duration {
        self.quote_from(&self.seen(), now)
    }

    fn quote_from(&self, seen: &Seen, now: Instant) -> Duration {
        let uncovered = self.waiting.load(Ordering::Relaxed).saturating_sub(seen.held);
        seen.view.wait(uncovered + seen.view.others(now), now)
    }
}

/// A request's place in the count of those that wait, left however the wait ends.
struct Place<'a>(&'a LaneState);

impl<'a> Place<'a> {
    fn take(state: &'a LaneState) -> Self {
        state.waiting.fetch_add(1, Ordering::Relaxed);
        state.metrics.queue_depth.increment(1.0);
        Self(state)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.queue_depth.decrement(1.0);
    }
}

const SHORT: usize = 32;
const ONE_CLAIM: Duration = Duration::from_millis(300);

//! What the handles of a lane and its pump share: who waits, what they are told, and what was last seen of the buckets.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::time::Duration;

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{metrics::LaneMetrics, quote::View};

/// What the handles of a lane tell its pump.
#[derive(Debug)]
pub(super) enum Message {
    /// A request waits.
    Join(Waiter),
    /// Nothing may be sent before this instant.
    Paused(Instant),
    /// A request under way has ended.
    Ended,
    /// A request of another lane has ended, and it may be this one's turn.
    Woken,
}

/// A request that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Its age decides its turn.
    pub(super) arrived: Instant,
    /// It is refused as soon as its turn is known to come later.
    pub(super) deadline: Instant,
    /// Where it is told. Closed once the request has left.
    pub(super) verdict: oneshot::Sender<Verdict>,
}

/// What a waiter is told.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Send now.
    Slot(Permit),
    /// There will be no slot in time.
    Refused(Refused),
}

/// Permission to send one request, now. Held until the request's answer has ended: limits on requests under way count
/// until then.
#[derive(Debug)]
#[must_use = "what it permits counts as over when it is dropped"]
pub struct Permit {
    use_before: Instant,
    _under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    state: Arc<LaneState>,
    pump: mpsc::UnboundedSender<Message>,
}

impl Permit {
    /// Permits one request until `use_before`. Where a limit cares, it counts as under way until this is dropped, and `pump`
    /// is told of the end.
    pub(super) fn new(
        use_before: Instant,
        state: &Arc<LaneState>,
        pump: Option<mpsc::UnboundedSender<Message>>,
    ) -> Self {
        let under_way = pump.map(|pump| {
            state.under_way.fetch_add(1, Ordering::Relaxed);
            UnderWay { state: Arc::clone(state), pump }
        });
        Self { use_before, _under_way: under_way }
    }

    /// Whether it is still the instant for which it was granted. Later it is void: sent together with those that follow, the
    /// request would break the limit.
    pub fn is_fresh(&self) -> bool {
        Instant::now() <= self.use_before
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.state.under_way.fetch_sub(1, Ordering::Relaxed);
        // The pump lives as long as this does.
        drop(self.pump.send(Message::Ended));
    }
}

/// Why a request got no slot. Not an error: the limit works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It would wait longer than it may.
    TooLong {
        /// How long a request that came now would wait.
        retry_after: Duration,
    },
    /// As many wait as may.
    QueueFull {
        /// How long a request that came now would wait.
        retry_after: Duration,
    },
    /// The store is lost and the configuration says to refuse meanwhile.
    StoreClosed,
}

/// What the handles of a lane and its pump share.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) metrics: LaneMetrics,
    waiting: AtomicUsize,
    under_way: AtomicUsize,
    gone: AtomicBool,
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

impl LaneState {
    /// A lane that nobody waits in, and of whose buckets nothing is known.
    pub(super) fn new(metrics: LaneMetrics, cost: f64) -> Self {
        let view = View::unknown(cost, Instant::now());
        Self {
            metrics,
            waiting: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            seen: Mutex::new(Seen { view, held: 0, ends: None }),
        }
    }

    /// Requests that were sent and have not ended, where a limit counts them.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether somebody left the line untold since this was last asked.
    pub(super) fn somebody_left(&self) -> bool {
        self.gone.swap(false, Ordering::Relaxed)
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request that came now would wait at least.
    pub(super) fn quote(&self, now: Instant) -> Duration {
        self.quote_from(&self.seen(), now, now)
    }

    /// What a request that `arrived` would wait at least, at the end of its instance's line.
    pub(super) fn quote_from(&self, seen: &Seen, arrived: Instant, now: Instant) -> Duration {
        let uncovered = self.waiting.load(Ordering::Relaxed).saturating_sub(seen.held);
        seen.view.wait(uncovered + seen.view.ahead_of(arrived, now), now)
    }
}

/// A request's place in the count of those that wait, left however the wait ends.
pub(super) struct Place<'a> {
    state: &'a LaneState,
    told: bool,
}

impl<'a> Place<'a> {
    pub(super) fn take(state: &'a LaneState) -> Self {
        state.waiting.fetch_add(1, Ordering::Relaxed);
        state.metrics.queue_depth.increment(1.0);
        Self { state, told: false }
    }

    pub(super) fn leave(mut self, told: bool) {
        self.told = told;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.state.waiting.fetch_sub(1, Ordering::Relaxed);
        self.state.metrics.queue_depth.decrement(1.0);
        if !self.told {
            self.state.gone.store(true, Ordering::Relaxed);
        }
    }
}

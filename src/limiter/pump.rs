//! The task of a lane: claims slots for all its waiters at once and binds each, at its instant, to the oldest of them.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use rand::RngExt;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    bucket::{LimitSpec, Queue},
    claim::{Claim, Grant, Group, HORIZON, StoreError, micros},
    leases::LEASE,
    store::Store,
    waiter::{LaneState, Message, Permit, Refused, Verdict, Waiter},
};

/// The task of a lane.
pub(super) struct Pump {
    lane: Arc<str>,
    store: Store,
    group: Arc<Group>,
    state: Arc<LaneState>,
    /// For the permits of limits on requests under way.
    outbox: mpsc::WeakUnboundedSender<Message>,
    inbox: mpsc::UnboundedReceiver<Message>,
    /// Oldest first.
    queue: VecDeque<Waiter>,
    /// Slots in hand, earliest first, bound to nobody yet.
    held: VecDeque<Instant>,
    /// One claim at a time: whoever arrives meanwhile joins the next.
    claiming: Option<Pin<Box<dyn Future<Output = Claimed> + Send>>>,
    /// When to claim next, if somebody is without a slot.
    claim_at: Instant,
    /// After a failed claim: not before this.
    not_before: Instant,
    failures: u32,
    rtt: f64,
    /// How the fleet's store last said that the limits stand, by the instant of that question.
    known: Option<(Instant, Vec<f64>)>,
    grace: Duration,
    /// When the store must next hear of the requests under way; `None` while there are none that it knows of.
    report_at: Option<Instant>,
    /// Until when the store holds a lease for what is under way.
    leased_until: Option<Instant>,
    /// No waiter's deadline is earlier; `None` when nobody waits.
    first_deadline: Option<Instant>,
}

struct Claimed {
    asked: Instant,
    held: usize,
    outcome: Result<Grant, StoreError>,
}

impl Pump {
    pub(super) fn new(
        lane: Arc<str>,
        store: Store,
        group: Arc<Group>,
        state: Arc<LaneState>,
        outbox: mpsc::WeakUnboundedSender<Message>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        let now = Instant::now();
        let grace = grace(&group);
        Self {
            lane,
            store,
            group,
            state,
            outbox,
            inbox,
            queue: VecDeque::new(),
            held: VecDeque::new(),
            claiming: None,
            claim_at: now,
            not_before: now,
            failures: 0,
            rtt: FIRST_RTT,
            known: None,
            grace,
            report_at: None,
            leased_until: None,
            first_deadline: None,
        }
    }

    /// Runs until the last handle of the lane is gone.
    pub(super) async fn run(mut self) {
        loop {
            let now = Instant::now();
            self.bind(now);
            self.claim(now);
            self.show();
            let wake = self.wake(now);
            tokio::select! {
                message = self.inbox.recv() => {
                    let Some(message) = message else { return self.close().await };
                    self.receive(message);
                    while let Ok(message) = self.inbox.try_recv() {
                        self.receive(message);
                    }
                }
                claimed = answer(&mut self.claiming) => self.absorb(claimed),
                () = at(wake) => {}
            }
        }
    }

    /// Gives back the places that the store believes taken: nothing is under way any more, and nobody else would say so.
    async fn close(mut self) {
        if let Some(claim) = self.claiming.take() {
            let claimed = claim.await;
            self.absorb(claimed);
        }
        if self.report_at.is_some() {
            self.queue.clear();
            self.held.clear();
            let now = Instant::now();
            (self.report_at, self.not_before) = (Some(now), now);
            self.claim(now);
            // Lost, they are free when the lease is over.
            answer(&mut self.claiming).await;
        }
    }

    fn receive(&mut self, message: Message) {
        let now = Instant::now();
        match message {
            Message::Join(waiter) => {
                let soon = if self.queue.len() <= self.held.len() { now } else { now + micros(HORIZON / 2.0) };
                self.claim_at = self.claim_at.min(soon).max(now);
                self.first_deadline =
                    Some(self.first_deadline.map_or(waiter.deadline, |first| first.min(waiter.deadline)));
                // Nearly always the youngest; a retried request is older and goes before.
                let place =
                    self.queue.iter().rposition(|other| other.arrived <= waiter.arrived).map_or(0, |last| last + 1);
                self.queue.insert(place, waiter);
            }
            Message::Paused(until) => {
                self.state.seen().view.paused(until);
                let grace = self.grace;
                self.held.retain_mut(|slot| {
                    *slot = after_pause(*slot, until, grace);
                    *slot >= until
                });
                self.refuse_hopeless(now);
            }
            Message::Ended => {
                // Others may wait for it; where nobody does, one report for several will do.
                let patience = if self.state.seen().view.others(now) > 0 { Duration::ZERO } else { REPORT_WITHIN };
                let soon = now + if self.queue.is_empty() { patience } else { Duration::ZERO };
                self.report_at = Some(self.report_at.map_or(soon, |at| at.min(soon)));
                self.claim_at = now;
            }
            Message::Woken => self.claim_at = now,
        }
    }

    /// Binds every slot whose instant has come to the oldest waiter that is still there. Without one it is spent.
    fn bind(&mut self, now: Instant) {
        while self.held.front().is_some_and(|slot| *slot <= now) {
            let Some(slot) = self.held.pop_front() else { return };
            let use_before = slot + self.grace;
            if now > use_before {
                // This process was held up. Sent now, together with those that follow, it would break the limit.
                self.claim_at = now;
                continue;
            }
            while let Some(waiter) = self.queue.pop_front() {
                // What nobody takes ends with the verdict that held it.
                let pump = self.outbox.upgrade().filter(|_| self.group.counts_requests());
                let permit = Permit::new(use_before, &self.state, pump);
                if waiter.verdict.send(Verdict::Slot(permit)).is_ok() {
                    break;
                }
            }
        }
    }

    /// Claims for all who have no slot in hand, when it is time to; reports what is under way.
    fn claim(&mut self, now: Instant) {
        let is_wanted = self.queue.len() > self.held.len() && now >= self.claim_time(now);
        let is_due = self.report_at.is_some_and(|at| now >= at.max(self.not_before));
        if self.claiming.is_some() || !(is_wanted || is_due) {
            return;
        }
        if self.state.somebody_left() {
            self.queue.retain(|waiter| !waiter.verdict.is_closed());
        }
        let ages = self.ages(now);
        if ages.count() == 0 && !is_due {
            return;
        }
        self.report_at = None;
        let (witness, witness_age) = self.witness(now);
        let claim = Claim {
            lane: Arc::clone(&self.lane),
            group: Arc::clone(&self.group),
            ages,
            held: self.held.len() + self.state.under_way(),
            is_registered: self.leased_until.is_some_and(|until| now < until),
            rtt: self.rtt,
            witness,
            witness_age: witness_age.as_secs_f64() * 1e6,
            outage: None,
        };
        let store = self.store.clone();
        self.claiming = Some(Box::pin(async move {
            let (asked, held) = (Instant::now(), claim.held);
            let outcome = store.claim(claim).await;
            Claimed { asked, held, outcome }
        }));
    }

    /// What is known to be left to pay, or used, and how long ago that was so.
    fn witness(&self, now: Instant) -> (Vec<f64>, Duration) {
        let Some((asked, levels)) = &self.known else {
            return (vec![0.0; self.group.limits().count()], Duration::ZERO);
        };
        let age = now - *asked;
        // Measured from question to question, so that the way of the answers adds nothing.
        let elapsed = age.as_secs_f64() * 1e6 + 2.0 * self.rtt;
        let witness = levels.iter().zip(self.group.limits()).map(|(level, limit)| match limit {
            LimitSpec::Bucket { .. } => (level - elapsed).max(0.0),
            LimitSpec::Window { .. } => *level,
            LimitSpec::Concurrent { .. } => 0.0,
        });
        (witness.collect(), age)
    }

    /// Takes what a claim brought. A slot's instant counts from the receipt of the answer: later than the store meant by
    /// at most a trip, earlier never.
    fn absorb(&mut self, claimed: Claimed) {
        let now = Instant::now();
        self.claiming = None;
        let grant = match claimed.outcome {
            Ok(grant) => grant,
            Err(StoreError::Lost) => {
                // What it may have granted is spent.
                self.failures += 1;
                self.report_at = self.leased_until.map(|_| now);
                self.not_before = now + (RETRY * 2_u32.saturating_pow(self.failures.min(8))).min(RETRY_AT_MOST);
                return;
            }
            Err(StoreError::Closed) => {
                for waiter in self.queue.drain(..) {
                    let _left = waiter.verdict.send(Verdict::Refused(Refused::StoreClosed));
                }
                return;
            }
        };
        self.failures = 0;
        if grant.shared {
            let trip = (now - claimed.asked).as_secs_f64() * 1e6;
            self.rtt = RTT_WEIGHT * trip + (1.0 - RTT_WEIGHT) * self.rtt;
            self.known = Some((claimed.asked, grant.levels.iter().map(|(level, _)| level.level).collect()));
        }
        // Also on its own: the other lanes of this process count what this one says.
        let is_held = self.group.counts_requests() && claimed.held + grant.slots.len() > 0;
        if is_held {
            let renew = now + micros(LEASE / 3.0);
            self.report_at = Some(self.report_at.map_or(renew, |at| at.min(renew)));
        }
        if grant.shared {
            self.leased_until = is_held.then(|| claimed.asked + micros(LEASE));
        }
        let mut seen = self.state.seen();
        seen.view.saw(grant.levels, (grant.others, grant.older), now);
        if grant.pause > Duration::ZERO {
            seen.view.paused(now + grant.pause);
        }
        // A pause that was announced while the claim was on its way voids what lies before its end.
        let paused_until = seen.view.paused_until(now);
        drop(seen);
        self.claim_at = now + grant.next;
        if grant.next > Duration::ZERO && !grant.slots.is_empty() {
            self.claim_at += YIELD.mul_f64(rand::rng().random_range(0.5..1.0));
        }
        for slot in grant.slots.iter().map(|wait| now + *wait) {
            match paused_until {
                None => self.held.push_back(slot),
                Some(until) => {
                    let slot = after_pause(slot, until, self.grace);
                    if slot >= until {
                        self.held.push_back(slot);
                    } else {
                        // The store has forgotten the pause, or never heard of it: more of the same would be spent as well.
                        self.claim_at = self.claim_at.max(until);
                    }
                }
            }
        }
        self.held.make_contiguous().sort_unstable();
        self.refuse_hopeless(now);
    }

    /// Refuses every waiter whose turn is known to come after its deadline.
    fn refuse_hopeless(&mut self, now: Instant) {
        let mut seen = self.state.seen();
        seen.held = self.held.len();
        let view = seen.view.clone();
        drop(seen);
        let held = self.held.len();
        let Some(last) = self.queue.len().checked_sub(held + 1) else { return };
        if self.first_deadline.is_none_or(|first| now + view.wait(last, now) <= first) {
            return;
        }
        let retry_after = self.state.quote(now);
        let mut place = 0;
        self.first_deadline = None;
        self.queue.retain_mut(|waiter| {
            let hopeless = place >= held && now + view.wait(place - held, now) > waiter.deadline;
            if hopeless {
                let verdict = std::mem::replace(&mut waiter.verdict, oneshot::channel().0);
                let _left = verdict.send(Verdict::Refused(Refused::TooLong { retry_after }));
            } else {
                place += 1;
                self.first_deadline =
                    Some(self.first_deadline.map_or(waiter.deadline, |first| first.min(waiter.deadline)));
            }
            !hopeless
        });
    }

    /// The ages of those without a slot in hand, in brief.
    fn ages(&self, now: Instant) -> Queue {
        let held = self.held.len();
        let count = self.queue.len().saturating_sub(held);
        Queue::describe(count, |place| age(self.queue[held + place].arrived, now))
    }

    fn claim_time(&self, now: Instant) -> Instant {
        let mut time = self.claim_at.max(self.not_before);
        if let Some(until) = self.state.seen().view.paused_until(now) {
            // During a pause the answer is known.
            time = time.max(until - micros(self.group.lead()).min(until - now));
        }
        time
    }

    fn wake(&self, now: Instant) -> Option<Instant> {
        let is_free = self.claiming.is_none();
        let claim = (is_free && self.queue.len() > self.held.len()).then(|| self.claim_time(now));
        let report = self.report_at.filter(|_| is_free).map(|at| at.max(self.not_before));
        self.held.front().copied().into_iter().chain(claim).chain(report).min()
    }

    /// Makes known what quotes and gauges need.
    fn show(&self) {
        let mut seen = self.state.seen();
        seen.held = self.held.len();
        seen.ends =
            self.queue.front().zip(self.queue.back()).map(|(oldest, youngest)| (oldest.arrived, youngest.arrived));
    }
}

async fn answer(claiming: &mut Option<Pin<Box<dyn Future<Output = Claimed> + Send>>>) -> Claimed {
    match claiming {
        Some(claim) => claim.await,
        None => std::future::pending().await,
    }
}

async fn at(wake: Option<Instant>) {
    match wake {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// A slot for the end of a pause, at that end. The way of a notice and that of a claim differ by a little, so that a pause
/// ends here a little later than in the store, whose first slot would be lost.
fn after_pause(slot: Instant, until: Instant, grace: Duration) -> Instant {
    if slot + grace >= until { slot.max(until) } else { slot }
}

/// Microseconds since `arrived`; negative for batch requests, whose turn counts from later.
fn age(arrived: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(arrived).as_secs_f64() * 1e6
        - arrived.saturating_duration_since(now).as_secs_f64() * 1e6
}

/// How late a slot may be used. A quarter of the fastest limit's interval lets it exceed that limit by at most a quarter of
/// a unit; below 10 ms no machine would keep it.
fn grace(group: &Group) -> Duration {
    let fastest = group.limits().fold(f64::INFINITY, |fastest, limit| match limit {
        LimitSpec::Bucket { interval, .. } => fastest.min(*interval),
        // What is kept from its edges allows for as much.
        LimitSpec::Window { margin, .. } => fastest.min(4.0 * margin),
        LimitSpec::Concurrent { .. } => fastest,
    });
    micros(fastest / 4.0).clamp(GRACE_AT_LEAST, GRACE_AT_MOST)
}

/// The end of a request is told to the store within this, where nobody is known to wait for it.
const REPORT_WITHIN: Duration = Duration::from_millis(50);
/// Lines that share a bucket go by the order of their calls. Whoever was just served lets the others ask first: always a
/// moment earlier, it would take every slot. A lead is longer than this.
const YIELD: Duration = Duration::from_millis(25);
const GRACE_AT_LEAST: Duration = Duration::from_millis(10);
const GRACE_AT_MOST: Duration = Duration::from_millis(50);
/// Microseconds one claim is believed to take before it was measured.
const FIRST_RTT: f64 = 1_000.0;
const RTT_WEIGHT: f64 = 0.2;
/// After a claim whose outcome is unknown.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_AT_MOST: Duration = Duration::from_millis(250);

//! One attempt of an exchange: a slot and a connection, taken in the order in which neither grows stale, and the sending.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep_until};

use super::{
    super::{
        metrics::RetryReason,
        refusal::{Bound, Refusal},
    },
    Exchange, FOREVER, Failure,
};
use crate::{
    limiter::{Lane, Permit, Refused, Turn},
    upstream::{self, ConnectError, Connection, Download},
};

impl Exchange<'_> {
    /// Waits for a slot and sends; sends again where a connection is lost and nothing can have been acted on.
    pub(super) async fn attempt(&mut self, hold: Duration) -> Result<Response<Download>, Failure> {
        let (hold, bound) = match self.patience() {
            Some(patience) if patience < hold => (patience, Bound::Client),
            _ => (hold, Bound::Policy),
        };
        let deadline = Deadline { at: Instant::now() + hold.min(FOREVER), bound };
        let mut losses = 0;
        loop {
            let connection = self.ready_to_send(deadline, losses > 0).await?;
            let is_reused = connection.is_reused();
            let continues_handshake = self.is_bound && connection.is_in_handshake();
            let Some(request) = self.request() else { return Err(Failure::Sent(Refusal::body_broken())) };
            self.record.attempts += 1;
            let sent = Instant::now();
            let error = match connection.send(request).await {
                Ok(response) => {
                    self.record.metrics.response(response.status(), sent.elapsed());
                    return Ok(response);
                }
                Err(error) => error,
            };
            if self.body.is_broken() {
                return Err(Failure::Sent(Refusal::body_broken()));
            }
            if continues_handshake {
                // Half of it on another connection means nothing; the client begins anew on a new one of its own.
                return Err(Failure::Sent(Refusal::send(&error).closing()));
            }
            let is_safe = if error.written {
                error.kind.is_loss() && is_reused && losses == 0 && self.is_repeatable()
            } else {
                losses < MOST_LOSSES
            };
            if !is_safe || self.body.is_lost() {
                let refusal = Refusal::send(&error);
                return Err(if error.written { Failure::Sent(refusal) } else { Failure::Unsent(refusal) });
            }
            // What was written may have been counted: it costs another slot, as does one that has gone stale.
            self.record.slot.take_if(|slot| error.written || !slot.is_fresh());
            losses += 1;
            self.record.metrics.retry(RetryReason::ConnectionLost);
        }
    }

    /// Takes a slot and a connection. In a short line the connection comes first, so that no slot ages during a handshake.
    async fn ready_to_send(&mut self, deadline: Deadline, is_again: bool) -> Result<Connection, Failure> {
        let Some(lane) = self.lane.clone() else { return self.connect(is_again).await };
        let is_short = lane.is_short();
        // A connection would only grow old during a long pause: it is made ready shortly before the end.
        let later = self.resumes.and_then(|resumes| resumes.checked_sub(AHEAD)).filter(|later| *later > Instant::now());
        let mut ready = None;
        if is_short && later.is_none() {
            ready = Some(self.connect(is_again).await?);
        }
        self.record.slot.take_if(|slot| !slot.is_fresh());
        let mut is_last = false;
        loop {
            if self.record.slot.is_none() {
                self.record.hold();
                let slot_of_lane = self.slot(&lane, deadline);
                let waited = match later.filter(|_| is_short && ready.is_none()) {
                    Some(later) => tokio::try_join!(slot_of_lane, async {
                        sleep_until(later).await;
                        self.connect(is_again).await
                    })
                    .map(|(permit, connection)| {
                        ready = Some(connection);
                        permit
                    }),
                    None => slot_of_lane.await,
                };
                self.record.release();
                self.record.slot = Some(waited?);
            }
            let connection = match ready.take().filter(Connection::is_open) {
                Some(connection) => connection,
                None => self.connect(is_again).await?,
            };
            // The handshake took longer than the slot is good for: another one, with the connection at hand. Once, since
            // before a slot at a low rate comes the origin may have closed that too.
            if is_last || self.record.slot.as_ref().is_some_and(Permit::is_fresh) {
                return Ok(connection);
            }
            self.record.slot = None;
            ready = Some(connection);
            is_last = true;
        }
    }

    /// A connection to the origin; after a loss a fresh one, as the other idle ones are suspect as well.
    async fn connect(&self, is_again: bool) -> Result<Connection, Failure> {
        let (upstream, tether) = (&self.rules.upstream, self.client.tether());
        let mut connected = match is_again {
            true => upstream.connect(&self.origin, tether, self.offer).await,
            false => upstream.checkout(&self.origin, tether, self.offer).await,
        };
        if !self.is_bound && matches!(connected, Err(ConnectError::LostHandshake { .. })) {
            connected = upstream.connect(&self.origin, tether, self.offer).await;
        }
        connected.map_err(|error| Failure::Unsent(Refusal::connect(&error)))
    }

    /// Waits for a slot, and meanwhile reads the body, so that the client can be seen to leave behind it.
    async fn slot(&self, lane: &Lane, deadline: Deadline) -> Result<Permit, Failure> {
        let max_wait = deadline.at.saturating_duration_since(Instant::now());
        let slot = lane.slot(Turn { arrived: self.record.arrived, class: self.class, max_wait });
        let granted = tokio::select! {
            biased;
            granted = slot => granted,
            () = self.body.fill(), if !self.expects_continue => return Err(Failure::Sent(Refusal::body_broken())),
            () = self.client.departure().happened() => return Err(Failure::Sent(Refusal::client_gone())),
        };
        granted.map_err(|refused| {
            Failure::Unsent(match refused {
                Refused::TooLong { retry_after } => Refusal::wait_too_long(retry_after, deadline.bound),
                Refused::QueueFull { retry_after } => Refusal::queue_full(retry_after),
                Refused::StoreClosed => Refusal::store_closed(),
            })
        })
    }

    /// The request for the wire; `None` if the beginning of its body is gone.
    fn request(&self) -> Option<Request<upstream::Body>> {
        let body = self.body.send()?.map_err(Into::into).boxed_unsync();
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.headers_mut() = self.head.headers.clone();
        *request.extensions_mut() = self.head.extensions.clone();
        Some(request)
    }

    /// Whether sending it twice is the same as once (RFC 9110 section 9.2.2). Bodiless only, as what was sent is unknown.
    fn is_repeatable(&self) -> bool {
        self.head.method.is_idempotent() && self.body.is_empty() && self.upgrade.is_none()
    }
}

/// Until when a request may wait for a slot.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    /// Who says so.
    bound: Bound,
}

/// Connections that may be lost, one after the other, before anything was written.
const MOST_LOSSES: u32 = 2;

/// How long before the end of a pause the connection is made ready.
const AHEAD: Duration = Duration::from_millis(500);

//! One connection to an origin: one request at a time, back to the pool by itself.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout_at},
};

use super::{
    Body, Origin, SendError, SendErrorKind, is_clearly_framed,
    pool::{Parked, Pool, Sender, reusable_until},
    upload::{Progress, Upload},
};

/// A connection on which one request can be sent. Dropped unused, it goes back to the pool.
pub struct Connection {
    /// `None` once the request is on its way.
    parked: Option<Parked>,
    reused: bool,
    context: Arc<Context>,
    origin: Origin,
}

/// What every connection of an upstream needs.
pub(super) struct Context {
    pub(super) pool: Arc<Pool>,
    /// `upstream.idle`.
    pub(super) idle: Duration,
    /// `upstream.response_timeout`.
    pub(super) response_timeout: Duration,
}

impl Connection {
    /// Whether a request may still be sent: the origin has not closed it, nor is it about to.
    pub fn is_open(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| !parked.sender.is_closed() && Instant::now() < parked.until)
    }

    /// Whether requests were sent on it before, so that the origin may be closing it just now.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The origin it leads to.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sends one HTTP/1.1 request, whose URI must be in origin-form, and returns the head of the answer as soon as it
    /// comes, even while the request's body is still on its way. The spelling of header names is kept where the
    /// request's extensions carry it.
    ///
    /// The connection goes back to the pool once both bodies have ended; dropping the answer's body before its end
    /// closes it, as does dropping this future. An answer 101 leaves the connection to `hyper::upgrade::on`.
    ///
    /// `upstream.response_timeout` runs from the last movement of the request to the head of the answer, so that a long
    /// upload is bounded only once it stands still.
    ///
    /// # Errors
    /// See [`SendError`]: which side failed, and whether anything was written.
    pub async fn send(mut self, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let mut sender = self.parked.take().expect("a connection is used up by sending").sender;
        let (head, body) = request.into_parts();
        let (upload, progress) = Upload::new(body);
        let response = {
            let answer = sender.try_send_request(Request::from_parts(head, upload));
            before_silence(answer, &progress, self.context.response_timeout).await?.map_err(SendError::from)?
        };
        if !is_clearly_framed(response.version(), response.headers()) {
            return Err(SendError { kind: SendErrorKind::Malformed, written: true, request: None, source: None });
        }
        self.reclaim(sender, &response);
        Ok(response)
    }

    /// Starts HTTP on a fresh stream.
    pub(super) async fn start<S>(stream: S, origin: Origin, context: Arc<Context>) -> Result<Self, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Names from the client keep their spelling; those that the proxy adds look like anybody's.
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .title_case_headers(true)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection ended");
            }
        });
        let parked = Parked { sender, until: Instant::now() + context.idle };
        Ok(Self { parked: Some(parked), reused: false, context, origin })
    }

    pub(super) fn reuse(parked: Parked, origin: Origin, context: Arc<Context>) -> Self {
        Self { parked: Some(parked), reused: true, context, origin }
    }

    /// Parks the connection when hyper is ready for another request: both bodies have ended, and neither side asked to
    /// close.
    fn reclaim(&self, mut sender: Sender, response: &Response<Incoming>) {
        let headers = response.headers();
        if response.body().is_end_stream() && sender.is_ready() {
            let until = reusable_until(Instant::now(), self.context.idle, headers);
            self.context.pool.park(self.origin.clone(), Parked { sender, until });
            return;
        }
        let (pool, origin) = (self.context.pool.clone(), self.origin.clone());
        // Counted from the end of the exchange, when the origin starts its own clock.
        let idle = reusable_until(Instant::now(), self.context.idle, headers) - Instant::now();
        tokio::spawn(async move {
            // An error means closed or upgraded. Until then the handle must live: hyper takes its loss for the end of
            // the connection.
            if sender.ready().await.is_ok() {
                pool.park(origin, Parked { sender, until: Instant::now() + idle });
            }
        });
    }
}

/// A request that left the queue, or was refused, leaves its connection to the next one, no younger than it was.
impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(parked) = self.parked.take() {
            self.context.pool.park(self.origin.clone(), parked);
        }
    }
}

/// Waits for `answer` until the upload has not moved for `limit`.
async fn before_silence<T>(
    answer: impl Future<Output = T>,
    progress: &Progress,
    limit: Duration,
) -> Result<T, SendError> {
    let mut answer = pin!(answer);
    loop {
        let deadline = progress.last_moved() + limit;
        if let Ok(answer) = timeout_at(deadline, &mut answer).await {
            return Ok(answer);
        }
        if progress.last_moved() + limit <= Instant::now() {
            let kind = if progress.awaits_sender() { SendErrorKind::Body } else { SendErrorKind::Timeout };
            return Err(SendError { kind, written: true, request: None, source: None });
        }
    }
}

impl From<TrySendError<Request<Upload>>> for SendError {
    fn from(mut error: TrySendError<Request<Upload>>) -> Self {
        // hyper hands back a message of which it wrote nothing, and only that.
        let request = error.take_message().map(|request| Box::new(request.map(Upload::into_body)));
        let source = error.into_error();
        Self { kind: kind_of(&source), written: request.is_none(), request, source: Some(source) }
    }
}

fn kind_of(error: &hyper::Error) -> SendErrorKind {
    if error.is_user() {
        SendErrorKind::Body
    } else if error.is_parse() {
        SendErrorKind::Malformed
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        SendErrorKind::ClosedEarly
    } else if error.is_body_write_aborted() || is_write_failure(error) {
        SendErrorKind::Write
    } else {
        SendErrorKind::Read
    }
}

/// hyper has no name for a failed write; the system has one.
fn is_write_failure(error: &hyper::Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// hyper's own bound of 100 is below what some gateways stack up.
const MAX_HEADERS: usize = 256;

//! One connection to an origin: one request at a time, kept for the next by itself.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{Request, Response, StatusCode};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    Body, Origin, Scheme, SendError, SendErrorKind,
    auth::{Bond, authenticates_connection},
    is_clearly_framed,
    parent::Parent,
    pool::{Parked, Pool, reusable_for},
    tether::{Rounds, Tether},
    upload::{Progress, Upload},
};
use crate::config::host::Host;

/// A connection on which one request can be sent. Dropped unused, it waits for the client's next one.
pub struct Exclusive {
    /// `None` once the request is on its way.
    line: Option<Line>,
    reused: bool,
    tether: Tether,
}

/// An HTTP/1.1 connection, and where it leads and belongs.
pub(super) struct Line {
    pub(super) parked: Parked,
    pub(super) origin: Origin,
    pub(super) context: Arc<Context>,
    pub(super) bond: Bond,
}

/// What every connection of an upstream needs.
pub(super) struct Context {
    pub(super) pool: Arc<Pool>,
    pub(super) rounds: Arc<Rounds>,
    /// `upstream.idle`.
    pub(super) idle: Duration,
    /// `upstream.response_timeout`.
    pub(super) response_timeout: Duration,
    /// `upstream.proxy`.
    pub(super) parent: Option<Parent>,
}

impl Context {
    /// The proxy that leads to `host:port`, if that is not reached directly.
    pub(super) fn parent(&self, host: &Host, port: u16) -> Option<&Parent> {
        self.parent.as_ref().filter(|parent| parent.leads_to(host, port))
    }
}

impl Exclusive {
    /// Whether a request may still be sent: the origin has not closed it, nor is it about to.
    pub fn is_open(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.parked.is_open(Instant::now()))
    }

    /// Whether requests were sent on it before, so that the origin may be closing it just now.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// The origin it leads to.
    pub fn origin(&self) -> &Origin {
        &self.line.as_ref().expect(UNUSED).origin
    }

    /// Whether the origin waits on it for the client's answer to a challenge, which means nothing on another.
    pub fn is_in_handshake(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.bond == Bond::Handshake)
    }

    /// Sends one HTTP/1.1 request, whose URI must be in origin-form, and returns the head of the answer as soon as it
    /// comes, even while the request's body is still on its way. The spelling of header names is kept where the
    /// request's extensions carry it.
    ///
    /// The connection is of use again once both bodies have ended, to the client that its [`Tether`] stands for, and then
    /// to others, unless the exchange authenticated the connection itself. Dropping the answer's body before its end
    /// closes it, as does dropping this future. An answer 101 leaves the connection to `hyper::upgrade::on`.
    ///
    /// `upstream.response_timeout` runs from the last movement of the request to the head of the answer, so that a long
    /// upload is bounded only once it stands still.
    ///
    /// # Errors
    /// See [`SendError`]: which side failed, and whether anything was written.
    pub async fn send(mut self, mut request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let mut line = self.line.take().expect(UNUSED);
        let authenticates = authenticates_connection(request.headers());
        // To https origins it has opened a tunnel.
        let is_forwarded = match line.context.parent(&line.origin.host, line.origin.port) {
            Some(parent) if line.origin.scheme == Scheme::Http => {
                parent.address(&mut request, &line.origin);
                true
            }
            _ => false,
        };
        let (head, body) = request.into_parts();
        let (upload, progress) = Upload::new(body);
        let response = {
            let answer = line.parked.sender.try_send_request(Request::from_parts(head, upload));
            before_silence(answer, &progress, line.context.response_timeout).await?.map_err(SendError::from)?
        };
        if is_forwarded && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            let kind = SendErrorKind::ParentLogin;
            return Err(SendError { kind, written: true, request: None, source: None });
        }
        if !is_clearly_framed(response.version(), response.headers()) {
            return Err(SendError { kind: SendErrorKind::Malformed, written: true, request: None, source: None });
        }
        line.bond = line.bond.after(authenticates, response.status(), response.headers());
        // A bound connection is the client's to close, and the origin's.
        let idle = if line.bond == Bond::Free { line.context.idle } else { Duration::MAX };
        line.parked.used = Instant::now();
        line.parked.lasts = reusable_for(idle, response.headers());
        // With its answer still on the way: hyper takes the loss of the handle for the end of the connection.
        self.tether.hold(line);
        Ok(response)
    }

    /// Starts HTTP on a fresh stream.
    pub(super) async fn start<S>(
        stream: S,
        origin: Origin,
        context: Arc<Context>,
        tether: Tether,
    ) -> Result<Self, hyper::Error>
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
        let parked = Parked { sender, used: Instant::now(), lasts: context.idle };
        Ok(Self { line: Some(Line::free(parked, origin, context)), reused: false, tether })
    }

    pub(super) fn reuse(line: Line, tether: Tether) -> Self {
        Self { line: Some(line), reused: true, tether }
    }
}

/// A request that left the queue, or was refused, leaves its connection to the next one, no younger than it was.
impl Drop for Exclusive {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            self.tether.hold(line);
        }
    }
}

impl Line {
    /// One that is nobody's in particular.
    pub(super) fn free(parked: Parked, origin: Origin, context: Arc<Context>) -> Self {
        Self { parked, origin, context, bond: Bond::Free }
    }

    /// Whether requests to `origin` may go on it, those of an upstream with that very context.
    pub(super) fn leads_to(&self, origin: &Origin, context: &Arc<Context>) -> bool {
        self.origin == *origin && Arc::ptr_eq(&self.context, context)
    }

    /// Leaves the connection to everybody, once both bodies of its exchange have ended and unless either side asked to
    /// close. One that is bound is closed.
    pub(super) fn release(self) {
        let Self { mut parked, origin, context, bond } = self;
        if bond != Bond::Free {
            return;
        }
        if parked.sender.is_closed() || parked.sender.is_ready() {
            context.pool.park(origin, parked);
            return;
        }
        // A connection may be dropped after its runtime, which has then closed it.
        let Ok(runtime) = Handle::try_current() else { return };
        let pool = context.pool.clone();
        runtime.spawn(async move {
            // An error means closed or upgraded. Until then the handle must live.
            if parked.sender.ready().await.is_ok() {
                // The origin's clock starts with the end of the exchange.
                parked.used = Instant::now();
                pool.park(origin, parked);
            }
        });
    }
}

/// Waits for `answer` until the upload has not moved for `limit`.
pub(super) async fn before_silence<T>(
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

pub(super) fn kind_of(error: &hyper::Error) -> SendErrorKind {
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

const UNUSED: &str = "a connection is used up by sending";

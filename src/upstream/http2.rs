//! An HTTP/2 connection to an origin, shared by the requests under way on it.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use h2::Reason;
use http::{HeaderMap, HeaderName, Request, Response, Uri, Version, header, request, uri};
use hyper::{
    client::conn::{TrySendError, http2},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
};

use super::{
    Body, Origin, SendError, SendErrorKind,
    connection::before_silence,
    download::Download,
    sites::Site,
    upload::Upload,
    usage::{InUse, Usage},
};

type Sender = http2::SendRequest<Upload>;

/// A connection, closed once it has been unused for `upstream.idle`.
pub(super) struct Session {
    /// `None`: it takes no more requests, and closes when those under way have ended.
    sender: Mutex<Option<Sender>>,
    usage: Usage,
    /// How many streams the origin allows at a time; 0 until it has said so.
    allowed: Box<dyn Fn() -> usize + Send + Sync>,
    is_used: AtomicBool,
}

impl Session {
    /// Starts HTTP/2 on a fresh stream, and waits for the origin's first word, which says how much it allows. The first
    /// request's place is kept by what is returned beside it.
    ///
    /// # Errors
    /// When the origin closes the connection instead, or does not speak HTTP/2 after all.
    pub(super) async fn start<S>(stream: S, idle: Duration) -> Result<(Arc<Self>, InUse), hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let tasks = Tasks::default();
        let (mut sender, connection) = builder(tasks.clone()).handshake(TokioIo::new(stream)).await?;
        let requests: Requests<S> = Arc::new(Mutex::new(Some(connection)));
        let allowed = {
            let requests = requests.clone();
            move || lock(&requests).as_ref().map_or(0, |requests| requests.current_max_send_streams())
        };
        let session = Arc::new(Self {
            sender: Mutex::new(Some(sender.clone())),
            usage: Usage::new(),
            allowed: Box::new(allowed),
            is_used: AtomicBool::new(false),
        });
        let first = session.usage.begin();
        let moves = Arc::new(Notify::new());
        tokio::spawn(drive(session.clone(), requests, tasks.frames(), moves.clone(), idle));
        loop {
            let mut moved = pin!(moves.notified());
            moved.as_mut().enable();
            sender.ready().await?;
            if (session.allowed)() > 0 {
                return Ok((session, first));
            }
            moved.await;
        }
    }

    /// Takes no more requests.
    fn retire(&self) {
        drop(lock(&self.sender).take());
    }

    fn retire_if_unused(&self) {
        let mut sender = lock(&self.sender);
        // Places are given under the same lock.
        if self.usage.number() == 0 {
            drop(sender.take());
        }
    }

    /// Whether it takes requests, if not at the moment.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.sender).as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// A place for one more request, where the origin has one.
    pub(super) fn place(self: &Arc<Self>, site: &Arc<Site>) -> Option<Place> {
        let sender = lock(&self.sender);
        let most = (self.allowed)().min(MAX_STREAMS as usize);
        let is_free = sender.as_ref().is_some_and(|sender| !sender.is_closed()) && self.usage.number() < most;
        is_free.then(|| Place::new(self.clone(), self.usage.begin(), site.clone()))
    }
}

/// Room for one request on a connection that others use as well. Dropped unused, it is given back.
pub(super) struct Place {
    session: Arc<Session>,
    stream: InUse,
    site: Arc<Site>,
    is_reused: bool,
}

impl Place {
    pub(super) fn new(session: Arc<Session>, stream: InUse, site: Arc<Site>) -> Self {
        let is_reused = session.is_used.swap(true, Ordering::Relaxed);
        Self { session, stream, site, is_reused }
    }

    /// Whether a request may still be sent. An idle connection is as good as another: an origin that closes one says which
    /// requests it has not taken up.
    pub(super) fn is_open(&self) -> bool {
        self.session.is_open()
    }

    pub(super) fn is_reused(&self) -> bool {
        self.is_reused
    }

    pub(super) fn origin(&self) -> &Origin {
        self.site.origin()
    }

    /// Sends one request, as [`super::Connection::send`] does. Dropping the future, or the answer's body before its end,
    /// resets the stream and leaves the connection as it is.
    pub(super) async fn send(
        self,
        request: Request<Body>,
        response_timeout: Duration,
    ) -> Result<Response<Download>, SendError> {
        let (head, body) = request.into_parts();
        let (upload, progress) = Upload::new(body);
        let request = Request::from_parts(in_http2(head, self.origin()), upload);
        let Some(mut sender) = lock(&self.session.sender).clone() else {
            let request = Some(Box::new(request.map(Upload::into_body)));
            return Err(SendError { kind: SendErrorKind::ClosedEarly, written: false, request, source: None });
        };
        let answer = sender.try_send_request(request);
        let answered = before_silence(answer, &progress, response_timeout).await;
        let error = match answered.and_then(|answered| answered.map_err(send_error)) {
            Ok(response) => {
                let is_sent = progress.is_whole();
                return Ok(response.map(|incoming| Download::streaming(incoming, self.stream, is_sent)));
            }
            Err(error) => error,
        };
        match error.kind {
            SendErrorKind::Refused if reason(&error) == Some(Reason::HTTP_1_1_REQUIRED) => self.site.require_http1(),
            SendErrorKind::Body | SendErrorKind::Reset => {}
            // What befell this request would befall the next.
            _ => self.session.retire(),
        }
        Err(error)
    }
}

/// hyper's end of a connection, which takes the requests; there until the connection takes none any more.
type Requests<S> = Arc<Mutex<Option<http2::Connection<TokioIo<S>, Upload, Tasks>>>>;

/// Moves a connection on, from its beginning to its end, and tells of each movement.
async fn drive<S>(
    session: Arc<Session>,
    requests: Requests<S>,
    mut frames: Option<Frames>,
    moves: Arc<Notify>,
    idle: Duration,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut ended = pin!(poll_fn(|cx| {
        frames.take_if(|frames| frames.as_mut().poll(cx).is_ready());
        let polled = lock(&requests).as_mut().map(|requests| Pin::new(requests).poll(cx));
        moves.notify_waiters();
        polled.unwrap_or(Poll::Ready(Ok(())))
    }));
    let ended = loop {
        let is_kept = lock(&session.sender).is_some();
        tokio::select! {
            ended = ended.as_mut() => break ended,
            () = session.usage.none_for(idle), if is_kept => session.retire_if_unused(),
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "upstream connection ended");
    }
    session.retire();
    // It is its loss that closes the socket, once the last stream has ended.
    drop(lock(&requests).take());
    moves.notify_waiters();
    if let Some(frames) = frames {
        frames.await;
    }
}

/// Runs what hyper makes of a connection: first what reads and writes its frames, then what each stream needs.
///
/// The first is left to the task that hands it the requests. In another task it could hear of a GOAWAY while a request is
/// being handed over, and hyper would say of that one, too, that the origin has not taken it up.
#[derive(Clone, Default)]
struct Tasks(Arc<Mutex<First>>);

#[derive(Default)]
enum First {
    #[default]
    Awaited,
    Here(Frames),
    Taken,
}

type Frames = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Tasks {
    fn frames(&self) -> Option<Frames> {
        match mem::replace(&mut *lock(&self.0), First::Taken) {
            First::Here(frames) => Some(frames),
            First::Awaited | First::Taken => None,
        }
    }
}

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut first = lock(&self.0);
        if matches!(*first, First::Awaited) {
            *first = First::Here(Box::pin(task));
        } else {
            tokio::spawn(task);
        }
    }
}

fn builder(tasks: Tasks) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(tasks);
    builder
        .timer(TokioTimer::new())
        // Until the origin has said how many it allows: requests before that would be refused where it is fewer.
        .initial_max_send_streams(0)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST);
    builder
}

/// The head as HTTP/2 has it: with `:authority` in place of `Host`, and no fields of a connection (RFC 9113 sections 8.2.2
/// and 8.3.1).
fn in_http2(mut head: request::Parts, origin: &Origin) -> request::Parts {
    let said = head.headers.get(header::HOST).and_then(|host| uri::Authority::try_from(host.as_bytes()).ok());
    let mut target = Uri::try_from(origin.to_string()).expect("an origin is a URI without a path").into_parts();
    target.authority = said.or(target.authority);
    target.path_and_query = head.uri.into_parts().path_and_query;
    head.uri = Uri::from_parts(target).expect("scheme, authority and path are a URI");
    head.version = Version::HTTP_2;
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    let mut last = None;
    for (name, value) in head.headers {
        // Only the first of several values comes with its name.
        last = name.or(last);
        if let Some(name) = last.as_ref().filter(|name| !OF_HTTP1.contains(name)) {
            headers.append(name, value);
        }
    }
    head.headers = headers;
    head
}

fn send_error(mut error: TrySendError<Request<Upload>>) -> SendError {
    let request = error.take_message().map(|request| Box::new(request.map(Upload::into_body)));
    let source = error.into_error();
    let (kind, is_untouched) = match cause(&source) {
        // Only streams that the origin says it has not taken up end with its GOAWAY (RFC 9113 section 6.8); the others go
        // on, or end with the connection.
        Some(cause) if cause.is_go_away() && cause.is_remote() => (SendErrorKind::Refused, true),
        Some(cause) if cause.is_reset() && cause.is_remote() => match cause.reason() {
            // RFC 9113 section 8.7; and an answer in HTTP/1.1 is wanted because there is none in HTTP/2.
            Some(Reason::REFUSED_STREAM | Reason::HTTP_1_1_REQUIRED) => (SendErrorKind::Refused, true),
            _ => (SendErrorKind::Reset, false),
        },
        Some(cause) if cause.is_library() => (SendErrorKind::Malformed, false),
        Some(cause) if cause.is_reset() => (SendErrorKind::Body, false),
        Some(_) => (SendErrorKind::ClosedEarly, false),
        None => (super::connection::kind_of(&source), false),
    };
    SendError { kind, written: request.is_none() && !is_untouched, request, source: Some(source) }
}

fn reason(error: &SendError) -> Option<Reason> {
    error.source.as_ref().and_then(cause)?.reason()
}

fn cause(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement under these locks leaves anything half done, and hyper's tasks do not panic.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What says in HTTP/1 what frames say here. `TE` remains, as it can only be `trailers` by now.
const OF_HTTP1: [HeaderName; 6] = [
    header::HOST,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Requests on one connection, if the origin allows as many; the next one makes another connection.
const MAX_STREAMS: u32 = 100;

/// How much of an answer may come unread: 5 MB/s at 100 ms to the origin. The connection's window has room for all streams
/// at once, so that a client that does not read its answer keeps no other from reading.
const STREAM_WINDOW: u32 = 512 * 1024;

/// How much of a request is taken from the client before the origin has room for it.
const SEND_BUFFER: usize = 256 * 1024;

/// All fields of an answer's head, each with 32 bytes of overhead (RFC 9113 section 6.5.2).
const MAX_HEADER_LIST: u32 = 256 * 1024;

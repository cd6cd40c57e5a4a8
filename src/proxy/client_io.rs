//! The stream of one client connection, with the manners that hyper leaves to its user: a bound on how long a request head
//! may trickle in, a refusal that says why where hyper cannot read a head, a close that lets the client read the last answer,
//! and a word when the client leaves.

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::{asterisk::RequestLine, refusal::Refusal};

/// What a client connection is doing, as its service and its stream tell each other.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<State>);

#[derive(Debug, Default)]
struct State {
    phase: AtomicU8,
    /// A request was taken whose answer is not yet on its way whole.
    owes: AtomicBool,
    /// The request whose head has just come is an `OPTIONS` without a path.
    lacks_path: AtomicBool,
}

impl Phase {
    /// A request head is complete.
    pub(super) fn serving(&self) {
        self.0.owes.store(true, Ordering::Relaxed);
        let serving = |phase| (phase != OPAQUE).then_some(SERVING);
        let _ = self.0.phase.fetch_update(Ordering::Relaxed, Ordering::Relaxed, serving);
    }

    /// The answer is complete.
    pub(super) fn idle(&self) {
        let _ = self.0.phase.compare_exchange(SERVING, IDLE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection leaves HTTP for good: a tunnel, or an upgrade.
    pub(super) fn opaque(&self) {
        self.0.phase.store(OPAQUE, Ordering::Relaxed);
    }

    /// Whether the request whose head has just come is an `OPTIONS` without a path. To be asked once a request.
    pub(super) fn takes_no_path(&self) -> bool {
        self.0.lacks_path.swap(false, Ordering::Relaxed)
    }

    fn is(&self, phase: u8) -> bool {
        self.0.phase.load(Ordering::Relaxed) == phase
    }

    /// Whether what is written can only be hyper's own.
    fn owes_nothing(&self) -> bool {
        self.is(IDLE) && !self.0.owes.load(Ordering::Relaxed)
    }

    /// All that was answered is written.
    fn flushed(&self) {
        if self.is(IDLE) {
            self.0.owes.store(false, Ordering::Relaxed);
        }
    }
}

/// Tells when the client of one connection leaves.
#[derive(Clone)]
pub(super) struct Departure(Option<Arc<dyn PollEnd>>);

impl Departure {
    /// Of a connection that is not there yet.
    pub(super) fn never() -> Self {
        Self(None)
    }

    /// Returns when the client has closed the connection. To be awaited by the task that serves it, while a request waits:
    /// hyper reads nothing as long as it holds a body that nobody asks for, or a second request.
    ///
    /// Only [`MOST_AHEAD`] bytes are read to find out: the end of a larger upload is not seen.
    pub(super) async fn happened(&self) {
        poll_fn(|cx| self.0.as_ref().map_or(Poll::Pending, |socket| socket.poll_end(cx))).await;
    }
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Departure")
    }
}

/// The stream of one client connection.
///
/// hyper's own header timeout also runs while a connection is idle, and would cut clients' pooled connections; here the
/// clock starts with the first byte of a head. On shutdown what the client still sends is read and dropped for a moment:
/// closing a socket with unread bytes resets it, and a client that is still uploading would lose an early answer
/// (RFC 9112 section 9.6).
#[derive(Debug)]
pub(super) struct ClientIo<I> {
    socket: Arc<Mutex<Socket<I>>>,
    phase: Phase,
    line: RequestLine,
    /// Written in place of hyper's bare refusal of a head.
    stead: Bytes,
    head: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
    is_shut: bool,
}

impl<I> ClientIo<I> {
    pub(super) fn new(io: I, phase: Phase) -> Self {
        Self {
            socket: Arc::new(Mutex::new(Socket { io, ahead: BytesMut::new() })),
            phase,
            line: RequestLine::default(),
            stead: Bytes::new(),
            head: None,
            linger: None,
            is_shut: false,
        }
    }
}

impl<I: AsyncWrite + Unpin> ClientIo<I> {
    /// Whether `bytes` are hyper's answer to a head that it cannot read, and something better goes out for them.
    fn stands_in(&mut self, bytes: &[u8]) -> bool {
        if !self.phase.owes_nothing() {
            return false;
        }
        let Some(refusal) = unasked_status(bytes).and_then(Refusal::unreadable) else { return false };
        self.stead = refusal.into_bytes();
        true
    }

    fn poll_stead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.stead.is_empty() {
            let written = ready!(Pin::new(&mut lock(&self.socket).io).poll_write(cx, &self.stead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.stead.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + Unpin + Send + 'static> ClientIo<I> {
    pub(super) fn departure(&self) -> Departure {
        Departure(Some(self.socket.clone()))
    }
}

/// What the stream shares with its [`Departure`].
#[derive(Debug)]
struct Socket<I> {
    io: I,
    /// Read to see whether an end follows; the next to be read.
    ahead: BytesMut,
}

impl<I: AsyncRead + Unpin> Socket<I> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..length]);
        self.ahead.advance(length);
        Poll::Ready(Ok(()))
    }
}

/// A socket whose end can be waited for, whatever it is made of.
trait PollEnd: Send + Sync {
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()>;
}

impl<I: AsyncRead + Unpin + Send> PollEnd for Mutex<Socket<I>> {
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Socket { io, ahead } = &mut *lock(self);
        while ahead.len() < MOST_AHEAD {
            let mut scratch = [0; 4096];
            let mut read = ReadBuf::new(&mut scratch);
            let result = ready!(Pin::new(&mut *io).poll_read(cx, &mut read));
            // A stream that has ended says so again to whoever reads next.
            if result.is_err() || read.filled().is_empty() {
                return Poll::Ready(());
            }
            ahead.extend_from_slice(read.filled());
            // hyper may be waiting for just that.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

fn lock<I>(socket: &Mutex<Socket<I>>) -> MutexGuard<'_, Socket<I>> {
    // One task holds both ends, and no statement under the lock leaves it half done.
    socket.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: AsyncRead + Unpin> AsyncRead for ClientIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = lock(&self.socket).poll_read(cx, buf);
        if !self.phase.is(IDLE) {
            self.head = None;
            self.line = RequestLine::default();
            return read;
        }
        match read {
            Poll::Ready(Ok(())) => {
                if self.line.lacks_path(&buf.filled()[before..]) {
                    self.phase.0.lacks_path.store(true, Ordering::Relaxed);
                }
                if buf.filled().len() > before && self.head.is_none() {
                    self.head = Some(Box::pin(tokio::time::sleep(HEAD_TIMEOUT)));
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => match &mut self.head {
                Some(head) => {
                    ready!(head.as_mut().poll(cx));
                    Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request head took too long")))
                }
                None => Poll::Pending,
            },
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.stands_in(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut lock(&self.socket).io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_stead(cx))?;
        ready!(Pin::new(&mut lock(&self.socket).io).poll_flush(cx))?;
        self.phase.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_stead(cx))?;
        if !self.is_shut {
            ready!(Pin::new(&mut lock(&self.socket).io).poll_shutdown(cx))?;
            self.is_shut = true;
            // In a tunnel the other direction may go on.
            if !self.phase.is(OPAQUE) {
                self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
            }
        }
        let Self { socket, linger, .. } = &mut *self;
        let Some(deadline) = linger else { return Poll::Ready(Ok(())) };
        let mut scratch = [0; 4096];
        while deadline.as_mut().poll(cx).is_pending() {
            let mut dropped = ReadBuf::new(&mut scratch);
            // The client's own close, or an error, ends the wait as well.
            if ready!(lock(socket).poll_read(cx, &mut dropped)).is_err() || dropped.filled().is_empty() {
                break;
            }
        }
        *linger = None;
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs
            && self.stands_in(only)
        {
            return Poll::Ready(Ok(only.len()));
        }
        Pin::new(&mut lock(&self.socket).io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.socket).io.is_write_vectored()
    }
}

/// The status of an answer that is nothing but a head.
fn unasked_status(bytes: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    text.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()
}

const IDLE: u8 = 0;
const SERVING: u8 = 1;
const OPAQUE: u8 = 2;

/// From the first byte of a request head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How much is read to see whether a client is still there.
const MOST_AHEAD: usize = 16 * 1024;

/// How long a closing connection is read from.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_connections_stay_and_slow_heads_end() {
        let (mut client, proxy) = tokio::io::duplex(64);
        let phase = Phase::default();
        let mut io = ClientIo::new(proxy, phase.clone());
        let mut byte = [0; 1];
        let idle = tokio::time::timeout(10 * HEAD_TIMEOUT, io.read(&mut byte)).await;
        assert!(idle.is_err(), "still waiting for a head");
        client.write_all(b"G").await.unwrap();
        io.read_exact(&mut byte).await.unwrap();
        let started = Instant::now();
        let error = io.read(&mut byte).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed().as_secs()), (io::ErrorKind::TimedOut, HEAD_TIMEOUT.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stops_while_a_request_is_served() {
        let (mut client, proxy) = tokio::io::duplex(64);
        let phase = Phase::default();
        let mut io = ClientIo::new(proxy, phase.clone());
        let mut byte = [0; 1];
        for enter in [Phase::serving, Phase::opaque] {
            client.write_all(b"G").await.unwrap();
            io.read_exact(&mut byte).await.unwrap();
            enter(&phase);
            assert!(tokio::time::timeout(10 * HEAD_TIMEOUT, io.read(&mut byte)).await.is_err());
            phase.idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_reads_on_until_the_client_is_done() {
        let (mut client, proxy) = tokio::io::duplex(8);
        let mut io = ClientIo::new(proxy, Phase::default());
        let upload = tokio::spawn(async move { client.write_all(&[0; 1000]).await });
        io.shutdown().await.unwrap();
        upload.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_waits_only_so_long() {
        let (client, proxy) = tokio::io::duplex(8);
        let mut io = ClientIo::new(proxy, Phase::default());
        let started = Instant::now();
        io.shutdown().await.unwrap();
        assert_eq!(started.elapsed().as_secs(), LINGER.as_secs());
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_departure_is_noticed_and_what_came_before_it_is_read() {
        let (mut client, proxy) = tokio::io::duplex(64);
        let mut io = ClientIo::new(proxy, Phase::default());
        let departure = io.departure();
        client.write_all(b"GET /").await.unwrap();
        assert!(tokio::time::timeout(LINGER, departure.happened()).await.is_err(), "still there");
        client.write_all(b" HTTP/1.1").await.unwrap();
        drop(client);
        departure.happened().await;
        let mut all = String::new();
        io.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "GET / HTTP/1.1");
    }

    #[tokio::test(start_paused = true)]
    async fn reading_ahead_is_bounded() {
        let (mut client, proxy) = tokio::io::duplex(64);
        let io = ClientIo::new(proxy, Phase::default());
        let departure = io.departure();
        let upload = client.write_all(&[0; 2 * MOST_AHEAD]);
        let all = async { tokio::join!(upload, departure.happened()) };
        assert!(tokio::time::timeout(LINGER, all).await.is_err());
    }
}

//! The stream of one client connection, with the two manners that hyper leaves to its user: a bound on how long a request
//! head may trickle in, and a close that lets the client read the last answer.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// What a client connection is doing, as its service tells its stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Phase(Arc<AtomicU8>);

impl Phase {
    /// A request head is complete.
    pub(super) fn serving(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |phase| (phase != OPAQUE).then_some(SERVING));
    }

    /// The answer is complete.
    pub(super) fn idle(&self) {
        let _ = self.0.compare_exchange(SERVING, IDLE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The connection leaves HTTP for good: a tunnel, or an upgrade.
    pub(super) fn opaque(&self) {
        self.0.store(OPAQUE, Ordering::Relaxed);
    }

    fn is(&self, phase: u8) -> bool {
        self.0.load(Ordering::Relaxed) == phase
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
    io: I,
    phase: Phase,
    head: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
    is_shut: bool,
}

impl<I> ClientIo<I> {
    pub(super) fn new(io: I, phase: Phase) -> Self {
        Self { io, phase, head: None, linger: None, is_shut: false }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ClientIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if !self.phase.is(IDLE) {
            self.head = None;
            return read;
        }
        match read {
            Poll::Ready(Ok(())) => {
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
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.is_shut = true;
            // In a tunnel the other direction may go on.
            if !self.phase.is(OPAQUE) {
                self.linger = Some(Box::pin(tokio::time::sleep_until(Instant::now() + LINGER)));
            }
        }
        let Self { io, linger, .. } = &mut *self;
        let Some(deadline) = linger else { return Poll::Ready(Ok(())) };
        let mut scratch = [0; 4096];
        while deadline.as_mut().poll(cx).is_pending() {
            let mut dropped = ReadBuf::new(&mut scratch);
            // The client's own close, or an error, ends the wait as well.
            if ready!(Pin::new(&mut *io).poll_read(cx, &mut dropped)).is_err() || dropped.filled().is_empty() {
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
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

const IDLE: u8 = 0;
const SERVING: u8 = 1;
const OPAQUE: u8 = 2;

/// From the first byte of a request head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a closing connection is read from.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
}

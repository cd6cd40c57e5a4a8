//! Opaque bytes both ways, until both sides are done or neither has said anything for long.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Copies both ways. Each direction closes for itself, as TCP does, so that a side that has said all still hears the answer.
/// Ends after [`IDLE`] without a byte in either direction; once `shutdown` is cancelled after [`IDLE_IN_SHUTDOWN`].
///
/// # Errors
/// Those of the two streams.
pub(super) async fn relay<A, B>(mut client: A, upstream: B, shutdown: &CancellationToken) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let moved = Arc::new(AtomicBool::new(false));
    // Each byte of either direction passes the upstream's side.
    let mut upstream = Watched { io: upstream, moved: moved.clone() };
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut client, &mut upstream) => copied.map(|_| ()),
        () = silence(&moved, shutdown) => Err(io::Error::new(io::ErrorKind::TimedOut, "the tunnel was idle")),
    }
}

/// Returns after one to two idle times without a byte.
async fn silence(moved: &AtomicBool, shutdown: &CancellationToken) {
    while tokio::select! {
        () = tokio::time::sleep(IDLE) => moved.swap(false, Ordering::Relaxed),
        () = shutdown.cancelled() => false,
    } {}
    if shutdown.is_cancelled() {
        moved.store(false, Ordering::Relaxed);
        while {
            tokio::time::sleep(IDLE_IN_SHUTDOWN).await;
            moved.swap(false, Ordering::Relaxed)
        } {}
    }
}

/// Notes that bytes move.
struct Watched<I> {
    io: I,
    moved: Arc<AtomicBool>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            self.moved.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        if written.is_ready() {
            self.moved.store(true, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// WebSockets and pooled connections live long; NAT tables forget sooner.
const IDLE: Duration = Duration::from_secs(15 * 60);

/// A tunnel nobody uses must not hold up a shutdown.
const IDLE_IN_SHUTDOWN: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_direction_closes_for_itself() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut origin) = tokio::io::duplex(64);
        let relayed = tokio::spawn(async move { relay(near, far, &CancellationToken::new()).await });
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = String::new();
        origin.read_to_string(&mut heard).await.unwrap();
        origin.write_all(b"answer").await.unwrap();
        drop(origin);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((heard.as_str(), answer.as_str()), ("question", "answer"));
        relayed.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_it_and_bytes_keep_it() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut origin) = tokio::io::duplex(64);
        let started = Instant::now();
        let relayed = tokio::spawn(async move { relay(near, far, &CancellationToken::new()).await });
        for _ in 0..4 {
            tokio::time::sleep(IDLE / 2).await;
            client.write_all(b".").await.unwrap();
            origin.read_exact(&mut [0]).await.unwrap();
        }
        let error = relayed.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= 3 * IDLE, "cut {:?} after the start", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_tunnel_ends_in_silence_too() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut origin) = tokio::io::duplex(64);
        let relayed = tokio::spawn(async move { relay(near, far, &CancellationToken::new()).await });
        client.shutdown().await.unwrap();
        assert_eq!(origin.read(&mut [0]).await.unwrap(), 0);
        let closed = Instant::now();
        // What still comes from the other side keeps it.
        tokio::time::sleep(IDLE / 2).await;
        origin.write_all(b".").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
        let error = relayed.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((3 * IDLE / 2..=3 * IDLE).contains(&closed.elapsed()), "after {:?}", closed.elapsed());
        drop(origin);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_no_idle_tunnel() {
        let (_client, near) = tokio::io::duplex(64);
        let (far, _origin) = tokio::io::duplex(64);
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let started = Instant::now();
        relay(near, far, &shutdown).await.unwrap_err();
        assert!(started.elapsed() <= 2 * IDLE_IN_SHUTDOWN);
    }
}

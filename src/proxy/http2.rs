//! HTTP/2 on a client connection inside a tunnel: each stream is a request of its own, and its reset takes only that one out
//! of the line.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    answer::Answer,
    client_io::{ClientIo, Phase},
    downstream::{Downstream, IDLE_TIMEOUT, Shared},
    headers,
};

/// Serves HTTP/2 on `io`. Once a shutdown begins, or nothing was asked for a long time, the client is told to go away; streams
/// under way are finished.
pub(super) async fn serve<I>(client: Downstream, io: I)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = client.shutdown().clone();
    let usage = Usage::new();
    let streams = Streams { shared: client.shared().clone(), usage: usage.clone() };
    let service = service_fn(move |request| {
        let client = client.clone();
        async move { Ok::<_, Infallible>(answer(&client, request).await) }
    });
    // The clock of heads is not for frames: a connection without a whole request counts as unused.
    let phase = Phase::default();
    phase.serving();
    let io = TokioIo::new(ClientIo::new(io, phase));
    let retired = async {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = usage.none_for(IDLE_TIMEOUT) => {}
        }
    };
    let mut connection = pin!(http(streams).serve_connection(io, service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = retired => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection => served,
                // The last word is the client's, and one that is gone without a trace never says it.
                () = usage.none_for(LEAVE) => Ok(()),
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "client connection ended");
    }
}

/// Tells a client that HTTP/2 is not to be had here, in HTTP/2: it began to speak it without having been offered to.
///
/// # Errors
/// Those of writing.
pub(super) async fn refuse<I: AsyncWrite + Unpin>(mut io: I) -> io::Result<()> {
    io.write_all(&REFUSAL).await?;
    io.shutdown().await
}

/// Answers one stream.
async fn answer(client: &Downstream, request: Request<Incoming>) -> Response<Answer> {
    let is_head = request.method() == Method::HEAD;
    let mut response = client.answer(request).await;
    headers::strip_connection(response.headers_mut());
    // In HTTP/1 hyper knows that itself.
    if is_head { response.map(|_| Answer::empty()) } else { response }
}

fn http(streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * MAX_STREAMS)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_pending_accept_reset_streams(MAX_RESETS);
    builder
}

/// The streams of one connection, each a task of its own, which a drain waits for.
#[derive(Debug, Clone)]
struct Streams {
    shared: Arc<Shared>,
    usage: Usage,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let open = self.usage.begin();
        self.shared.spawn(async move {
            stream.await;
            drop(open);
        });
    }
}

/// How many streams are open, and since when there is none.
#[derive(Debug, Clone)]
struct Usage(watch::Sender<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    open: usize,
    /// When the last one ended.
    since: Instant,
}

impl Usage {
    fn new() -> Self {
        Self(watch::Sender::new(State { open: 0, since: Instant::now() }))
    }

    fn begin(&self) -> Open {
        self.0.send_modify(|state| state.open += 1);
        Open(self.clone())
    }

    /// Returns once there has been no stream for `limit`, counted from now.
    async fn none_for(&self, limit: Duration) {
        let begun = Instant::now();
        let mut states = self.0.subscribe();
        loop {
            let State { open, since } = *states.borrow_and_update();
            // The channel cannot close: one of its senders is here.
            if open > 0 {
                drop(states.changed().await);
            } else if timeout_at(begun.max(since) + limit, states.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// A stream, for as long as it lives.
struct Open(Usage);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| *state = State { open: state.open - 1, since: Instant::now() });
    }
}

/// Requests of one client that are under way or wait.
const MAX_STREAMS: u32 = 128;

/// How much of a body may come unread. The connection's window has room for all streams at once: otherwise bodies of requests
/// that wait for their slots would keep those of others from coming in, and with a limit on requests under way for good.
const STREAM_WINDOW: u32 = 64 * 1024;

/// How much of an answer is taken from the origin before the client has room for it.
const SEND_BUFFER: usize = 128 * 1024;

/// All fields of a head, each with 32 bytes of overhead (RFC 9113 section 6.5.2); above it the answer is 431.
const MAX_HEADER_LIST: u32 = 256 * 1024;

/// Streams that were reset before they were looked at: more at a time are an attack (CVE-2023-44487).
const MAX_RESETS: usize = 32;

/// How long a client has to acknowledge that it shall go.
const LEAVE: Duration = Duration::from_secs(2);

/// The server's preface, and GOAWAY with HTTP_1_1_REQUIRED before any stream (RFC 9113 sections 3.4 and 6.8).
const REFUSAL: [u8; 26] = *b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_unused_only_while_no_stream_is_open() {
        let usage = Usage::new();
        let started = Instant::now();
        let (first, second) = (usage.begin(), usage.begin());
        let is_used = async |usage: &Usage| timeout(10 * IDLE_TIMEOUT, usage.none_for(IDLE_TIMEOUT)).await.is_err();
        assert!(is_used(&usage).await);
        drop(first);
        assert!(is_used(&usage).await, "another stream is open");
        let unused = usage.none_for(IDLE_TIMEOUT);
        let ends = async {
            advance(IDLE_TIMEOUT).await;
            drop(second);
            advance(IDLE_TIMEOUT / 2).await;
            // One that is over at once is use as well.
            drop(usage.begin());
        };
        tokio::join!(unused, ends);
        assert_eq!((started.elapsed() - 20 * IDLE_TIMEOUT).as_secs(), (5 * IDLE_TIMEOUT / 2).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_told_to_go_has_a_moment_to_do_so() {
        let usage = Usage::new();
        advance(IDLE_TIMEOUT).await;
        let started = Instant::now();
        usage.none_for(LEAVE).await;
        assert_eq!(started.elapsed().as_secs(), LEAVE.as_secs());
    }
}

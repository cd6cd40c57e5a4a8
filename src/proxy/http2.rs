//! HTTP/2 on a client connection inside a tunnel: each stream is a request of its own, and its reset takes only that one out
//! of the line.

use std::{io, pin::pin, sync::Arc, time::Duration};

use h2::Reason;
use http::{Method, Request, Response};
use hyper::{body::Incoming, rt::Executor, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{
    answer::Answer,
    client_io::{ClientIo, Phase},
    downstream::{Downstream, IDLE_TIMEOUT, Shared},
    headers,
};
use crate::upstream::{self, Usage};

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
        let client = client.stream();
        async move {
            // Its streams have no connection of their own at the origin that could be authenticated. Told so, clients that can
            // do that come back in HTTP/1.1.
            if upstream::authenticates_connection(request.headers()) {
                return Err(h2::Error::from(Reason::HTTP_1_1_REQUIRED));
            }
            Ok(answer(&client, request).await)
        }
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

/// Requests of one client that are under way or wait. Many, as a client that has reached it opens no second connection, and
/// keeps its urgent requests behind those that can wait.
const MAX_STREAMS: u32 = 1000;

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

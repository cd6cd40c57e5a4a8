//! The OTA's own ports: HTTP/1.1 over TLS, and plain.

use std::{
    convert::Infallible,
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{
    Request, Response,
    header::{CONTENT_LENGTH, RETRY_AFTER},
};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    body::AnswerBody,
    ota::{Ota, Visit},
    script::Fault,
};

/// The connection ends instead of an answer: scripted, or because the client's side broke.
#[derive(Debug)]
pub(crate) struct BrokenOff;

/// Serves until the task is dropped; with `tls`, https.
pub(crate) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, ota: Arc<Ota>) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: leave time for some to be closed.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        tokio::spawn(welcome(tcp, tls.clone(), ota.clone()));
    }
}

async fn welcome(tcp: TcpStream, tls: Option<TlsAcceptor>, ota: Arc<Ota>) {
    let connection = ota.next_connection();
    let Ok(socket) = tcp.set_nodelay(true).and_then(|()| tcp.as_fd().try_clone_to_owned()) else { return };
    let peer = Peer { connection, socket: Arc::new(socket) };
    match tls {
        None => converse(tcp, peer, ota).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(tcp)).await {
                converse(stream, peer, ota).await;
            }
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, peer: Peer, ota: Arc<Ota>) {
    let service = service_fn(move |request| answer(request, peer.clone(), ota.clone()));
    // A client that leaves is no concern of the OTA's.
    http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await.ok();
}

/// A client's connection, and its socket held a second time for a scripted reset.
#[derive(Clone)]
struct Peer {
    connection: u64,
    socket: Arc<OwnedFd>,
}

async fn answer(request: Request<Incoming>, peer: Peer, ota: Arc<Ota>) -> Result<Response<AnswerBody>, BrokenOff> {
    let (head, body) = request.into_parts();
    let visit = ota.receive(&head.method, head.uri.path(), &head.headers, peer.connection);
    if !visit.answer.early {
        visit.body_read(length_of(body).await?);
    }
    sleep(visit.latency).await;
    match visit.answer.fault {
        Some(Fault::Stall) => match std::future::pending::<Infallible>().await {},
        Some(Fault::Reset) => {
            // With no time to linger, closing sends a reset. Should it fail, the connection still ends without an answer.
            socket2::SockRef::from(&*peer.socket).set_linger(Some(Duration::ZERO)).ok();
            Err(BrokenOff)
        }
        Some(Fault::CloseEarly) | None => Ok(respond(visit)),
    }
}

async fn length_of(mut body: Incoming) -> Result<u64, BrokenOff> {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.map_err(|_| BrokenOff)?.data_ref().map_or(0, |data| data.len() as u64);
    }
    Ok(length)
}

fn respond(visit: Visit) -> Response<AnswerBody> {
    visit.answered();
    let answer = &visit.answer;
    let mut response = Response::builder().status(answer.status).header("content-type", "application/xml");
    if let Some(retry_after) = answer.retry_after(SystemTime::now()) {
        response = response.header(RETRY_AFTER, retry_after);
    }
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    let body = AnswerBody::new(visit);
    let length = body.length();
    response
        .header(CONTENT_LENGTH, length)
        .body(body)
        .unwrap_or_else(|_| unreachable!("scripts are checked when taken"))
}

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was broken off")
    }
}

impl std::error::Error for BrokenOff {}

/// A client that says nothing for this long is not going to.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

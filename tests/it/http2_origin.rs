//! Origins over TLS that choose their version of HTTP, and say in HTTP/2 whatever a test wants said.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, Request, Response};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    http2_rig,
    proxy_rig::{Rig, within},
};

/// A listener for `localhost` whose connections a test takes one by one.
pub(crate) struct SecureOrigin {
    pub(crate) port: u16,
    root: PathBuf,
    _directory: TempDir,
    accepted: mpsc::UnboundedReceiver<TlsStream<TcpStream>>,
    number: watch::Receiver<usize>,
    accepting: JoinHandle<()>,
}

impl SecureOrigin {
    /// Chooses the first of `protocols` that it is offered.
    pub(crate) async fn choosing(protocols: &[&str]) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let directory = TempDir::new().unwrap();
        let root = directory.path().join("origin.pem");
        std::fs::write(&root, own.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let mut config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, accepted) = mpsc::unbounded_channel();
        let (count, number) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                count.send_modify(|number| *number += 1);
                let _ = connections.send(stream);
            }
        });
        Self { port, root, _directory: directory, accepted, number, accepting }
    }

    /// One that speaks HTTP/2, and HTTP/1.1 where that is all it is offered.
    pub(crate) async fn start() -> Self {
        Self::choosing(&["h2", "http/1.1"]).await
    }

    /// A proxy in front of it that lets it choose, with more of `upstream`, and more endpoints.
    pub(crate) async fn rig(&self, upstream: &str, endpoints: &str) -> Rig {
        let more = format!(
            "upstream: {{ ca_file: '{}', {upstream} }}\ndefaults: {{ max_wait: 60s, http2: {{ clients: true, origin: true }} }}",
            self.root.display()
        );
        Rig::with_endpoints(&more, endpoints).await
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        *self.number.borrow()
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> TlsStream<TcpStream> {
        within(self.accepted.recv()).await.unwrap()
    }

    /// The next connection, in HTTP/2.
    pub(crate) async fn peer(&mut self) -> Peer {
        Peer::over(self.accept().await, &h2::server::Builder::new()).await
    }
}

impl Drop for SecureOrigin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The origin's side of an HTTP/2 connection.
pub(crate) struct Peer {
    requests: mpsc::UnboundedReceiver<Asked>,
    driving: JoinHandle<()>,
}

impl Peer {
    pub(crate) async fn over(stream: TlsStream<TcpStream>, settings: &h2::server::Builder) -> Self {
        let mut connection = within(settings.handshake::<_, Bytes>(stream)).await.unwrap();
        let (ask, requests) = mpsc::unbounded_channel();
        let driving = tokio::spawn(async move {
            while let Some(Ok((request, answer))) = connection.accept().await {
                let _ = ask.send(Asked { request, answer });
            }
        });
        Self { requests, driving }
    }

    /// The next request.
    pub(crate) async fn request(&mut self) -> Asked {
        within(self.requests.recv()).await.expect("a request comes")
    }

    /// Answers everything with `ok`, from now on.
    pub(crate) fn answer_all(mut self) {
        tokio::spawn(async move {
            while let Some(asked) = self.requests.recv().await {
                tokio::spawn(async move {
                    let mut asked = asked;
                    let _ = http2_rig::text(asked.request.body_mut()).await;
                    asked.ok();
                });
            }
        });
    }

    /// Waits until the proxy has closed the connection.
    pub(crate) async fn closed(self) {
        within(self.driving).await.unwrap();
    }
}

/// One request at an origin.
pub(crate) struct Asked {
    pub(crate) request: Request<RecvStream>,
    pub(crate) answer: SendResponse<Bytes>,
}

impl Asked {
    /// Answers with `ok`.
    pub(crate) fn ok(mut self) {
        let mut body = self.answer.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"ok"), true).unwrap();
    }

    /// Answers with a status, fields and no body.
    pub(crate) fn status(mut self, status: u16, fields: &[(&'static str, &'static str)]) {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        self.answer.send_response(response.body(()).unwrap(), true).unwrap();
    }

    /// The names and values of its fields, in their order.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        self.request.headers().iter().map(field).collect()
    }

    /// Its body and trailers.
    pub(crate) async fn body(&mut self) -> (String, Option<HeaderMap>) {
        let stream = self.request.body_mut();
        (http2_rig::text(stream).await.unwrap(), within(stream.trailers()).await.unwrap())
    }

    /// Waits until the proxy has reset the stream.
    pub(crate) async fn reset(&mut self) -> h2::Reason {
        within(std::future::poll_fn(|cx| self.answer.poll_reset(cx))).await.unwrap()
    }
}

/// The origin's side of a connection, frame by frame (RFC 9113 section 4.1), for what no library would do.
pub(crate) struct Frames(TlsStream<TcpStream>);

impl Frames {
    /// Reads the client's preface, and says nothing in particular of its own.
    pub(crate) async fn over(mut stream: TlsStream<TcpStream>) -> Self {
        let mut preface = [0; 24];
        within(stream.read_exact(&mut preface)).await.unwrap();
        let mut frames = Self(stream);
        frames.send(SETTINGS, 0, &[]).await;
        frames
    }

    /// Waits for the head of the next request, and tells its stream.
    pub(crate) async fn head(&mut self) -> u32 {
        loop {
            let mut head = [0; 9];
            within(self.0.read_exact(&mut head)).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            within(self.0.read_exact(&mut payload)).await.unwrap();
            if head[3] == HEADERS {
                return u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            }
        }
    }

    /// Says that nothing above `last` has been or will be looked at, and closes.
    pub(crate) async fn go_away(mut self, last: u32) {
        self.send(GOAWAY, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat()).await;
        self.0.shutdown().await.unwrap();
    }

    async fn send(&mut self, kind: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat();
        self.0.write_all(&frame).await.unwrap();
        self.0.flush().await.unwrap();
    }
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

//! A client that speaks HTTP/2 through the proxy, frame by frame where a test needs it.

use std::sync::Arc;

use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest};
use http::{HeaderMap, Request, Response, StatusCode};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;

use super::proxy_rig::{Rig, status, within};

/// One connection in a tunnel.
pub(crate) struct Client {
    scheme: &'static str,
    /// What requests name as their `:authority`.
    pub(crate) authority: String,
    send: SendRequest<Bytes>,
    driving: JoinHandle<Result<(), h2::Error>>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Client {
    /// Opens a tunnel to `localhost`, and HTTP/2 in it, in clear and with prior knowledge.
    pub(crate) async fn open(rig: &Rig, port: u16) -> Self {
        let tunnel = tunnel(rig, port).await;
        Self::over(tunnel, "http", port).await
    }

    /// The same over TLS, by ALPN.
    pub(crate) async fn open_secure(rig: &Rig, port: u16) -> Self {
        let tunnel = tunnel(rig, port).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(rig.directory.path().join("ca/ca.pem")).unwrap()).unwrap();
        let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let tls = within(TlsConnector::from(Arc::new(config)).connect(name, tunnel)).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        Self::over(tls, "https", port).await
    }

    async fn over<S>(stream: S, scheme: &'static str, port: u16) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (send, connection) = within(h2::client::handshake(stream)).await.unwrap();
        Self { scheme, authority: format!("localhost:{port}"), send, driving: tokio::spawn(connection) }
    }

    /// A request to the origin of the tunnel.
    pub(crate) fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("{}://{}{path}", self.scheme, self.authority))
    }

    /// Sends a request without a body.
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let request = self.request("GET", path);
        self.ask(request).await
    }

    /// Sends a request without a body.
    pub(crate) async fn ask(&mut self, request: http::request::Builder) -> Answer {
        let (answer, _) = self.begin(request, true).await;
        read(within(answer).await.unwrap()).await
    }

    /// Sends the head of a request.
    pub(crate) async fn begin(
        &mut self,
        request: http::request::Builder,
        is_whole: bool,
    ) -> (h2::client::ResponseFuture, SendStream<Bytes>) {
        let mut send = within(self.send.clone().ready()).await.unwrap();
        send.send_request(request.body(()).unwrap(), is_whole).unwrap()
    }

    /// Begins that many requests and resets each at once, or as many as it comes to.
    pub(crate) async fn flood(&mut self, number: usize) {
        for _ in 0..number {
            let Ok(mut send) = self.send.clone().ready().await else { return };
            let request = self.request("GET", "/fast/").body(()).unwrap();
            let Ok((_, mut stream)) = send.send_request(request, true) else { return };
            stream.send_reset(h2::Reason::CANCEL);
        }
    }

    /// Is gone from one moment to the next.
    pub(crate) fn vanish(self) {
        self.driving.abort();
    }

    /// Waits until the proxy has closed the connection, though more could be asked.
    pub(crate) async fn closed(&mut self) -> Result<(), h2::Error> {
        within(&mut self.driving).await.unwrap()
    }
}

async fn tunnel(rig: &Rig, port: u16) -> TcpStream {
    let authority = format!("localhost:{port}");
    let mut tunnel = rig.connect().await;
    tunnel.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    assert_eq!(status(&tunnel.head().await), 200);
    tunnel.stream
}

/// Reads an answer to its end.
pub(crate) async fn read(response: Response<RecvStream>) -> Answer {
    let (parts, mut stream) = response.into_parts();
    let body = text(&mut stream).await.unwrap();
    let trailers = within(stream.trailers()).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, body, trailers }
}

/// Reads a body to its end.
pub(crate) async fn text(stream: &mut RecvStream) -> Result<String, h2::Error> {
    let mut body = Vec::new();
    while let Some(part) = within(stream.data()).await {
        let part = part?;
        stream.flow_control().release_capacity(part.len())?;
        body.extend_from_slice(&part);
    }
    Ok(String::from_utf8(body).unwrap())
}

/// Sends that many bytes as the window allows, and ends the stream.
pub(crate) async fn upload(mut stream: SendStream<Bytes>, length: usize, trailers: Option<HeaderMap>) {
    send(&mut stream, length).await.unwrap();
    match trailers {
        Some(trailers) => stream.send_trailers(trailers).unwrap(),
        None => stream.send_data(Bytes::new(), true).unwrap(),
    }
}

/// Sends that many bytes as the window allows.
pub(crate) async fn send(stream: &mut SendStream<Bytes>, length: usize) -> Result<(), h2::Error> {
    let mut left = length;
    while left > 0 {
        stream.reserve_capacity(left.min(PART));
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.expect("the stream is open")?;
        let part = room.min(left);
        stream.send_data(Bytes::from(vec![b'x'; part]), false)?;
        left -= part;
    }
    Ok(())
}

const PART: usize = 16 * 1024;

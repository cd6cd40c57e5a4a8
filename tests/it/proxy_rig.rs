//! A proxy in this process, between raw sockets: what goes over the wire is what the tests look at.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use ota_pacer::{
    ca::{Authority, Leaves},
    config,
    limiter::Limiter,
    proxy::{self, Proxy},
    route::Router,
    upstream::Upstream,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::{NamedTempFile, TempDir};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// A running proxy. `localhost` is a channel with the endpoints below; `127.0.0.1` is a host of no channel.
pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    /// Where its gateway is.
    pub(crate) gateway: SocketAddr,
    pub(crate) directory: TempDir,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with("").await
    }

    /// With more lines of configuration.
    pub(crate) async fn with(more: &str) -> Self {
        Self::with_endpoints(more, "").await
    }

    /// With more lines of configuration, and more endpoints of the channel, indented as those.
    pub(crate) async fn with_endpoints(more: &str, endpoints: &str) -> Self {
        Self::configured(&format!("{more}\n{CHANNELS}{endpoints}"), "").await
    }

    /// With channels of its own, and more settings of the CA.
    pub(crate) async fn configured(more: &str, ca_settings: &str) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let directory = TempDir::new().unwrap();
        let ca = directory.path().join("ca");
        let text = format!("listen: 127.0.0.1:0\nca: {{ dir: '{}', {ca_settings} }}\n{more}", ca.display());
        let config = config::parse("test.yaml", &text, |_| None).unwrap_or_else(|errors| panic!("{errors}"));
        let proxy = Proxy::new(
            &config,
            Router::new(&config),
            Limiter::open(&config).await.unwrap(),
            Upstream::new(&config.upstream).unwrap(),
            Leaves::new(Authority::open(&config.ca).unwrap()).unwrap(),
        )
        .with_drain_timeout(Duration::from_secs(3));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gateway_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway_listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let served = proxy::serve(listener, Some(gateway_listener), Arc::new(proxy), shutdown.clone());
        Self { address, gateway, directory, shutdown, serving: tokio::spawn(served) }
    }

    pub(crate) async fn connect(&self) -> Wire<TcpStream> {
        connect(self.address).await
    }

    pub(crate) async fn connect_to_gateway(&self) -> Wire<TcpStream> {
        connect(self.gateway).await
    }

    /// Sends one request on a connection of its own and reads all that comes.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> String {
        let mut client = self.connect().await;
        client.send(request).await;
        client.rest().await
    }

    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the proxy has drained.
    pub(crate) async fn stopped(self) {
        self.shutdown.cancel();
        within(self.serving).await.unwrap();
    }
}

async fn connect(address: SocketAddr) -> Wire<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    Wire { stream, ahead: Vec::new() }
}

/// One end of a connection, read in pieces of HTTP.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    ahead: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Up to and with the empty line; `None` at the end of the connection.
    pub(crate) async fn try_head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|window| window == b"\r\n\r\n") {
                return Some(text(self.ahead.drain(..end + 4).collect()));
            }
            if !self.more().await {
                return None;
            }
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        self.try_head().await.expect("a head comes")
    }

    pub(crate) async fn exactly(&mut self, length: usize) -> String {
        while self.ahead.len() < length {
            assert!(self.more().await, "{length} bytes come");
        }
        text(self.ahead.drain(..length).collect())
    }

    /// The body that `head` announces, as it is on the wire.
    pub(crate) async fn body(&mut self, head: &str) -> String {
        if let Some(length) = field(head, "content-length") {
            return self.exactly(length.parse().unwrap()).await;
        }
        let mut body = String::new();
        if field(head, "transfer-encoding").is_some() {
            while !body.ends_with("\r\n\r\n") || !(body.starts_with("0\r\n") || body.contains("\r\n0\r\n")) {
                body += &self.exactly(1).await;
            }
        }
        body
    }

    /// All that comes until the connection closes.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        text(std::mem::take(&mut self.ahead))
    }

    async fn more(&mut self) -> bool {
        // A reset ends a connection as well.
        within(self.stream.read_buf(&mut self.ahead)).await.unwrap_or(0) > 0
    }
}

/// An origin that answers each request with the next thing it was told to.
pub(crate) struct Origin {
    pub(crate) port: u16,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

struct State {
    script: Mutex<VecDeque<Reply>>,
    seen: watch::Sender<Vec<String>>,
    connections: watch::Sender<u32>,
}

/// What an origin does with a request.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Reads it whole, and answers.
    Answer(String),
    /// Answers from its head alone, then reads on.
    Early(String),
    /// Answers, and closes.
    Last(String),
    /// Reads it whole and closes without a word.
    Nothing,
    /// Reads it whole, and never answers.
    Silence,
}

impl Origin {
    /// Answers `200 ok` once the script is at its end.
    pub(crate) async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        Self::listen(script, None).await
    }

    /// The same over TLS, as `localhost`, and the file with its certificate.
    pub(crate) async fn over_tls(script: impl IntoIterator<Item = Reply>) -> (Self, NamedTempFile) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let root = NamedTempFile::new().unwrap();
        std::fs::write(root.path(), own.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        (Self::listen(script, Some(TlsAcceptor::from(Arc::new(config)))).await, root)
    }

    async fn listen(script: impl IntoIterator<Item = Reply>, acceptor: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            script: Mutex::new(script.into_iter().collect()),
            seen: watch::Sender::default(),
            connections: watch::Sender::default(),
        });
        let shared = state.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.connections.send_modify(|number| *number += 1);
                let (shared, acceptor) = (shared.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(Wire::new(stream), shared).await,
                        // A client that does not trust it has been answered.
                        Some(acceptor) => {
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            serve(Wire::new(stream), shared).await;
                        }
                    }
                });
            }
        });
        Self { port, state, accepting }
    }

    /// What to do with the next request that has no other answer yet.
    pub(crate) fn next(&self, reply: Reply) {
        self.state.script.lock().unwrap().push_back(reply);
    }

    /// The requests as they came, in the order of their ends.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state.seen.borrow().clone()
    }

    /// Waits until that many requests have come.
    pub(crate) async fn has_seen(&self, number: usize) {
        let mut seen = self.state.seen.subscribe();
        within(seen.wait_for(|seen| seen.len() >= number)).await.unwrap();
    }

    pub(crate) fn connections(&self) -> u32 {
        *self.state.connections.borrow()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut client: Wire<S>, state: Arc<State>) {
    while let Some(head) = client.try_head().await {
        let reply = state.script.lock().unwrap().pop_front().unwrap_or_else(|| ok("ok"));
        if let Reply::Early(answer) = &reply {
            client.send(answer).await;
        }
        let body = client.body(&head).await;
        state.seen.send_modify(|seen| seen.push(head + &body));
        match reply {
            Reply::Answer(answer) => client.send(answer).await,
            Reply::Last(answer) => return client.send(answer).await,
            Reply::Early(_) => {}
            Reply::Nothing => return,
            Reply::Silence => std::future::pending().await,
        }
    }
}

pub(crate) fn answer(text: &str) -> Reply {
    Reply::Answer(text.to_owned())
}

pub(crate) fn ok(body: &str) -> Reply {
    Reply::Answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// The value of a header field.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").take_while(|line| !line.is_empty()).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("an answer: {answer:?}"))
}

/// What happens at all happens within this.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

const CHANNELS: &str = "
channels:
  ota:
    hosts: [localhost]
    endpoints:
      fast:
        match: { path: '/fast/**' }
        limits: [{ rate: 1000/s, capacity: 1000 }]
      steady:
        match: { path: '/steady/**' }
        limits: [{ rate: 1/s, capacity: 1 }]
      slow:
        match: { path: '/slow/**' }
        limits: [{ rate: 20/min, capacity: 1 }]
      stuck:
        match: { path: '/stuck/**' }
        limits: [{ rate: 1/h, capacity: 1 }]
";

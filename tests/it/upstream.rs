//! Connections to origins, seen from the origin's side of the wire.

use std::{
    convert::Infallible,
    io,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use ota_pacer::{
    ca::{Alpn, Authority, Leaves},
    config::{host::Host, model},
    upstream::{
        Body, BoxError, ConnectError, Connection, Download, Offer, Origin, Scheme, SendErrorKind, Step, Tether,
        Upstream,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::yield_now,
    time::{sleep, timeout},
};

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let origin = site.origin();
    let client = async {
        for round in 0..3 {
            let connection = upstream.checkout(&origin, &nobody(), Offer::Http1).await.unwrap();
            assert_eq!(connection.is_reused(), round > 0);
            assert_eq!(text(connection.send(get("/")).await.unwrap()).await, "hello");
            tasks_run().await;
        }
    };
    let server = async {
        let mut peer = site.accept().await;
        for _ in 0..3 {
            peer.head().await;
            peer.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await;
        }
        peer
    };
    tokio::join!(client, server);
}

#[tokio::test]
async fn no_connection_leads_back_to_a_listener_of_our_own_by_whatever_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap();
    let everywhere = std::net::SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), own.port());
    for said in [own, everywhere] {
        let upstream = upstream(&settings());
        upstream.avoid([said]);
        // Checked after the name is resolved: this one stands for any that leads here.
        let host = Host::parse("localhost").unwrap();
        for scheme in [Scheme::Http, Scheme::Https] {
            let origin = Origin { scheme, host: host.clone(), port: own.port() };
            let refused = upstream.checkout(&origin, &nobody(), Offer::Http2).await;
            assert!(matches!(refused, Err(ConnectError::Own { .. })), "{refused:?}");
        }
        let refused = upstream.dial(&host, own.port()).await;
        assert!(matches!(refused, Err(ConnectError::Own { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn an_unused_connection_is_left_to_the_next_request() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let _peer = site.accept().await;
    tasks_run().await;
    drop(connection);
    assert!(upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap().is_reused());
}

#[tokio::test]
async fn connections_are_not_shared_between_origins() {
    let (one, other) = (Site::open().await, Site::open().await);
    let upstream = upstream(&settings());
    drop(idle_connection(&upstream, &one).await);
    assert!(!upstream.checkout(&other.origin(), &nobody(), Offer::Http1).await.unwrap().is_reused());
}

#[tokio::test]
async fn a_connection_that_its_origin_closed_is_not_handed_out() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let (connection, peer) = idle_connection(&upstream, &site).await;
    drop(connection);
    drop(peer);
    // Until the close has arrived, nobody can know.
    while upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap().is_reused() {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_request_that_meets_a_closed_connection_comes_back_unsent() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let (connection, peer) = idle_connection(&upstream, &site).await;
    drop(peer);
    while connection.is_open() {
        yield_now().await;
    }
    let error = connection.send(post("/book", "one room")).await.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::ClosedEarly, false));
    let request = error.request.unwrap();
    assert_eq!(request.uri(), "/book");
    assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), "one room");
}

#[tokio::test]
async fn a_request_that_got_no_answer_counts_as_written() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (sent, ()) = tokio::join!(connection.send(post("/book", "one room")), async {
        site.accept().await.head().await;
    });
    let error = sent.unwrap_err();
    assert!(error.written && error.request.is_none(), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_told_apart() {
    let site = Site::open().await;
    let connection = upstream(&settings()).checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (sent, _peer) = tokio::join!(connection.send(get("/")), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.write("220 mail.example ESMTP\r\n\r\n").await;
        peer
    });
    assert_eq!(sent.unwrap_err().kind, SendErrorKind::Malformed);
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_its_time_is_over() {
    let site = Site::open().await;
    let upstream = upstream(&model::Upstream { idle: Duration::from_secs(1), ..settings() });
    let (connection, mut peer) = idle_connection(&upstream, &site).await;
    drop(connection);
    peer.is_closed().await;
    assert!(!upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap().is_reused());
}

#[tokio::test]
async fn an_origin_that_will_close_is_taken_at_its_word() {
    for header in ["Connection: close", "Keep-Alive: timeout=1"] {
        let site = Site::open().await;
        let upstream = upstream(&settings());
        let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
        let (answer, mut peer) = tokio::join!(connection.send(get("/")), async {
            let mut peer = site.accept().await;
            peer.head().await;
            peer.write(&format!("HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: 2\r\n\r\nok")).await;
            peer
        });
        assert_eq!(text(answer.unwrap()).await, "ok");
        peer.is_closed().await;
    }
}

#[tokio::test]
async fn an_answer_that_nobody_reads_to_its_end_closes_the_connection() {
    let site = Site::open().await;
    let connection = upstream(&settings()).checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (answer, mut peer) = tokio::join!(connection.send(get("/")), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nthe first of many").await;
        peer
    });
    drop(answer.unwrap());
    peer.is_closed().await;
}

#[tokio::test]
async fn an_answer_comes_through_while_the_request_is_still_going_out() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (upload, body) = upload();
    let request = Request::post("/upload").body(body).unwrap();
    let (answer, mut peer) = tokio::join!(connection.send(request), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.write("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n").await;
        peer
    });
    assert_eq!(answer.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    tasks_run().await;
    assert!(
        !upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap().is_reused(),
        "the upload still occupies it"
    );
    upload.send(Ok("rest")).await.unwrap();
    drop(upload);
    assert_eq!(peer.through("0\r\n\r\n").await, "4\r\nrest\r\n0\r\n\r\n");
}

#[tokio::test]
async fn what_the_client_wrote_is_what_the_origin_reads() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    for (sent, expected) in [
        (
            "POST /a?b=%20 HTTP/1.1\r\nhOsT: Ota.Example\r\nX-ODD-case: 1\r\nx-lower: 2\r\nContent-Length: 4\r\n\r\nbody",
            "POST /a?b=%20 HTTP/1.1\r\nhOsT: Ota.Example\r\nX-ODD-case: 1\r\nx-lower: 2\r\nContent-Length: 4\r\n\r\nbody",
        ),
        (
            "POST / HTTP/1.1\r\nHost: o\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: o\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        ),
        ("GET / HTTP/1.1\r\nHost: o\r\n\r\n", "GET / HTTP/1.1\r\nHost: o\r\n\r\n"),
        (
            "POST / HTTP/1.1\r\nHost: o\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: o\r\nContent-Length: 0\r\n\r\n",
        ),
    ] {
        let relayed = tokio::spawn(relay(sent, upstream.clone(), site.origin()));
        let mut peer = site.accept().await;
        assert_eq!(String::from_utf8(peer.bytes(expected.len()).await).unwrap(), expected);
        peer.write("HTTP/1.1 200 OK\r\nConnection: close\r\nX-oDD: 1\r\nContent-Length: 2\r\n\r\nok").await;
        let answer = relayed.await.unwrap();
        assert!(answer.contains("\r\nX-oDD: 1\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    }
}

#[tokio::test]
async fn headers_that_the_proxy_adds_are_spelled_like_anybodys() {
    let site = Site::open().await;
    let connection = upstream(&settings()).checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let request = Request::get("/").header("host", "o").header("x-request-id", "1").body(empty()).unwrap();
    let (_, head) = tokio::join!(connection.send(request), async { site.accept().await.head().await });
    assert_eq!(head, "GET / HTTP/1.1\r\nHost: o\r\nX-Request-Id: 1\r\n\r\n");
}

#[tokio::test]
async fn an_upgraded_connection_carries_bytes_both_ways() {
    let site = Site::open().await;
    let connection = upstream(&settings()).checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let request = Request::get("/").header("connection", "upgrade").header("upgrade", "echo").body(empty()).unwrap();
    let (answer, mut peer) = tokio::join!(connection.send(request), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst").await;
        peer
    });
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut tunnel = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let mut first = [0; 5];
    tunnel.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
    tunnel.write_all(b"second").await.unwrap();
    assert_eq!(peer.bytes(6).await, b"second");
}

#[tokio::test]
async fn a_silent_origin_is_given_up() {
    let site = Site::open().await;
    let upstream = upstream(&model::Upstream { response_timeout: Duration::from_millis(100), ..settings() });
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (sent, ()) = tokio::join!(connection.send(post("/", "body")), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.bytes(4).await;
        peer.is_closed().await;
    });
    let error = sent.unwrap_err();
    assert_eq!((error.kind, error.written), (SendErrorKind::Timeout, true));
}

#[tokio::test]
async fn an_upload_that_moves_may_take_longer_than_an_answer() {
    let site = Site::open().await;
    let upstream = upstream(&model::Upstream { response_timeout: Duration::from_secs(1), ..settings() });
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (upload, body) = upload();
    let request = Request::post("/upload").body(body).unwrap();
    let (answer, (), _peer) = tokio::join!(
        connection.send(request),
        async {
            for _ in 0..6 {
                sleep(Duration::from_millis(300)).await;
                upload.send(Ok("part")).await.unwrap();
            }
            drop(upload);
        },
        async {
            let mut peer = site.accept().await;
            peer.through("0\r\n\r\n").await;
            peer.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            peer
        }
    );
    assert_eq!(answer.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn an_upload_that_its_client_abandons_is_not_blamed_on_the_origin() {
    let site = Site::open().await;
    let upstream = upstream(&model::Upstream { response_timeout: Duration::from_millis(100), ..settings() });
    // One client goes silent, the other goes away.
    for leaves in [false, true] {
        let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
        let (upload, body) = upload();
        let request = Request::post("/upload").body(body).unwrap();
        let (sent, _upload, ()) = tokio::join!(
            connection.send(request),
            async {
                upload.send(Ok("part")).await.unwrap();
                if leaves {
                    upload.send(Err("the client went away".into())).await.unwrap();
                    return None;
                }
                Some(upload)
            },
            async { site.accept().await.is_closed().await }
        );
        let error = sent.unwrap_err();
        assert_eq!((error.kind, error.written), (SendErrorKind::Body, true), "{error:?}");
    }
}

#[tokio::test]
async fn an_origin_over_tls_is_verified_and_its_fault_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let then = SystemTime::now() - Duration::from_secs(40 * 24 * 60 * 60);
    let leaves = Leaves::new(Authority::open_at(&ota_pacer::config::model::Ca::at(dir.path()), then).unwrap()).unwrap();
    // Each time anew: a resumed session would show no certificate.
    let trusting = || upstream(&with_roots(&dir.path().join("ca.pem")));
    let address = Host::parse("127.0.0.1").unwrap();

    let site = Site::open().await;
    let origin = site.secure_origin();
    let expired = leaves.server_config_at(&address, None, Alpn::Http1, then).unwrap();
    let good = leaves.server_config(&address, None, Alpn::Http1).unwrap();
    let client = trusting();
    let (connection, ()) =
        tokio::join!(async { client.connect(&origin, &nobody(), Offer::Http1).await }, site.accept_tls(good.clone()));
    connection.unwrap();

    let wrong =
        leaves.server_config(&Host::parse("other.example").unwrap(), Some("more.example"), Alpn::Http1).unwrap();
    let client = trusting();
    let (refused, ()) =
        tokio::join!(async { client.connect(&origin, &nobody(), Offer::Http1).await }, site.accept_tls(wrong));
    let message = certificate_fault(refused);
    assert!(message.contains("is for `other.example`, `more.example`, not for `127.0.0.1`"), "{message}");

    let client = trusting();
    let (refused, ()) =
        tokio::join!(async { client.connect(&origin, &nobody(), Offer::Http1).await }, site.accept_tls(expired));
    assert!(certificate_fault(refused).contains("has expired"));

    let strict = upstream(&settings());
    let (refused, ()) =
        tokio::join!(async { strict.connect(&origin, &nobody(), Offer::Http1).await }, site.accept_tls(good));
    let message = certificate_fault(refused);
    assert!(message.contains("signed by no root that is trusted here"), "{message}");
}

#[tokio::test]
async fn a_certificate_of_an_authority_stands_for_no_host_and_is_told_so() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut parameters = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let own = parameters.self_signed(&key).unwrap();
    let root = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(root.path(), own.pem()).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![own.der().clone()], key).unwrap();
    let (site, client) = (Site::open().await, upstream(&with_roots(root.path())));
    let origin = site.secure_origin();
    let (refused, ()) =
        tokio::join!(async { client.connect(&origin, &nobody(), Offer::Http1).await }, site.accept_tls(config.into()));
    let message = certificate_fault(refused);
    assert!(message.contains("that of an authority (`CA:TRUE`)"), "{message}");
}

#[tokio::test]
async fn a_port_that_speaks_no_tls_is_told_apart() {
    let site = Site::open().await;
    let upstream = upstream(&settings());
    let origin = site.secure_origin();
    let (refused, _peer) = tokio::join!(async { upstream.checkout(&origin, &nobody(), Offer::Http1).await }, async {
        let mut peer = site.accept().await;
        peer.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        peer
    });
    let error = refused.unwrap_err();
    assert_eq!(error.step(), Step::Tls);
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn a_failed_connection_names_its_step() {
    let upstream = upstream(&model::Upstream { connect_timeout: Duration::from_millis(300), ..settings() });

    let closed = Site::open().await.origin();
    let error = upstream.checkout(&closed, &nobody(), Offer::Http1).await.unwrap_err();
    assert_eq!((error.step(), error.is_timeout()), (Step::Connect, false));
    assert!(error.to_string().starts_with("cannot connect to `127.0.0.1` at 127.0.0.1:"), "{error}");
    let error = upstream.dial(&closed.host, closed.port).await.unwrap_err();
    assert_eq!(error.step(), Step::Connect);

    // Whether the resolver here says no or nothing.
    let nowhere = Host::parse("nowhere.invalid").unwrap();
    let error = upstream.dial(&nowhere, 80).await.unwrap_err();
    assert_eq!(error.step(), Step::Resolve);
    assert!(error.to_string().contains("`nowhere.invalid`"), "{error}");

    let silent = Site::open().await;
    let error = upstream.checkout(&silent.secure_origin(), &nobody(), Offer::Http1).await.unwrap_err();
    assert_eq!((error.step(), error.is_timeout()), (Step::Tls, true));
    assert_eq!(error.to_string(), "the TLS handshake with `127.0.0.1` did not end within 300ms");
}

#[test]
fn roots_that_cannot_be_read_are_a_mistake_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    for (path, reason) in [(dir.path().join("missing.pem"), "No such file"), (empty, "holds no certificate")] {
        let error = Upstream::new(&with_roots(&path)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("`upstream.ca_file`") && error.contains("hint:"), "{error}");
    }
}

/// An origin that speaks only what a test has it say.
struct Site {
    listener: TcpListener,
}

impl Site {
    async fn open() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    fn origin(&self) -> Origin {
        let address = self.listener.local_addr().unwrap();
        Origin { scheme: Scheme::Http, host: address.ip().into(), port: address.port() }
    }

    fn secure_origin(&self) -> Origin {
        Origin { scheme: Scheme::Https, ..self.origin() }
    }

    async fn accept(&self) -> Peer {
        Peer { stream: self.listener.accept().await.unwrap().0 }
    }

    /// Does its half of the handshake, however that ends.
    async fn accept_tls(&self, config: std::sync::Arc<rustls::ServerConfig>) {
        let (stream, _) = self.listener.accept().await.unwrap();
        let _ = tokio_rustls::TlsAcceptor::from(config).accept(stream).await;
    }
}

/// The origin's end of a connection.
struct Peer {
    stream: TcpStream,
}

impl Peer {
    async fn head(&mut self) -> String {
        self.through("\r\n\r\n").await
    }

    /// Everything up to and with `end`.
    async fn through(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(self.stream.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Returns once the other side has closed.
    async fn is_closed(&mut self) {
        let mut rest = Vec::new();
        match timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.expect("the connection is still open") {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
}

/// A connection that served a request and was checked out again, and its other end.
async fn idle_connection(upstream: &Upstream, site: &Site) -> (Connection, Peer) {
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    let (answer, peer) = tokio::join!(connection.send(get("/")), async {
        let mut peer = site.accept().await;
        peer.head().await;
        peer.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        peer
    });
    assert_eq!(text(answer.unwrap()).await, "ok");
    tasks_run().await;
    let connection = upstream.checkout(&site.origin(), &nobody(), Offer::Http1).await.unwrap();
    assert!(connection.is_reused());
    (connection, peer)
}

/// Relays `request` as a proxy would, from a client's bytes to the origin, and returns the bytes of the answer.
async fn relay(request: &'static str, upstream: Upstream, origin: Origin) -> String {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let service = service_fn(move |request: Request<Incoming>| {
        let (upstream, origin) = (upstream.clone(), origin.clone());
        async move {
            let connection = upstream.checkout(&origin, &nobody(), Offer::Http1).await.unwrap();
            let request = request.map(|body| Body::new(body.map_err(BoxError::from)));
            Ok::<_, Infallible>(connection.send(request).await.unwrap())
        }
    });
    tokio::spawn(
        http1::Builder::new()
            .preserve_header_case(true)
            .keep_alive(false)
            .serve_connection(TokioIo::new(server), service),
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Lets every task that can run do so: on the test's single thread they all get their turn before this returns.
async fn tasks_run() {
    for _ in 0..16 {
        yield_now().await;
    }
}

fn certificate_fault(result: Result<Connection, ConnectError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { certificate: true, .. }), "{error}");
    error.to_string()
}

/// A client that leaves with its connection unused, or with its answer's head.
fn nobody() -> Tether {
    Tether::default()
}

fn upstream(settings: &model::Upstream) -> Upstream {
    Upstream::new(settings).unwrap()
}

fn settings() -> model::Upstream {
    model::Upstream {
        ca_file: None,
        connect_timeout: PATIENCE,
        response_timeout: PATIENCE,
        idle: Duration::from_secs(4),
        proxy: None,
    }
}

fn with_roots(path: &Path) -> model::Upstream {
    model::Upstream { ca_file: Some(path.to_owned()), ..settings() }
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).header("host", "origin").body(empty()).unwrap()
}

fn post(path: &str, body: &'static str) -> Request<Body> {
    let body = Body::new(Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}));
    Request::post(path).header("host", "origin").body(body).unwrap()
}

/// A body that comes in parts, as its sender pleases, and ends when that is dropped.
fn upload() -> (mpsc::Sender<Result<&'static str, BoxError>>, Body) {
    let (sender, parts) = mpsc::channel(1);
    (sender, Body::new(Parts(parts)))
}

struct Parts(mpsc::Receiver<Result<&'static str, BoxError>>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0
            .poll_recv(cx)
            .map(|part| part.map(|part| part.map(|part| Frame::data(Bytes::from_static(part.as_bytes())))))
    }
}

fn empty() -> Body {
    Body::new(Empty::new().map_err(|never| match never {}))
}

async fn text(response: Response<Download>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

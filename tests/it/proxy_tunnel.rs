//! CONNECT: which tunnels open, what they say when they do not, and what may be asked inside.

use std::{io::ErrorKind, sync::Arc};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

use super::proxy_rig::{Origin, Rig, Wire, field, status, within};

const OPEN: &str = "HTTP/1.1 200 OK\r\n\r\n";

#[tokio::test]
async fn a_connect_of_http_10_without_host() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    for host in ["localhost", "127.0.0.1"] {
        let mut client = rig.connect().await;
        client.send(format!("CONNECT {host}:{} HTTP/1.0\r\n\r\n", origin.port)).await;
        assert_eq!(client.head().await, "HTTP/1.0 200 OK\r\n\r\n", "{host}");
        client.send(format!("GET /fast/ HTTP/1.1\r\nHost: {host}:{}\r\n\r\n", origin.port)).await;
        assert_eq!(status(&client.head().await), 200, "{host}");
    }
}

#[tokio::test]
async fn bytes_right_behind_the_head_belong_to_the_tunnel() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    for host in ["localhost", "127.0.0.1"] {
        let authority = format!("{host}:{}", origin.port);
        let mut client = rig.connect().await;
        client
            .send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\nGET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
            .await;
        assert_eq!(client.head().await, OPEN, "exactly 200, alone");
        assert_eq!(status(&client.head().await), 200);
    }
}

#[tokio::test]
async fn each_request_of_a_tunnel_is_paced_on_its_own() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 100ms }").await;
    let authority = format!("localhost:{}", origin.port);
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    client.head().await;
    let mut answers = Vec::new();
    for path in ["stuck", "stuck", "fast"] {
        client.send(format!("GET /{path}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        let head = client.head().await;
        client.body(&head).await;
        answers.push((status(&head), field(&head, "x-pacer-bucket").unwrap().to_owned()));
    }
    assert_eq!(answers, [(200, "ota/stuck".into()), (429, "ota/stuck".into()), (200, "ota/fast".into())]);
}

#[tokio::test]
async fn a_tunnel_keeps_its_host() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let authority = format!("localhost:{}", origin.port);
    for (request, wanted) in [
        (format!("GET /fast/ HTTP/1.1\r\nHost: LOCALHOST.:{}\r\n\r\n", origin.port), 200),
        (format!("GET http://{authority}/fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"), 200),
        ("GET /fast/ HTTP/1.1\r\nHost: other.test\r\n\r\n".to_owned(), 421),
        (format!("GET http://other.test/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"), 421),
        (format!("GET https://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"), 421),
        (format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"), 405),
        ("GET /fast/ HTTP/1.1\r\n\r\n".to_owned(), 400),
    ] {
        let mut client = rig.connect().await;
        client.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        client.head().await;
        client.send(&request).await;
        assert_eq!(status(&client.head().await), wanted, "{request}");
    }
    assert_eq!(origin.seen().len(), 2);
}

#[tokio::test]
async fn a_blind_tunnel_lets_the_server_speak_first_and_closes_by_halves() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"hello\n").await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        stream.write_all(heard.to_uppercase().as_bytes()).await.unwrap();
    });
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    assert_eq!(client.head().await, OPEN);
    assert_eq!(client.exactly(6).await, "hello\n");
    client.send("good bye").await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await, "GOOD BYE");
    within(server).await.unwrap();
}

#[tokio::test]
async fn a_refused_tunnel_says_why_and_closes_unread() {
    let rig = Rig::start().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let own = rig.address;
    for (target, wanted, error) in [
        (format!("127.0.0.1:{}", closed.port()), 502, "connection_refused"),
        ("no-such-host.invalid:443".to_owned(), 502, "dns_error"),
        (format!("127.0.0.1:{}", own.port()), 403, "proxy_loop_detected"),
        (format!("localhost:{}", own.port()), 403, "proxy_loop_detected"),
        ("localhost".to_owned(), 400, "http_request_error"),
        ("user@localhost:443".to_owned(), 400, "http_request_error"),
    ] {
        let answer = rig
            .ask(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nGET http://localhost:1/ HTTP/1.1\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), wanted, "{answer}");
        assert_eq!(field(&answer, "connection"), Some("close"), "{answer}");
        assert!(
            field(&answer, "proxy-status").unwrap().starts_with(&format!("ota-pacer; error={error}; ")),
            "{answer}"
        );
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "what follows is not read as a request: {answer}");
    }
}

#[tokio::test]
async fn hosts_of_no_channel_can_be_refused() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("unmatched: { host: refuse, path: refuse }").await;
    let port = origin.port;
    let close = "Connection: close";
    for request in [
        format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"),
        format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{close}\r\n\r\n"),
        format!("GET http://localhost:{port}/other HTTP/1.1\r\nHost: localhost:{port}\r\n{close}\r\n\r\n"),
    ] {
        let answer = rig.ask(&request).await;
        assert_eq!(status(&answer), 403, "{request}");
        assert!(answer.contains("\"hint\":"), "{answer}");
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn the_proxy_is_no_origin() {
    let rig = Rig::start().await;
    let answer = rig.ask("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&answer), 400);
    assert!(answer.contains("`HTTPS_PROXY`"), "{answer}");
}

#[tokio::test]
async fn what_is_no_http_is_relayed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = [0; 4];
        stream.read_exact(&mut heard).await.unwrap();
        stream.write_all(&heard).await.unwrap();
    });
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n")).await;
    client.head().await;
    client.send(b"\0\x01\x02\x03").await;
    assert_eq!(client.exactly(4).await, "\0\x01\x02\x03");
    within(server).await.unwrap();
}

#[tokio::test]
async fn an_upgraded_connection_is_relayed_after_the_101() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut client = Wire::new(stream);
        let head = client.head().await;
        client.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nfirst").await;
        let heard = client.exactly(4).await;
        client.send(heard.to_uppercase()).await;
        head
    });
    let rig = Rig::with("annotate: false").await;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\nSec-WebSocket-Protocol: a, b\r\n\r\n"
        ))
        .await;
    let head = client.head().await;
    assert_eq!(
        (status(&head), field(&head, "upgrade"), field(&head, "connection")),
        (101, Some("echo"), Some("Upgrade"))
    );
    assert_eq!(client.exactly(5).await, "first");
    client.send("ping").await;
    assert_eq!(client.exactly(4).await, "PING");
    let head = within(server).await.unwrap();
    assert_eq!((field(&head, "connection"), field(&head, "sec-websocket-protocol")), (Some("Upgrade"), Some("a, b")));
}

#[tokio::test]
async fn tls_ends_at_the_proxy_and_starts_again_to_the_origin() {
    let (authority, root, server) = tls_origin().await;
    let rig = Rig::with(&format!("annotate: false\nupstream: {{ ca_file: '{}' }}", root.path().display())).await;
    let mut trusted = rustls::RootCertStore::empty();
    let ca = rig.directory.path().join("ca/ca.pem");
    trusted.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    assert_eq!(client.head().await, OPEN);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = connector.connect(ServerName::try_from("localhost").unwrap(), client.stream).await.unwrap();
    let mut client = Wire::new(tls);
    for _ in 0..2 {
        client.send(format!("GET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        let head = client.head().await;
        assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"));
    }
    let heads = within(server).await.unwrap();
    assert_eq!(heads, vec![format!("GET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"); 2]);
}

#[tokio::test]
async fn an_untrusted_origin_is_a_502_that_names_the_cause() {
    let (authority, _root, _server) = tls_origin().await;
    let rig = Rig::start().await;
    // In clear to the proxy, as some clients ask for https.
    let answer = rig
        .ask(format!("GET https://{authority}/fast/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"))
        .await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(field(&answer, "proxy-status").unwrap().contains("error=tls_certificate_error"), "{answer}");
    assert!(answer.contains("`upstream.ca_file`"), "{answer}");
}

/// An origin that answers two requests over TLS, and the file with its certificate.
pub(crate) async fn tls_origin() -> (String, NamedTempFile, JoinHandle<Vec<String>>) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let root = NamedTempFile::new().unwrap();
    std::fs::write(root.path(), own.cert.pem()).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = format!("localhost:{}", listener.local_addr().unwrap().port());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(stream) = tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(stream).await else {
            return Vec::new();
        };
        let mut client = Wire::new(stream);
        let mut heads = Vec::new();
        for _ in 0..2 {
            heads.push(client.head().await);
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
        heads
    });
    (authority, root, server)
}

#[tokio::test]
async fn a_client_that_leaves_its_tunnel_takes_the_other_side_along() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap();
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\n\r\n")).await;
    client.head().await;
    let (mut stream, _) = listener.accept().await.unwrap();
    drop(client);
    let mut byte = [0; 1];
    match within(stream.read(&mut byte)).await {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

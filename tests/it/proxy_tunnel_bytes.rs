//! Bytes of tunnels and upgrades as they really come: early, singly, behind stray line breaks; and the waits of tunnels that
//! are not opened.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::proxy_rig::{Origin, Rig, Wire, field, status, within};

#[tokio::test]
async fn tls_behind_line_breaks_and_a_byte_at_a_time_is_intercepted() {
    let (origin, root) = Origin::over_tls([]).await;
    let rig = Rig::with(&format!("upstream: {{ ca_file: '{}' }}", root.path().display())).await;
    let mut trusted = rustls::RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_file(rig.directory.path().join("ca/ca.pem")).unwrap()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    let authority = format!("localhost:{}", origin.port);
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\n\r\n")).await;
    client.head().await;
    client.send("\r\n").await;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = connector.connect(ServerName::try_from("localhost").unwrap(), OneByOne(client.stream)).await.unwrap();
    let mut client = Wire::new(tls);
    client.send(format!("\r\nGET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    let head = client.head().await;
    assert_eq!((status(&head), field(&head, "x-pacer-bucket")), (200, Some("ota/fast")), "{head}");
}

#[tokio::test]
async fn http_behind_line_breaks_and_a_byte_at_a_time_is_paced() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let authority = format!("localhost:{}", origin.port);
    let mut client = rig.connect().await;
    for byte in format!("CONNECT {authority} HTTP/1.1\r\n\r\n\r\n\nPOST /fast/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 3\r\n\r\nabc").bytes() {
        client.send([byte]).await;
    }
    assert_eq!(client.head().await, "HTTP/1.1 200 OK\r\n\r\n");
    let head = client.head().await;
    assert_eq!((status(&head), field(&head, "x-pacer-bucket")), (200, Some("ota/fast")), "{head}");
    assert!(origin.seen()[0].ends_with("\r\n\r\nabc"));
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: echo\r\n";

#[tokio::test]
async fn bytes_before_a_101_wait_for_it_and_are_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let early = format!("GET http://localhost:{port}/early HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let mut client = rig.connect().await;
    client
        .send(format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n{UPGRADE}\r\n{early}"))
        .await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    assert!(origin.head().await.starts_with("GET /fast/ "));
    // Whatever was forwarded too early would be here by now: the proxy has had it all along.
    let more = tokio::time::timeout(Duration::from_millis(300), origin.exactly(1)).await;
    assert!(more.is_err(), "{more:?} before the 101");
    origin.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n").await;
    assert_eq!(status(&client.head().await), 101);
    assert_eq!(origin.exactly(early.len()).await, early, "as it came, on the same connection");
}

#[tokio::test]
async fn bytes_behind_a_declined_upgrade_are_never_forwarded_raw() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n{UPGRADE}\r\n\u{1}\u{2} not HTTP\r\n\r\n"
        ))
        .await;
    let head = client.head().await;
    assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"));
    assert_eq!(status(&client.rest().await), 400, "and the connection ends");
    assert_eq!(origin.seen().len(), 1);
}

/// A channel of tunnels that stay closed to the proxy: one goes at once, and then none for long.
async fn closed_tunnels() -> Rig {
    let channel = "{ hosts: [127.0.0.1], intercept: false, limits: [{ rate: 1/h, capacity: 1 }], max_wait: 2s }";
    Rig::configured(&format!("channels: {{ pinned: {channel} }}"), "").await
}

fn connect(port: u16, more: &str) -> String {
    format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n{more}\r\n")
}

#[tokio::test]
async fn a_tunnel_waits_no_longer_than_its_client_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = closed_tunnels().await;
    let mut first = rig.connect().await;
    first.send(connect(port, "X-Pacer-Max-Wait: 0\r\n")).await;
    assert_eq!(status(&first.head().await), 200, "what is free needs no wait");
    let answer = rig.ask(connect(port, "X-Pacer-Max-Wait: 10ms\r\n")).await;
    assert_eq!((status(&answer), field(&answer, "connection")), (429, Some("close")), "{answer}");
    assert!(answer.contains("longer than `X-Pacer-Max-Wait`"), "{answer}");
    let answer = rig.ask(connect(port, "X-Pacer-Max-Wait: 1h\r\n")).await;
    assert!(answer.contains("longer than `max_wait`"), "it never lengthens the wait: {answer}");
    assert_eq!(status(&rig.ask(connect(port, "X-Pacer-Max-Wait: soon\r\n")).await), 400);
}

#[tokio::test]
async fn a_tunnel_whose_host_is_slow_to_reach_holds_no_slot_meanwhile() {
    // A listener that is full drops what knocks, and the system knocks again after a second.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut knocking = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        knocking.push(stream.unwrap());
    }
    let rig = closed_tunnels().await;
    let mut slow = rig.connect().await;
    slow.send(connect(address.port(), "")).await;
    within(async {
        while !is_knocked_at(address.port()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let quick = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut other = rig.connect().await;
    other.send(connect(quick.local_addr().unwrap().port(), "")).await;
    assert_eq!(status(&other.head().await), 200, "the slot is for whoever can use it");
    let accepting = tokio::spawn(async move {
        let mut accepted = Vec::new();
        loop {
            accepted.push(listener.accept().await.unwrap());
        }
    });
    assert_eq!(status(&slow.head().await), 429, "the slot was not kept for it");
    accepting.abort();
}

/// Whether somebody's connection to that port is not answered yet: the system's table has it in the state `SYN_SENT`.
fn is_knocked_at(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|remote| remote.ends_with(&format!(":{port:04X}"))) && fields.next() == Some("02")
    })
}

/// Writes a byte at a time.
struct OneByOne(TcpStream);

impl AsyncRead for OneByOne {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for OneByOne {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, &buf[..buf.len().min(1)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

//! Clients that leave, and proxies that are told to stop.

use std::time::Duration;

use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};

use super::proxy_rig::{Origin, Rig, Wire, field, status, within};

fn request(port: u16, path: &str, more: &str) -> String {
    format!(
        "POST http://localhost:{port}/{path}/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 3\r\n{more}\r\n"
    )
}

#[tokio::test]
async fn a_client_that_leaves_while_queued_costs_nothing() {
    let expecting = "Expect: 100-continue\r\n";
    let followed = format!("abc{}", request(1, "fast", "") + "abc");
    tokio::join!(
        leave_after("", ""),
        leave_after("", "ab"),
        leave_after("", "abc"),
        leave_after(expecting, ""),
        leave_after("", &followed),
    );
}

/// A client leaves when it has sent so much of its body, or more.
async fn leave_after(more: &str, body: &str) {
    let origin = Origin::start([]).await;
    // A slot every 3 seconds: the third request is served in time only if the second is gone from the line.
    let rig = Rig::with("defaults: { max_wait: 4500ms }").await;
    let mut first = rig.connect().await;
    first.send(request(origin.port, "slow", "") + "abc").await;
    assert_eq!(status(&first.head().await), 200);
    let mut leaver = rig.connect().await;
    leaver.send(request(origin.port, "slow", more) + body).await;
    // Lets it take its place, and the proxy notice; where that takes longer, the test only asks less.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(leaver);
    loop {
        let mut last = rig.connect().await;
        last.send(request(origin.port, "slow", "") + "abc").await;
        // Refused for as long as the other is believed to wait before it.
        if status(&last.head().await) == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(origin.seen().len(), 2, "who left with {more:?} and {body:?} sent never came to the origin");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_at_the_origin() {
    let (listener, port) = silent_origin().await;
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(request(port, "fast", "") + "abc").await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    let head = origin.head().await;
    origin.body(&head).await;
    drop(client);
    assert_eq!(origin.rest().await, "");
}

#[tokio::test]
async fn a_shutdown_finishes_what_is_under_way() {
    let (listener, port) = silent_origin().await;
    let rig = Rig::start().await;
    let idle = rig.connect().await;
    let mut client = rig.connect().await;
    client.send(request(port, "fast", "") + "abc").await;
    let mut inside = rig.connect().await;
    inside.send(format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n")).await;
    inside.head().await;
    inside.send(format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")).await;
    let mut origins = Vec::new();
    for _ in 0..2 {
        let mut origin = Wire::new(listener.accept().await.unwrap().0);
        let head = origin.head().await;
        origin.body(&head).await;
        origins.push(origin);
    }
    rig.shut_down();
    assert_closed(idle).await;
    for origin in &mut origins {
        origin.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    }
    for client in [&mut client, &mut inside] {
        let answer = client.rest().await;
        assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
        assert_eq!(field(&answer, "connection"), Some("close"), "{answer}");
    }
    assert!(TcpStream::connect(rig.address).await.is_err(), "nobody new comes in");
    rig.stopped().await;
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_ever() {
    let (listener, port) = silent_origin().await;
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(request(port, "fast", "") + "abc").await;
    let mut tunnel = rig.connect().await;
    tunnel.send(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).await;
    tunnel.head().await;
    let _origins = (listener.accept().await.unwrap(), listener.accept().await.unwrap());
    rig.stopped().await;
    assert_closed(client).await;
    assert_closed(tunnel).await;
}

async fn silent_origin() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn assert_closed(mut client: Wire<TcpStream>) {
    let mut byte = [0; 1];
    // A reset is a close as well.
    assert_eq!(within(client.stream.read(&mut byte)).await.unwrap_or(0), 0);
}

//! What a worker tells the proxy of its own requests: how long it would wait, and which of them can wait.

use std::time::{Duration, Instant};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::net::TcpStream;

use super::proxy_rig::{Origin, Reply, Rig, Wire, field, status};

fn get(port: u16, path: &str, fields: &str) -> String {
    format!(
        "GET http://localhost:{port}/{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n{fields}\r\n"
    )
}

fn throttled(fields: &str) -> Reply {
    Reply::Answer(format!("HTTP/1.1 429 Slow Down\r\nX-Ota: yes\r\n{fields}Content-Length: 4\r\n\r\nslow"))
}

#[tokio::test]
async fn who_would_not_wait_is_refused_at_once() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let first = rig.ask(get(origin.port, "stuck/", "X-Pacer-Max-Wait: 0\r\n")).await;
    assert_eq!(status(&first), 200, "there was a slot: {first}");
    for wait in ["0", "0.05", "50ms"] {
        let answer = rig.ask(get(origin.port, "stuck/", &format!("X-Pacer-Max-Wait: {wait}\r\n"))).await;
        assert_eq!(status(&answer), 429, "{answer}");
        assert!(field(&answer, "proxy-status").is_some_and(|why| why.contains("X-Pacer-Max-Wait")), "{answer}");
        assert!(field(&answer, "retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait > 3000)));
    }
    let seen = origin.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(field(&seen[0], "x-pacer-max-wait"), None, "it is not forwarded");
}

#[tokio::test]
async fn a_client_cannot_wait_longer_than_the_configuration_lets_it() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 100ms }").await;
    rig.ask(get(origin.port, "stuck/", "")).await;
    let answer = rig.ask(get(origin.port, "stuck/", "X-Pacer-Max-Wait: 3h\r\n")).await;
    assert_eq!(status(&answer), 429, "{answer}");
    assert!(field(&answer, "proxy-status").is_some_and(|why| why.contains("`max_wait`")), "{answer}");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_a_reason() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    for fields in [
        "X-Pacer-Max-Wait: soon\r\n",
        "X-Pacer-Max-Wait: -1\r\n",
        "X-Pacer-Max-Wait: 1\r\nX-Pacer-Max-Wait: 2\r\n",
        "X-Pacer-Priority: high\r\n",
    ] {
        let answer = rig.ask(get(origin.port, "fast/", fields)).await;
        let name = fields.split_once(':').unwrap().0.to_lowercase();
        assert_eq!(status(&answer), 400, "{answer}");
        assert!(answer.to_lowercase().contains(&name) && answer.contains("\"hint\""), "{answer}");
    }
    let mut client = rig.connect().await;
    client.send(format!("CONNECT localhost:{} HTTP/1.1\r\nX-Pacer-Priority: high\r\n\r\n", origin.port)).await;
    let answer = client.rest().await;
    assert_eq!(status(&answer), 400, "{answer}");
    assert!(origin.seen().is_empty());
}

#[tokio::test]
async fn who_would_not_wait_gets_the_throttle_answer_itself() {
    for (wait, pause, wanted) in [("0", "0", 429), ("0", "1", 429), ("500ms", "1", 429), ("5", "1", 200)] {
        let origin = Origin::start([throttled(&format!("Retry-After: {pause}\r\n"))]).await;
        let rig = Rig::start().await;
        let answer = rig.ask(get(origin.port, "fast/", &format!("X-Pacer-Max-Wait: {wait}\r\n"))).await;
        assert_eq!(status(&answer), wanted, "{answer}");
        if wanted == 429 {
            assert_eq!(field(&answer, "x-ota"), Some("yes"), "the origin's own: {answer}");
            assert_eq!(field(&answer, "x-pacer-attempts"), Some("1"), "{answer}");
        }
    }
}

#[tokio::test]
async fn interactive_requests_go_before_batch_ones_that_came_earlier() {
    let batch = format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode("batch:"));
    let stranger = format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode("alice:batch"));
    tokio::join!(
        overtakes("X-Pacer-Priority: Batch\r\n".to_owned(), String::new()),
        overtakes(batch.clone(), stranger),
        overtakes(batch.clone(), format!("{batch}X-Pacer-Priority: interactive\r\n")),
    );
}

/// A request with the fields of `later` is served before an earlier one with those of `earlier`.
async fn overtakes(earlier: String, later: String) {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 30s }").await;
    rig.ask(get(origin.port, "steady/", "")).await;
    let mut waiting = Vec::new();
    for (path, fields) in [("steady/earlier", &earlier), ("steady/later", &later)] {
        let mut client = rig.connect().await;
        client.send(get(origin.port, path, fields)).await;
        waiting.push(client);
        settle().await;
    }
    answered(&mut waiting).await;
    let seen = origin.seen();
    assert!(seen[1].contains("/later") && seen[2].contains("/earlier"), "{earlier}{later}{seen:?}");
    assert!(seen.iter().all(|head| field(head, "x-pacer-priority").is_none()), "not forwarded: {seen:?}");
    assert!(seen.iter().all(|head| field(head, "proxy-authorization").is_none()), "not forwarded: {seen:?}");
}

#[tokio::test]
async fn a_tunnel_keeps_the_class_of_its_connect() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 30s }").await;
    rig.ask(get(origin.port, "steady/", "")).await;
    let user = BASE64_STANDARD.encode("batch:");
    let mut waiting = Vec::new();
    for (path, connect, fields) in [
        ("batch", format!("Proxy-Authorization: Basic {user}\r\n"), ""),
        ("urgent", format!("Proxy-Authorization: Basic {user}\r\n"), "X-Pacer-Priority: interactive\r\n"),
        ("plain", String::new(), ""),
    ] {
        let authority = format!("localhost:{}", origin.port);
        let mut client = rig.connect().await;
        client.send(format!("CONNECT {authority} HTTP/1.1\r\n{connect}\r\n")).await;
        assert_eq!(status(&client.head().await), 200);
        client
            .send(format!("GET /steady/{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n{fields}\r\n"))
            .await;
        waiting.push(client);
        settle().await;
    }
    answered(&mut waiting).await;
    let order: Vec<_> =
        origin.seen().iter().skip(1).map(|head| head.split([' ', '/']).nth(3).unwrap().to_owned()).collect();
    assert_eq!(order, ["urgent", "plain", "batch"]);
}

/// Lets a request take its place in the line.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}

async fn answered(clients: &mut [Wire<TcpStream>]) {
    let started = Instant::now();
    for client in clients {
        let answer = client.rest().await;
        assert_eq!(status(&answer), 200, "after {:?}: {answer}", started.elapsed());
    }
}

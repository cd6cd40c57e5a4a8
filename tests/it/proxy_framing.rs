//! Where messages end: lengths, chunks, trailers and interim answers, from either side, right or wrong.

use std::time::{Duration, Instant};

use tokio::{net::TcpListener, time::sleep};

use super::proxy_rig::{Origin, Reply, Rig, Wire, answer, field, ok, status};

fn get(port: u16) -> String {
    format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")
}

#[tokio::test]
async fn a_205_is_empty() {
    let origin = Origin::start([
        answer("HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"),
        answer("HTTP/1.1 205 Reset Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ok("still in step"),
    ])
    .await;
    let rig = Rig::with("annotate: false").await;
    let mut client = rig.connect().await;
    for (wanted, body) in [(205, ""), (205, "0\r\n\r\n"), (200, "still in step")] {
        client.send(get(origin.port)).await;
        let head = client.head().await;
        assert_eq!((status(&head), client.body(&head).await.as_str()), (wanted, body));
    }
}

#[tokio::test]
async fn an_answer_whose_end_is_ambiguous_is_a_502() {
    for fields in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok!",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let origin = Origin::start([Reply::Last(fields.to_owned())]).await;
        let rig = Rig::start().await;
        let answer = rig.ask(get(origin.port).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).await;
        assert_eq!(status(&answer), 502, "{fields:?}: {answer}");
        assert!(field(&answer, "proxy-status").unwrap().contains("error=http_protocol_error"), "{answer}");
    }
}

#[tokio::test]
async fn a_request_whose_end_is_ambiguous_reaches_no_origin() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let head = get(origin.port).replace("GET", "POST");
    for fields in [
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3, 4",
        "Content-Length: 0x3",
        "Content-Length: -3",
        "Content-Length : 3",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\x0bchunked",
        "X: 1\r\n Transfer-Encoding: chunked",
    ] {
        // What follows would be a request of its own to whoever ends the first one elsewhere.
        let next = get(origin.port).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let request = head.replace("\r\n\r\n", &format!("\r\n{fields}\r\n\r\n")) + "0\r\n\r\n" + &next;
        let answer = rig.ask(&request).await;
        assert_eq!((status(&answer), answer.matches("HTTP/1.1 ").count()), (400, 1), "{fields:?}: {answer}");
    }
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn equal_lengths_are_one() {
    let origin = Origin::start([answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok")]).await;
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(get(origin.port).replace("\r\n\r\n", "\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n")).await;
    let head = client.head().await;
    assert_eq!((status(&head), client.exactly(2).await.as_str()), (200, "ok"), "{head}");
}

#[tokio::test]
async fn trailers_pass_both_ways_repeated_ones_too() {
    let trailers = "X-Sum: 1\r\nX-Sum: 2\r\nX-Other: 3\r\n\r\n";
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Other\r\n\r\n2\r\nok\r\n0\r\n{trailers}"
    );
    for path in ["fast", "other"] {
        let origin = Origin::start([answer(&chunked)]).await;
        let rig = Rig::with("annotate: false").await;
        let port = origin.port;
        let mut client = rig.connect().await;
        client
            .send(format!(
                "POST http://localhost:{port}/{path}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: TE\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Other\r\n\r\n3\r\nabc\r\n0\r\n{trailers}"
            ))
            .await;
        let head = client.head().await;
        assert_eq!(head.clone() + &client.body(&head).await, chunked, "{path}");
        assert!(origin.seen()[0].ends_with(&format!("3\r\nabc\r\n0\r\n{trailers}")), "{}", origin.seen()[0]);
    }
}

#[tokio::test]
async fn encodings_are_nobody_s_business() {
    let gzipped = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x0bno";
    let origin = Origin::start([answer(gzipped)]).await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!("PUT http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc"))
        .await;
    let head = client.head().await;
    assert_eq!(head.clone() + &client.body(&head).await, gzipped);
    assert_eq!(
        origin.seen(),
        [format!(
            "PUT /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc"
        )],
        "and no `Accept-Encoding` that the client did not send"
    );
}

#[tokio::test]
async fn connection_cannot_take_away_what_a_request_stands_on() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "POST http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close, Host, Content-Length, Authorization, X-Hop\r\nAuthorization: Basic dTpw\r\nX-Hop: 1\r\nContent-Length: 3\r\n\r\nabc"
        ))
        .await;
    assert_eq!(status(&client.rest().await), 200);
    assert_eq!(
        origin.seen(),
        [format!(
            "POST /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Basic dTpw\r\nContent-Length: 3\r\n\r\nabc"
        )]
    );
}

#[tokio::test]
async fn bodies_stream_both_ways_before_their_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(get(port).replace("GET", "POST").replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n")).await;
    client.send("3\r\none\r\n").await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    assert_eq!(origin.exactly(8).await, "3\r\none\r\n");
    client.send("3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(origin.exactly(13).await, "3\r\ntwo\r\n0\r\n\r\n");
    origin.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none").await;
    client.head().await;
    assert_eq!(client.exactly(3).await, "one");
    origin.send("two").await;
    assert_eq!(client.exactly(3).await, "two");
}

#[tokio::test]
async fn bodies_may_be_slow_while_they_move_and_requests_may_not_stand_still() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with("upstream: { response_timeout: 400ms }").await;
    let head = get(port).replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 8\r\n\r\n");
    let mut client = rig.connect().await;
    client.send(&head).await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    let started = Instant::now();
    for byte in b"slowly ." {
        client.send([*byte]).await;
        origin.exactly(1).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert!(started.elapsed() > Duration::from_millis(400), "in all longer than an answer may take");
    origin.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n").await;
    client.head().await;
    for byte in b"slowly ." {
        origin.send([*byte]).await;
        client.exactly(1).await;
        sleep(Duration::from_millis(100)).await;
    }

    let mut client = rig.connect().await;
    client.send(head + "half").await;
    let answer = client.rest().await;
    assert!(status(&answer) == 400 && answer.contains("did not arrive"), "{answer}");
}

/// The origin has decided from the head, and is gone before the client has sent a thousandth.
#[tokio::test]
async fn an_early_answer_is_read_by_a_client_that_uploads_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with("annotate: false").await;
    let mut client = rig.connect().await;
    let length = 8_000_000;
    client
        .send(get(port).replace("GET", "POST").replace("\r\n\r\n", &format!("\r\nContent-Length: {length}\r\n\r\n")))
        .await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    origin.send("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nmuch").await;
    drop(origin);
    client.send("x".repeat(length)).await;
    let answer = client.rest().await;
    assert!(status(&answer) == 413 && answer.ends_with("\r\n\r\nmuch"), "{answer}");
}

#[tokio::test]
async fn interim_answers_are_dropped_and_the_final_one_arrives() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let done = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for first in [interim, "HTTP/1.1 100 Continue\r\n\r\n"] {
        let origin = Origin::start([answer(&format!("{first}{done}"))]).await;
        let rig = Rig::with("annotate: false").await;
        let mut client = rig.connect().await;
        client.send(get(origin.port)).await;
        let head = client.head().await;
        assert_eq!(head.clone() + &client.body(&head).await, done);
    }
}

#[tokio::test]
async fn what_is_refused_by_policy_is_refused_before_the_upload() {
    let rig = Rig::with("unmatched: { host: refuse, path: refuse }").await;
    for (url, wanted) in [("http://127.0.0.1:1/", 403), ("http://localhost:1/other", 403), ("/path", 400)] {
        let mut client = rig.connect().await;
        let request =
            format!("PUT {url} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
        client.send(request).await;
        assert_eq!(status(&client.head().await), wanted, "{url}: nothing was asked for");
    }
}

#[tokio::test]
async fn an_expecting_upload_through_a_tunnel_completes() {
    let origin =
        Origin::start([answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")]).await;
    let rig = Rig::start().await;
    let authority = format!("localhost:{}", origin.port);
    let mut client = rig.connect().await;
    client.send(format!("CONNECT {authority} HTTP/1.1\r\n\r\n")).await;
    client.head().await;
    client
        .send(format!("PUT /fast/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"))
        .await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc").await;
    assert_eq!(status(&client.head().await), 201);
    assert!(origin.seen()[0].ends_with("\r\n\r\nabc"));
}

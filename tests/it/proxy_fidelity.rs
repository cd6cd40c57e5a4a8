//! What passes through the proxy is what was sent: bytes of bodies, framing, names and values of headers.

use super::proxy_rig::{Origin, Reply, Rig, answer, field, ok, status};

#[tokio::test]
async fn headers_keep_their_spelling_and_hop_by_hop_fields_end() {
    let origin = Origin::start([answer(
        "HTTP/1.1 200 Quite Fine\r\ncOntent-length: 2\r\nX-oTa: A\r\nx-Ota: b\r\nKeep-Alive: timeout=9\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nok",
    )])
    .await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "GET http://LOCALHOST:{port}/fast/A%2f?q=1 HTTP/1.1\r\nhOST: LOCALHOST:{port}\r\nX-wOrker: One\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic c2VjcmV0\r\nConnection: X-Gone\r\nX-Gone: 1\r\nAuthorization: Basic dTpw\r\n\r\n"
        ))
        .await;
    let head = client.head().await;
    assert_eq!(
        head, "HTTP/1.1 200 Quite Fine\r\ncOntent-length: 2\r\nX-oTa: A\r\nx-Ota: b\r\n\r\n",
        "no `Date`, no `Via`, nothing of the hop"
    );
    assert_eq!(client.body(&head).await, "ok");
    assert_eq!(
        origin.seen(),
        [format!(
            "GET /fast/A%2f?q=1 HTTP/1.1\r\nhOST: LOCALHOST:{port}\r\nX-wOrker: One\r\nAuthorization: Basic dTpw\r\n\r\n"
        )]
    );
}

#[tokio::test]
async fn the_target_wins_over_another_host() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    rig.ask(format!(
        "GET http://user:pw@localhost:{port}/fast/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"
    ))
    .await;
    assert_eq!(origin.seen(), [format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")]);
}

#[tokio::test]
async fn lengths_stay_lengths_and_chunks_stay_chunks() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n";
    let origin = Origin::start([ok("sized"), answer(chunked), answer(chunked), ok("")]).await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    for host in ["localhost", "127.0.0.1"] {
        let mut client = rig.connect().await;
        client
            .send(format!(
                "POST http://{host}:{port}/fast/ HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 3\r\n\r\nabc"
            ))
            .await;
        let _ = client.head().await;
        client
            .send(format!(
                "POST http://{host}:{port}/fast/ HTTP/1.1\r\nHost: {host}:{port}\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"
            ))
            .await;
        origin.has_seen(if host == "localhost" { 2 } else { 4 }).await;
    }
    let seen = origin.seen();
    for (sized, chunks) in [(&seen[0], &seen[1]), (&seen[2], &seen[3])] {
        assert!(
            sized.ends_with("Content-Length: 3\r\n\r\nabc") && field(sized, "transfer-encoding").is_none(),
            "{sized}"
        );
        assert!(chunks.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"), "{chunks}");
        assert!(field(chunks, "content-length").is_none(), "{chunks}");
    }
}

#[tokio::test]
async fn chunked_answers_and_their_trailers_pass() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n";
    let origin = Origin::start([answer(chunked)]).await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: TE\r\nTE: trailers\r\n\r\n"))
        .await;
    let head = client.head().await;
    assert_eq!(head.clone() + &client.body(&head).await, chunked);
}

#[tokio::test]
async fn answers_without_a_body_have_none() {
    let origin = Origin::start([
        answer("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        answer("HTTP/1.1 204 No Content\r\n\r\n"),
        answer("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
        answer("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
        answer("HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
        answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ok("still in step"),
    ])
    .await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    for (method, wanted) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
        ("DELETE", "HTTP/1.1 204 No Content\r\n\r\n"),
        // The length of what was not sent may be left out (RFC 9110 section 8.6).
        ("GET", "HTTP/1.1 304 Not Modified\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n"),
    ] {
        client.send(format!("{method} http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")).await;
        assert_eq!(client.head().await, wanted);
    }
    assert_eq!(client.exactly(13).await, "still in step");
    assert_eq!(origin.connections(), 1, "one connection serves them all");
}

#[tokio::test]
async fn old_clients_get_no_chunks_and_origins_get_http_11() {
    let origin =
        Origin::start([answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    let answer = rig.ask(format!("GET http://localhost:{port}/fast/ HTTP/1.0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert!(field(&answer, "transfer-encoding").is_none(), "{answer}");
    assert_eq!(origin.seen(), [format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")]);
}

#[tokio::test]
async fn ambiguous_framing_dies_or_is_made_plain() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let head = format!("POST http://localhost:{0}/fast/ HTTP/1.1\r\nHost: localhost:{0}\r\n", origin.port);
    let old = head.replace("HTTP/1.1", "HTTP/1.0");
    for request in [
        format!("{head}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        format!("{head}Content-Length: +3\r\n\r\nabc"),
        format!("{head}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
        format!("{old}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ] {
        let answer = rig.ask(&request).await;
        assert_eq!(status(&answer), 400, "{request}");
    }
    assert_eq!(origin.seen().len(), 0);
    for fields in ["Content-Length: 9\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 9"]
    {
        let answer = rig.ask(format!("{head}{fields}\r\n\r\n3\r\nabc\r\n0\r\n\r\n")).await;
        assert_eq!(status(&answer), 200, "{fields}");
    }
    for seen in origin.seen() {
        assert!(field(&seen, "content-length").is_none() && seen.ends_with("3\r\nabc\r\n0\r\n\r\n"), "{seen}");
    }
}

#[tokio::test]
async fn an_answer_with_both_framings_leaves_with_one() {
    let origin = Origin::start([answer(
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    )])
    .await;
    let rig = Rig::start().await;
    let port = origin.port;
    let answer = rig
        .ask(format!(
            "GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let framings = ["content-length", "transfer-encoding"].map(|name| field(&answer, name).is_some());
    assert_eq!(framings.iter().filter(|there| **there).count(), 1, "{answer}");
}

#[tokio::test]
async fn a_body_is_asked_for_only_when_it_is_of_use() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 100ms }").await;
    let head = |path: &str| {
        format!(
            "POST http://localhost:{0}/{path}/ HTTP/1.1\r\nHost: localhost:{0}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
            origin.port
        )
    };
    let mut client = rig.connect().await;
    client.send(head("stuck")).await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc").await;
    assert_eq!(status(&client.head().await), 200);
    let seen = origin.seen();
    assert!(field(&seen[0], "expect").is_none() && seen[0].ends_with("\r\n\r\nabc"), "{}", seen[0]);
    let mut client = rig.connect().await;
    client.send(head("stuck")).await;
    assert_eq!(status(&client.head().await), 429, "refused without an upload");
}

#[tokio::test]
async fn an_early_answer_arrives_during_the_upload() {
    let origin = Origin::start([Reply::Early(
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch".to_owned(),
    )])
    .await;
    let rig = Rig::start().await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!("POST http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 1000000\r\n\r\nabc"))
        .await;
    let head = client.head().await;
    assert_eq!((status(&head), client.body(&head).await.as_str()), (413, "much"));
}

#[tokio::test]
async fn a_client_that_uploads_on_still_reads_a_refusal() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 100ms }").await;
    let head = format!("POST http://localhost:{0}/stuck/ HTTP/1.1\r\nHost: localhost:{0}\r\n", origin.port);
    rig.ask(format!("{head}Connection: close\r\nContent-Length: 3\r\n\r\nabc")).await;
    // Far more than the buffers between hold: a close with unread bytes would reset the connection.
    let mut client = rig.connect().await;
    client.send(format!("{head}Content-Length: 8000000\r\n\r\n{}", "x".repeat(8_000_000))).await;
    let answer = client.rest().await;
    assert!(status(&answer) == 429 && answer.ends_with("}\n"), "{answer}");
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn many_and_large_headers() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let head =
        format!("GET http://localhost:{0}/fast/ HTTP/1.1\r\nHost: localhost:{0}\r\nConnection: close\r\n", origin.port);
    let fields = |number: usize| (0..number).map(|n| format!("X-{n}: 1\r\n")).collect::<String>();
    assert_eq!(status(&rig.ask(format!("{head}{}\r\n", fields(200))).await), 200);
    assert_eq!(status(&rig.ask(format!("{head}{}\r\n", fields(300))).await), 431);
    let long = "x".repeat(70_000);
    assert_eq!(status(&rig.ask(format!("GET http://localhost/{long} HTTP/1.1\r\n\r\n")).await), 414);
}

//! HTTP/2 from clients, in front of an origin that speaks HTTP/1.1: each stream is a request like any other.

use std::time::Duration;

use h2::Reason;
use http::{HeaderMap, HeaderValue};
use tokio::time::{Instant, timeout};

use super::{
    http2_rig::{self, Client, upload},
    proxy_rig::{Origin, Reply, Rig, answer, field, status, within},
};

async fn rig() -> Rig {
    Rig::with("annotate: false\ndefaults: { max_wait: 60s, http2: { clients: true } }").await
}

/// With more endpoints.
async fn rig_of(endpoints: &str) -> Rig {
    Rig::with_endpoints("defaults: { max_wait: 60s, http2: { clients: true } }", endpoints).await
}

#[tokio::test]
async fn the_origin_sees_a_request_like_any_other() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client
        .request("GET", "/fast/a?b=c")
        .header("accept", "*/*")
        .header("cookie", "a=1")
        .header("te", "trailers")
        .header("x-twice", "1")
        .header("cookie", "b=2")
        .header("x-twice", "2")
        .header("expect", "100-continue");
    let answered = client.ask(request).await;
    assert_eq!((answered.status.as_u16(), answered.body.as_str()), (200, "ok"));
    let post = client.request("POST", "/fast/").header("content-length", "0");
    assert_eq!(client.ask(post).await.status, 200);
    let authority = &client.authority;
    assert_eq!(
        origin.seen(),
        [
            format!(
                "GET /fast/a?b=c HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\nCookie: a=1; b=2\r\nTe: trailers\r\n\
                 X-Twice: 1\r\nX-Twice: 2\r\nConnection: TE\r\n\r\n"
            ),
            format!("POST /fast/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\n\r\n"),
        ]
    );
}

#[tokio::test]
async fn what_is_of_a_connection_ends_at_the_proxy() {
    let origin = Origin::start([
        answer(
            "HTTP/1.1 200 Fine By Me\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
             Proxy-Connection: keep-alive\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\nX-Kept: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ),
        answer("HTTP/1.1 204 No Content\r\n\r\n"),
        answer("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
    ])
    .await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let names = |headers: &HeaderMap| headers.keys().map(ToString::to_string).collect::<Vec<_>>();
    let first = client.get("/fast/").await;
    assert_eq!((first.status.as_u16(), first.body.as_str(), names(&first.headers)), (200, "ok", vec!["x-kept".into()]));
    let second = client.get("/fast/").await;
    assert_eq!((second.status.as_u16(), second.body.as_str(), names(&second.headers)), (204, "", vec![]));
    let third = client.get("/fast/").await;
    assert_eq!((third.status.as_u16(), third.body.as_str(), names(&third.headers)), (304, "", vec!["etag".into()]));
}

#[tokio::test]
async fn an_answer_to_head_has_a_length_and_no_body() {
    let origin = Origin::start([answer("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let head = client.request("HEAD", "/fast/");
    let answered = client.ask(head).await;
    assert_eq!((&answered.headers["content-length"], answered.body.as_str()), (&HeaderValue::from(1000), ""));
    // Nor has the proxy's own.
    let misdirected = client.request("HEAD", "/").uri("http://other.test/");
    let answered = client.ask(misdirected).await;
    assert_eq!((answered.status.as_u16(), answered.body.as_str()), (421, ""));
}

#[tokio::test]
async fn a_stream_keeps_the_host_of_its_tunnel() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let authority = client.authority.clone();
    for (request, wanted) in [
        (client.request("GET", "/fast/").uri("http://other.test/fast/"), 421),
        (client.request("GET", "/fast/").header("host", "other.test"), 421),
        (client.request("GET", "/fast/").uri("https://localhost/fast/"), 421),
        (client.request("CONNECT", "").uri(&authority), 405),
        (client.request("GET", "/fast/").header("host", &authority), 200),
        (client.request("GET", "/fast/").uri("http://LOCALHOST./fast/"), 200),
    ] {
        let asked = format!("{request:?}");
        let answered = client.ask(request).await;
        assert_eq!(answered.status, wanted, "{asked}");
        assert!(!answered.headers.contains_key("connection"));
    }
    let hosts: Vec<_> = origin.seen().iter().map(|head| field(head, "host").unwrap().to_owned()).collect();
    assert_eq!(hosts, [authority, "LOCALHOST.".to_owned()], "as the client wrote it");
}

#[tokio::test]
async fn streams_of_one_connection_are_paced_in_their_order_and_pass_those_of_other_endpoints() {
    let origin = Origin::start([]).await;
    let rig = rig_of(ENDPOINTS).await;
    let mut client = Client::open(&rig, origin.port).await;
    assert_eq!(client.get("/short/").await.status, 200);
    let request = client.request("GET", "/short/");
    let (stuck, _) = client.begin(request, true).await;
    let begun = Instant::now();
    let mut answers = Vec::new();
    for number in 0..3 {
        let request = client.request("GET", &format!("/paced/{number}"));
        answers.push(client.begin(request, true).await.0);
    }
    for (number, answer) in answers.into_iter().enumerate() {
        let answered = http2_rig::read(within(answer).await.unwrap()).await;
        assert_eq!(answered.headers["x-pacer-bucket"], "ota/paced");
        assert!(begun.elapsed() >= Duration::from_millis(500) * number as u32, "{number}");
    }
    let seen: Vec<_> = origin.seen().iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(seen, ["/short/", "/paced/0", "/paced/1", "/paced/2"]);
    assert!(timeout(Duration::from_millis(10), stuck).await.is_err(), "one that waits holds up no other");
}

#[tokio::test]
async fn a_reset_in_the_queue_frees_the_place_at_once_and_leaves_the_others() {
    let origin = Origin::start([]).await;
    let rig = rig_of(ENDPOINTS).await;
    let mut client = Client::open(&rig, origin.port).await;
    assert_eq!(client.get("/short/").await.status, 200);
    let request = client.request("GET", "/short/");
    let (queued, mut reset) = client.begin(request, true).await;
    // It may be looked at a moment later.
    let mut is_full = async || {
        let request = client.request("GET", "/short/").header("x-pacer-max-wait", "0");
        client.ask(request).await.body.contains("queue-full")
    };
    while !is_full().await {}
    reset.send_reset(Reason::CANCEL);
    within(queued).await.unwrap_err();
    while is_full().await {}
    assert_eq!(client.get("/fast/").await.status, 200);
    assert_eq!(origin.seen().len(), 2, "what was reset never went out");
}

#[tokio::test]
async fn a_client_that_vanishes_takes_all_its_streams_out_of_the_queue() {
    let origin = Origin::start([]).await;
    let rig = rig_of(ENDPOINTS).await;
    let mut client = Client::open(&rig, origin.port).await;
    let mut witness = Client::open(&rig, origin.port).await;
    assert_eq!(client.get("/short/").await.status, 200);
    let request = client.request("GET", "/short/");
    let (queued, _) = client.begin(request, true).await;
    let mut is_full = async || {
        let request = witness.request("GET", "/short/").header("x-pacer-max-wait", "0");
        witness.ask(request).await.body.contains("queue-full")
    };
    while !is_full().await {}
    client.vanish();
    while is_full().await {}
    drop(queued);
}

#[tokio::test]
async fn bodies_of_any_size_and_their_trailers_pass_both_ways() {
    let origin = Origin::start([answer(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n",
    )])
    .await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("POST", "/fast/").header("trailer", "x-sum");
    let (answer, body) = client.begin(request, false).await;
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("2"))]);
    within(upload(body, 3, Some(trailers))).await;
    let answered = http2_rig::read(within(answer).await.unwrap()).await;
    assert_eq!((answered.body.as_str(), &answered.trailers.unwrap()["x-sum"]), ("ok", &HeaderValue::from(1)));
    let seen = &origin.seen()[0];
    assert!(seen.ends_with("Transfer-Encoding: chunked\r\n\r\n3\r\nxxx\r\n0\r\nX-Sum: 2\r\n\r\n"), "{seen}");

    let request = client.request("PUT", "/fast/").header("content-length", LARGE);
    let (answer, body) = client.begin(request, false).await;
    within(upload(body, LARGE, None)).await;
    assert_eq!(within(answer).await.unwrap().status(), 200);
    let seen = &origin.seen()[1];
    assert_eq!(field(seen, "content-length"), Some(LARGE.to_string().as_str()));
    assert!(seen.len() > LARGE && seen.ends_with("xxx"));
}

#[tokio::test]
async fn a_body_of_unknown_length_passes_with_any_method() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    for method in ["GET", "DELETE", "POST"] {
        let request = client.request(method, "/fast/");
        let (answer, body) = client.begin(request, false).await;
        within(upload(body, 3, None)).await;
        assert_eq!(within(answer).await.unwrap().status(), 200);
    }
    for seen in origin.seen() {
        assert!(seen.ends_with("Transfer-Encoding: chunked\r\n\r\n3\r\nxxx\r\n0\r\n\r\n"), "{seen}");
    }
}

#[tokio::test]
async fn a_waiting_upload_keeps_none_of_those_under_way_from_ending() {
    let origin = Origin::start([]).await;
    let rig = rig_of(ENDPOINTS).await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("PUT", "/one/").header("content-length", LARGE);
    let (first, mut body) = client.begin(request, false).await;
    within(http2_rig::send(&mut body, 1)).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let request = client.request("PUT", "/one/").header("content-length", LARGE);
        let (answer, body) = client.begin(request, false).await;
        waiting.push((answer, tokio::spawn(upload(body, LARGE, None))));
    }
    within(upload(body, LARGE - 1, None)).await;
    assert_eq!(within(first).await.unwrap().status(), 200);
    for (answer, upload) in waiting {
        assert_eq!(within(answer).await.unwrap().status(), 200);
        within(upload).await.unwrap();
    }
}

#[tokio::test]
async fn an_early_answer_arrives_during_the_upload() {
    let early = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno";
    let origin = Origin::start([Reply::Early(early.to_owned())]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("POST", "/fast/").header("content-length", LARGE);
    let (answer, mut body) = client.begin(request, false).await;
    within(http2_rig::send(&mut body, 1)).await.unwrap();
    let answered = http2_rig::read(within(answer).await.unwrap()).await;
    assert_eq!((answered.status.as_u16(), answered.body.as_str()), (413, "no"));
    assert_eq!(client.get("/fast/").await.status, 200, "the connection is good for more");
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_never_whole_to_the_origin() {
    let early = Reply::Early("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned());
    let rig = rig().await;
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        let origin = Origin::start(vec![early.clone(); ROUNDS]).await;
        let mut client = Client::open(&rig, origin.port).await;
        for _ in 0..ROUNDS {
            let request = client.request("POST", "/fast/");
            let (answer, mut body) = client.begin(request, false).await;
            within(http2_rig::send(&mut body, 3)).await.unwrap();
            assert_eq!(http2_rig::read(within(answer).await.unwrap()).await.status, 200);
            body.send_reset(reason);
        }
        assert_eq!(client.get("/fast/").await.status, 200);
        let seen = origin.seen();
        assert!(seen.iter().all(|request| request.starts_with("GET ")), "{seen:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_seen_to_break_off_and_only_that() {
    let origin = Origin::start([Reply::Last("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhal".to_owned())]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("GET", "/fast/");
    let (answer, _) = client.begin(request, true).await;
    let error = match within(answer).await {
        Ok(mut answer) => http2_rig::text(answer.body_mut()).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.is_reset() && error.is_remote(), "{error}");
    assert_eq!(client.get("/fast/").await.status, 200);
}

#[tokio::test]
async fn a_throttled_stream_is_sent_again_and_the_others_go_on() {
    let throttled = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    let origin = Origin::start([answer(throttled)]).await;
    let rig = rig_of("").await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("POST", "/fast/");
    let (answer, body) = client.begin(request, false).await;
    within(upload(body, 5, None)).await;
    origin.has_seen(1).await;
    assert_eq!(client.get("/steady/").await.status, 200);
    let answered = http2_rig::read(within(answer).await.unwrap()).await;
    assert_eq!((answered.status.as_u16(), &answered.headers["x-pacer-attempts"]), (200, &HeaderValue::from(2)));
    let seen = origin.seen();
    assert!(
        seen.iter().filter(|head| head.starts_with("POST /fast/") && head.contains("xxxxx")).count() == 2,
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_shutdown_says_go_away_and_finishes_what_is_under_way() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let other = Origin::start([]).await;
    let mut idle = Client::open(&rig, other.port).await;
    assert_eq!(idle.get("/fast/").await.status, 200);
    let request = client.request("POST", "/fast/");
    let (answer, body) = client.begin(request, false).await;
    while origin.connections() < 1 {
        tokio::task::yield_now().await;
    }
    rig.shut_down();
    // The one that has nothing under way is closed at once, without an error.
    idle.closed().await.unwrap();
    within(upload(body, 5, None)).await;
    let answered = http2_rig::read(within(answer).await.unwrap()).await;
    assert_eq!((answered.status.as_u16(), answered.body.as_str()), (200, "ok"));
    client.closed().await.unwrap();
    rig.stopped().await;
}

#[tokio::test]
async fn where_it_is_not_offered_prior_knowledge_is_refused_in_its_own_words() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("GET", "/fast/");
    let (answer, _) = client.begin(request, true).await;
    let error = within(answer).await.unwrap_err();
    assert!(error.is_go_away() && error.is_remote(), "{error}");
    assert_eq!(error.reason(), Some(Reason::HTTP_1_1_REQUIRED));
}

#[tokio::test]
async fn what_authenticates_a_connection_is_asked_for_in_http1() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("GET", "/fast/").header("authorization", "NTLM TlRMTVNTUAABAAAA");
    let (answer, _) = client.begin(request, true).await;
    let error = within(answer).await.unwrap_err();
    assert_eq!((error.is_reset(), error.reason()), (true, Some(Reason::HTTP_1_1_REQUIRED)), "{error}");
    assert_eq!(client.get("/fast/").await.status, 200, "the others go on");
}

#[tokio::test]
async fn an_upgrade_to_http2_in_clear_is_not_passed_on() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&client.head().await), 200);
    assert_eq!(origin.seen(), [format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")]);
}

#[tokio::test]
async fn more_streams_reset_than_anybody_needs_end_the_connection_and_no_other() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let mut other = Client::open(&rig, origin.port).await;
    client.flood(10_000).await;
    assert_eq!(client.closed().await.unwrap_err().reason(), Some(Reason::ENHANCE_YOUR_CALM));
    assert_eq!(other.get("/fast/").await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let origin = Origin::start([]).await;
    let rig = rig().await;
    let mut client = Client::open(&rig, origin.port).await;
    let request = client.request("GET", "/fast/").header("x-long", "x".repeat(40 * 1024));
    assert_eq!(client.ask(request).await.status, 200);
    let mut request = client.request("GET", "/fast/");
    for number in 0..10 {
        request = request.header(format!("x-long-{number}"), "x".repeat(40 * 1024));
    }
    assert_eq!(client.ask(request).await.status, 431);
    assert_eq!(client.get("/fast/").await.status, 200);
}

/// More than any window.
const LARGE: usize = 3 * 1024 * 1024;

const ENDPOINTS: &str = "
      paced:
        match: { path: '/paced/**' }
        limits: [{ rate: 2/s, capacity: 1 }]
      one:
        match: { path: '/one/**' }
        limits: [{ concurrent: 1 }]
      short:
        match: { path: '/short/**' }
        limits: [{ rate: 1/h, capacity: 1 }]
        max_wait: 2h
        max_queue: 1
";

const ROUNDS: usize = 5;

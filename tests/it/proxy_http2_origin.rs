//! Origins that choose HTTP/2: many requests on one connection, and what an origin did not take up sent again.

use std::{future::poll_fn, process::Command, time::Duration};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Response, Version};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::task::JoinSet;

use super::{
    http2_origin::{Frames, Peer, SecureOrigin},
    http2_rig::{self, Client, upload},
    proxy_rig::{Rig, Wire, field, status, within},
};
use crate::support::process::{Ended, Process};

/// As clients without a tunnel ask for it.
fn get(port: u16, path: &str) -> String {
    format!("GET https://localhost:{port}{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n")
}

fn post(port: u16, path: &str, body: &str) -> String {
    format!(
        "POST https://localhost:{port}{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_speaks_the_version_it_chooses() {
    for (protocols, http2) in [(&["h2", "http/1.1"][..], true), (&["http/1.1"], false), (&[], false)] {
        let mut origin = SecureOrigin::choosing(protocols).await;
        let rig = origin.rig("", "").await;
        let port = origin.port;
        let serving = tokio::spawn(async move {
            loop {
                let stream = origin.accept().await;
                if http2 {
                    Peer::over(stream, &h2::server::Builder::new()).await.answer_all();
                    continue;
                }
                let mut wire = Wire::new(stream);
                tokio::spawn(async move {
                    while wire.try_head().await.is_some() {
                        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                    }
                });
            }
        });
        for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
            let url = format!("https://localhost:{port}/fast/");
            let ended = curl(&rig, &["-fsS", option, "-w", " %{http_version}", &url, &url]).await;
            assert_eq!(ended.stdout.trim_end(), format!("ok {version}ok {version}"), "{protocols:?}: {ended:?}");
        }
        serving.abort();
    }
}

#[tokio::test]
async fn a_request_of_http1_arrives_as_one_of_http2() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "POST https://localhost:{port}/fast/a?b HTTP/1.1\r\nHost: LOCALHOST.:{port}\r\nX-Twice: 1\r\nConnection: keep-alive, TE, X-Hop\r\n\
             TE: trailers\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nX-Twice: 2\r\nUser-Agent: Worker\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
        ))
        .await;
    let mut peer = origin.peer().await;
    let mut asked = peer.request().await;
    assert_eq!((asked.request.method().as_str(), asked.request.version()), ("POST", Version::HTTP_2));
    assert_eq!(asked.request.uri().to_string(), format!("https://LOCALHOST.:{port}/fast/a?b"));
    let fields: Vec<_> = asked.fields().into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(fields, ["x-twice: 1", "x-twice: 2", "te: trailers", "user-agent: Worker", "trailer: X-Sum"]);
    let (body, trailers) = asked.body().await;
    assert_eq!((body.as_str(), &trailers.unwrap()["x-sum"]), ("abc", &HeaderValue::from(1)));
    asked.answer.send_informational(Response::builder().status(103).body(()).unwrap()).unwrap();
    let response = Response::builder().header("trailer", "x-sum").body(()).unwrap();
    let mut body = asked.answer.send_response(response, false).unwrap();
    body.send_data(Bytes::from_static(b"ok"), false).unwrap();
    body.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from(2))])).unwrap();
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Transfer-Encoding: chunked"), "{head}");
    assert_eq!(client.body(&head).await, "2\r\nok\r\n0\r\nX-Sum: 2\r\n\r\n".to_lowercase().replace("x-sum", "X-Sum"));
}

#[tokio::test]
async fn bodies_of_any_size_pass_from_end_to_end() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let mut client = Client::open_secure(&rig, origin.port).await;
    let request = client.request("PUT", "/fast/").header("content-length", LARGE);
    let (answer, body) = client.begin(request, false).await;
    let uploading = tokio::spawn(upload(body, LARGE, None));
    let mut peer = origin.peer().await;
    let mut asked = peer.request().await;
    assert_eq!(asked.request.headers()["content-length"], LARGE.to_string().as_str());
    assert_eq!(asked.body().await.0.len(), LARGE);
    let body = asked.answer.send_response(Response::new(()), false).unwrap();
    let sending = tokio::spawn(upload(body, LARGE, None));
    let answered = http2_rig::read(within(answer).await.unwrap()).await;
    assert_eq!(answered.body.len(), LARGE);
    within(uploading).await.unwrap();
    within(sending).await.unwrap();
}

#[tokio::test]
async fn an_answer_with_a_length_and_trailers_is_whole_without_them() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let (metrics, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let (answer, ()) = tokio::join!(rig.ask(get(port, "/fast/")), async {
        let mut asked = origin.peer().await.request().await;
        let response = Response::builder().header("content-length", "2").body(()).unwrap();
        let mut body = asked.answer.send_response(response, false).unwrap();
        body.send_data(Bytes::from_static(b"ok"), false).unwrap();
        body.send_trailers(HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from(2))])).unwrap();
    });
    assert_eq!((status(&answer), field(&answer, "content-length")), (200, Some("2")));
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    let counted = || -> Vec<String> {
        let page = metrics.render();
        let lines = page.lines().filter(|line| line.starts_with("ota_pacer_requests_total") && line.ends_with(" 1"));
        lines.map(str::to_owned).collect()
    };
    while counted().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(counted()[0].contains("outcome=\"answered\""), "{:?}", counted());
}

#[tokio::test]
async fn many_requests_share_one_connection() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            client.send(get(port, "/fast/")).await;
            status(&client.rest().await)
        });
    }
    let mut peer = origin.peer().await;
    let mut waiting = Vec::new();
    while waiting.len() < 50 {
        waiting.push(peer.request().await);
    }
    for asked in waiting {
        asked.ok();
    }
    while let Some(answered) = clients.join_next().await {
        assert_eq!(answered.unwrap(), 200);
    }
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_origin_that_allows_few_at_a_time_gets_another_connection() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        let mut client = rig.connect().await;
        clients.spawn(async move {
            client.send(get(port, "/fast/")).await;
            status(&client.rest().await)
        });
    }
    let mut settings = h2::server::Builder::new();
    settings.max_concurrent_streams(2);
    let (mut peers, mut waiting) = (Vec::new(), Vec::new());
    for taken in [2, 2, 1] {
        let mut peer = Peer::over(origin.accept().await, &settings).await;
        for _ in 0..taken {
            waiting.push(peer.request().await);
        }
        peers.push(peer);
    }
    for asked in waiting {
        asked.ok();
    }
    while let Some(answered) = clients.join_next().await {
        assert_eq!(answered.unwrap(), 200);
    }
    // Now there is room for more.
    let (answer, ()) = tokio::join!(rig.ask(get(port, "/fast/")), async { peers[0].request().await.ok() });
    assert_eq!((status(&answer), origin.connections()), (200, 3));
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_whatever_it_is() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let (answer, ()) = tokio::join!(rig.ask(post(port, "/fast/", "book")), async {
        let mut first = origin.peer().await;
        let mut asked = first.request().await;
        asked.answer.send_reset(Reason::REFUSED_STREAM);
        let mut second = origin.peer().await;
        let mut asked = second.request().await;
        assert_eq!(asked.body().await.0, "book");
        asked.ok();
    });
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")));
}

#[tokio::test]
async fn after_a_go_away_only_what_was_not_taken_up_is_sent_again() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let first = rig.connect().await;
    let second = rig.connect().await;
    let (mut taken, mut left) = (first, second);
    taken.send(post(port, "/fast/", "taken")).await;
    let mut frames = Frames::over(origin.accept().await).await;
    let last = frames.head().await;
    left.send(post(port, "/fast/", "left")).await;
    assert!(frames.head().await > last);
    frames.go_away(last).await;
    let mut peer = origin.peer().await;
    let mut asked = peer.request().await;
    assert_eq!(asked.body().await.0, "left");
    asked.ok();
    assert_eq!(status(&left.rest().await), 200);
    let answer = taken.rest().await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("the request was sent and not retried"), "{answer}");
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn an_origin_that_wants_http1_gets_it_from_then_on() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let (answers, ()) = tokio::join!(
        async { [rig.ask(post(port, "/fast/", "1")).await, rig.ask(post(port, "/fast/", "2")).await] },
        async {
            let mut peer = origin.peer().await;
            peer.request().await.answer.send_reset(Reason::HTTP_1_1_REQUIRED);
            let stream = origin.accept().await;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
            let mut wire = Wire::new(stream);
            for body in ["1", "2"] {
                let head = wire.head().await;
                assert!(head.starts_with("POST /fast/ HTTP/1.1\r\n"), "{head}");
                assert_eq!(wire.body(&head).await, body);
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        }
    );
    assert_eq!(answers.map(|answer| status(&answer)), [200, 200]);
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn a_reset_is_no_reason_to_ask_twice() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let serving = async {
        let mut peer = origin.peer().await;
        peer.request().await.ok();
        peer.request().await.answer.send_reset(Reason::INTERNAL_ERROR);
        // The connection is none the worse.
        peer.request().await.ok();
    };
    let asking = async {
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(status(&rig.ask(get(port, "/fast/")).await));
        }
        statuses
    };
    let (statuses, ()) = tokio::join!(asking, serving);
    assert_eq!((statuses, origin.connections()), (vec![200, 502, 200], 1));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_never_whole_to_the_client() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut peer = None;
    for (request, reason) in [
        (get(port, "/fast/"), Reason::NO_ERROR),
        (post(port, "/fast/", "book"), Reason::NO_ERROR),
        (get(port, "/fast/"), Reason::CANCEL),
    ] {
        let mut client = rig.connect().await;
        client.send(&request).await;
        if peer.is_none() {
            peer = Some(origin.peer().await);
        }
        let mut asked = peer.as_mut().unwrap().request().await;
        asked.body().await;
        let mut body = asked.answer.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"half"), false).unwrap();
        assert_eq!(field(&client.head().await, "transfer-encoding"), Some("chunked"));
        assert_eq!(client.exactly(9).await, "4\r\nhalf\r\n");
        body.send_reset(reason);
        assert_eq!(client.rest().await, "", "{reason}");
    }
}

#[tokio::test]
async fn a_throttled_request_is_sent_again_after_the_pause() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let (answer, ()) = tokio::join!(rig.ask(post(port, "/fast/", "book")), async {
        let mut peer = origin.peer().await;
        peer.request().await.status(429, &[("retry-after", "1")]);
        let mut asked = peer.request().await;
        assert_eq!(asked.body().await.0, "book");
        asked.ok();
    });
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")));
    assert!(field(&answer, "x-pacer-wait").unwrap().parse::<f64>().unwrap() >= 1.0, "{answer}");
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_early_answer_arrives_during_the_upload_and_ends_it() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client
        .send(format!(
            "POST https://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 100\r\n\r\nx"
        ))
        .await;
    let mut peer = origin.peer().await;
    let asked = peer.request().await;
    asked.status(413, &[]);
    assert_eq!(status(&client.head().await), 413);
    let (answer, ()) = tokio::join!(rig.ask(get(port, "/fast/")), async { peer.request().await.ok() });
    assert_eq!((status(&answer), origin.connections()), (200, 1));
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_stream_with_it_and_no_other() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let mut staying = rig.connect().await;
    staying.send(get(port, "/fast/")).await;
    let mut peer = origin.peer().await;
    let asked = peer.request().await;
    for with_answer in [false, true] {
        let mut leaving = rig.connect().await;
        leaving.send(get(port, "/fast/")).await;
        let mut left = peer.request().await;
        let mut body = None;
        if with_answer {
            body = Some(left.answer.send_response(Response::new(()), false).unwrap());
            leaving.head().await;
        }
        drop(leaving);
        let reason = match &mut body {
            // As much as it takes until the proxy notices that nobody reads.
            Some(body) => loop {
                body.reserve_capacity(1024);
                if let Some(Ok(room)) = within(poll_fn(|cx| body.poll_capacity(cx))).await
                    && body.send_data(Bytes::from(vec![b'x'; room]), false).is_ok()
                {
                    continue;
                }
                break within(poll_fn(|cx| body.poll_reset(cx))).await.unwrap();
            },
            None => left.reset().await,
        };
        assert_eq!(reason, Reason::CANCEL);
    }
    asked.ok();
    assert_eq!((status(&staying.rest().await), origin.connections()), (200, 1));
}

#[tokio::test]
async fn a_silent_origin_is_given_up_for_that_request_alone() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("response_timeout: 1s", "").await;
    let port = origin.port;
    let mut downloading = rig.connect().await;
    downloading.send(get(port, "/fast/")).await;
    let mut peer = origin.peer().await;
    let mut body = peer.request().await.answer.send_response(Response::new(()), false).unwrap();
    let head = downloading.head().await;
    let (answer, reason) =
        tokio::join!(rig.ask(post(port, "/fast/", "book")), async { peer.request().await.reset().await });
    assert_eq!((status(&head), status(&answer), reason), (200, 504, Reason::CANCEL), "{answer}");
    body.send_data(Bytes::from_static(b"ok"), true).unwrap();
    assert!(downloading.rest().await.contains("ok"), "it goes on");
}

#[tokio::test]
async fn an_upgrade_goes_on_a_connection_of_http1() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    let (answer, _peer) = tokio::join!(rig.ask(get(port, "/fast/")), async {
        let mut peer = origin.peer().await;
        peer.request().await.ok();
        peer
    });
    assert_eq!(status(&answer), 200);
    let mut client = rig.connect().await;
    client
        .send(format!(
            "GET https://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        ))
        .await;
    let mut wire = Wire::new(origin.accept().await);
    assert!(field(&wire.head().await, "upgrade").is_some());
    wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello").await;
    assert_eq!(status(&client.head().await), 101);
    assert_eq!(client.exactly(5).await, "hello");
    client.send("world").await;
    assert_eq!(wire.exactly(5).await, "world");
}

#[tokio::test]
async fn an_unused_connection_is_closed_and_one_in_use_is_not() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("idle: 300ms", "").await;
    let port = origin.port;
    let mut client = rig.connect().await;
    client.send(get(port, "/fast/")).await;
    let mut peer = origin.peer().await;
    let asked = peer.request().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    asked.ok();
    assert_eq!(status(&client.rest().await), 200);
    peer.closed().await;
    let (answer, ()) = tokio::join!(rig.ask(get(port, "/fast/")), async {
        origin.peer().await.request().await.ok();
    });
    assert_eq!((status(&answer), origin.connections()), (200, 2));
}

#[tokio::test]
async fn an_origin_that_chooses_http2_and_does_not_speak_it_is_told_apart() {
    let mut origin = SecureOrigin::start().await;
    let rig = origin.rig("connect_timeout: 1s", "").await;
    let port = origin.port;
    let (answer, _silent) = tokio::join!(rig.ask(get(port, "/fast/")), origin.accept());
    assert_eq!(status(&answer), 504, "{answer}");
    assert!(answer.contains("the beginning of HTTP/2 with `localhost`"), "{answer}");
    let (answer, ()) = tokio::join!(rig.ask(post(port, "/fast/", "book")), async {
        let mut wire = Wire::new(origin.accept().await);
        wire.send("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("HTTP/2 with `localhost` failed"), "{answer}");
}

#[tokio::test]
async fn an_origin_that_chooses_http1_is_asked_in_parallel_and_its_connections_are_kept() {
    let mut origin = SecureOrigin::choosing(&["http/1.1"]).await;
    let rig = origin.rig("", "").await;
    let port = origin.port;
    for _ in 0..2 {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = rig.connect().await;
            client.send(get(port, "/fast/")).await;
            clients.push(client);
        }
        if origin.connections() == 0 {
            let mut wires = Vec::new();
            for _ in 0..3 {
                let mut wire = Wire::new(origin.accept().await);
                wire.head().await;
                wires.push(wire);
            }
            for mut wire in wires {
                tokio::spawn(async move {
                    loop {
                        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                        if wire.try_head().await.is_none() {
                            return;
                        }
                    }
                });
            }
        }
        for mut client in clients {
            assert_eq!(status(&client.rest().await), 200);
        }
    }
    assert_eq!(origin.connections(), 3);
}

async fn curl(rig: &Rig, arguments: &[&str]) -> Ended {
    let mut command = Command::new("curl");
    command.args(["--proxy", &format!("http://{}", rig.address), "--noproxy", "", "--cacert"]);
    command.arg(rig.directory.path().join("ca/ca.pem")).args(arguments);
    crate::support::worker::without_proxy_variables(&mut command);
    let running =
        tokio::task::spawn_blocking(move || Process::start("curl", &mut command).wait(Duration::from_secs(20)));
    within(running).await.unwrap()
}

/// More than any window.
const LARGE: usize = 3 * 1024 * 1024;

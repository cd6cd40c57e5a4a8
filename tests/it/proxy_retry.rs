//! Throttle answers, own refusals, lost connections: when a request is sent again, and what the worker sees.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use super::proxy_rig::{Origin, Reply, Rig, Wire, field, ok, status};

fn throttled(fields: &str) -> Reply {
    Reply::Answer(format!("HTTP/1.1 429 Slow Down\r\nX-Ota: yes\r\n{fields}Content-Length: 4\r\n\r\nslow"))
}

fn post(port: u16, path: &str, body: &str) -> String {
    format!(
        "POST http://localhost:{port}/{path}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn get(port: u16, path: &str) -> String {
    format!("GET http://localhost:{port}/{path}/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_throttled_request_is_sent_again_after_the_pause() {
    let origin = Origin::start([throttled("Retry-After: 1\r\n"), ok("done")]).await;
    let rig = Rig::start().await;
    let started = Instant::now();
    let answer = rig.ask(post(origin.port, "fast", "abc")).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "never early: {:?}", started.elapsed());
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")), "{answer}");
    assert!(field(&answer, "x-pacer-wait").unwrap().parse::<f64>().unwrap() >= 1.0, "{answer}");
    let seen = origin.seen();
    assert_eq!((seen.len(), &seen[0]), (2, &seen[1]), "the same request, byte for byte");
    assert!(seen[0].ends_with("\r\n\r\nabc"));
    assert_eq!(origin.connections(), 1, "the connection of the 429 is used again");
}

#[tokio::test]
async fn a_chunked_body_is_sent_again_chunked() {
    let origin = Origin::start([throttled("Retry-After: 0\r\n")]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    let answer = rig
        .ask(format!(
            "POST http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&answer), 200, "{answer}");
    let seen = origin.seen();
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].ends_with("3\r\nabc\r\n0\r\n\r\n"), "{}", seen[0]);
}

#[tokio::test]
async fn an_answer_from_the_head_alone_waits_for_the_rest_of_the_body() {
    let origin = Origin::start([Reply::Early(
        "HTTP/1.1 429 Slow Down\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow".to_owned(),
    )])
    .await;
    let rig = Rig::start().await;
    let request = post(origin.port, "fast", "abc");
    let (head, body) = request.split_at(request.len() - 3);
    let mut client = rig.connect().await;
    client.send(head).await;
    while origin.connections() == 0 {
        tokio::task::yield_now().await;
    }
    client.send(body).await;
    assert_eq!(status(&client.head().await), 200);
}

#[tokio::test]
async fn a_body_that_does_not_follow_its_early_answer_leaves_nothing_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let request = post(port, "fast", "abc").replace("Connection: close\r\n", "");
    let mut client = rig.connect().await;
    client.send(&request[..request.len() - 3]).await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    origin.send("HTTP/1.1 429 Slow Down\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow").await;
    assert_eq!(status(&client.head().await), 429, "without its body it cannot be sent again");
    client.send("abc").await;
    assert_eq!(client.rest().await, "slow");
    assert_eq!(origin.rest().await, "");
}

#[tokio::test]
async fn the_last_throttle_answer_is_passed_on_as_it_came() {
    let origin = Origin::start((0..9).map(|_| throttled("Retry-After: 0\r\n"))).await;
    let rig = Rig::with("annotate: false\ndefaults: { retry: { attempts: 3 } }").await;
    let answer = rig.ask(post(origin.port, "fast", "abc")).await;
    assert_eq!(
        answer,
        "HTTP/1.1 429 Slow Down\r\nX-Ota: yes\r\nRetry-After: 0\r\nContent-Length: 4\r\nconnection: close\r\n\r\nslow"
            .replace("connection", "Connection")
    );
    assert_eq!(origin.seen().len(), 3);
}

#[tokio::test]
async fn without_retry_after_the_pauses_grow() {
    let origin = Origin::start([throttled(""), throttled("Retry-After: soon\r\n")]).await;
    let rig = Rig::with("defaults: { retry: { backoff: 200ms } }").await;
    let started = Instant::now();
    let answer = rig.ask(get(origin.port, "fast")).await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("3")));
    assert!(started.elapsed() >= Duration::from_millis(200 + 400), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_body_above_the_cap_is_sent_once() {
    let origin = Origin::start([throttled("Retry-After: 0\r\n")]).await;
    let rig = Rig::with("defaults: { retry: { replay_body: 1KiB } }").await;
    let body = "x".repeat(5000);
    let answer = rig.ask(post(origin.port, "fast", &body)).await;
    assert_eq!((status(&answer), field(&answer, "x-ota")), (429, Some("yes")), "{answer}");
    let seen = origin.seen();
    assert!(seen.len() == 1 && seen[0].ends_with(&body), "once, and whole");
}

#[tokio::test]
async fn a_long_pause_is_passed_on_at_once_and_holds_for_everybody() {
    let origin = Origin::start([throttled("Retry-After: 600\r\n")]).await;
    let rig = Rig::start().await;
    let started = Instant::now();
    let answer = rig.ask(get(origin.port, "fast")).await;
    assert_eq!((status(&answer), field(&answer, "x-ota")), (429, Some("yes")), "{answer}");
    let answer = rig.ask(get(origin.port, "fast")).await;
    assert_eq!((status(&answer), field(&answer, "x-ota")), (429, None), "the proxy's own: {answer}");
    let wait: u64 = field(&answer, "retry-after").unwrap().parse().unwrap();
    assert!((500..=601).contains(&wait), "the true wait, not {wait}");
    assert!(started.elapsed() < Duration::from_secs(10), "at once");
    assert_eq!(status(&rig.ask(get(origin.port, "slow")).await), 200, "another bucket goes on");
    assert_eq!(origin.seen().len(), 2);
}

#[tokio::test]
async fn a_cap_on_pauses_does_not_hide_how_long_the_ota_asked_for() {
    let origin = Origin::start([throttled("Retry-After: 600\r\n")]).await;
    let rig = Rig::with("defaults: { retry: { max_pause: 100ms } }").await;
    let answer = rig.ask(get(origin.port, "fast")).await;
    assert_eq!((status(&answer), field(&answer, "x-ota")), (429, Some("yes")), "{answer}");
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn an_own_refusal_names_its_source() {
    let origin = Origin::start([]).await;
    let rig = Rig::with("defaults: { max_wait: 100ms }").await;
    assert_eq!(status(&rig.ask(get(origin.port, "stuck")).await), 200);
    let answer = rig.ask(get(origin.port, "stuck")).await;
    assert_eq!(status(&answer), 429, "{answer}");
    assert!(field(&answer, "proxy-status").unwrap().starts_with("ota-pacer; error=http_request_denied; details="));
    assert_eq!(field(&answer, "content-type"), Some("application/problem+json"));
    assert_eq!((field(&answer, "x-pacer-bucket"), field(&answer, "x-pacer-attempts")), (Some("ota/stuck"), Some("0")));
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn a_retry_without_a_slot_leaves_the_ota_s_answer() {
    // The one token of `stuck` is spent by the first send.
    let origin = Origin::start([throttled("Retry-After: 0\r\n")]).await;
    let rig = Rig::with("defaults: { max_wait: 200ms }").await;
    let answer = rig.ask(get(origin.port, "stuck")).await;
    assert_eq!((status(&answer), field(&answer, "x-ota")), (429, Some("yes")), "{answer}");
    assert!(answer.ends_with("\r\n\r\nslow"), "{answer}");
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_sent_again() {
    let origin = Origin::start([ok("warm"), Reply::Nothing]).await;
    let rig = Rig::start().await;
    rig.ask(get(origin.port, "fast")).await;
    let answer = rig.ask(post(origin.port, "fast", "abc")).await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("was sent and not retried"), "{answer}");
    assert_eq!(origin.seen().len(), 2);
}

#[tokio::test]
async fn a_get_that_meets_a_closing_connection_is_sent_once_more() {
    let origin = Origin::start([ok("warm"), Reply::Nothing, Reply::Nothing, Reply::Nothing]).await;
    let rig = Rig::start().await;
    rig.ask(get(origin.port, "fast")).await;
    let answer = rig.ask(get(origin.port, "fast")).await;
    assert_eq!(status(&answer), 502, "the fresh connection was lost as well: {answer}");
    assert_eq!(origin.seen().len(), 3, "once more, not twice");
}

#[tokio::test]
async fn only_a_lost_connection_is_a_reason_to_ask_twice() {
    let garbage = Reply::Last("SSH-2.0-OpenSSH_9\r\n".to_owned());
    for (bad, expected) in [(garbage, 502), (Reply::Silence, 504)] {
        let origin = Origin::start([ok("warm"), bad]).await;
        let rig = Rig::with("upstream: { response_timeout: 300ms }").await;
        rig.ask(get(origin.port, "fast")).await;
        let answer = rig.ask(get(origin.port, "fast")).await;
        assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (expected, Some("1")), "{answer}");
        assert_eq!((origin.connections(), origin.seen().len()), (1, 2));
    }
}

#[tokio::test]
async fn a_throttle_answer_that_breaks_off_is_one_all_the_same() {
    let cut = "HTTP/1.1 429 Slow Down\r\nRetry-After: 0\r\nContent-Length: 100\r\n\r\nhalf";
    let origin = Origin::start([Reply::Last(cut.to_owned()), ok("done")]).await;
    let rig = Rig::start().await;
    let answer = rig.ask(post(origin.port, "fast", "abc")).await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")), "{answer}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_seen_to_break_off() {
    for (sent, expected) in [
        ("Content-Length: 100\r\n\r\nhalf", "half"),
        ("Content-Length: 100\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "4\r\nhalf\r\n"),
        ("Transfer-Encoding: chunked\r\n\r\nnot a length\r\n", ""),
    ] {
        for code in [200, 429] {
            let origin = Origin::start([Reply::Last(format!("HTTP/1.1 {code} Code\r\n{sent}"))]).await;
            let rig = Rig::with("defaults: { max_wait: 200ms }").await;
            let mut client = rig.connect().await;
            // No second slot in time: a throttle answer is held back, then passed on.
            client.send(get(origin.port, "stuck")).await;
            let head = client.head().await;
            assert_eq!((status(&head), client.rest().await.as_str()), (code, expected), "and then the end, too early");
        }
    }
}

//! The judge is right: the mock OTA allows exactly what its limits say.

use std::{net::SocketAddr, time::Duration};

use serde_json::json;

use crate::support::{clock::wait_for, http, mock_ota::MockOta};

#[test]
fn a_bucket_admits_its_capacity_and_then_its_rate() {
    let ota = MockOta::start(&["/a=bucket:1/10s:3"]);
    let statuses: Vec<_> = (0..5).map(|_| send(&ota, "/a").0).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(send(&ota, "/b").0, 200, "another path has no limit");
    let (_, head) = send(&ota, "/a");
    let seconds: u64 = header(&head, "retry-after").and_then(|value| value.parse().ok()).expect("whole seconds");
    assert!((1..=10).contains(&seconds), "one token takes ten seconds, not {seconds}");
}

#[test]
fn windows_admit_their_count() {
    let ota = MockOta::start(&["/sliding=sliding:2/h", "/clock=clock:2/d"]);
    for path in ["/sliding", "/clock"] {
        let statuses: Vec<_> = (0..3).map(|_| send(&ota, path).0).collect();
        assert_eq!(statuses, [200, 200, 429], "{path}");
    }
}

#[test]
fn a_refused_request_fits_once_the_asked_wait_is_over() {
    let ota = MockOta::start(&["/a=sliding:1/200ms"]);
    assert_eq!(send(&ota, "/a").0, 200);
    assert_eq!(send(&ota, "/a").0, 429);
    wait_for("room in the window", Duration::from_secs(10), || (send(&ota, "/a").0 == 200).then_some(()));
    let admitted: Vec<_> = ota.arrivals("/a").into_iter().filter(|arrival| arrival.status == 200).collect();
    assert!(admitted[1].at_us - admitted[0].at_us >= 200_000, "never early: {admitted:?}");
}

#[test]
fn concurrency_counts_the_unanswered() {
    let ota = MockOta::start(&["/a=concurrent:1"]);
    ota.set(json!({ "latency_ms": 60_000 }));
    let open = std::net::TcpStream::connect(address(&ota)).expect("the OTA listens");
    std::io::Write::write_all(&mut &open, b"GET /a HTTP/1.1\r\nHost: ota\r\n\r\n").expect("a request is written");
    wait_for("the first request", Duration::from_secs(10), || (ota.arrivals("/a").len() == 1).then_some(()));
    ota.set(json!({ "latency_ms": 0 }));
    assert_eq!(send(&ota, "/a").0, 429);
    drop(open);
    wait_for("the place of who left", Duration::from_secs(10), || (send(&ota, "/a").0 == 200).then_some(()));
}

#[test]
fn scripted_answers_come_first_and_in_order() {
    let ota = MockOta::start(&[]);
    ota.script("/a", json!([{ "status": 429, "retry_after": "7" }, { "status": 503, "repeat": 2, "body": "busy" }]));
    let (status, head) = send(&ota, "/a");
    assert_eq!((status, header(&head, "retry-after").as_deref()), (429, Some("7")));
    let statuses: Vec<_> = (0..3).map(|_| send(&ota, "/a").0).collect();
    assert_eq!(statuses, [503, 503, 200]);
}

#[test]
fn a_reset_forgets_all_but_the_limits() {
    let ota = MockOta::start(&["/a=sliding:1/h"]);
    ota.script("/b", json!([{ "status": 503 }]));
    assert_eq!(send(&ota, "/a").0, 200);
    ota.reset();
    assert_eq!(ota.arrivals("/a").len(), 0);
    assert_eq!((send(&ota, "/b").0, send(&ota, "/a").0, send(&ota, "/a").0), (200, 200, 429));
}

#[test]
fn the_worst_window_is_found() {
    let ota = MockOta::start(&[]);
    for _ in 0..10 {
        send(&ota, "/a");
    }
    let arrivals = ota.arrivals("/a");
    let span = (arrivals[9].at_us - arrivals[0].at_us) as f64 / 1e6;
    let slow = ota.worst_excess("/a", 0.001, 4);
    assert!((slow - (10.0 - 0.001 * span - 4.0)).abs() < 1e-6, "all ten are in the worst window: {slow}");
    let fast = ota.worst_excess("/a", 1e9, 4);
    assert!((-3.0..=-2.0).contains(&fast), "single arrivals are the worst windows of a fast bucket: {fast}");
}

fn send(ota: &MockOta, path: &str) -> (u16, String) {
    let answer = http::read(address(ota), path);
    (answer.status, answer.head)
}

fn address(ota: &MockOta) -> SocketAddr {
    ota.http.replace("http://localhost", "127.0.0.1").parse().expect("an address")
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
}

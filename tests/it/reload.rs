//! Another configuration for a proxy that runs: on SIGHUP or because the file has changed, without losing a request.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::json;

use crate::support::{
    clock::wait_for,
    http,
    mock_ota::MockOta,
    proxy::{Proxy, Settings},
};

#[test]
fn a_hangup_brings_new_limits_and_keeps_what_was_spent() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).defaults("max_wait: 100ms");
    let proxy = settings.clone().endpoint("rooms", ROOMS, "1/h", 1).start();
    assert_eq!((ask(&proxy, &ota, ROOMS), ask(&proxy, &ota, ROOMS)), (200, 429));
    assert_eq!(reloads(&proxy), (0.0, 0.0));

    // One endpoint stays as it was, one comes.
    proxy.rewrite(&settings.clone().endpoint("rooms", ROOMS, "1/h", 1).endpoint("rates", RATES, "1/h", 2));
    let before = loaded_at(&proxy);
    proxy.signal("HUP");
    wait_for("it is reloaded", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    assert!(loaded_at(&proxy) > before);
    assert_eq!(ask(&proxy, &ota, ROOMS), 429, "what was spent is spent");
    assert_eq!([RATES; 3].map(|path| ask(&proxy, &ota, path)), [200, 200, 429]);
    assert_eq!(proxy.metrics().sum("ota_pacer_requests_total", &[("endpoint", "rates")]), Some(3.0));
    assert!(!proxy.log().text().contains("cannot change"), "{}", proxy.log().text());
}

#[test]
fn a_changed_limit_holds_at_once() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).defaults("max_wait: 100ms");
    let proxy = settings.clone().endpoint("rooms", ROOMS, "1000/s", 1000).start();
    assert_eq!([ROOMS; 3].map(|path| ask(&proxy, &ota, path)), [200; 3]);
    proxy.rewrite(&settings.endpoint("rooms", ROOMS, "1/h", 1));
    proxy.signal("HUP");
    wait_for("it is reloaded", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    let answered = [ROOMS; 3].map(|path| ask(&proxy, &ota, path)).into_iter().filter(|status| *status == 200).count();
    assert!(answered <= 1, "{answered} of 3 within a bucket of 1");
}

#[test]
fn a_request_under_way_survives_a_reload() {
    let ota = MockOta::start(&[]);
    ota.set(json!({ "latency_ms": 1500 }));
    let settings = Settings::for_ota(&ota);
    let proxy = settings.clone().endpoint("rooms", ROOMS, "100/s", 10).start();
    let mut client = TcpStream::connect(proxy.address()).expect("the proxy listens");
    client.write_all(request(&ota, ROOMS).as_bytes()).expect("a request is written");
    wait_for("the OTA has the request", PATIENCE, || (!ota.arrivals(ROOMS).is_empty()).then_some(()));
    // Its endpoint is gone.
    proxy.rewrite(&settings.endpoint("rates", RATES, "100/s", 10));
    proxy.signal("HUP");
    wait_for("it is reloaded", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("the answer comes");
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("<ok/>\n"), "{answer}");
    assert_eq!(
        proxy.metrics().sum("ota_pacer_requests_total", &[("endpoint", "rooms"), ("outcome", "answered")]),
        Some(1.0)
    );
}

#[test]
fn a_file_with_mistakes_is_refused_and_every_one_is_logged() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).defaults("max_wait: 100ms");
    let proxy = settings.clone().endpoint("rooms", ROOMS, "1/h", 1).start();
    proxy.rewrite(&settings.clone().endpoint("rooms", ROOMS, "fast", 1).endpoint("rates", RATES, "slow", 1));
    proxy.signal("HUP");
    wait_for("it is refused", PATIENCE, || (reloads(&proxy).1 >= 1.0).then_some(()));
    wait_for("it is logged", PATIENCE, || proxy.log().text().contains("2 mistakes").then_some(()));
    let log = proxy.log().text();
    for text in ["configuration refused, the former one stays in force", "fast", "slow", "hint:"] {
        assert!(log.contains(text), "`{text}` is not in\n{log}");
    }
    assert_eq!((ask(&proxy, &ota, ROOMS), ask(&proxy, &ota, ROOMS)), (200, 429), "the former limits hold");
    assert_eq!(reloads(&proxy).0, 0.0);

    proxy.rewrite(&settings.endpoint("rates", RATES, "1/h", 1));
    proxy.signal("HUP");
    wait_for("a good one is taken all the same", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    assert_eq!((ask(&proxy, &ota, RATES), ask(&proxy, &ota, RATES)), (200, 429));
}

#[test]
fn what_only_a_restart_can_change_is_named_and_the_rest_is_applied() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).defaults("max_wait: 100ms");
    let proxy = settings.clone().endpoint("rooms", ROOMS, "1/h", 1).start();
    let text = fs::read_to_string(proxy.config_file()).expect("the config is read");
    let text = text.replace("capacity: 1 ", "capacity: 1, start: empty ").replace("/ca\"", "/other-ca\"");
    let text = text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.1:1").replace(ROOMS, RATES);
    proxy.rewrite_text(&text);
    proxy.signal("HUP");
    wait_for("it is reloaded", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    let log = proxy.log().text();
    for key in ["listen", "ca.dir"] {
        assert!(log.contains(&format!("`{key}` cannot change while the instance runs")), "`{key}` is not in\n{log}");
    }
    assert!(!log.contains("`admin` cannot change"), "{log}");
    assert_eq!(ask(&proxy, &ota, ROOMS), 200, "no endpoint any more");
    assert_eq!(ask(&proxy, &ota, ROOMS), 200, "no endpoint any more");
}

#[test]
fn a_changed_file_needs_no_signal() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).defaults("max_wait: 100ms");
    let proxy = settings.clone().endpoint("rooms", ROOMS, "1/h", 1).start();
    proxy.rewrite(&settings.clone().endpoint("rates", RATES, "1/h", 1));
    wait_for("the change is seen", PATIENCE, || (reloads(&proxy).0 >= 1.0).then_some(()));
    assert_eq!((ask(&proxy, &ota, RATES), ask(&proxy, &ota, RATES)), (200, 429));
    assert_eq!(reloads(&proxy), (1.0, 0.0), "once");
}

fn request(ota: &MockOta, path: &str) -> String {
    format!("GET {}{path} HTTP/1.0\r\nAuthorization: Basic aG90ZWw6cHc=\r\n\r\n", ota.http)
}

#[track_caller]
fn ask(proxy: &Proxy, ota: &MockOta, path: &str) -> u16 {
    http::exchange(proxy.address(), &request(ota, path)).status
}

/// How many succeeded, and how many failed.
#[track_caller]
fn reloads(proxy: &Proxy) -> (f64, f64) {
    let metrics = proxy.metrics();
    let count = |result| metrics.sum("ota_pacer_config_reloads_total", &[("result", result)]).expect("it is counted");
    (count("success"), count("failure"))
}

#[track_caller]
fn loaded_at(proxy: &Proxy) -> f64 {
    proxy.metrics().sum("ota_pacer_config_last_reload_success_timestamp_seconds", &[]).expect("it is told")
}

const ROOMS: &str = "/rooms";
const RATES: &str = "/rates";
const PATIENCE: Duration = Duration::from_secs(30);

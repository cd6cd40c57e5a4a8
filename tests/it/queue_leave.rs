//! A client that leaves while it waits is gone from the queue, and costs nothing.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use crate::support::{
    clock::wait_for,
    http,
    mock_ota::MockOta,
    proxy::{Proxy, Settings},
};

#[test]
fn who_leaves_the_queue_costs_nothing() {
    let ota = MockOta::start(&[]);
    // One request every five seconds.
    let proxy = Settings::for_ota(&ota).defaults("max_wait: 60s").endpoint("availability", PATH, "12/min", 1).start();
    let request = format!("GET {}{PATH} HTTP/1.0\r\nAuthorization: Basic aG90ZWw6cHc=\r\n\r\n", ota.http);
    assert_eq!(http::exchange(proxy.address(), &request).status, 200);

    let leaving: Vec<_> = (0..LEAVING)
        .map(|_| {
            let mut stream = TcpStream::connect(proxy.address()).expect("the proxy listens");
            stream.write_all(request.as_bytes()).expect("a request is written");
            stream
        })
        .collect();
    wait_for("all are queued", PATIENCE, || (queue_depth(&proxy) == Some(LEAVING as f64)).then_some(()));
    drop(leaving);
    wait_for("all are gone", PATIENCE, || (queue_depth(&proxy) == Some(0.0)).then_some(()));
    assert_eq!(http::exchange(proxy.address(), &request).status, 200);

    let arrivals = ota.arrivals(PATH);
    assert_eq!(arrivals.len(), 2, "nobody who left was forwarded");
    let waited = (arrivals[1].at_us - arrivals[0].at_us) as f64 / 1e6;
    assert!(waited < 5.0 * LEAVING as f64, "the next request waited {waited} s: those who left have paid");
}

#[test]
fn who_leaves_makes_way_for_who_stays() {
    let ota = MockOta::start(&[]);
    let proxy = Settings::for_ota(&ota).defaults("max_wait: 60s").endpoint("availability", PATH, "12/min", 1).start();
    let request = format!("GET {}{PATH} HTTP/1.0\r\nAuthorization: Basic aG90ZWw6cHc=\r\n\r\n", ota.http);
    assert_eq!(http::exchange(proxy.address(), &request).status, 200);
    let mut leaving = TcpStream::connect(proxy.address()).expect("the proxy listens");
    leaving.write_all(request.as_bytes()).expect("a request is written");
    wait_for("it is queued", PATIENCE, || (queue_depth(&proxy) == Some(1.0)).then_some(()));
    let address = proxy.address();
    let staying = thread::spawn(move || http::exchange(address, &request).status);
    wait_for("both are queued", PATIENCE, || (queue_depth(&proxy) == Some(2.0)).then_some(()));
    drop(leaving);
    assert_eq!(staying.join().expect("the client does not panic"), 200);
    let arrivals = ota.arrivals(PATH);
    assert_eq!(arrivals.len(), 2, "who left was not forwarded");
    let waited = (arrivals[1].at_us - arrivals[0].at_us) as f64 / 1e6;
    assert!(waited < 10.0, "who stayed waited {waited} s: for the slot of who left as well");
}

fn queue_depth(proxy: &Proxy) -> Option<f64> {
    proxy.metrics().sum("ota_pacer_queue_depth", &[("channel", "booking_com"), ("endpoint", "availability")])
}

const PATH: &str = "/hotels/xml/availability";
const LEAVING: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

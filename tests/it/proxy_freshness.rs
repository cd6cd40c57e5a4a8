//! A slot is good for a moment only: what keeps a request from being sent at once costs it another one.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::NamedTempFile;
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::Instant};
use tokio_rustls::TlsAcceptor;

use super::proxy_rig::{Origin, Rig, Wire, within};

#[tokio::test]
async fn a_handshake_that_outlasts_its_slot_costs_another_one() {
    let gate = Gate::default();
    let (port, root) = origin(gate.clone()).await;
    let upstream = format!("upstream: {{ ca_file: '{}' }}\ndefaults: {{ max_wait: 60s }}", root.path().display());
    let endpoints =
        "\n      paced:\n        match: { path: '/paced/**' }\n        limits: [{ rate: 40/s, capacity: 1 }]\n";
    let rig = Arc::new(Rig::with_endpoints(&upstream, endpoints).await);
    // These make the line long: they need no handshake.
    let clear = Origin::start([]).await;
    let mut others = JoinSet::new();
    for _ in 0..LONG_LINE {
        others.spawn(ask(rig.clone(), format!("http://localhost:{}/paced/a", clear.port)));
    }
    clear.has_seen(4).await;
    let mut requests = JoinSet::new();
    for _ in 0..HELD {
        requests.spawn(ask(rig.clone(), format!("https://localhost:{port}/paced/a")));
    }
    // In a line this long the slot comes first. All of them are ready to send at one instant.
    within(gate.came.subscribe().wait_for(|came| *came >= HELD)).await.unwrap();
    let released = Instant::now();
    gate.is_open.send_replace(true);
    let mut answered = Vec::new();
    others.join_all().await;
    while let Some(at) = within(requests.join_next()).await {
        answered.push(at.unwrap());
    }
    answered.sort_unstable();
    // One token, and what refills: neither the machine nor the way back makes them earlier.
    for (place, at) in answered.iter().enumerate() {
        let earliest = INTERVAL * u32::try_from(place).unwrap().saturating_sub(1);
        assert!(*at - released >= earliest.saturating_sub(GRACE), "{place} more were sent {:?} after", *at - released);
    }
}

/// When it was answered.
async fn ask(rig: Arc<Rig>, url: String) -> Instant {
    let mut client = rig.connect().await;
    let authority = url.split('/').nth(2).unwrap();
    client.send(format!("GET {url} HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
    assert!(client.head().await.starts_with("HTTP/1.1 200 "));
    Instant::now()
}

/// Holds up handshakes until it is open.
#[derive(Clone, Default)]
struct Gate {
    came: watch::Sender<usize>,
    is_open: watch::Sender<bool>,
}

/// Over TLS, as `localhost`, and the file with its certificate. Answers each request on a connection of its own.
async fn origin(gate: Gate) -> (u16, NamedTempFile) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let root = NamedTempFile::new().unwrap();
    std::fs::write(root.path(), own.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![own.cert.der().clone()], key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, gate) = (acceptor.clone(), gate.clone());
            tokio::spawn(async move {
                let mut is_open = gate.is_open.subscribe();
                gate.came.send_modify(|came| *came += 1);
                is_open.wait_for(|is_open| *is_open).await.unwrap();
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let mut wire = Wire::new(stream);
                while wire.try_head().await.is_some() {
                    wire.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
                }
            });
        }
    });
    (port, root)
}

/// Of more than 32 that wait nobody connects before its turn.
const LONG_LINE: usize = 80;

const HELD: usize = 20;

/// At 40 a second.
const INTERVAL: Duration = Duration::from_millis(25);

/// How late a slot may be used: the last before the release may have been bound that long ago.
const GRACE: Duration = Duration::from_millis(10);

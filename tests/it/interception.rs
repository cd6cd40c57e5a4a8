//! Which tunnels are opened, what clients see of it whatever they call the host, and what is said where they refuse.
#![expect(clippy::unwrap_used, reason = "a test fails where its helpers do")]

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use rustls::{
    SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

use super::proxy_rig::{Rig, Wire, field, status, within};
use crate::support::{
    clock::wait_for,
    mock_ota::MockOta,
    process::{Ended, Process},
    proxy::{Proxy, Settings},
};

/// Each is the name of a host as a client may write it, and whether curl checks it as an address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_spelling_of_a_host_is_intercepted_with_a_certificate_that_verifies() {
    for settings in ["", "key_type: rsa2048", "name_constraints: true", "key_type: rsa2048, name_constraints: true"] {
        let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
        let rig = rig(&origin, settings).await;
        for host in ["127.0.0.1", "localhost", "LOCALHOST", "localhost."] {
            let ended = curl(&rig, &["-fsS", &format!("https://{host}:{}/fast/", origin.port)]).await;
            assert_eq!(ended.stdout.trim_end(), "ok", "{host}, {settings}: {ended:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ipv6_address_is_intercepted() {
    let origin = TlsOrigin::start("[::1]", &HOSTS).await;
    for settings in ["", "name_constraints: true"] {
        let rig = rig(&origin, settings).await;
        let ended = curl(&rig, &["-fsSg", &format!("https://[::1]:{}/fast/", origin.port)]).await;
        assert_eq!(ended.stdout.trim_end(), "ok", "{settings}: {ended:?}");
    }
}

/// No resolver knows these names, so what is asked is the certificate alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_internationalized_name_is_intercepted_in_either_form() {
    let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
    let rig = rig(&origin, "name_constraints: true").await;
    for (connect, sni) in [
        ("xn--bcher-kva.test:443", "xn--bcher-kva.test"),
        ("XN--BCHER-KVA.TEST.:443", "xn--bcher-kva.test"),
        ("any.wild.test:443", "any.wild.test"),
    ] {
        let ended = s_client(&rig, connect, &["-servername", sni, "-verify_hostname", sni]).await;
        assert_verified(&ended, connect);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_server_name_is_the_certificate_is_good_for_the_host_of_the_connect() {
    for settings in ["", "key_type: rsa2048", "name_constraints: true"] {
        let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
        let rig = rig(&origin, settings).await;
        for (connect, arguments) in [
            ("localhost:443", &["-noservername", "-verify_hostname", "localhost"][..]),
            ("127.0.0.1:443", &["-noservername", "-verify_ip", "127.0.0.1"]),
            ("127.0.0.1:443", &["-servername", "localhost", "-verify_ip", "127.0.0.1"]),
            // No name of the protocol, which some clients send all the same.
            ("127.0.0.1:443", &["-servername", "127.0.0.1", "-verify_ip", "127.0.0.1"]),
            ("localhost:443", &["-servername", "other.wild.test", "-verify_hostname", "localhost"]),
            ("localhost:443", &["-servername", "other.wild.test", "-verify_hostname", "other.wild.test"]),
            ("localhost:443", &["-servername", "of.nobody", "-verify_hostname", "localhost"]),
        ] {
            for version in ["-tls1_2", "-tls1_3"] {
                let ended = s_client(&rig, connect, &[arguments, &[version]].concat()).await;
                assert_verified(&ended, &format!("{connect} {arguments:?} {settings}"));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_ecdsa_needs_an_rsa_authority() {
    let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
    let old =
        ["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256", "-sigalgs", "RSA+SHA256", "-servername", "localhost"];
    let rsa = rig(&origin, "key_type: rsa2048").await;
    assert_verified(&s_client(&rsa, "localhost:443", &old).await, "RSA");
    let ecdsa = rig(&origin, "").await;
    assert!(!s_client(&ecdsa, "localhost:443", &old).await.status.success());
}

#[tokio::test]
async fn a_host_that_is_not_intercepted_is_relayed_unread_and_paced_by_the_connection() {
    let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
    let channels = format!(
        "upstream: {{ ca_file: '{}' }}\nchannels: {{ pinned: {{ hosts: [localhost], intercept: false, \
         limits: [{{ rate: 4/s, capacity: 1 }}], max_wait: 10s }} }}",
        origin.root.display()
    );
    let rig = Rig::configured(&channels, "").await;
    let begun = Instant::now();
    for number in 0..3_u32 {
        let mut client = rig.connect().await;
        client.send(format!("CONNECT localhost:{} HTTP/1.1\r\n\r\n", origin.port)).await;
        assert_eq!(status(&client.head().await), 200);
        assert!(begun.elapsed() >= Duration::from_millis(250) * number, "tunnel {number} after {:?}", begun.elapsed());
        // The certificate is the origin's own.
        let connector = tokio_rustls::TlsConnector::from(Arc::new(trusting(&origin.root)));
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = Wire::new(connector.connect(name, client.stream).await.unwrap());
        for _ in 0..5 {
            client.send("GET /any HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            let head = client.head().await;
            assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"), "and unpaced inside");
            assert_eq!(field(&head, "x-pacer-bucket"), None);
        }
    }
}

#[tokio::test]
async fn an_origin_that_wants_a_certificate_of_the_client_is_a_502_with_the_remedy() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let origin = TlsOrigin::wanting("127.0.0.1", &HOSTS, Some(version)).await;
        let rig = rig(&origin, "").await;
        let authority = format!("localhost:{}", origin.port);
        let answer = rig
            .ask(format!("GET https://{authority}/fast/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), 502, "{answer}");
        assert!(answer.contains("`intercept: false`"), "{version:?}: {answer}");
    }
}

#[tokio::test]
async fn a_tunnel_that_would_wait_too_long_is_refused_with_the_time() {
    let origin = TlsOrigin::start("127.0.0.1", &HOSTS).await;
    let channels = "channels: { pinned: { hosts: [localhost], intercept: false, \
                    limits: [{ rate: 1/h, capacity: 1 }], max_wait: 100ms } }";
    let rig = Rig::configured(channels, "").await;
    let request = format!("CONNECT localhost:{} HTTP/1.1\r\n\r\n", origin.port);
    let mut first = rig.connect().await;
    first.send(&request).await;
    assert_eq!(status(&first.head().await), 200);
    let answer = rig.ask(&request).await;
    assert_eq!((status(&answer), field(&answer, "connection")), (429, Some("close")), "{answer}");
    assert!(field(&answer, "retry-after").unwrap().parse::<u64>().unwrap() > 3_500, "{answer}");
}

#[test]
fn a_client_that_refuses_is_counted_for_its_host_and_told_with_the_remedy_once() {
    let refusals = Refusals::start();
    for _ in 0..3 {
        let mut command = Command::new("curl");
        command.args(["-s", "--noproxy", "", "--proxy", &refusals.proxy.url(), "--cacert"]).arg(refusals.ota.ca_file());
        crate::support::worker::without_proxy_variables(&mut command);
        let ended = Process::start("curl", command.arg(&refusals.ota.https)).wait(Duration::from_secs(20));
        assert_eq!(ended.status.code(), Some(60), "curl does not know the CA: {ended:?}");
    }
    let line = refusals.told(3);
    for part in
        ["WARN", "channel=\"booking_com\"", "host=localhost", "does not trust the CA", "`CURL_CA_BUNDLE`", "untold=0"]
    {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[test]
fn a_client_that_leaves_without_a_word_is_taken_for_one_that_pins() {
    let refusals = Refusals::start();
    let mut client = refusals.tunnel();
    let config = Arc::new(trusting(&refusals.ota.ca_file()));
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    rustls::ClientConnection::new(config, name).unwrap().write_tls(&mut client).unwrap();
    // The server's answer begins with its certificate on the way.
    client.read_exact(&mut [0; 5]).unwrap();
    drop(client);
    let line = refusals.told(1);
    assert!(line.contains("`intercept: false`") && line.contains("`bundle.pem`"), "{line}");
}

/// As wget with GnuTLS does.
#[test]
fn a_client_that_looks_at_the_certificate_only_after_the_handshake_is_noticed() {
    let refusals = Refusals::start();
    let mut client = refusals.tunnel();
    let config = Arc::new(trusting(&refusals.proxy.ca_file()));
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut client).unwrap();
    }
    drop(client);
    let line = refusals.told(1);
    assert!(line.contains("right after the TLS handshake") && line.contains("`intercept: false`"), "{line}");
}

#[test]
fn a_client_of_another_protocol_is_told_to_be_left_alone() {
    let refusals = Refusals::start();
    let mut client = refusals.tunnel();
    client.write_all(b"\0\x01\x02\x03").unwrap();
    let line = refusals.told(1);
    assert!(line.contains("neither TLS nor HTTP: relayed unpaced") && line.contains("`intercept: false`"), "{line}");

    let refusals = Refusals::start();
    let mut client = refusals.tunnel();
    let mut config = trusting(&refusals.ota.ca_file());
    config.alpn_protocols = vec![b"of-its-own".to_vec()];
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    rustls::ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut client).unwrap();
    let line = refusals.told(1);
    assert!(line.contains("does not offer HTTP/1.1") && line.contains("`http2.clients: true`"), "{line}");
}

/// A proxy whose clients refuse it.
struct Refusals {
    ota: MockOta,
    proxy: Proxy,
}

impl Refusals {
    #[track_caller]
    fn start() -> Self {
        // The helpers of the other tests run in this process.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let ota = MockOta::start(&[]);
        let proxy = Settings::for_ota(&ota).endpoint("any", "/**", "100/s", 100).start();
        Self { ota, proxy }
    }

    /// A tunnel to a host that the proxy intercepts.
    fn tunnel(&self) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(self.proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let authority = self.ota.https.trim_start_matches("https://");
        write!(stream, "CONNECT {authority} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = [0; "HTTP/1.1 200 OK\r\n\r\n".len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        stream
    }

    /// Waits until that many failures are counted, and gives the one line that tells of them.
    #[track_caller]
    fn told(&self, count: u32) -> String {
        let counted = || self.proxy.metrics().sum("ota_pacer_interception_failures_total", &[("host", "localhost")]);
        wait_for("failures are counted", Duration::from_secs(20), || {
            (counted() == Some(f64::from(count))).then_some(())
        });
        let lines = || -> Vec<String> {
            let log = self.proxy.log().text();
            log.lines().filter(|line| line.contains("could not be intercepted")).map(str::to_owned).collect()
        };
        let told =
            wait_for("a failure is told", Duration::from_secs(20), || Some(lines()).filter(|lines| !lines.is_empty()));
        assert_eq!(told.len(), 1, "{told:?}");
        told.into_iter().next().unwrap()
    }
}

/// What the proxy is configured to intercept here.
const CHANNELS: &str = "
channels:
  ota:
    hosts: [localhost, 127.0.0.1, '[::1]', bücher.test, '*.wild.test']
    endpoints:
      fast:
        match: { path: '/fast/**' }
        limits: [{ rate: 1000/s, capacity: 1000 }]
";

async fn rig(origin: &TlsOrigin, ca_settings: &str) -> Rig {
    Rig::configured(&format!("upstream: {{ ca_file: '{}' }}\n{CHANNELS}", origin.root.display()), ca_settings).await
}

/// An OTA that answers everything with `ok`.
struct TlsOrigin {
    port: u16,
    root: PathBuf,
    _directory: TempDir,
    accepting: JoinHandle<()>,
}

impl TlsOrigin {
    async fn start(address: &str, names: &[&str]) -> Self {
        Self::wanting(address, names, None).await
    }

    /// One that wants a certificate of its clients, in this version of TLS.
    async fn wanting(address: &str, names: &[&str], wants: Option<&'static SupportedProtocolVersion>) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let own =
            rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        let directory = TempDir::new().unwrap();
        let root = directory.path().join("origin.pem");
        std::fs::write(&root, own.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let chain = vec![own.cert.der().clone()];
        let config = match wants {
            None => rustls::ServerConfig::builder().with_no_client_auth(),
            Some(version) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(own.cert.der().clone()).unwrap();
                let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
                rustls::ServerConfig::builder_with_protocol_versions(&[version]).with_client_cert_verifier(verifier)
            }
        };
        let config = config.with_single_cert(chain, key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(format!("{address}:0")).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let mut client = Wire::new(stream);
                    while client.try_head().await.is_some() {
                        client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                    }
                });
            }
        });
        Self { port, root, _directory: directory, accepting }
    }
}

impl Drop for TlsOrigin {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// As a client that trusts the proxy's authority alone.
async fn curl(rig: &Rig, arguments: &[&str]) -> Ended {
    let mut command = Command::new("curl");
    command.args(["--proxy", &format!("http://{}", rig.address), "--noproxy", "", "--cacert"]).arg(ca_of(rig));
    command.args(arguments);
    end_of("curl", command).await
}

/// As a client that verifies strictly, which Python does since 3.13.
async fn s_client(rig: &Rig, connect: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-proxy", &rig.address.to_string(), "-connect", connect, "-no-CApath", "-no-CAstore"]);
    command.args(["-x509_strict", "-purpose", "sslserver", "-verify_return_error", "-CAfile"]).arg(ca_of(rig));
    command.args(arguments);
    end_of("openssl", command).await
}

async fn end_of(name: &'static str, mut command: Command) -> Ended {
    crate::support::worker::without_proxy_variables(&mut command);
    let running = tokio::task::spawn_blocking(move || Process::start(name, &mut command).wait(Duration::from_secs(20)));
    within(running).await.unwrap()
}

fn assert_verified(ended: &Ended, what: &str) {
    assert!(ended.status.success() && ended.stdout.contains("Verify return code: 0 (ok)"), "{what}: {ended:?}");
}

fn ca_of(rig: &Rig) -> PathBuf {
    rig.directory.path().join("ca/ca.pem")
}

fn trusting(root: &Path) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(root).unwrap()).unwrap();
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// What the origin's certificate is good for.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

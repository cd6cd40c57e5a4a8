//! What clients hold against a certificate, and what operators do to the files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ota_pacer::{
    ca::{self, Alpn, Authority, CaError, Leaves, MintError},
    config::{
        host::Host,
        model::{Ca, HostPattern, KeyType},
    },
};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use x509_parser::{certificate::X509Certificate, extensions::ParsedExtension, prelude::FromDer, public_key::PublicKey};

#[tokio::test]
async fn strict_clients_accept_every_kind_of_leaf() {
    for key_type in [KeyType::P256, KeyType::Rsa2048] {
        for name_constraints in [false, true] {
            every_kind_of_leaf(key_type, name_constraints).await;
        }
    }
}

async fn every_kind_of_leaf(key_type: KeyType, name_constraints: bool) {
    let dir = tempfile::tempdir().unwrap();
    let permitted = ["example", "127.0.0.1", "2001:db8::1"];
    let ca = Ca { key_type, name_constraints, hosts: hosts(&permitted), ..Ca::at(dir.path()) };
    let leaves = Leaves::new(Authority::open(&ca).unwrap()).unwrap();
    let long = format!("{}.{}.example", "a".repeat(60), "b".repeat(60));
    for (host, sni, also) in [
        ("ota.example", None, None),
        ("OTA.Example.", Some("ota.example"), None),
        (long.as_str(), None, None),
        ("staging_2.ota.example", None, None),
        ("bücher.example", Some("xn--bcher-kva.example"), None),
        ("127.0.0.1", None, None),
        ("[2001:db8::1]", None, None),
        ("ota.example", Some("front.example"), Some("front.example")),
        ("127.0.0.1", Some("front.example"), Some("front.example")),
        ("ota.example", Some("not a name"), None),
        ("ota.example", Some("127.0.0.1"), None),
        ("ota.example", Some("elsewhere.test"), (!name_constraints).then_some("elsewhere.test")),
    ] {
        let host = host_of(host);
        let config = leaves.server_config(&host, sni, Alpn::Http1).unwrap();
        let chain = handshake(&config, &trusting(&ca_of(dir.path())), host.as_str()).await.unwrap().chain;
        assert_eq!(chain.len(), 1, "a client has the root already");
        let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
        let usage = leaf.key_usage().unwrap().unwrap().value;
        assert_eq!(usage.key_encipherment(), key_type == KeyType::Rsa2048);
        assert_eq!(
            leaf.signature_algorithm.algorithm,
            X509Certificate::from_der(&ca_of(dir.path())).unwrap().1.signature_algorithm.algorithm
        );
        openssl_accepts(dir.path(), &chain, &host);
        if let Some(also) = also {
            openssl_accepts(dir.path(), &chain, &host_of(also));
            handshake(&config, &trusting(&ca_of(dir.path())), also).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_constrained_authority_vouches_for_the_configured_hosts_alone() {
    for (configured, good, bad) in [
        (&["ota.example", "other.example"][..], "sub.ota.example", &["elsewhere.test", "127.0.0.1", "2001:db8::1"][..]),
        (&["192.0.2.7"], "192.0.2.7", &["192.0.2.8", "ota.example", "2001:db8::1"]),
        (&["ota.example", "2001:db8::1"], "2001:db8::1", &["2001:db8::2", "127.0.0.1", "notota.example"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca { name_constraints: true, hosts: hosts(configured), ..Ca::at(dir.path()) };
        let leaves = Leaves::new(Authority::open(&ca).unwrap()).unwrap();
        let host = |text: &str| host_of(&if text.contains(':') { format!("[{text}]") } else { text.to_owned() });
        let chain_for = async |name: &str| {
            let config = leaves.server_config(&host(name), None, Alpn::Http1).unwrap();
            handshake(&config, &trusting(&ca_of(dir.path())), name).await.map(|seen| seen.chain)
        };
        openssl_accepts(dir.path(), &chain_for(good).await.unwrap(), &host(good));
        for name in bad {
            let refused = chain_for(name).await.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("NameConstraintViolation"), "{name}: {refused}");
        }
    }
}

#[tokio::test]
async fn an_authority_that_is_there_is_kept_whatever_the_settings_say() {
    let dir = tempfile::tempdir().unwrap();
    Authority::open(&Ca::at(dir.path())).unwrap();
    let before = fs::read(dir.path().join("ca.pem")).unwrap();
    let ca = Ca { key_type: KeyType::Rsa2048, name_constraints: true, ..Ca::at(dir.path()) };
    let leaves = Leaves::new(Authority::open(&ca).unwrap()).unwrap();
    assert_eq!(fs::read(dir.path().join("ca.pem")).unwrap(), before);
    // The key of the leaves is made at each start, and so follows the settings.
    let leaf = leaf_for(&leaves, dir.path(), "ota.example").await;
    openssl_accepts(dir.path(), std::slice::from_ref(&leaf), &host_of("ota.example"));
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert!(matches!(leaf.public_key().parsed().unwrap(), PublicKey::RSA(key) if key.key_size() == 2048));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_clients_that_come_at_once_share_one_leaf() {
    for key_type in [KeyType::P256, KeyType::Rsa2048] {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca { key_type, ..Ca::at(dir.path()) };
        let leaves = Arc::new(Leaves::new(Authority::open(&ca).unwrap()).unwrap());
        let client = trusting(&ca_of(dir.path()));
        let start = Arc::new(tokio::sync::Barrier::new(200));
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let (leaves, client, start) = (leaves.clone(), client.clone(), start.clone());
            clients.spawn(async move {
                start.wait().await;
                let config = leaves.server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();
                handshake(&config, &client, "ota.example").await.unwrap().chain.remove(0)
            });
        }
        let seen: Vec<_> = clients.join_all().await;
        assert!(seen.iter().all(|leaf| *leaf == seen[0]), "the serial of a leaf is random: one was minted");
    }
}

#[test]
fn names_that_clients_make_up_take_a_bounded_amount_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = leaves(dir.path());
    let host = host_of("ota.example");
    let first = leaves.server_config(&host, Some("0.example"), Alpn::Http1).unwrap();
    for number in 1..2_500 {
        leaves.server_config(&host, Some(&format!("{number}.example")), Alpn::Http1).unwrap();
    }
    let text = format!("{leaves:?}");
    let kept: usize = text.split("minted: ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(kept <= 1024, "{text}");
    // Those let go are minted again when asked for.
    drop(first);
    leaves.server_config(&host, Some("0.example"), Alpn::Http1).unwrap();
}

#[tokio::test]
async fn nothing_is_accepted_before_the_handshake_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = leaves(dir.path());
    let server = leaves.server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();
    assert_eq!(server.max_early_data_size, 0);
    let mut client = ClientConfig::clone(&trusting(&ca_of(dir.path())));
    client.enable_early_data = true;
    let client = Arc::new(client);
    handshake(&server, &client, "ota.example").await.unwrap();
    let name = ServerName::try_from("ota.example").unwrap();
    let mut resuming = rustls::ClientConnection::new(client.clone(), name).unwrap();
    assert!(resuming.early_data().is_none(), "no ticket allows for early data");
    assert_eq!(handshake(&server, &client, "ota.example").await.unwrap().kind, HandshakeKind::Resumed);
}

#[tokio::test]
async fn a_leaf_says_no_more_than_it_must() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = leaves(dir.path());
    let authority = ca_of(dir.path());
    let (_, authority) = X509Certificate::from_der(&authority).unwrap();
    let mut serials = Vec::new();
    for host in ["ota.example", "other.example", "192.0.2.1"] {
        let leaf = leaf_for(&leaves, dir.path(), host).await;
        let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
        assert_eq!(key_identifier(&leaf, Identifier::Authority), key_identifier(&authority, Identifier::Subject));
        assert_eq!(key_identifier(&leaf, Identifier::Subject), None);
        assert!(leaf.basic_constraints().unwrap().is_none());
        assert_ne!(leaf.public_key(), authority.public_key());
        assert_ne!(leaf.subject(), leaf.issuer());
        let usage = leaf.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.digital_signature() && usage.value.flags.count_ones() == 1);
        let purposes = leaf.extended_key_usage().unwrap().unwrap();
        assert!(purposes.value.server_auth && !purposes.value.client_auth && !purposes.value.any);
        assert!(leaf.validity().time_to_expiration().unwrap().whole_days() < 45);
        serials.push(leaf.raw_serial().to_vec());
    }
    assert!(serials.iter().all(|serial| serial.len() >= 8 && serial[0] < 0x80), "{serials:?}");
    serials.sort();
    serials.dedup();
    assert_eq!(serials.len(), 3);
}

#[test]
fn the_authority_may_sign_leaves_and_differs_between_installations() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let pems = dirs.each_ref().map(|dir| {
        Authority::open(&Ca::at(dir.path())).unwrap();
        ca_of(dir.path())
    });
    let [one, other] = pems.each_ref().map(|der| X509Certificate::from_der(der).unwrap().1);
    assert_ne!(one.subject(), other.subject());
    assert_ne!(one.raw_serial(), other.raw_serial());
    let constraints = one.basic_constraints().unwrap().unwrap();
    assert!(constraints.critical && constraints.value.ca && constraints.value.path_len_constraint == Some(0));
    let usage = one.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
    assert!(key_identifier(&one, Identifier::Subject).is_some());
    assert!(one.extended_key_usage().unwrap().is_none());
    assert!(one.validity().time_to_expiration().unwrap().whole_days() > 3600);
}

#[tokio::test]
async fn a_leaf_is_kept_until_two_thirds_of_its_time_are_over() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = Leaves::new(Authority::open_at(&Ca::at(dir.path()), now() - 40 * DAY).unwrap()).unwrap();
    let host = host_of("ota.example");
    let minted = now() - 25 * DAY;
    let first = leaves.server_config_at(&host, None, Alpn::Http1, minted).unwrap();
    let later = leaves.server_config_at(&host, None, Alpn::Http1, minted + 19 * DAY).unwrap();
    assert!(Arc::ptr_eq(&first, &later));
    let renewed = leaves.server_config_at(&host, None, Alpn::Http1, minted + 21 * DAY).unwrap();
    assert!(!Arc::ptr_eq(&first, &renewed));
    // The one it replaces is still good, whatever connection may hold it.
    for config in [first, renewed] {
        handshake(&config, &trusting(&ca_of(dir.path())), "ota.example").await.unwrap();
    }
}

#[test]
fn nothing_is_minted_once_the_authority_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = leaves(dir.path());
    let (then, host) = (now() + 4000 * DAY, host_of("ota.example"));
    assert!(matches!(leaves.server_config_at(&host, None, Alpn::Http1, then), Err(MintError::AuthorityExpired)));
    let error = Authority::open_at(&Ca::at(dir.path()), then).unwrap_err().to_string();
    assert!(error.contains("expired since") && error.contains("hint:"), "{error}");
    let error = Authority::open_at(&Ca::at(dir.path()), now() - 10 * DAY).unwrap_err().to_string();
    assert!(error.contains("not valid before") && error.contains("clock"), "{error}");
}

#[tokio::test]
async fn clients_resume_their_session_but_never_across_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = leaves(dir.path());
    let client = trusting(&ca_of(dir.path()));
    let ota = leaves.server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();
    assert_eq!(handshake(&ota, &client, "ota.example").await.unwrap().kind, HandshakeKind::Full);
    assert_eq!(handshake(&ota, &client, "ota.example").await.unwrap().kind, HandshakeKind::Resumed);
    // The same client and the same SNI, but inside a tunnel to another host.
    let other = leaves.server_config(&host_of("other.example"), Some("ota.example"), Alpn::Http1).unwrap();
    assert_eq!(handshake(&other, &client, "ota.example").await.unwrap().kind, HandshakeKind::Full);
}

#[tokio::test]
async fn an_operators_own_authority_is_used_as_it_is() {
    // An RSA key in the older encoding, and a subject key identifier that is no hash of any kind.
    let dir = tempfile::tempdir().unwrap();
    openssl(dir.path(), "genrsa -traditional -out ca.key 2048");
    let settings = "[req]\ndistinguished_name = name\nx509_extensions = extensions\n[name]\n[extensions]\n\
                    basicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\n\
                    subjectKeyIdentifier = 0102030405060708\n";
    fs::write(dir.path().join("settings"), settings).unwrap();
    openssl(
        dir.path(),
        "req -x509 -new -config settings -key ca.key -out ca.pem -days 365 -subj /O=Hotels/OU=Ops/CN=Inspection",
    );
    private(dir.path());
    let before = fs::read(dir.path().join("ca.pem")).unwrap();
    let leaf = leaf_for(&leaves(dir.path()), dir.path(), "ota.example").await;
    openssl_accepts(dir.path(), std::slice::from_ref(&leaf), &host_of("ota.example"));
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert_eq!(key_identifier(&leaf, Identifier::Authority).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(fs::read(dir.path().join("ca.pem")).unwrap(), before);
}

#[tokio::test]
async fn a_leaf_of_the_authoritys_own_name_does_not_look_self_signed() {
    let dir = tempfile::tempdir().unwrap();
    openssl(
        dir.path(),
        "req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 365 \
         -subj /CN=ota.example -addext keyUsage=critical,keyCertSign",
    );
    private(dir.path());
    let leaf = leaf_for(&leaves(dir.path()), dir.path(), "ota.example").await;
    openssl_accepts(dir.path(), std::slice::from_ref(&leaf), &host_of("ota.example"));
    let (_, leaf) = X509Certificate::from_der(&leaf).unwrap();
    assert_ne!(leaf.subject(), leaf.issuer());
}

#[tokio::test]
async fn an_intermediate_is_sent_to_clients_that_trust_its_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    openssl(
        dir.path(),
        "req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout root.key -out root.pem -days 365 \
         -subj /CN=Root -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign",
    );
    openssl(
        dir.path(),
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -keyout ca.key -out ca.csr -subj /CN=Intermediate",
    );
    let extensions = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign\n\
                      subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n";
    fs::write(dir.path().join("extensions"), extensions).unwrap();
    openssl(
        dir.path(),
        "x509 -req -in ca.csr -CA root.pem -CAkey root.key -CAcreateserial -out signing.pem -days 365 -extfile extensions",
    );
    let [signing, root] = ["signing.pem", "root.pem"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
    fs::write(dir.path().join("ca.pem"), signing + &root).unwrap();
    private(dir.path());

    let config = leaves(dir.path()).server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();
    let root = CertificateDer::from_pem_slice(root.as_bytes()).unwrap();
    let chain = handshake(&config, &trusting(&root), "ota.example").await.unwrap().chain;
    assert_eq!(chain.len(), 2);
    fs::rename(dir.path().join("root.pem"), dir.path().join("ca.pem")).unwrap();
    openssl_accepts(dir.path(), &chain, &host_of("ota.example"));
}

#[tokio::test]
async fn a_chain_goes_out_in_order_whatever_the_order_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        dir.path(),
        &format!(
            "req -x509 -new {key} -keyout root.key -out root.pem -days 365 -subj /CN=Root \
             -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
        ),
    );
    let extensions = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n\
                      subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n";
    fs::write(dir.path().join("extensions"), extensions).unwrap();
    for (name, above) in [("upper", "root"), ("ca", "upper")] {
        openssl(dir.path(), &format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        openssl(
            dir.path(),
            &format!(
                "x509 -req -in {name}.csr -CA {above}.pem -CAkey {above}.key -CAcreateserial -out {name}.pem -days 365 \
                 -extfile extensions"
            ),
        );
    }
    let [signing, upper, root] =
        ["ca", "upper", "root"].map(|name| fs::read_to_string(dir.path().join(format!("{name}.pem"))).unwrap());
    // And one that has nothing to do with it, as after a rotation by hand.
    let other = tempfile::tempdir().unwrap();
    Authority::open(&Ca::at(other.path())).unwrap();
    let unrelated = fs::read_to_string(other.path().join("ca.pem")).unwrap();
    fs::write(dir.path().join("ca.pem"), signing.clone() + &root + &unrelated + &upper).unwrap();
    private(dir.path());

    let config = leaves(dir.path()).server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();
    let root = CertificateDer::from_pem_slice(root.as_bytes()).unwrap();
    let chain = handshake(&config, &trusting(&root), "ota.example").await.unwrap().chain;
    let above = [signing, upper].map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    assert_eq!(chain[1..], above);
    // Clients that have the root alone and verify strictly.
    fs::write(dir.path().join("untrusted.der"), &chain[0]).unwrap();
    openssl(dir.path(), "x509 -inform der -in untrusted.der -out leaf.pem");
    let above = ["ca.pem", "upper.pem"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
    fs::write(dir.path().join("above.pem"), above.concat()).unwrap();
    openssl(
        dir.path(),
        "verify -x509_strict -purpose sslserver -no-CApath -no-CAstore -CAfile root.pem -untrusted above.pem \
         -verify_hostname ota.example leaf.pem",
    );
}

#[tokio::test]
async fn workers_and_proxies_from_before_and_after_a_rotation_understand_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::at(dir.path());
    // A year before its end, as an operator would.
    let made = now() - 3_280 * DAY;
    let running = Leaves::new(Authority::open_at(&ca, made).unwrap()).unwrap();
    let old = ca_of(dir.path());
    let rotated = ca::rotate(&ca, now()).unwrap();
    let new = ca_of(dir.path());
    let restarted = Leaves::new(rotated.authority).unwrap();
    let serves = |leaves: &Leaves| leaves.server_config(&host_of("ota.example"), None, Alpn::Http1).unwrap();

    // A worker that was started after the rotation reads any of the files, and meets either proxy.
    for file in ["ca.pem", "bundle.pem"] {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_file_iter(dir.path().join(file)).unwrap().flatten());
        let worker = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
        for leaves in [&running, &restarted] {
            let mut worker = ClientConfig::clone(&worker);
            worker.alpn_protocols = vec![b"http/1.1".to_vec()];
            let chain = handshake(&serves(leaves), &Arc::new(worker), "ota.example").await.unwrap().chain;
            assert_eq!(chain.len(), 1, "the old authority is trusted, not sent");
        }
    }
    // One from before meets the proxy from before, which is why proxies are restarted last.
    handshake(&serves(&running), &trusting(&old), "ota.example").await.unwrap();
    handshake(&serves(&restarted), &trusting(&new), "ota.example").await.unwrap();
    handshake(&serves(&restarted), &trusting(&old), "ota.example").await.err().unwrap();
}

#[test]
fn an_expired_authority_can_be_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::at(dir.path());
    Authority::open_at(&ca, now() - 4_000 * DAY).unwrap();
    let error = Authority::open(&ca).unwrap_err().to_string();
    assert!(error.contains("expired since") && error.contains("`ota-pacer ca rotate`"), "{error}");
    ca::rotate(&ca, now()).unwrap();
    Authority::open(&ca).unwrap();
    let (_, dropped) = ca::drop_old(&ca, now()).unwrap();
    assert_eq!(dropped, 1);
}

#[test]
fn processes_that_start_at_once_share_one_pair() {
    let dir = tempfile::tempdir().unwrap();
    let certificates: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8)
            .map(|_| {
                scope
                    .spawn(|| Authority::open(&Ca::at(dir.path())).map(|authority| ca_at(authority.certificate_path())))
            })
            .collect();
        starts.into_iter().map(|start| start.join().unwrap().unwrap()).collect()
    });
    assert!(certificates.iter().all(|certificate| *certificate == certificates[0]));
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        ["bundle.p12", "bundle.pem", "ca.key", "ca.pem", "node-preload.cjs", "php", "wgetrc"],
        "and leave nothing else behind"
    );
}

#[test]
fn the_bundle_holds_the_systems_roots_and_ours_and_is_kept_current() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::open(&Ca::at(dir.path())).unwrap();
    assert!(authority.bundle_path().is_absolute() && authority.certificate_path().is_absolute());
    let read =
        || -> Vec<_> { CertificateDer::pem_file_iter(authority.bundle_path()).unwrap().map(Result::unwrap).collect() };
    let system = rustls_native_certs::load_native_certs().certs;
    let bundle = read();
    assert!(system.iter().all(|root| bundle.contains(root)));
    assert!(bundle.contains(&ca_of(dir.path())));

    fs::write(authority.bundle_path(), "stale").unwrap();
    Authority::open(&Ca::at(dir.path())).unwrap();
    assert_eq!(read(), bundle);
    let written = fs::metadata(authority.bundle_path()).unwrap().modified().unwrap();
    Authority::open(&Ca::at(dir.path())).unwrap();
    assert_eq!(fs::metadata(authority.bundle_path()).unwrap().modified().unwrap(), written, "unchanged, so untouched");
}

#[test]
fn the_key_is_for_its_owner_and_an_exposed_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    Authority::open(&Ca::at(dir.path())).unwrap();
    let key = dir.path().join("ca.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    Authority::open(&Ca::at(dir.path())).expect("a group may hold a mounted secret");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Authority::open(&Ca::at(dir.path())).unwrap_err().to_string();
    assert!(error.contains("mode 0644") && error.contains("hint: `chmod 600"), "{error}");
}

#[test]
fn what_is_wrong_with_the_files_is_told_with_a_hint() {
    let fresh = || {
        let dir = tempfile::tempdir().unwrap();
        Authority::open(&Ca::at(dir.path())).unwrap();
        dir
    };
    let complaint = |dir: &TempDir| {
        let error = Authority::open(&Ca::at(dir.path())).unwrap_err();
        assert!(error.to_string().contains("\n\nhint: "), "{error}");
        error
    };

    let dir = fresh();
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    assert!(matches!(complaint(&dir), CaError::HalfAPair { .. }));

    let dir = fresh();
    fs::copy(fresh().path().join("ca.pem"), dir.path().join("ca.pem")).unwrap();
    assert!(matches!(complaint(&dir), CaError::Mismatch { .. }));

    let dir = fresh();
    fs::write(dir.path().join("ca.pem"), "no certificate").unwrap();
    assert!(matches!(complaint(&dir), CaError::Certificate { .. }));

    let dir = fresh();
    fs::write(dir.path().join("ca.key"), "no key").unwrap();
    assert!(matches!(complaint(&dir), CaError::Key { .. }));

    let dir = fresh();
    fs::remove_file(dir.path().join("ca.pem")).unwrap();
    fs::create_dir(dir.path().join("ca.pem")).unwrap();
    assert!(matches!(complaint(&dir), CaError::Read { .. }));

    let dir = fresh();
    openssl(
        dir.path(),
        "req -x509 -new -key ca.key -out ca.pem -days 9 -subj /CN=leaf -addext basicConstraints=critical,CA:FALSE",
    );
    assert!(matches!(complaint(&dir), CaError::NotAnAuthority { .. }));

    let dir = fresh();
    openssl(dir.path(), "req -x509 -new -key ca.key -out ca.pem -days 9 -subj /OU=one/OU=two/CN=x");
    assert!(matches!(complaint(&dir), CaError::Subject { .. }));

    let dir = fresh();
    fs::remove_file(dir.path().join("bundle.pem")).unwrap();
    fs::create_dir(dir.path().join("bundle.pem")).unwrap();
    assert!(matches!(complaint(&dir), CaError::Write { .. }));

    let dir = fresh();
    let error = Authority::open(&Ca::at(dir.path().join("ca.pem"))).unwrap_err();
    assert!(matches!(error, CaError::Directory { .. }), "{error}");
}

fn leaves(dir: &Path) -> Leaves {
    Leaves::new(Authority::open(&Ca::at(dir)).unwrap()).unwrap()
}

async fn leaf_for(leaves: &Leaves, dir: &Path, host: &str) -> CertificateDer<'static> {
    let config = leaves.server_config(&host_of(host), None, Alpn::Http1).unwrap();
    handshake(&config, &trusting(&ca_of(dir)), host).await.unwrap().chain.remove(0)
}

/// What a client saw.
struct Seen {
    chain: Vec<CertificateDer<'static>>,
    kind: HandshakeKind,
}

async fn handshake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> std::io::Result<Seen> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let acceptor = tokio_rustls::TlsAcceptor::from(server.clone());
    let served = tokio::spawn(async move {
        let mut stream = acceptor.accept(far).await?;
        // TLS 1.3 tickets follow the handshake: a byte makes the client read them.
        stream.write_all(b"!").await?;
        stream.shutdown().await
    });
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(client.clone()).connect(name, near).await?;
    stream.read_exact(&mut [0]).await?;
    let (_, connection) = stream.get_ref();
    assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
    let chain =
        connection.peer_certificates().unwrap_or_default().iter().cloned().map(CertificateDer::into_owned).collect();
    let kind = connection.handshake_kind().unwrap();
    served.await.unwrap()?;
    Ok(Seen { chain, kind })
}

fn trusting(root: &CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// As Python since 3.13 and other strict clients verify, against `ca.pem` alone.
fn openssl_accepts(dir: &Path, chain: &[CertificateDer<'_>], host: &Host) {
    fs::write(dir.join("leaf.der"), &chain[0]).unwrap();
    openssl(dir, "x509 -inform der -in leaf.der -out leaf.pem");
    let mut untrusted = String::new();
    if let Some(intermediate) = chain.get(1) {
        fs::write(dir.join("intermediate.der"), intermediate).unwrap();
        openssl(dir, "x509 -inform der -in intermediate.der -out intermediate.pem");
        untrusted = "-untrusted intermediate.pem ".to_owned();
    }
    let check = if host.ip().is_some() { "-verify_ip" } else { "-verify_hostname" };
    openssl(
        dir,
        &format!(
            "verify -x509_strict -purpose sslserver -no-CApath -no-CAstore -CAfile ca.pem {untrusted}{check} {} leaf.pem",
            host.as_str()
        ),
    );
}

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(arguments.split_whitespace())
        .output()
        .expect("openssl, which these tests need, is installed");
    assert!(
        output.status.success(),
        "openssl {arguments}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn private(dir: &Path) {
    fs::set_permissions(dir.join("ca.key"), fs::Permissions::from_mode(0o600)).unwrap();
}

#[derive(Clone, Copy)]
enum Identifier {
    Subject,
    Authority,
}

fn key_identifier(certificate: &X509Certificate<'_>, which: Identifier) -> Option<Vec<u8>> {
    certificate.extensions().iter().find_map(|extension| match (extension.parsed_extension(), which) {
        (ParsedExtension::SubjectKeyIdentifier(id), Identifier::Subject) => Some(id.0.to_vec()),
        (ParsedExtension::AuthorityKeyIdentifier(id), Identifier::Authority) => {
            id.key_identifier.as_ref().map(|id| id.0.to_vec())
        }
        _ => None,
    })
}

fn ca_of(dir: &Path) -> CertificateDer<'static> {
    ca_at(&dir.join("ca.pem"))
}

fn ca_at(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

fn hosts(names: &[&str]) -> Vec<HostPattern> {
    let pattern = |name: &&str| HostPattern { wildcard: false, host: (*name).to_owned(), port: None };
    names.iter().map(pattern).collect()
}

fn host_of(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn now() -> SystemTime {
    SystemTime::now()
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

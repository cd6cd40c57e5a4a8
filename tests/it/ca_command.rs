//! `ota-pacer ca`: what an operator sees of the authority, hands to clients, and replaces.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use rustls_pki_types::{CertificateDer, pem::PemObject};
use tempfile::TempDir;

use crate::support::proxy::ota_pacer;

#[test]
fn show_says_which_one_clients_must_trust() {
    let setup = Setup::new("");
    let shown = setup.ca(&["show"]);
    let openssl = run(Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(setup.file("ca.pem")));
    let fingerprint = openssl.trim().split_once('=').unwrap().1;
    assert!(shown.contains(&format!("SHA-256       {fingerprint}")), "{shown}");
    for line in ["O=ota-pacer, CN=ota-pacer CA ", "key           ECDSA P-256", "vouches for   every host"] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
}

#[test]
fn show_says_what_a_constrained_one_vouches_for() {
    let setup = Setup::new("key_type: rsa2048, name_constraints: true");
    let shown = setup.ca(&["show"]);
    assert!(shown.contains("key           RSA 2048"), "{shown}");
    assert!(shown.contains("vouches for   ota.example; not for any IPv4 address, any IPv6 address"), "{shown}");
}

#[test]
fn every_export_reads_back_and_none_holds_the_key() {
    let setup = Setup::new("");
    let pem = setup.ca(&["export"]);
    assert_eq!(pem, fs::read_to_string(setup.file("ca.pem")).unwrap());
    let ours = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(setup.ca_bytes(&["export", "--format", "der"]), ours.to_vec());
    let bundle = setup.ca(&["export", "--with-system-roots"]);
    assert_eq!(bundle, fs::read_to_string(setup.file("bundle.pem")).unwrap());
    assert_eq!(setup.ca_bytes(&["export", "--format", "p12"]), fs::read(setup.file("bundle.p12")).unwrap());

    let roots = bundle.matches("BEGIN CERTIFICATE").count();
    let key = rustls_pki_types::PrivateKeyDer::from_pem_file(setup.file("ca.key")).unwrap();
    let secret = &key.secret_der()[36..68];
    for (arguments, entries, password) in [
        (&["--format", "p12"][..], roots, None),
        // Java opens one without a MAC whatever password it is told.
        (&["--format", "p12"], roots, Some("anything")),
        (&["--format", "p12", "--password", "changeit"], roots, Some("changeit")),
        (&["--format", "p12", "--with-system-roots=false"], 1, None),
        (&["--format", "jks"], roots, Some("changeit")),
        (
            &["--format", "jks", "--password", "wachtwoord-\u{eb}", "--with-system-roots=false"],
            1,
            Some("wachtwoord-\u{eb}"),
        ),
    ] {
        let store = setup.file("store");
        let store_name = store.to_str().unwrap();
        setup.ca(&[&["export", "--out", store_name], arguments].concat());
        let bytes = fs::read(&store).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{arguments:?} holds the key");
        let mut keytool = Command::new("keytool");
        keytool.args(["-list", "-keystore", store_name]).env("LC_ALL", "C.UTF-8").env_remove("JAVA_TOOL_OPTIONS");
        if let Some(password) = password {
            keytool.args(["-storepass:env", "STORE_PASSWORD"]).env("STORE_PASSWORD", password);
        }
        let listed = run(&mut keytool);
        assert_eq!(listed.matches("trustedCertEntry").count(), entries, "{arguments:?}\n{listed}");
        assert!(listed.contains("ota-pacer-1, "), "{listed}");
    }
}

#[test]
fn openssl_checks_the_password_of_a_p12() {
    let setup = Setup::new("");
    let store = setup.file("store.p12");
    setup.ca(&[
        "export",
        "--format",
        "p12",
        "--password",
        "changeit",
        "--out",
        store.to_str().unwrap(),
        "--with-system-roots=false",
    ]);
    let read = |password: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args(["pkcs12", "-nokeys", "-passin", &format!("pass:{password}"), "-in"]).arg(&store).output().unwrap()
    };
    let read_back = String::from_utf8(read("changeit").stdout).unwrap();
    let certificate = fs::read_to_string(setup.file("ca.pem")).unwrap();
    assert!(read_back.contains(certificate.trim()), "{read_back}");
    assert!(!read("wrong one").status.success());
}

#[test]
fn what_cannot_be_exported_is_told_with_a_hint() {
    let setup = Setup::new("");
    for (arguments, complaint) in [
        (&["export", "--format", "der", "--with-system-roots"][..], "`der` holds one certificate"),
        (&["export", "--format", "p12", "--password", "short"], "no password of less than 6 characters"),
        (&["export", "--out", "/no/such/directory/ca.pem"], "cannot write `/no/such/directory/ca.pem`"),
    ] {
        let output = setup.command(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(complaint), "{said}");
    }
}

#[test]
fn a_rotation_has_clients_trust_both_until_the_old_one_is_dropped() {
    let setup = Setup::new("");
    setup.ca(&["show"]);
    let old = certificates(&setup.file("ca.pem"))[0].clone();
    let old_key = fs::read(setup.file("ca.key")).unwrap();

    let said = setup.ca(&["rotate"]);
    assert!(said.contains("Restart the workers") && said.contains("--drop-old"), "{said}");
    let [new, also] = &certificates(&setup.file("ca.pem"))[..] else { panic!("both are trusted") };
    assert!(*also == old && *new != old);
    for name in ["ca.pem", "bundle.pem"] {
        let trusted = certificates(&setup.file(name));
        assert!(trusted.contains(new) && trusted.contains(&old), "{name}");
    }
    assert_eq!(setup.retired(".pem").map(|path| certificates(&path)), Some(vec![old.clone()]));
    assert_eq!(setup.retired(".key").map(|path| fs::read(path).unwrap()), Some(old_key));
    assert!(setup.ca(&["show"]).contains("also trusted  O=ota-pacer, CN=ota-pacer CA "), "the new one signs");

    let said = setup.ca(&["rotate", "--drop-old"]);
    assert!(said.contains("The older authority is trusted no more") && said.contains("delete"), "{said}");
    assert_eq!(certificates(&setup.file("ca.pem")), std::slice::from_ref(new));
    assert!(!certificates(&setup.file("bundle.pem")).contains(&old));
    assert!(setup.ca(&["rotate", "--drop-old"]).contains("There was no older authority"));
}

/// In a shell that has evaluated `ota-pacer env`, the system's roots are the bundle itself.
#[test]
fn what_was_dropped_does_not_come_back_with_the_roots() {
    let setup = Setup::new("");
    setup.ca(&["show"]);
    let old = certificates(&setup.file("ca.pem"))[0].clone();
    let bundle = setup.file("bundle.pem");
    for arguments in [&["rotate"][..], &["rotate", "--drop-old"], &["show"]] {
        run(setup.command(arguments).env("SSL_CERT_FILE", &bundle));
    }
    let trusted = certificates(&bundle);
    assert!(trusted.len() > 1 && !trusted.contains(&old), "{}", trusted.len());
}

#[cfg(unix)]
#[test]
fn the_old_key_stays_its_owners() {
    use std::os::unix::fs::PermissionsExt;

    let setup = Setup::new("");
    setup.ca(&["show"]);
    setup.ca(&["rotate"]);
    for key in [setup.file("ca.key"), setup.retired(".key").unwrap()] {
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
    }
}

#[test]
fn a_rotation_takes_on_the_settings() {
    let setup = Setup::new("");
    setup.ca(&["show"]);
    setup.configure("key_type: rsa2048, name_constraints: true");
    let output = setup.command(&["show"]).output().unwrap();
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(warned.contains("`ca.key_type` is `rsa2048`") && warned.contains("may vouch for every host"), "{warned}");
    assert!(warned.contains("`ota-pacer ca rotate`"), "{warned}");
    let rotated = setup.ca(&["rotate"]);
    assert!(rotated.contains("RSA 2048") && rotated.contains("vouches for   ota.example;"), "{rotated}");
    assert_eq!(setup.command(&["show"]).output().unwrap().stderr, b"", "nothing to warn of");
}

#[test]
fn a_host_that_a_constrained_authority_leaves_out_is_a_warning() {
    let setup = Setup::new("name_constraints: true");
    setup.ca(&["show"]);
    let config = fs::read_to_string(&setup.config).unwrap();
    fs::write(
        &setup.config,
        config.replace("[ota.example]", "[ota.example, sub.ota.example, \"*.added.example:8443\"]"),
    )
    .unwrap();
    let output = setup.command(&["show"]).output().unwrap();
    let warned = String::from_utf8(output.stderr).unwrap();
    assert_eq!(warned.lines().count(), 1, "{warned}");
    assert!(warned.contains("host=*.added.example:8443") && warned.contains("`ota-pacer ca rotate`"), "{warned}");
}

#[test]
fn an_operators_own_authority_is_not_replaced() {
    let setup = Setup::new("");
    fs::create_dir(setup.file("")).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/O=Hotels/CN=Inspection"]);
    openssl.args(["-addext", "keyUsage=critical,keyCertSign", "-keyout"]).arg(setup.file("ca.key"));
    run(openssl.arg("-out").arg(setup.file("ca.pem")));
    let before = fs::read(setup.file("ca.pem")).unwrap();
    for arguments in [&["rotate"][..], &["rotate", "--drop-old"]] {
        let output = setup.command(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("was not made by ota-pacer\n\nhint: ") && !output.status.success(), "{said}");
    }
    assert_eq!(fs::read(setup.file("ca.pem")).unwrap(), before);
    assert!(setup.ca(&["show"]).contains("subject       O=Hotels, CN=Inspection"));
}

/// A configuration of its own.
struct Setup {
    dir: TempDir,
    config: PathBuf,
}

impl Setup {
    fn new(settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let setup = Self { config: dir.path().join("ota-pacer.yaml"), dir };
        setup.configure(settings);
        setup
    }

    fn configure(&self, settings: &str) {
        let ca = self.file("");
        let yaml =
            format!("ca: {{ dir: '{}', {settings} }}\nchannels: {{ ota: {{ hosts: [ota.example] }} }}\n", ca.display());
        fs::write(&self.config, yaml).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("ca").join(name)
    }

    /// The file of that kind that a rotation has set aside.
    fn retired(&self, kind: &str) -> Option<PathBuf> {
        let files = fs::read_dir(self.file("")).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("ca-2") && name.ends_with(kind)
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = ota_pacer();
        command.args(["ca", "--config"]).arg(&self.config).args(arguments);
        command
    }

    #[track_caller]
    fn ca(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.ca_bytes(arguments)).unwrap()
    }

    #[track_caller]
    fn ca_bytes(&self, arguments: &[&str]) -> Vec<u8> {
        output(&mut self.command(arguments)).stdout
    }
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

#[track_caller]
fn run(command: &mut Command) -> String {
    String::from_utf8(output(command).stdout).unwrap()
}

#[track_caller]
fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

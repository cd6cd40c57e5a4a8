//! `ota-pacer doctor` tells clients that come through from those that do not, and says what helps.
#![expect(clippy::unwrap_used, reason = "a test fails where its helpers do")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use tempfile::TempDir;

#[test]
fn a_client_that_comes_through_is_well() {
    let ward = Ward::new();
    ward.admit("curl", r#"exec "$CURL" "$@""#);
    let output = ward.doctor(&[]);
    let (row, text) = (row(&output, "curl"), text(&output));
    assert_eq!(row.split_whitespace().skip(2).collect::<Vec<_>>(), ["yes", "yes"], "{text}");
    assert!(text.contains("not on this machine: wget, python, node,"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn one_that_goes_past_the_proxy_is_told_what_to_set() {
    let ward = Ward::new();
    ward.admit("curl", r#"exec "$CURL" --noproxy '*' "$@""#);
    let output = ward.doctor(&[("NO_PROXY", "*")]);
    let row = row(&output, "curl");
    assert!(row.contains(" no ") && row.contains("set `https_proxy`") && row.contains("`NO_PROXY` is `*`"), "{row}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn one_that_does_not_trust_the_ca_is_told_where_it_is() {
    let ward = Ward::new();
    ward.admit("curl", r#"exec "$CURL" --cacert /dev/null "$@""#);
    let output = ward.doctor(&[]);
    let row = row(&output, "curl");
    let advice = format!("set `CURL_CA_BUNDLE={}", ward.dir.path().join("ca/bundle.pem").display());
    assert!(row.contains(" yes            no ") && row.contains(&advice), "{row}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_url_goes_through_the_real_proxy() {
    let ward = Ward::new();
    ward.admit("curl", r#"exec "$CURL" "$@""#);
    // Nothing listens there: the proxy's own answer says so, and that it was reached.
    let output = ward.doctor_with(&["--url", "https://localhost:1/"], &[]);
    let row = row(&output, "curl");
    assert!(row.contains(" yes ") && row.contains("502"), "{row}");
    assert_eq!(output.status.code(), Some(1));
}

/// A configuration, and a `PATH` that holds the clients which a test admits.
struct Ward {
    dir: TempDir,
    config: PathBuf,
}

impl Ward {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("ota-pacer.yaml");
        let yaml = format!(
            "listen: 127.0.0.1:0\nca: {{ dir: {} }}\nchannels:\n  ota:\n    hosts: [localhost]\n    endpoints:\n      \
             all:\n        match: {{ path: \"/**\" }}\n        limits: [{{ rate: 20/s, capacity: 40 }}]\n",
            dir.path().join("ca").display()
        );
        fs::write(&config, yaml).unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        Self { dir, config }
    }

    fn admit(&self, name: &str, script: &str) {
        let path = self.dir.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn doctor(&self, variables: &[(&str, &str)]) -> Output {
        self.doctor_with(&[], variables)
    }

    fn doctor_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let which = Command::new("sh").args(["-c", "command -v curl"]).output().unwrap();
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_ota-pacer"));
        crate::support::worker::without_proxy_variables(&mut doctor);
        doctor.env("CURL", text(&which).trim()).env("PATH", self.dir.path().join("bin"));
        doctor.arg("doctor").arg("--config").arg(&self.config).args(arguments).envs(variables.iter().copied());
        doctor.output().unwrap()
    }
}

#[track_caller]
fn row(output: &Output, client: &str) -> String {
    let text = text(output);
    let row = text.lines().find(|line| line.starts_with(client));
    row.unwrap_or_else(|| panic!("no row of {client}: {output:?}")).to_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

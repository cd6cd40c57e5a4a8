//! `ota-pacer env` and `ota-pacer run`, as a shell meets them.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

#[test]
fn what_env_prints_can_be_evaluated_and_names_files_that_exist() {
    let setup = Setup::new();
    let script = format!(
        "eval \"$('{PACER}' env --config '{}')\" && echo $https_proxy && ls \"$SSL_CERT_FILE\" \"$NODE_EXTRA_CA_CERTS\"",
        setup.config.display()
    );
    let output = Command::new("sh").args(["-c", &script]).env("NO_PROXY", "kept.example").output().unwrap();
    let lines = text(&output);
    assert!(output.status.success() && lines.starts_with(&format!("http://127.0.0.1:{}\n", setup.port)), "{output:?}");
    assert!(lines.contains("bundle.pem") && lines.contains("ca.pem"), "{lines}");
}

#[test]
fn env_for_a_container_names_its_own_paths_and_no_quotes() {
    let setup = Setup::new();
    let mut env = Command::new(PACER);
    env.arg("env").arg("--config").arg(&setup.config).args(["--shell", "docker", "--ca-dir", "/etc/pacer"]);
    env.args(["--proxy", "http://pacer:8080", "--node-preload"]).env("NO_PROXY", "of.this.machine");
    let output = env.output().unwrap();
    let lines = text(&output);
    for line in [
        "https_proxy=http://pacer:8080",
        "HTTPS_PROXY=http://pacer:8080",
        "SSL_CERT_FILE=/etc/pacer/bundle.pem",
        "PHP_INI_SCAN_DIR=:/etc/pacer/php",
        "NODE_OPTIONS=--require \"/etc/pacer/node-preload.cjs\"",
    ] {
        assert!(lines.lines().any(|known| known == line), "{line} is not in {lines}");
    }
    let here = setup.config.parent().unwrap().to_str().unwrap();
    assert!(!lines.contains(here) && !lines.contains("of.this.machine") && !lines.contains("WGETRC"), "{lines}");
}

#[test]
fn a_command_runs_behind_the_proxy_and_its_exit_code_is_kept() {
    let setup = Setup::new();
    let output = setup.run(&["sh", "-c", "echo $https_proxy; exit 7"]);
    assert_eq!(text(&output), format!("http://127.0.0.1:{}\n", setup.port));
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(setup.run(&["sh", "-c", "kill -KILL $$"]).status.code(), Some(128 + 9));
    assert_eq!(setup.run(&["no-such-command"]).status.code(), Some(127));
}

#[test]
fn a_proxy_that_listens_already_is_joined() {
    let setup = Setup::new();
    let config = setup.config.to_str().unwrap();
    // The inner one finds the proxy of the outer one; were it to start its own, the port would be taken.
    let output = setup.run(&[PACER, "run", "--config", config, "--", "sh", "-c", "echo $http_proxy"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output), format!("http://127.0.0.1:{}\n", setup.port));
}

#[test]
fn a_port_that_something_else_listens_on_is_not_joined() {
    let setup = Setup::new();
    let _other = TcpListener::bind(("127.0.0.1", setup.port)).unwrap();
    let output = setup.run(&["echo", "ran"]);
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(1), ""));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("the port is taken") && complaint.contains("hint:"), "{complaint}");
}

#[test]
fn a_signal_reaches_the_command() {
    let setup = Setup::new();
    let mut pacer = setup
        .command(&["sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(pacer.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").arg(pacer.id().to_string()).status().unwrap().success());
    assert_eq!(pacer.wait().unwrap().code(), Some(3));
}

/// A configuration of its own, with a port that was free just now.
struct Setup {
    _dir: TempDir,
    config: PathBuf,
    port: u16,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = dir.path().join("ota-pacer.yaml");
        let ca = dir.path().join("ca");
        let yaml = format!(
            "listen: 127.0.0.1:{port}\nca: {{ dir: {} }}\nchannels:\n  ota:\n    hosts: [ota.example]\n    endpoints:\n      \
             all:\n        match: {{ path: \"/**\" }}\n        limits: [{{ rate: 20/s, capacity: 40 }}]\n",
            ca.display()
        );
        fs::write(&config, yaml).unwrap();
        Self { _dir: dir, config, port }
    }

    fn command(&self, command: &[&str]) -> Command {
        let mut pacer = Command::new(PACER);
        pacer.arg("run").arg("--config").arg(&self.config).arg("--").args(command);
        pacer
    }

    fn run(&self, command: &[&str]) -> Output {
        self.command(command).output().unwrap()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const PACER: &str = env!("CARGO_BIN_EXE_ota-pacer");

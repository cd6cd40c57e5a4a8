//! The real `ota-pacer` as a child process, on a configuration made for the test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::{
    metrics::Metrics,
    mock_ota::MockOta,
    process::{Lines, Process},
    redis::Redis,
    worker::without_proxy_variables,
};

/// A running proxy.
pub(crate) struct Proxy {
    address: SocketAddr,
    admin: SocketAddr,
    directory: TempDir,
    process: Process,
}

/// A configuration in the making. The channel `booking_com` holds `localhost`, told apart by the Basic user.
#[derive(Clone)]
pub(crate) struct Settings {
    listen: String,
    redis: Option<String>,
    outage: String,
    upstream_ca: Option<PathBuf>,
    defaults: String,
    endpoints: Vec<String>,
}

impl Settings {
    /// A proxy in front of `ota`, on its own until [`Settings::redis`] is named.
    pub(crate) fn for_ota(ota: &MockOta) -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            redis: None,
            outage: "on_outage: local, expected_instances: 1".to_owned(),
            upstream_ca: Some(ota.ca_file()),
            defaults: "max_wait: 10s".to_owned(),
            endpoints: Vec::new(),
        }
    }

    /// Shares its buckets through `redis`.
    #[must_use]
    pub(crate) fn redis(self, redis: &Redis, expected_instances: u32) -> Self {
        self.redis_at(redis.url(), expected_instances)
    }

    /// Shares its buckets through the Redis of that URL.
    #[must_use]
    pub(crate) fn redis_at(mut self, url: String, expected_instances: u32) -> Self {
        self.redis = Some(url);
        self.outage = format!("on_outage: local, expected_instances: {expected_instances}");
        self
    }

    /// Listens on a port that is known beforehand.
    #[must_use]
    pub(crate) fn listen(mut self, port: u16) -> Self {
        self.listen = format!("127.0.0.1:{port}");
        self
    }

    /// Replaces the contents of `defaults`.
    #[must_use]
    pub(crate) fn defaults(mut self, yaml: &str) -> Self {
        yaml.clone_into(&mut self.defaults);
        self
    }

    /// Adds an endpoint with a token bucket, such as `20/s` with a capacity of 40.
    #[must_use]
    pub(crate) fn endpoint(self, name: &str, path: &str, rate: &str, capacity: u32) -> Self {
        self.limited(name, path, &format!("rate: {rate}, capacity: {capacity}"))
    }

    /// Adds an endpoint with any limit.
    #[must_use]
    pub(crate) fn limited(mut self, name: &str, path: &str, limit: &str) -> Self {
        self.endpoints.push(format!("{name}: {{ match: {{ path: {path} }}, limits: [{{ {limit} }}] }}"));
        self
    }

    /// The file as an operator would write it.
    pub(crate) fn yaml(&self, directory: &Path) -> String {
        let redis = self
            .redis
            .as_ref()
            .map_or(String::new(), |url| format!("redis: {{ url: \"{url}\", timeout: 250ms, {} }}\n", self.outage));
        let upstream = self
            .upstream_ca
            .as_ref()
            .map_or(String::new(), |file| format!("upstream: {{ ca_file: \"{}\" }}\n", file.display()));
        let endpoints: String = self.endpoints.iter().map(|endpoint| format!("      {endpoint}\n")).collect();
        format!(
            "listen: {listen}\nadmin: 127.0.0.1:0\n{redis}ca: {{ dir: \"{ca}\" }}\n{upstream}defaults: {{ {defaults} }}\n\
             channels:\n  booking_com:\n    hosts: [localhost]\n    credential: {{ basic_user: true }}\n    endpoints:\n{endpoints}",
            listen = self.listen,
            ca = directory.join("ca").display(),
            defaults = self.defaults,
        )
    }

    /// Starts the proxy and waits until it listens.
    #[track_caller]
    pub(crate) fn start(&self) -> Proxy {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let file = directory.path().join("ota-pacer.yaml");
        std::fs::write(&file, self.yaml(directory.path())).expect("a config is written");
        let mut command = ota_pacer();
        command.arg("serve").arg("--config").arg(&file);
        let mut process = Process::start("ota-pacer", &mut command);
        let stderr = process.stderr().clone();
        let address = process.wait_for_line(&stderr, "`proxy listening`", |line| listening(line, "proxy listening"));
        let admin = process.wait_for_line(&stderr, "`admin listening`", |line| listening(line, "admin listening"));
        Proxy { address, admin, directory, process }
    }
}

impl Proxy {
    /// What workers name in `HTTPS_PROXY`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.directory.path().join("ota-pacer.yaml")
    }

    /// The certificate of its CA alone.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca/ca.pem")
    }

    /// The system's roots and its CA.
    pub(crate) fn bundle_file(&self) -> PathBuf {
        self.directory.path().join("ca/bundle.pem")
    }

    /// Replaces its configuration, as an operator would: by one that is whole from the first moment.
    #[track_caller]
    pub(crate) fn rewrite(&self, settings: &Settings) {
        self.rewrite_text(&settings.yaml(self.directory.path()));
    }

    /// Like [`Proxy::rewrite`], with any text.
    #[track_caller]
    pub(crate) fn rewrite_text(&self, text: &str) {
        let fresh = self.directory.path().join("fresh.yaml");
        std::fs::write(&fresh, text).expect("a config is written");
        std::fs::rename(&fresh, self.config_file()).expect("a config is replaced");
    }

    /// Sends a signal by its name, such as `HUP`.
    #[track_caller]
    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> &Lines {
        self.process.stderr()
    }

    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::scrape(self.admin)
    }
}

/// The program under test, with an environment that says nothing of proxies.
pub(crate) fn ota_pacer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ota-pacer"));
    command.env_remove("RUST_LOG");
    without_proxy_variables(&mut command);
    command
}

/// The address in a log line such as `proxy listening addr=127.0.0.1:8080`, in text or JSON.
fn listening(line: &str, message: &str) -> Option<SocketAddr> {
    if !line.contains(message) {
        return None;
    }
    let address = line.split_once("addr")?.1.trim_start_matches(['"', ':', '=', ' ']);
    let end = address.find(|c: char| !(c.is_ascii_hexdigit() || "[].:".contains(c))).unwrap_or(address.len());
    address[..end].parse().ok()
}

#[test]
fn reads_the_address_from_either_form_of_a_log_line() {
    let expected = "127.0.0.1:8080".parse().ok();
    assert_eq!(listening("INFO proxy listening addr=127.0.0.1:8080 x=1", "proxy listening"), expected);
    assert_eq!(listening(r#"{"message":"proxy listening","addr":"127.0.0.1:8080"}"#, "proxy listening"), expected);
    assert_eq!(listening("admin listening addr=127.0.0.1:8080", "proxy listening"), None);
}

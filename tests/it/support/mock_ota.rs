//! The mock OTA of `examples/mock_ota` as a child process.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{example::example, http, process::Process};

/// A running mock OTA.
pub(crate) struct MockOta {
    /// Where it answers https, as `https://localhost:PORT`.
    pub(crate) https: String,
    /// Where it answers http, as `http://localhost:PORT`.
    pub(crate) http: String,
    control: SocketAddr,
    directory: TempDir,
    _process: Process,
}

/// One request as the OTA saw it, in microseconds of the OTA's clock.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Arrival {
    pub(crate) at_us: u64,
    pub(crate) answered_us: Option<u64>,
    pub(crate) path: String,
    pub(crate) credential: String,
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

#[derive(Deserialize)]
struct Ready {
    https: SocketAddr,
    http: SocketAddr,
    control: SocketAddr,
}

impl MockOta {
    /// Starts one with the given limits, written as for its `--limit`.
    #[track_caller]
    pub(crate) fn start(limits: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let mut command = Command::new(example("mock_ota"));
        command.arg("--exit-with-stdin").arg("--ca-file").arg(directory.path().join("ota-ca.pem"));
        command.args(limits.iter().flat_map(|limit| ["--limit", limit]));
        let mut process = Process::start("mock_ota", &mut command);
        let stdout = process.stdout().clone();
        let ready: Ready = process.wait_for_line(&stdout, "its addresses", |line| serde_json::from_str(line).ok());
        Self {
            https: format!("https://localhost:{}", ready.https.port()),
            http: format!("http://localhost:{}", ready.http.port()),
            control: ready.control,
            directory,
            _process: process,
        }
    }

    /// The certificate its clients must trust.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ota-ca.pem")
    }

    /// Answers the next requests to `path` so; see `examples/mock_ota/control.rs` for the fields.
    #[track_caller]
    pub(crate) fn script(&self, path: &str, answers: Value) {
        self.tell("/script", &json!({ "path": path, "answers": answers }));
    }

    /// Changes `latency_ms`, `body_bytes` or `retry_after` of unscripted requests.
    #[track_caller]
    pub(crate) fn set(&self, settings: Value) {
        self.tell("/settings", &settings);
    }

    /// Forgets arrivals, what was spent of the limits, and scripts.
    #[track_caller]
    pub(crate) fn reset(&self) {
        self.tell("/reset", &Value::Null);
    }

    /// Every arrival at `path`, oldest first.
    #[track_caller]
    pub(crate) fn arrivals(&self, path: &str) -> Vec<Arrival> {
        self.ask(&format!("/arrivals?path={path}"))
    }

    /// The most arrivals at `path` above `capacity + rate × window` in any window; negative where there was room left.
    #[track_caller]
    pub(crate) fn worst_excess(&self, path: &str, rate: f64, capacity: u32) -> f64 {
        let report: Value = self.ask(&format!("/report?path={path}&rate={rate}&capacity={capacity}"));
        report["worst_window"]["excess"].as_f64().unwrap_or(f64::NEG_INFINITY)
    }

    /// The OTA's clock, in the microseconds that arrivals carry.
    #[track_caller]
    pub(crate) fn now_us(&self) -> u64 {
        let clock: Value = self.ask("/clock");
        clock["now_us"].as_u64().expect("the clock is a number")
    }

    /// The reading of the OTA's clock at the Unix epoch, which other processes on the machine know: before its own zero.
    #[track_caller]
    pub(crate) fn epoch_us(&self) -> i64 {
        let clock: Value = self.ask("/clock");
        let read = |name: &str| clock[name].as_i64().expect("a clock is a number");
        read("now_us") - read("unix_us")
    }

    #[track_caller]
    fn tell(&self, target: &str, json: &Value) {
        let answer = http::post(self.control, target, json);
        assert_eq!(answer.status, 200, "mock OTA refuses {target}: {}", answer.body);
    }

    #[track_caller]
    fn ask<T: serde::de::DeserializeOwned>(&self, target: &str) -> T {
        let answer = http::read(self.control, target);
        assert_eq!(answer.status, 200, "mock OTA refuses {target}: {}", answer.body);
        serde_json::from_str(&answer.body).expect("the mock OTA answers in JSON")
    }
}

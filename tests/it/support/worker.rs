//! The sync workers of `examples/workers`, run as their authors would run them.

use std::{collections::BTreeMap, path::PathBuf, process::Command, time::Duration};

use serde::Deserialize;

use super::{
    process::{Ended, Process},
    proxy::Proxy,
};

/// A running `sync_rates.py`.
pub(crate) struct Worker(Process);

/// What a worker says of its run.
#[derive(Debug, Deserialize)]
pub(crate) struct Summary {
    pub(crate) requests: u64,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

impl Worker {
    /// Starts one that pushes to `path` of `ota_url` through `proxy`; `arguments` are the worker's own.
    #[track_caller]
    pub(crate) fn start(proxy: &Proxy, ota_url: &str, path: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("python3");
        command.arg(example("sync_rates.py")).args(["--path", path]).args(arguments);
        without_proxy_variables(&mut command);
        command.env("HTTP_PROXY", proxy.url()).env("HTTPS_PROXY", proxy.url());
        command.env("REQUESTS_CA_BUNDLE", proxy.bundle_file());
        account(&mut command, ota_url);
        Self(Process::start("sync_rates.py", &mut command))
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(self) -> Summary {
        summary(&self.0.wait(PATIENCE))
    }
}

impl Summary {
    /// Fails the test unless every request was answered 200.
    #[track_caller]
    pub(crate) fn assert_only_200(&self) {
        let statuses: Vec<_> = self.statuses.keys().copied().collect();
        let first_error = self.first_error.as_deref();
        assert_eq!((statuses, self.errors, first_error), (vec![200], 0, None), "what a worker saw");
    }
}

/// Reads what a worker printed.
#[track_caller]
pub(crate) fn summary(ended: &Ended) -> Summary {
    let missing = "No module named 'requests'";
    assert!(!ended.stderr.contains(missing), "Python has no `requests`\n\nhint: pip install requests");
    ended
        .stdout
        .lines()
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .unwrap_or_else(|| panic!("a worker gives no summary: {ended:?}"))
}

/// Sets what a worker needs to know of its OTA.
pub(crate) fn account(command: &mut Command, ota_url: &str) {
    command.env("OTA_URL", ota_url).env("OTA_USER", "hotel-machine").env("OTA_PASSWORD", "not-a-secret");
}

/// Takes away what the environment of the tests may say about proxies and certificates.
pub(crate) fn without_proxy_variables(command: &mut Command) {
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    for name in [
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
        "JAVA_TOOL_OPTIONS",
    ] {
        command.env_remove(name);
    }
}

/// The path of an example worker.
pub(crate) fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/workers").join(name)
}

/// Far beyond any test's own length.
const PATIENCE: Duration = Duration::from_secs(120);

//! Clients of every family reach an intercepted host with nothing but what `ota-pacer env` prints.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::support::{
    mock_ota::MockOta,
    process::{Ended, Process},
    proxy::{Proxy, Settings, ota_pacer},
    redis::free_port,
    worker::{account, example, summary},
};

#[test]
fn python_requests_needs_only_the_environment() {
    let setup = Setup::start();
    let worker = example("sync_rates.py").display().to_string();
    let ended = setup.run(&["python3", &worker, "--count", "3", "--path", PATH]);
    summary(&ended).assert_only_200();
    setup.assert_went_through_the_proxy(3);
}

#[test]
fn curl_needs_only_the_environment() {
    let setup = Setup::start();
    let worker = example("sync_rates.sh").display().to_string();
    let ended = setup.run(&["sh", &worker, "3", PATH]);
    assert_eq!(ended.stdout, "200\n200\n200\n", "{ended:?}");
    setup.assert_went_through_the_proxy(3);
}

#[test]
fn node_fetch_needs_only_the_environment() {
    let setup = Setup::start();
    let worker = example("sync_rates.mjs").display().to_string();
    let ended = setup.run(&[&node(), &worker, "3", PATH]);
    summary(&ended).assert_only_200();
    setup.assert_went_through_the_proxy(3);
}

#[test]
fn java_needs_only_the_environment() {
    let setup = Setup::start();
    let worker = example("SyncRates.java").display().to_string();
    // Java leaves this machine's own names out of every proxy unless told otherwise. What is set already is kept.
    let own = [("JAVA_TOOL_OPTIONS", "-Dhttp.nonProxyHosts= -Djavax.net.ssl.trustStorePassword=changeit")];
    let ended = setup.run_with(&own, &["java", &worker, "4", PATH]);
    assert_eq!(ended.stdout, "200\n200\n200\n200\n", "{ended:?}");
    setup.assert_went_through_the_proxy(4);
}

#[test]
fn openssl_accepts_the_minted_leaf_strictly() {
    let setup = Setup::start();
    let authority = setup.ota.https.trim_start_matches("https://");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", authority, "-servername", "localhost", "-verify_hostname", "localhost"]);
    command.args(["-x509_strict", "-verify_return_error", "-proxy"]).arg(setup.proxy.address().to_string());
    command.arg("-CAfile").arg(setup.proxy.ca_file());
    let ended = Process::start("openssl", &mut command).wait(PATIENCE);
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("Verify return code: 0 (ok)"), "{ended:?}");
}

/// An OTA, and a proxy in front of it on a port that its config names.
struct Setup {
    ota: MockOta,
    proxy: Proxy,
}

impl Setup {
    #[track_caller]
    fn start() -> Self {
        let ota = MockOta::start(&[]);
        let proxy = Settings::for_ota(&ota).listen(free_port()).endpoint("availability", PATH, "20/s", 40).start();
        Self { ota, proxy }
    }

    /// Runs a command in a shell that has evaluated `ota-pacer env`, and knows its OTA.
    #[track_caller]
    fn run(&self, command: &[&str]) -> Ended {
        self.run_with(&[], command)
    }

    /// The same, where the shell has set something before.
    #[track_caller]
    fn run_with(&self, own: &[(&str, &str)], command: &[&str]) -> Ended {
        let program = ota_pacer();
        let mut shell = ota_pacer_environment();
        shell.args(["-c", EVALUATE_AND_RUN, "sh"]).args(command);
        shell.envs(own.iter().copied());
        shell.env("PACER", program.get_program()).env("CONFIG", self.proxy.config_file());
        account(&mut shell, &self.ota.https);
        Process::start(command[0], &mut shell).wait(PATIENCE)
    }

    #[track_caller]
    fn assert_went_through_the_proxy(&self, count: usize) {
        let arrivals = self.ota.arrivals(PATH);
        assert_eq!(arrivals.len(), count, "{arrivals:?}");
        assert!(arrivals.iter().all(|arrival| arrival.path == PATH && arrival.credential == "hotel-machine"));
        let labels = [("channel", "booking_com"), ("endpoint", "availability")];
        assert_eq!(self.proxy.metrics().sum("ota_pacer_requests_total", &labels), Some(count as f64));
    }
}

/// A shell whose environment says nothing of proxies.
fn ota_pacer_environment() -> Command {
    let mut shell = Command::new("sh");
    crate::support::worker::without_proxy_variables(&mut shell);
    shell
}

/// A Node whose fetch knows `NODE_USE_ENV_PROXY`: since 22.21 and 24.5. `make` puts one in `target/tools`.
#[track_caller]
fn node() -> String {
    let test = std::env::current_exe().expect("the test knows where it is");
    let target = test.ancestors().nth(3).expect("tests are in `target/PROFILE/deps`");
    let installed = target.join("tools/node_modules/node/bin/node");
    let candidates = [installed, PathBuf::from("node")];
    let suitable = candidates.iter().find(|node| reads_proxy_variables(node));
    suitable.expect("no Node from 22.21 or 24.5 on\n\nhint: make tools").display().to_string()
}

fn reads_proxy_variables(node: &Path) -> bool {
    let Ok(output) = Command::new(node).arg("--version").output() else { return false };
    let version = String::from_utf8_lossy(&output.stdout);
    let mut numbers = version.trim().trim_start_matches('v').split('.').map_while(|number| number.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(22), Some(minor)) => minor >= 21,
        (Some(24), Some(minor)) => minor >= 5,
        (Some(major), Some(0_u32..)) => major > 24,
        _ => false,
    }
}

/// As an operator's profile would, but stopping where there is nothing to evaluate.
const EVALUATE_AND_RUN: &str = r#"exports=$("$PACER" env --config "$CONFIG") && eval "$exports" && exec "$@""#;
const PATH: &str = "/hotels/xml/availability";
const PATIENCE: Duration = Duration::from_secs(60);

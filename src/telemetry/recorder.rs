//! The recorder behind `/metrics`.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// The recorder cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be recorded: {0}")]
pub struct InstallError(#[from] BuildError);

/// Installs the process's recorder and returns what renders it.
///
/// Whoever holds the handle must run its upkeep every few seconds, or samples pile up between two scrapes.
///
/// # Errors
/// When a recorder is installed already.
pub fn install() -> Result<PrometheusHandle, InstallError> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full("ota_pacer_throttle_wait_seconds".into()), &WAITS)?
        .set_buckets_for_metric(Matcher::Full("ota_pacer_upstream_seconds".into()), &ANSWERS)?
        .set_buckets_for_metric(Matcher::Full("ota_pacer_store_call_seconds".into()), &STORE_CALLS)?;
    let handle = builder.install_recorder()?;
    metrics::gauge!("ota_pacer_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    metrics::describe_gauge!("ota_pacer_build_info", "The version that runs");
    Ok(handle)
}

/// Seconds: from what nobody notices to the longest hold anybody would configure.
const WAITS: [f64; 15] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Seconds: OTAs answer within a minute.
const ANSWERS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 65.0];
/// Seconds: from a script on loopback to the longest timeout.
const STORE_CALLS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

//! How Redis is reached, and what it takes to stay connected.
//!
//! fred replays commands, waits for ever and queues without bound unless told otherwise; everything it is told is in
//! [`tuned`].

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::{
    prelude::{Builder, ClientLike, Config, Error, ReconnectPolicy},
    types::config::{ReconnectError, TcpConfig, TlsConnector, UnresponsiveConfig},
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use secrecy::ExposeSecret;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::config::model::Redis;

/// The Redis of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// Its address is none.
    #[error("`redis.url` cannot be used: {0}\n\nhint: {URL_HINT}")]
    Url(String),
    /// What should vouch for it cannot be read.
    #[error("`redis.ca_file` cannot be used: {path}: {reason}\n\nhint: name a file of PEM certificates")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What the tasks that look after one client tell each other.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// A reconnection was asked for and has not come about yet. Each request for one is served, so there is never a second.
    forced: AtomicBool,
    /// The client does not do anything any more.
    stuck: Notify,
}

/// What makes clients of the Redis of the configuration.
pub(super) fn builder(config: &Redis) -> Result<Builder, UrlError> {
    let mut fred = Config::from_url(config.url.expose_secret()).map_err(unusable)?;
    if fred.tls.is_some() {
        fred.tls = Some(trusting(config.ca_file.as_deref())?.into());
    }
    Ok(tuned(fred, config.timeout))
}

/// fred's message may quote the URL, and with it the password: only the kind of the error is shown.
pub(super) fn unusable(error: Error) -> UrlError {
    UrlError::Url(error.kind().to_str().to_lowercase())
}

/// Connects again whenever the client gives up, which it does on errors it takes for final: a configuration that is put
/// right on the server, a redirection it cannot follow.
pub(super) async fn keep_connecting(client: impl ClientLike, link: Arc<Link>) {
    loop {
        let connection = AbortOnDropHandle::new(client.connect());
        tokio::select! {
            _given_up = connection => {}
            () = link.stuck.notified() => {}
        }
        sleep(AGAIN).await;
    }
}

/// Drops a connection that no longer answers, so that a new one is tried.
pub(super) async fn force(client: impl ClientLike, link: Arc<Link>) {
    if link.forced.swap(true, Ordering::AcqRel) {
        return;
    }
    let mut reconnected = pin!(client.force_reconnection());
    // While Redis is gone this takes as long as that; a client that believes itself connected is stuck.
    while timeout(STUCK_FOR, &mut reconnected).await.is_err() {
        if client.is_connected() {
            link.stuck.notify_one();
            break;
        }
    }
    link.forced.store(false, Ordering::Release);
}

/// Trusts the system's roots and those of `ca_file`.
fn trusting(ca_file: Option<&Path>) -> Result<TlsConnector, UrlError> {
    let mut roots = RootCertStore::empty();
    // Unlike fred's own, which fails on the first root that it cannot read.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let unusable = |reason: String| UrlError::CaFile { path: path.to_owned(), reason };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(unusable("it holds no certificate".to_owned()));
        }
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth().into())
}

/// What this limiter needs of fred.
fn tuned(mut config: Config, timeout: Duration) -> Builder {
    // Start without Redis rather than not at all: the outage rule then applies from the first request.
    config.fail_fast = false;
    let mut builder = Builder::from_config(config);
    builder
        .with_performance_config(|performance| {
            performance.default_command_timeout = timeout;
            performance.broadcast_channel_capacity = 1024;
        })
        .with_connection_config(|connection| {
            connection.connection_timeout = CONNECT_WITHIN;
            connection.internal_command_timeout = CONNECT_WITHIN;
            // One: a command in flight when the connection breaks may have been executed, and must not be sent again.
            connection.max_command_attempts = 1;
            connection.max_command_buffer_len = 4096;
            connection.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            connection.unresponsive =
                UnresponsiveConfig { max_timeout: Some(Duration::from_secs(2)), interval: Duration::from_millis(500) };
            // Without these the client stays with a master that was demoted.
            connection.reconnect_errors =
                vec![ReconnectError::ClusterDown, ReconnectError::ReadOnly, ReconnectError::MasterDown];
        })
        .set_policy(ReconnectPolicy::new_exponential(0, 50, 500, 2));
    builder
}

const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// Between two attempts at what needs a connection.
pub(super) const AGAIN: Duration = Duration::from_millis(250);
const STUCK_FOR: Duration = Duration::from_secs(5);
const URL_HINT: &str = "write `redis://[user:password@]host:port[/database]`, `rediss://` for TLS, \
                        `redis-sentinel://host:port?sentinelServiceName=NAME`, `redis-cluster://host:port` or \
                        `redis+unix:///path`";

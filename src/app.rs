//! One running instance: the configuration wired to sockets, from bind to drain.

mod reload;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    admin::{self, Admin, Readiness},
    ca::{self, Authority, CaError, Leaves},
    config::Config,
    limiter::{self, Limiter, UrlError},
    proxy::{self, Proxy},
    route::Router,
    telemetry::{self, InstallError},
    upstream::{self, Upstream},
};

use self::reload::ReloadMetrics;

pub use self::reload::{Reloader, Watch};

/// A running instance.
#[derive(Debug)]
pub struct App {
    config: Config,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    environment: Vec<(String, String)>,
    draining: CancellationToken,
    drained: CancellationToken,
    proxy: Arc<Proxy>,
    serving: JoinHandle<()>,
    admin: Option<JoinHandle<()>>,
    reloads: ReloadMetrics,
}

/// Why an instance did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket of the configuration is not to be had.
    #[error("cannot listen on `{address}` (`{key}`): {reason}\n\nhint: {hint}", reason = reason(.cause), hint = hint(.cause))]
    Bind {
        /// Where the address stands in the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said. No `source`: a report would add it behind the hint.
        cause: io::Error,
    },
    /// The certificate authority can be neither read nor made.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// Origins cannot be verified.
    #[error(transparent)]
    Upstream(#[from] upstream::SetupError),
    /// The Redis URL cannot be used.
    #[error(transparent)]
    Redis(#[from] UrlError),
    /// The process records metrics already.
    #[error(transparent)]
    Metrics(#[from] InstallError),
}

/// Starts an instance: binds before anything else, so that a taken port is known at once, and returns when it serves.
///
/// # Errors
/// When something that the configuration names cannot be had.
pub async fn start(config: Config) -> Result<App, StartError> {
    let listener = bind("listen", config.listen)?;
    let admin_listener = config.admin.map(|address| bind("admin", address)).transpose()?;
    let gateway_listener = config.gateway.map(|address| bind("gateway", address)).transpose()?;
    let authority = Authority::open(&config.ca)?;
    let upstream = Upstream::new(&config.upstream)?;
    let metrics = telemetry::install_recorder()?;
    limiter::describe_metrics();
    let reloads = ReloadMetrics::new();
    let limiter = Limiter::open(&config).await?;

    let address = listener.local_addr().map_err(|cause| lost("listen", config.listen, cause))?;
    let gateway_address = gateway_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let mut environment = ca::environment::variables(&ca::environment::proxy_url(address), &authority);
    environment.extend(gateway_address.map(|address| ca::environment::gateway(address, None)));
    let (draining, drained) = (CancellationToken::new(), CancellationToken::new());
    let router = Router::new(&config);
    let proxy = Arc::new(Proxy::new(&config, router, limiter.clone(), upstream, Leaves::new(authority)?));
    let serving = tokio::spawn(proxy::serve(listener, gateway_listener, proxy.clone(), draining.clone()));

    let upkeep = (limiter.clone(), metrics.clone(), drained.clone());
    tokio::spawn(async move {
        let (limiter, metrics, drained) = upkeep;
        let mut ticks = interval(UPKEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while drained.run_until_cancelled(ticks.tick()).await.is_some() {
            limiter.refresh_gauges();
            metrics.run_upkeep();
        }
    });
    let mut admin_address = None;
    let admin = admin_listener.map(|listener| {
        admin_address = listener.local_addr().ok();
        let readiness = {
            let (limiter, draining) = (limiter.clone(), draining.clone());
            move || readiness(&limiter, &draining)
        };
        let started = Instant::now();
        let status = move || status(&limiter, started);
        tokio::spawn(admin::serve(listener, Arc::new(Admin::new(metrics, readiness, status)), drained.clone()))
    });
    info!(addr = %address, "proxy listening");
    if let Some(address) = gateway_address {
        info!(addr = %address, "gateway listening");
    }
    if let Some(address) = admin_address {
        info!(addr = %address, "admin listening");
    }
    Ok(App { config, address, admin_address, environment, draining, drained, proxy, serving, admin, reloads })
}

impl App {
    /// Where workers' `HTTP_PROXY` and `HTTPS_PROXY` point.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the metrics are, if anywhere.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Name and value of every variable that sends a client through this instance and makes it trust its leaves.
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// What keeps this instance to the file that it was started from.
    pub fn reloader(&self, watch: Watch) -> Reloader {
        Reloader::new(watch, self.config.clone(), self.proxy.clone(), self.reloads.clone())
    }

    /// Accepts no more, finishes what is under way within the drain timeout, and ends.
    pub async fn shutdown(self) {
        info!("draining");
        self.draining.cancel();
        let served = self.serving.await;
        self.drained.cancel();
        if let Some(admin) = self.admin {
            // A panic there has been reported where it happened.
            drop(admin.await);
        }
        match served {
            Ok(()) => info!("drained"),
            Err(error) => tracing::error!(%error, "the proxy did not end by itself"),
        }
    }
}

fn bind(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // So that a restart need not wait for connections of the former process to be forgotten.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|cause| lost(key, address, cause))
}

fn lost(key: &'static str, address: SocketAddr, cause: io::Error) -> StartError {
    StartError::Bind { key, address, cause }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is taken".to_owned(),
        io::ErrorKind::AddrNotAvailable => "the address is none of this machine's".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there (`ss -ltnp` names it), or choose another port",
        io::ErrorKind::AddrNotAvailable => "listen on `127.0.0.1`, `0.0.0.0`, or an address that `ip addr` shows",
        io::ErrorKind::PermissionDenied => "ports below 1024 are the administrator's; choose a higher one",
        _ => "choose another address",
    }
}

fn readiness(limiter: &Limiter, draining: &CancellationToken) -> Readiness {
    if draining.is_cancelled() {
        Readiness::NotReady("draining")
    } else if limiter.is_usable() {
        Readiness::Ready
    } else {
        Readiness::NotReady("redis is lost and `on_outage` is `closed`")
    }
}

fn status(limiter: &Limiter, started: Instant) -> serde_json::Value {
    let lanes: Vec<_> = limiter
        .status()
        .into_iter()
        .map(|lane| {
            serde_json::json!({
                "bucket": lane.name,
                "waiting": lane.waiting,
                "oldest_wait_seconds": lane.oldest_wait.as_secs_f64(),
                "pause_remaining_seconds": lane.pause.as_secs_f64(),
                "tokens": lane.tokens,
                "adaptive_rate": lane.adaptive_rate,
            })
        })
        .collect();
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": started.elapsed().as_secs(),
        "store": limiter.mode(),
        "buckets": lanes,
    })
}

const BACKLOG: u32 = 1024;
const UPKEEP: Duration = Duration::from_secs(1);

//! The data plane: takes requests from clients, holds them until they may go, and brings the answers back.
//!
//! A connection starts in `downstream`; a CONNECT becomes a `tunnel`, whose requests may come over `http2`; every request is
//! an `exchange`.

mod answer;
mod arrival;
mod asterisk;
mod client_io;
mod downstream;
mod entrance;
mod exchange;
mod gateway;
mod headers;
mod http2;
mod interception;
mod metrics;
mod preference;
mod rebase;
mod record;
mod refusal;
mod relay;
mod replay;
mod sniff;
mod target;
mod tunnel;

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use http::HeaderName;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    downstream::{Downstream, Shared},
    entrance::{Entrance, Own},
    gateway::Names,
    metrics::Metrics,
};
use crate::{
    ca::Leaves,
    config::{Config, model::Unmatched},
    limiter::Limiter,
    route::Router,
    upstream::Upstream,
};

/// What a request needs on its way, wired once.
pub struct Proxy {
    limiter: Limiter,
    leaves: Leaves,
    /// Replaced whole, so that no request sees half of a change.
    rules: ArcSwap<Rules>,
    /// The listeners, once they serve.
    own: OnceLock<Own>,
    drain_timeout: Duration,
}

impl Proxy {
    /// Wires the stages. Metrics are registered here, so the recorder must be installed before.
    pub fn new(config: &Config, router: Router, limiter: Limiter, upstream: Upstream, leaves: Leaves) -> Self {
        let rules = ArcSwap::from_pointee(Rules::new(config, router, upstream));
        Self { limiter, leaves, rules, own: OnceLock::new(), drain_timeout: DRAIN_TIMEOUT }
    }

    /// Goes by another configuration from now on. What is under way is finished by the one it came under; buckets, and what
    /// was spent from them, stay.
    pub fn reload(&self, config: &Config, router: Router, upstream: Upstream) {
        if let Some(own) = self.own.get() {
            upstream.avoid(own.addresses());
        }
        self.rules.store(Arc::new(Rules::new(config, router, upstream)));
    }

    /// Replaces how long a shutdown waits for what is under way; 30 seconds unless set.
    #[must_use]
    pub fn with_drain_timeout(mut self, drain_timeout: Duration) -> Self {
        self.drain_timeout = drain_timeout;
        self
    }

    /// The rules of this moment. A request takes them once and keeps them.
    fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.rules.load().settings).finish_non_exhaustive()
    }
}

/// What a configuration says of requests.
#[derive(Debug)]
struct Rules {
    router: Router,
    upstream: Upstream,
    settings: Settings,
    /// What channels' names stand for at the gateway.
    names: Names,
    metrics: Metrics,
}

impl Rules {
    fn new(config: &Config, router: Router, upstream: Upstream) -> Self {
        let settings = Settings {
            unmatched: config.unmatched,
            annotate: config.annotate,
            priority_header: config.priority.header.clone(),
        };
        let (names, metrics) = (Names::new(&config.channels), Metrics::new(&config.channels));
        Self { router, upstream, settings, names, metrics }
    }
}

#[derive(Debug)]
struct Settings {
    unmatched: Unmatched,
    annotate: bool,
    priority_header: HeaderName,
}

/// Serves clients of the proxy, and of the gateway where there is one, until `shutdown` is cancelled; then accepts no more,
/// finishes what is under way, and returns once all is done or the drain timeout has passed.
pub async fn serve(
    listener: TcpListener,
    gateway: Option<TcpListener>,
    proxy: Arc<Proxy>,
    shutdown: CancellationToken,
) {
    let own = || {
        let gateway = gateway.as_ref().map(TcpListener::local_addr).transpose()?;
        io::Result::Ok(Own { proxy: listener.local_addr()?, gateway })
    };
    let own = match own() {
        Ok(own) => own,
        Err(error) => {
            tracing::error!(%error, "the listening socket is gone");
            return;
        }
    };
    proxy.rules().upstream.avoid(proxy.own.get_or_init(|| own).addresses());
    let drain_timeout = proxy.drain_timeout;
    let shared = Arc::new(Shared { proxy, own, shutdown, abort: CancellationToken::new(), tasks: TaskTracker::new() });
    let both = async {
        tokio::join!(accept(&listener, &shared, Entrance::Proxy), async {
            if let Some(gateway) = &gateway {
                accept(gateway, &shared, Entrance::Gateway).await;
            }
        })
    };
    shared.shutdown.run_until_cancelled(both).await;
    drop((listener, gateway));
    drain(&shared, drain_timeout).await;
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>, entrance: Entrance) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                send_at_once(&stream);
                shared.spawn(Downstream::new(shared.clone(), entrance.clone()).serve(stream));
            }
            // Out of descriptors, mostly: trying again at once would only burn a core.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Small writes go out at once; otherwise a body behind its head waits for the peer's delayed acknowledgement, 40 ms.
fn send_at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
}

async fn drain(shared: &Shared, drain_timeout: Duration) {
    shared.tasks.close();
    if timeout(drain_timeout, shared.tasks.wait()).await.is_err() {
        tracing::warn!(open = shared.tasks.len(), "drain timeout: closing what is not finished");
        shared.abort.cancel();
        shared.tasks.wait().await;
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

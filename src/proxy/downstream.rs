//! One client connection: HTTP/1 on it, request by request, until it closes, is drained, or becomes a tunnel. For HTTP/2 see
//! `http2`.

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Proxy,
    answer::Answer,
    client_io::{ClientIo, Departure, Phase},
    entrance::{Entrance, Own},
    exchange,
    refusal::Refusal,
    target::{Authority, TargetError},
    tunnel,
};
use crate::{
    config::model::Class,
    upstream::{Scheme, Tether},
};

/// What the connections of one listener share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) proxy: Arc<Proxy>,
    /// Where this instance itself is reached.
    pub(super) own: Own,
    /// Finish what is under way.
    pub(super) shutdown: CancellationToken,
    /// Let go of what is not finished.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Shared {
    /// Runs a task that a drain waits for, and that ends with it.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            abort.run_until_cancelled(task).await;
        });
    }
}

/// One client connection, as its requests see it.
#[derive(Debug, Clone)]
pub(super) struct Downstream {
    shared: Arc<Shared>,
    entrance: Entrance,
    phase: Phase,
    departure: Departure,
    tether: Tether,
}

/// A tunnel whose requests are read here.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// Where it leads.
    pub(super) authority: Authority,
    /// How.
    pub(super) scheme: Scheme,
    /// The class that its CONNECT named, for requests that name none.
    pub(super) class: Option<Class>,
}

impl Downstream {
    pub(super) fn new(shared: Arc<Shared>, entrance: Entrance) -> Self {
        let (phase, departure) = (Phase::default(), Departure::never());
        Self { shared, entrance, phase, departure, tether: Tether::default() }
    }

    /// The connection inside a tunnel that came through this one.
    pub(super) fn inside(&self, tunnel: Tunnel) -> Self {
        Self::new(self.shared.clone(), Entrance::Tunnel(Arc::new(tunnel)))
    }

    /// One stream of the connection, which carries a request beside others.
    pub(super) fn stream(&self) -> Self {
        Self { tether: Tether::default(), ..self.clone() }
    }

    /// Serves HTTP/1 on `io`. Once a shutdown begins, the request under way is finished and the connection closed.
    pub(super) async fn serve<I>(mut self, io: I)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = ClientIo::new(io, self.phase.clone());
        self.departure = io.departure();
        let io = TokioIo::new(io);
        let shutdown = self.shared.shutdown.clone();
        let service = service_fn(move |request| {
            let client = self.clone();
            async move {
                client.phase.serving();
                let response = client.answer(request).await;
                Ok::<_, Infallible>(response.map(|body| body.ending(client.phase.clone())))
            }
        });
        let mut connection = std::pin::pin!(http().serve_connection(io, service).with_upgrades());
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "client connection ended");
        }
    }

    pub(super) fn proxy(&self) -> &Arc<Proxy> {
        &self.shared.proxy
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn own(&self) -> Own {
        self.shared.own
    }

    pub(super) fn shutdown(&self) -> &CancellationToken {
        &self.shared.shutdown
    }

    pub(super) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// The tunnel that this connection is in.
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        match &self.entrance {
            Entrance::Tunnel(tunnel) => Some(tunnel),
            Entrance::Proxy | Entrance::Gateway => None,
        }
    }

    /// Tells when the client leaves.
    pub(super) fn departure(&self) -> &Departure {
        &self.departure
    }

    /// Holds the upstream connection that this one used last.
    pub(super) fn tether(&self) -> &Tether {
        &self.tether
    }

    /// Whether the request that has just come is an `OPTIONS` without a path. To be asked once a request.
    pub(super) fn takes_no_path(&self) -> bool {
        self.phase.takes_no_path()
    }

    /// What follows on this connection is no HTTP.
    pub(super) fn leave_http(&self) {
        self.phase.opaque();
    }

    /// Runs what outlives a request: a tunnel, an upgraded connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.spawn(task);
    }

    /// Answers one request, whichever version of HTTP it came in. Dropping the future is the client's leaving.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Answer> {
        match (request.method(), &self.entrance) {
            (&Method::CONNECT, Entrance::Proxy) => tunnel::open(self, request).await,
            (&Method::CONNECT, Entrance::Tunnel(_)) => Refusal::nested_connect().into_response(),
            (&Method::CONNECT, Entrance::Gateway) => {
                Refusal::target(TargetError::NotAProxy(self.own().proxy)).into_response()
            }
            _ => exchange::answer(self, request).await,
        }
    }
}

fn http() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // hyper counts idle time into it; heads have their own clock in `ClientIo`.
        .header_read_timeout(IDLE_TIMEOUT)
        // A client that closes its side has left: its queued request is dropped. The price are clients that close early
        // and still read.
        .half_close(false)
        .preserve_header_case(true)
        .title_case_headers(true)
        .auto_date_header(false)
        .max_headers(MAX_HEADERS);
    builder
}

/// Longer than clients keep pooled connections, so that it is they who close.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(330);

const MAX_HEADERS: usize = 256;

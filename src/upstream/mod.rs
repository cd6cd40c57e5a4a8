//! Connections to origins: resolved, connected, verified, pooled; in HTTP/1.1 used for one request at a time, in HTTP/2 for
//! many.
//!
//! A pool of our own over hyper's connections, because a paced request needs to know what a ready-made client
//! hides: that a connection is there *before* the slot is taken, whether it was used before, and whether anything was
//! written when it fails.

mod auth;
mod connection;
mod dial;
mod download;
mod either;
mod error;
mod framing;
mod http2;
mod parent;
mod pool;
mod sites;
mod stream;
mod tether;
mod tls;
mod upload;
mod usage;

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use self::{
    connection::{Context, Exclusive, Line},
    dial::{Deadline, dial},
    http2::{Place, Session},
    parent::Parent,
    pool::Pool,
    sites::{Site, Sites},
    tether::Taken,
    tls::Connectors,
};
use crate::config::{self, host::Host};

pub use auth::authenticates_connection;
pub use download::{Download, DownloadError};
pub use either::Connection;
pub use error::{ConnectError, SendError, SendErrorKind, SetupError, Step};
pub use framing::is_clearly_framed;
pub use stream::Stream;
pub use tether::Tether;
pub use usage::{InUse, Usage};

/// A request's body on its way to an origin.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Whatever a request's body fails with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Whom a connection leads to; connections of equal origins are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// In clear or over TLS.
    pub scheme: Scheme,
    /// The host, which is also the name that its certificate must hold.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// `https://ota.example`, with the port where it is not the scheme's own.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, port) = match self.scheme {
            Scheme::Http => ("http", 80),
            Scheme::Https => ("https", 443),
        };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == port { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// In clear or over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In clear.
    Http,
    /// Over TLS.
    Https,
}

/// The versions of HTTP that an origin is offered, of which it takes one. In clear it is HTTP/1.1 anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2, and HTTP/1.1 for origins that do not speak it.
    Http2,
}

/// Reaches origins. Clones share one pool.
#[derive(Clone)]
pub struct Upstream {
    connectors: Connectors,
    sites: Arc<Sites>,
    connect_timeout: Duration,
    /// The listeners of this proxy.
    own: Arc<OnceLock<Vec<SocketAddr>>>,
    context: Arc<Context>,
}

impl Upstream {
    /// Reads the roots that origins are verified against: the system's and those of `upstream.ca_file`.
    ///
    /// # Errors
    /// When `upstream.ca_file` cannot be read or holds no certificate, or there is no root at all.
    pub fn new(config: &config::model::Upstream) -> Result<Self, SetupError> {
        let connectors = tls::connectors(config.ca_file.as_deref())?;
        let parent = config.proxy.clone().map(|proxy| Parent::new(proxy, connectors.http1.clone()));
        Ok(Self {
            connectors,
            sites: Arc::default(),
            connect_timeout: config.connect_timeout,
            own: Arc::default(),
            context: Arc::new(Context {
                pool: Pool::new(),
                rounds: Arc::default(),
                idle: config.idle,
                response_timeout: config.response_timeout,
                parent,
            }),
        })
    }

    /// Has connections that come out at one of these listeners, by whatever name, refused. Said once.
    pub fn avoid(&self, own: impl IntoIterator<Item = SocketAddr>) {
        self.own.get_or_init(|| own.into_iter().collect());
    }

    /// A connection ready to send on: the one that `tether` holds, an idle one to the same origin, a place on one that is
    /// shared, or a fresh one.
    ///
    /// # Errors
    /// When the origin cannot be reached or trusted within `upstream.connect_timeout`; the error says during which
    /// step. Once, when the connection was lost on which the client was authenticating.
    pub async fn checkout(&self, origin: &Origin, tether: &Tether, offer: Offer) -> Result<Connection, ConnectError> {
        match tether.take(origin, &self.context).await {
            Taken::Line(line) => return Ok(Connection::exclusive(Exclusive::reuse(line, tether.clone()))),
            Taken::LostHandshake => return Err(ConnectError::LostHandshake { host: origin.host.clone() }),
            Taken::Nothing => {}
        }
        if let Some(site) = self.site(origin, offer) {
            return self.negotiated(&site, tether, false).await;
        }
        match self.parked(origin, tether) {
            Some(connection) => Ok(Connection::exclusive(connection)),
            None => self.connect(origin, tether, offer).await,
        }
    }

    /// A connection for a request that must not meet one that its origin is just closing: fresh, or shared and not known to
    /// have failed.
    ///
    /// # Errors
    /// As [`Upstream::checkout`].
    pub async fn connect(&self, origin: &Origin, tether: &Tether, offer: Offer) -> Result<Connection, ConnectError> {
        if let Some(site) = self.site(origin, offer) {
            return self.negotiated(&site, tether, true).await;
        }
        let deadline = Deadline::after(self.connect_timeout);
        let started = match origin.scheme {
            Scheme::Http => self.start(self.reach(origin, deadline).await?, origin, tether).await,
            Scheme::Https => self.start(self.secure(origin, Offer::Http1, deadline).await?, origin, tether).await,
        };
        Ok(started)
    }

    /// A connection that nothing was said on, for a tunnel.
    ///
    /// # Errors
    /// When the host cannot be resolved or reached within `upstream.connect_timeout`, or the parent proxy refuses.
    pub async fn dial(&self, host: &Host, port: u16) -> Result<Stream, ConnectError> {
        let deadline = Deadline::after(self.connect_timeout);
        match self.context.parent(host, port) {
            None => self.direct(host, port, deadline).await,
            Some(parent) => parent.tunnel(host, port, deadline).await,
        }
    }

    /// Whether a request with these fields went to the parent proxy before, and has come back.
    pub fn comes_back(&self, headers: &HeaderMap) -> bool {
        self.context.parent.as_ref().is_some_and(|parent| parent.knows(headers))
    }

    /// An idle HTTP/1.1 connection.
    fn parked(&self, origin: &Origin, tether: &Tether) -> Option<Exclusive> {
        let parked = self.context.pool.take(origin)?;
        Some(Exclusive::reuse(Line::free(parked, origin.clone(), self.context.clone()), tether.clone()))
    }

    /// What is known of `origin`, where it may choose.
    fn site(&self, origin: &Origin, offer: Offer) -> Option<Arc<Site>> {
        (offer == Offer::Http2 && origin.scheme == Scheme::Https).then(|| self.sites.of(origin))
    }

    /// A connection in the version that the origin chooses.
    async fn negotiated(&self, site: &Arc<Site>, tether: &Tether, is_fresh: bool) -> Result<Connection, ConnectError> {
        let origin = site.origin();
        let deadline = Deadline::after(self.connect_timeout);
        // One request makes the connection that the others wait for, unless the origin is known to want one for each.
        let mut gate = None;
        while !site.wants_http1() {
            if let Some(place) = site.place() {
                return Ok(self.shared(place));
            }
            if gate.is_some() {
                break;
            }
            gate = Some(deadline.bound(Step::Connect, &origin.host, async { Ok(site.gate().await) }).await?);
        }
        if site.wants_http1() {
            drop(gate.take());
            if !is_fresh && let Some(connection) = self.parked(origin, tether) {
                return Ok(Connection::exclusive(connection));
            }
        }
        let stream = self.secure(origin, site.offer(), deadline).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            site.chose_http1();
            return Ok(self.start(stream, origin, tether).await);
        }
        let begun = async {
            let begun = Session::start(stream, self.context.idle).await;
            begun.map_err(|source| ConnectError::Http2 { host: origin.host.clone(), source })
        };
        let (session, first) = deadline.bound(Step::Http2, &origin.host, begun).await?;
        site.add(session.clone());
        Ok(self.shared(Place::new(session, first, site.clone())))
    }

    /// A stream to `origin`, or to the parent proxy that forwards requests to it.
    async fn reach(&self, origin: &Origin, deadline: Deadline) -> Result<Stream, ConnectError> {
        match (self.context.parent(&origin.host, origin.port), origin.scheme) {
            (None, _) => self.direct(&origin.host, origin.port, deadline).await,
            (Some(parent), Scheme::Http) => parent.dial(deadline).await,
            (Some(parent), Scheme::Https) => parent.tunnel(&origin.host, origin.port, deadline).await,
        }
    }

    /// A stream to a host that is not this proxy.
    async fn direct(&self, host: &Host, port: u16, deadline: Deadline) -> Result<Stream, ConnectError> {
        let stream = dial(host, port, deadline).await?;
        let own = self.own.get().map_or(&[][..], Vec::as_slice);
        if leads_to(&stream, own) { Err(ConnectError::Own { host: host.clone() }) } else { Ok(Stream::Tcp(stream)) }
    }

    /// TLS with `origin`.
    async fn secure(
        &self,
        origin: &Origin,
        offer: Offer,
        deadline: Deadline,
    ) -> Result<TlsStream<Stream>, ConnectError> {
        let connector = match offer {
            Offer::Http1 => &self.connectors.http1,
            Offer::Http2 => &self.connectors.http2,
        };
        let stream = self.reach(origin, deadline).await?;
        deadline.bound(Step::Tls, &origin.host, tls::handshake(connector, &origin.host, stream)).await
    }

    /// HTTP/1.1 on a fresh stream.
    async fn start<S>(&self, stream: S, origin: &Origin, tether: &Tether) -> Connection
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let started = Exclusive::start(stream, origin.clone(), self.context.clone(), tether.clone()).await;
        Connection::exclusive(started.expect("an HTTP/1.1 handshake exchanges nothing, so nothing can fail"))
    }

    fn shared(&self, place: Place) -> Connection {
        Connection::shared(place, self.context.response_timeout)
    }
}

/// Whether a connection has come out at one of these listeners.
fn leads_to(stream: &TcpStream, listeners: &[SocketAddr]) -> bool {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else { return false };
    listeners.iter().any(|listener| {
        peer == *listener
            || (peer.port() == listener.port() && listener.ip().is_unspecified() && peer.ip() == local.ip())
    })
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("connect_timeout", &self.connect_timeout).finish_non_exhaustive()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("origin", self.origin())
            .field("reused", &self.is_reused())
            .finish_non_exhaustive()
    }
}

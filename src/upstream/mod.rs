//! Connections to origins: resolved, connected, verified, pooled, and used for one request at a time.
//!
//! A pool of our own over hyper's HTTP/1.1 connections, because a paced request needs to know what a ready-made client
//! hides: that a connection is there *before* the slot is taken, whether it was used before, and whether anything was
//! written when it fails.

mod auth;
mod connection;
mod dial;
mod error;
mod framing;
mod parent;
mod pool;
mod stream;
mod tether;
mod tls;
mod upload;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::combinators::UnsyncBoxBody;
use tokio_rustls::TlsConnector;

use self::{
    connection::{Context, Line},
    dial::{Deadline, dial},
    parent::Parent,
    pool::Pool,
    tether::Taken,
};
use crate::config::{self, host::Host};

pub use auth::authenticates_connection;
pub use connection::Connection;
pub use error::{ConnectError, SendError, SendErrorKind, SetupError, Step};
pub use framing::is_clearly_framed;
pub use stream::Stream;
pub use tether::Tether;

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

/// Reaches origins. Clones share one pool.
#[derive(Clone)]
pub struct Upstream {
    connector: TlsConnector,
    connect_timeout: Duration,
    context: Arc<Context>,
}

impl Upstream {
    /// Reads the roots that origins are verified against: the system's and those of `upstream.ca_file`.
    ///
    /// # Errors
    /// When `upstream.ca_file` cannot be read or holds no certificate, or there is no root at all.
    pub fn new(config: &config::model::Upstream) -> Result<Self, SetupError> {
        let connector = tls::connector(config.ca_file.as_deref())?;
        let parent = config.proxy.clone().map(|proxy| Parent::new(proxy, connector.clone()));
        Ok(Self {
            connector,
            connect_timeout: config.connect_timeout,
            context: Arc::new(Context {
                pool: Pool::new(),
                rounds: Arc::default(),
                idle: config.idle,
                response_timeout: config.response_timeout,
                parent,
            }),
        })
    }

    /// A connection ready to send on: the one that `tether` holds, an idle one to the same origin, or a fresh one.
    ///
    /// # Errors
    /// When the origin cannot be reached or trusted within `upstream.connect_timeout`; the error says during which
    /// step. Once, when the connection was lost on which the client was authenticating.
    pub async fn checkout(&self, origin: &Origin, tether: &Tether) -> Result<Connection, ConnectError> {
        match tether.take(origin, &self.context).await {
            Taken::Line(line) => return Ok(Connection::reuse(line, tether.clone())),
            Taken::LostHandshake => return Err(ConnectError::LostHandshake { host: origin.host.clone() }),
            Taken::Nothing => {}
        }
        if let Some(parked) = self.context.pool.take(origin) {
            let line = Line::free(parked, origin.clone(), self.context.clone());
            return Ok(Connection::reuse(line, tether.clone()));
        }
        self.connect(origin, tether).await
    }

    /// A fresh connection, for a request that must not meet a connection that its origin is just closing.
    ///
    /// # Errors
    /// As [`Upstream::checkout`].
    pub async fn connect(&self, origin: &Origin, tether: &Tether) -> Result<Connection, ConnectError> {
        let deadline = Deadline::after(self.connect_timeout);
        let stream = match (self.context.parent(&origin.host, origin.port), origin.scheme) {
            (None, _) => Stream::Tcp(dial(&origin.host, origin.port, deadline).await?),
            (Some(parent), Scheme::Http) => parent.dial(deadline).await?,
            (Some(parent), Scheme::Https) => parent.tunnel(&origin.host, origin.port, deadline).await?,
        };
        let (context, tether) = (self.context.clone(), tether.clone());
        let started = match origin.scheme {
            Scheme::Http => Connection::start(stream, origin.clone(), context, tether).await,
            Scheme::Https => {
                let handshake = tls::handshake(&self.connector, &origin.host, stream);
                let stream = deadline.bound(Step::Tls, &origin.host, handshake).await?;
                Connection::start(stream, origin.clone(), context, tether).await
            }
        };
        Ok(started.expect("an HTTP/1.1 handshake exchanges nothing, so nothing can fail"))
    }

    /// A connection that nothing was said on, for a tunnel.
    ///
    /// # Errors
    /// When the host cannot be resolved or reached within `upstream.connect_timeout`, or the parent proxy refuses.
    pub async fn dial(&self, host: &Host, port: u16) -> Result<Stream, ConnectError> {
        let deadline = Deadline::after(self.connect_timeout);
        match self.context.parent(host, port) {
            None => Ok(Stream::Tcp(dial(host, port, deadline).await?)),
            Some(parent) => parent.tunnel(host, port, deadline).await,
        }
    }

    /// Whether a request with these fields went to the parent proxy before, and has come back.
    pub fn comes_back(&self, headers: &HeaderMap) -> bool {
        self.context.parent.as_ref().is_some_and(|parent| parent.knows(headers))
    }
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

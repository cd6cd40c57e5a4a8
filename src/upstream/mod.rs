//! Connections to origins: resolved, connected, verified, pooled, and used for one request at a time.
//!
//! A pool of our own over hyper's HTTP/1.1 connections, because a paced request needs to know what a ready-made client
//! hides: that a connection is there *before* the slot is taken, whether it was used before, and whether anything was
//! written when it fails.

mod connection;
mod dial;
mod error;
mod framing;
mod pool;
mod tls;
mod upload;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use self::{
    connection::Context,
    dial::{Deadline, dial},
    pool::Pool,
};
use crate::config::{self, host::Host};

pub use connection::Connection;
pub use error::{ConnectError, SendError, SendErrorKind, SetupError, Step};
pub use framing::is_clearly_framed;

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
        Ok(Self {
            connector: tls::connector(config.ca_file.as_deref())?,
            connect_timeout: config.connect_timeout,
            context: Arc::new(Context {
                pool: Pool::new(),
                idle: config.idle,
                response_timeout: config.response_timeout,
            }),
        })
    }

    /// A connection ready to send on: an idle one to the same origin, or a fresh one.
    ///
    /// # Errors
    /// When the origin cannot be reached or trusted within `upstream.connect_timeout`; the error says during which
    /// step.
    pub async fn checkout(&self, origin: &Origin) -> Result<Connection, ConnectError> {
        match self.context.pool.take(origin) {
            Some(parked) => Ok(Connection::reuse(parked, origin.clone(), self.context.clone())),
            None => self.connect(origin).await,
        }
    }

    /// A fresh connection, for a request that must not meet a connection that its origin is just closing.
    ///
    /// # Errors
    /// As [`Upstream::checkout`].
    pub async fn connect(&self, origin: &Origin) -> Result<Connection, ConnectError> {
        let deadline = Deadline::after(self.connect_timeout);
        let stream = dial(&origin.host, origin.port, deadline).await?;
        let context = self.context.clone();
        let started = match origin.scheme {
            Scheme::Http => Connection::start(stream, origin.clone(), context).await,
            Scheme::Https => {
                let handshake = tls::handshake(&self.connector, &origin.host, stream);
                let stream = deadline.bound(Step::Tls, &origin.host, handshake).await?;
                Connection::start(stream, origin.clone(), context).await
            }
        };
        Ok(started.expect("an HTTP/1.1 handshake exchanges nothing, so nothing can fail"))
    }

    /// A plain TCP connection, for a tunnel.
    ///
    /// # Errors
    /// When the host cannot be resolved or reached within `upstream.connect_timeout`.
    pub async fn dial(&self, host: &Host, port: u16) -> Result<TcpStream, ConnectError> {
        dial(host, port, Deadline::after(self.connect_timeout)).await
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

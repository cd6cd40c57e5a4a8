//! Which side failed, during which step, and whether the request may be sent again.

use std::{fmt, io, net::SocketAddr, path::PathBuf, time::Duration};

use http::{Request, StatusCode};
use rustls::AlertDescription;

use super::Body;
use crate::config::host::Host;

/// Why origins cannot be reached at all. The text ends with a hint.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// `upstream.ca_file` cannot be used.
    #[error(
        "cannot use `upstream.ca_file` `{}`: {reason}\n\nhint: it must be a readable PEM file of root certificates, or be left out",
        path.display()
    )]
    CaFile {
        /// The file of the configuration.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to verify origins against.
    #[error(
        "no root certificates found, so that no origin could be verified\n\nhint: install the system's (package `ca-certificates`), or name a PEM file in `upstream.ca_file` or `SSL_CERT_FILE`"
    )]
    NoRoots,
    /// The TLS library refuses to start.
    #[error("cannot set up TLS: {0}\n\nhint: this is a fault of the build, not of the configuration")]
    Tls(#[from] rustls::Error),
}

/// What was being done towards a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looking the host up.
    Resolve,
    /// Opening a TCP connection.
    Connect,
    /// Having the parent proxy open a tunnel.
    Tunnel,
    /// Agreeing on TLS.
    Tls,
    /// Beginning HTTP/2.
    Http2,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving",
            Self::Connect => "connecting to",
            Self::Tunnel => "the parent proxy's CONNECT to",
            Self::Tls => "the TLS handshake with",
            Self::Http2 => "the beginning of HTTP/2 with",
        })
    }
}

/// Why there is no connection to an origin. Nothing of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host has no address.
    #[error("cannot resolve `{host}`: {source}")]
    Resolve {
        /// The host.
        host: Host,
        /// What the resolver said.
        source: io::Error,
    },
    /// The host's address is that of a listener of this proxy.
    #[error("`{host}` is this proxy itself")]
    Own {
        /// The host.
        host: Host,
    },
    /// No address of the host accepts a connection.
    #[error("cannot connect to `{host}` at {address}: {source}")]
    Connect {
        /// The host.
        host: Host,
        /// The address tried last.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The origin's certificate or its TLS is not acceptable.
    #[error("TLS with `{host}` failed: {reason}")]
    Tls {
        /// The host.
        host: Host,
        /// What is wrong, in words.
        reason: String,
        /// Whether it is the certificate that is at fault.
        certificate: bool,
    },
    /// The origin has chosen HTTP/2, and then does not speak it.
    #[error("HTTP/2 with `{host}` failed: {source}")]
    Http2 {
        /// The host.
        host: Host,
        /// What is wrong.
        source: hyper::Error,
    },
    /// All of it together took too long.
    #[error("{step} `{host}` did not end within {limit:?}")]
    Timeout {
        /// The step under way when time ran out.
        step: Step,
        /// The host.
        host: Host,
        /// `upstream.connect_timeout`.
        limit: Duration,
    },
    /// The parent proxy itself cannot be reached or trusted.
    #[error("the parent proxy (`upstream.proxy`) is out of reach: {0}")]
    Parent(Box<ConnectError>),
    /// The parent proxy does not want to open a tunnel.
    #[error("the parent proxy (`upstream.proxy`) answered the CONNECT to `{host}` with {status}")]
    Refused {
        /// The host.
        host: Host,
        /// What it answered.
        status: StatusCode,
    },
    /// The parent proxy answered no CONNECT.
    #[error("the parent proxy (`upstream.proxy`) opened no tunnel to `{host}`: {reason}")]
    Tunnel {
        /// The host.
        host: Host,
        /// What it did.
        reason: &'static str,
    },
    /// Whatever other connection there is, the origin has not challenged the client on it.
    #[error("`{host}` closed the connection that the client was authenticating")]
    LostHandshake {
        /// The host.
        host: Host,
    },
}

impl ConnectError {
    /// The step that failed.
    pub fn step(&self) -> Step {
        match self {
            Self::Resolve { .. } => Step::Resolve,
            Self::Own { .. } | Self::Connect { .. } | Self::LostHandshake { .. } => Step::Connect,
            Self::Tls { .. } => Step::Tls,
            Self::Http2 { .. } => Step::Http2,
            Self::Parent(error) => error.step(),
            Self::Refused { .. } | Self::Tunnel { .. } => Step::Tunnel,
            Self::Timeout { step, .. } => *step,
        }
    }

    /// Whether time ran out, rather than somebody having said no.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Parent(error) => error.is_timeout(),
            _ => false,
        }
    }
}

/// Why there is no answer to a request.
#[derive(Debug, thiserror::Error)]
#[error("{kind}{}", if *written || *kind == SendErrorKind::Refused { "" } else { " (nothing of the request had been sent)" })]
pub struct SendError {
    /// What went wrong.
    pub kind: SendErrorKind,
    /// `false`: certainly nothing of the request reached the wire, or the origin has said that it did not take it up, so that
    /// it may be sent again whatever it is.
    pub written: bool,
    /// The request itself, where nothing of it was written and it could be had back.
    pub request: Option<Box<Request<Body>>>,
    /// The cause, where there is one.
    #[source]
    pub source: Option<hyper::Error>,
}

impl SendError {
    /// Whether the origin closed the connection because the client side of it has no certificate: in TLS 1.3 that comes
    /// only after the handshake (RFC 8446 section 6.2).
    pub fn wants_client_certificate(&self) -> bool {
        let mut cause = self.source.as_ref().map(|error| error as &dyn std::error::Error);
        while let Some(error) = cause {
            let tls = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) =
                tls.and_then(|inner| inner.downcast_ref())
            {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// What went wrong between a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendErrorKind {
    /// The request could not be written to its end.
    #[error("the connection failed while the request was being sent")]
    Write,
    /// The answer could not be read.
    #[error("the connection failed before the answer")]
    Read,
    /// The origin closed the connection without an answer.
    #[error("the origin closed the connection without an answer")]
    ClosedEarly,
    /// The origin has said that it did not take the request up: it is closing the connection, is asked for too much at once,
    /// or wants another version of HTTP.
    #[error("the origin did not take the request up")]
    Refused,
    /// The origin broke off this exchange, and no other on the connection.
    #[error("the origin broke off the exchange")]
    Reset,
    /// What the origin sent is no HTTP.
    #[error("the origin's answer is no valid HTTP")]
    Malformed,
    /// `upstream.response_timeout` passed: no answer, or no room for more of the request.
    #[error("the origin did not answer in time")]
    Timeout,
    /// The parent proxy wants to know who asks, and was not told, or not to its liking.
    #[error("the parent proxy (`upstream.proxy`) answered 407")]
    ParentLogin,
    /// The request's body ended with an error or stopped coming: the fault of whoever sends it, not of the origin.
    #[error("the request's body did not arrive")]
    Body,
}

impl SendErrorKind {
    /// Whether the connection was lost, as one is that the origin was just closing: no word, and no silence either.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Write | Self::Read | Self::ClosedEarly)
    }
}

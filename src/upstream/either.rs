//! A connection on which a request can be sent, whichever version of HTTP it speaks.

use std::time::Duration;

use http::{Request, Response};

use super::{Body, Origin, SendError, connection::Exclusive, download::Download, http2::Place};

/// A connection on which one request can be sent. Dropped unused, it is left to others.
pub struct Connection(Kind);

enum Kind {
    Http1(Exclusive),
    Http2 { place: Place, response_timeout: Duration },
}

impl Connection {
    pub(super) fn exclusive(connection: Exclusive) -> Self {
        Self(Kind::Http1(connection))
    }

    pub(super) fn shared(place: Place, response_timeout: Duration) -> Self {
        Self(Kind::Http2 { place, response_timeout })
    }

    /// Whether a request may still be sent: the origin has not closed it, nor is it about to.
    pub fn is_open(&self) -> bool {
        match &self.0 {
            Kind::Http1(connection) => connection.is_open(),
            Kind::Http2 { place, .. } => place.is_open(),
        }
    }

    /// Whether requests were sent on it before, so that the origin may be closing it just now.
    pub fn is_reused(&self) -> bool {
        match &self.0 {
            Kind::Http1(connection) => connection.is_reused(),
            Kind::Http2 { place, .. } => place.is_reused(),
        }
    }

    /// Whether the origin waits on it for the client's answer to a challenge, which means nothing on another.
    pub fn is_in_handshake(&self) -> bool {
        matches!(&self.0, Kind::Http1(connection) if connection.is_in_handshake())
    }

    /// The origin it leads to.
    pub fn origin(&self) -> &Origin {
        match &self.0 {
            Kind::Http1(connection) => connection.origin(),
            Kind::Http2 { place, .. } => place.origin(),
        }
    }

    /// Sends one request as HTTP/1.1 has it, with its URI in origin-form, and returns the head of the answer as soon as it
    /// comes, even while the request's body is still on its way. In HTTP/1.1 the spelling of header names is kept where the
    /// request's extensions carry it; HTTP/2 has none.
    ///
    /// Dropping the answer's body before its end, or this future, ends the exchange at the origin as well: in HTTP/1.1 with
    /// its connection, in HTTP/2 alone.
    ///
    /// `upstream.response_timeout` runs from the last movement of the request to the head of the answer, so that a long
    /// upload is bounded only once it stands still.
    ///
    /// # Errors
    /// See [`SendError`]: which side failed, and whether anything was written.
    pub async fn send(self, request: Request<Body>) -> Result<Response<Download>, SendError> {
        match self.0 {
            Kind::Http1(connection) => Ok(connection.send(request).await?.map(Download::alone)),
            Kind::Http2 { place, response_timeout } => place.send(request, response_timeout).await,
        }
    }
}

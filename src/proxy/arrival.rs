//! A request's body as it comes from the client.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::replay::BodyError;

/// The body of a request, which has ended only where the client has said so.
///
/// hyper takes a stream of HTTP/2 that was reset with `NO_ERROR` for one that has ended. What a client has not sent whole
/// would then look whole to the origin, and be acted on.
#[derive(Debug)]
pub(super) struct Arrival {
    incoming: Incoming,
    is_stream: bool,
}

impl Arrival {
    /// The body of a request that came in that version.
    pub(super) fn new(incoming: Incoming, version: Version) -> Self {
        Self { incoming, is_stream: version == Version::HTTP_2 }
    }
}

impl Body for Arrival {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            None if !self.is_stream || self.incoming.is_end_stream() => None,
            Some(Err(_)) | None => Some(Err(BodyError::Client)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

//! An answer's body, which may be a stream among others of its connection.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::usage::InUse;

/// The body of an origin's answer, as it comes. Dropped before its end, it closes its connection; where it is a stream among
/// others, it ends that alone.
#[derive(Debug)]
pub struct Download {
    incoming: Incoming,
    /// Over with the body.
    stream: Option<InUse>,
}

impl Download {
    /// One that has its connection to itself.
    pub(super) fn alone(incoming: Incoming) -> Self {
        Self { incoming, stream: None }
    }

    /// One of several of a connection.
    pub(super) fn streaming(incoming: Incoming, stream: InUse) -> Self {
        let stream = Some(stream).filter(|_| !incoming.is_end_stream());
        Self { incoming, stream }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) || self.incoming.is_end_stream() {
            self.stream = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

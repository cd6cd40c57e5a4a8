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
    /// Whether its end shows: see [`Download::poll_frame`].
    shows_end: bool,
}

/// Why an answer's body ended early.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The connection was lost, or the origin said that it has failed.
    #[error(transparent)]
    Lost(#[from] hyper::Error),
    /// The origin reset the stream, with `NO_ERROR`, before it had ended the answer.
    #[error("the origin broke off its answer")]
    BrokenOff,
}

impl Download {
    /// One that has its connection to itself.
    pub(super) fn alone(incoming: Incoming) -> Self {
        Self { incoming, stream: None, shows_end: false }
    }

    /// One of several of a connection. `is_sent`: the request went out whole.
    pub(super) fn streaming(incoming: Incoming, stream: InUse, is_sent: bool) -> Self {
        let stream = Some(stream).filter(|_| !incoming.is_end_stream());
        Self { incoming, stream, shows_end: is_sent }
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = DownloadError;

    /// hyper takes a stream that was reset with `NO_ERROR` for one that has ended. It may have: an origin that has answered
    /// whole stops an upload so (RFC 9113 section 8.1). Where there was nothing left to stop, it has broken off.
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        let has_ended = self.incoming.is_end_stream();
        if !matches!(frame, Some(Ok(_))) || has_ended {
            self.stream = None;
        }
        Poll::Ready(match frame {
            None if self.shows_end && !has_ended => Some(Err(DownloadError::BrokenOff)),
            frame => frame.map(|frame| frame.map_err(DownloadError::Lost)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

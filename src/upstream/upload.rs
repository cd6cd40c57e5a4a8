//! A request's body, watched on its way to the origin.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::{Body, BoxError};

/// What hyper sends: the body, noting when it moves.
pub(super) struct Upload {
    /// `None` once taken back.
    body: Option<Body>,
    progress: Arc<Progress>,
}

impl Upload {
    pub(super) fn new(body: Body) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress {
            start: Instant::now(),
            moved_micros: AtomicU64::new(0),
            awaits_sender: AtomicBool::new(false),
            is_whole: AtomicBool::new(body.is_end_stream()),
        });
        (Self { body: Some(body), progress: progress.clone() }, progress)
    }

    /// The body, of which nothing was sent.
    pub(super) fn into_body(mut self) -> Body {
        self.body.take().expect("taken by value, so only once")
    }

    fn pinned(&mut self) -> Pin<&mut Body> {
        Pin::new(self.body.as_mut().expect("taken only when the upload itself is consumed"))
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.pinned().poll_frame(cx);
        self.progress.awaits_sender.store(polled.is_pending(), Ordering::Relaxed);
        if polled.is_ready() {
            self.progress.moves();
        }
        if matches!(polled, Poll::Ready(None)) || self.is_end_stream() {
            self.progress.is_whole.store(true, Ordering::Relaxed);
        }
        polled
    }

    // Both decide how hyper frames the request: without them a body of known length would become chunked.

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

/// hyper lets go of a body when its last byte is in the write buffer.
impl Drop for Upload {
    fn drop(&mut self) {
        self.progress.awaits_sender.store(false, Ordering::Relaxed);
        self.progress.moves();
    }
}

/// How far an upload has come.
pub(super) struct Progress {
    start: Instant,
    /// Of the last movement, since `start`.
    moved_micros: AtomicU64,
    /// Whether it is the sender of the body that is waited for, rather than the origin.
    awaits_sender: AtomicBool,
    /// Whether all of it went out.
    is_whole: AtomicBool,
}

impl Progress {
    /// When the last part of the body went out, or the request, if it has none.
    pub(super) fn last_moved(&self) -> Instant {
        self.start + Duration::from_micros(self.moved_micros.load(Ordering::Relaxed))
    }

    /// Whether the next move is up to the sender of the body.
    pub(super) fn awaits_sender(&self) -> bool {
        self.awaits_sender.load(Ordering::Relaxed)
    }

    /// Whether the request went out to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    fn moves(&self) {
        let micros = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.moved_micros.store(micros, Ordering::Relaxed);
    }
}

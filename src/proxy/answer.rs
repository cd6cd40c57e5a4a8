//! The body of what a client gets, with the account that its end closes.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::{client_io::Phase, record::Record};
use crate::upstream::{Download, DownloadError};

/// The body of an answer to a client.
pub(super) struct Answer {
    content: Content,
    /// The error it ends with, while what came before it is written.
    failed: Option<DownloadError>,
    record: Option<Record>,
    phase: Option<Phase>,
}

enum Content {
    /// Made by the proxy, or held back whole.
    Held { data: Option<Bytes>, trailers: Option<HeaderMap> },
    /// Streaming from the origin, after the part of it that was read already.
    Streaming { head: Option<Bytes>, rest: Download },
    /// What had come of an answer that the origin then broke off.
    Broken { head: Option<Bytes>, error: Option<DownloadError> },
}

impl Answer {
    /// Nothing.
    pub(super) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// The proxy's own words.
    pub(super) fn whole(data: Bytes) -> Self {
        Content::Held { data: Some(data).filter(|data| !data.is_empty()), trailers: None }.into()
    }

    /// The origin's answer, as it comes.
    pub(super) fn streaming(rest: Download) -> Self {
        Content::Streaming { head: None, rest }.into()
    }

    /// Closes `record` with this answer.
    pub(super) fn recorded(mut self, record: Record) -> Self {
        self.record = Some(record);
        self
    }

    /// Tells the client's stream when this answer has ended.
    pub(super) fn ending(mut self, phase: Phase) -> Self {
        self.phase = Some(phase);
        self
    }

    fn end(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.complete();
        }
    }
}

impl From<Content> for Answer {
    fn from(content: Content) -> Self {
        Self { content, failed: None, record: None, phase: None }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // hyper never polls a body that has nothing to say, and drops others with their last byte: where the length was
        // announced, before the trailers that HTTP/2 may have all the same.
        if self.is_end_stream() || (self.failed.is_none() && self.size_hint().exact() == Some(0)) {
            self.end();
        }
        if let Some(phase) = &self.phase {
            phase.idle();
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = DownloadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        if let Some(error) = self.failed.take() {
            if let Some(mut record) = self.record.take() {
                record.broken();
            }
            return Poll::Ready(Some(Err(error)));
        }
        let frame = match &mut self.content {
            Content::Held { data, trailers } => {
                let data = data.take().map(|data| Ok(Frame::data(data)));
                data.or_else(|| trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Content::Streaming { head, rest } => match head.take() {
                Some(head) => Some(Ok(Frame::data(head))),
                None => ready!(Pin::new(rest).poll_frame(cx)),
            },
            Content::Broken { head, error } => match head.take() {
                Some(head) => Some(Ok(Frame::data(head))),
                None => error.take().map(Err),
            },
        };
        match frame {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(Err(error)) => {
                // At an error hyper throws away what it has not written yet, the head included; while a body is pending it
                // writes.
                self.failed = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                self.end();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match &self.content {
            Content::Held { data, trailers } => data.is_none() && trailers.is_none(),
            Content::Streaming { head, rest } => head.is_none() && rest.is_end_stream(),
            Content::Broken { head, error } => head.is_none() && error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Held { data, .. } => SizeHint::with_exact(data.as_ref().map_or(0, Bytes::len) as u64),
            Content::Streaming { head, rest } => {
                let head = head.as_ref().map_or(0, Bytes::len) as u64;
                let hint = rest.size_hint();
                let mut sum = SizeHint::new();
                sum.set_lower(hint.lower().saturating_add(head));
                if let Some(upper) = hint.upper() {
                    sum.set_upper(upper.saturating_add(head));
                }
                sum
            }
            Content::Broken { .. } => SizeHint::new(),
        }
    }
}

/// Reads an answer whole, or as far as the origin sends it, so that its connection is free while the request waits for its
/// next attempt. `Err`: it is too large or too slow for that, and can only be passed on, from its first byte.
pub(super) async fn hold(response: Response<Download>) -> Result<Response<Answer>, Response<Answer>> {
    let (parts, mut rest) = response.into_parts();
    let mut data = BytesMut::new();
    let mut trailers = None;
    let read = async {
        while data.len() <= HELD_BYTES {
            match rest.frame().await.transpose()? {
                None => return Ok(true),
                Some(frame) => match frame.into_data() {
                    Ok(part) => data.extend_from_slice(&part),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
        }
        Ok(false)
    };
    let read = tokio::time::timeout(HELD_FOR, read).await.unwrap_or(Ok(false));
    let data = Some(data.freeze()).filter(|data| !data.is_empty());
    match read {
        Ok(true) => Ok(Response::from_parts(parts, Content::Held { data, trailers }.into())),
        Ok(false) => Err(Response::from_parts(parts, Content::Streaming { head: data, rest }.into())),
        Err(error) => Ok(Response::from_parts(parts, Content::Broken { head: data, error: Some(error) }.into())),
    }
}

/// The largest throttle answer held back: they are a sentence, or an error page.
const HELD_BYTES: usize = 64 * 1024;

/// How long its end may take.
const HELD_FOR: Duration = Duration::from_secs(2);

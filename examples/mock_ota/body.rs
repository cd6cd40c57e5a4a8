//! The body of an answer: a text, or filler of any length made as it is sent, whole or broken off half way.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::{origin::BrokenOff, ota::Visit, script::Fault};

/// Keeps its [`Visit`] until the answer is on its way, so that concurrency counts the whole of it.
pub(crate) struct AnswerBody {
    text: Bytes,
    filler: u64,
    /// Bytes sent before the connection is broken off.
    break_at: Option<u64>,
    sent: u64,
    /// Whether what comes before the break has been given time to be written.
    flushed: bool,
    _visit: Visit,
}

impl AnswerBody {
    /// The body that the visit's answer asks for.
    pub(crate) fn new(visit: Visit) -> Self {
        let answer = &visit.answer;
        let filler = answer.body_bytes.unwrap_or(0);
        let text = match &answer.body {
            Some(text) if answer.body_bytes.is_none() => Bytes::from(text.clone()),
            _ => Bytes::new(),
        };
        let length = text.len() as u64 + filler;
        let break_at = (answer.fault == Some(Fault::CloseEarly)).then_some(length / 2);
        Self { text, filler, break_at, sent: 0, flushed: false, _visit: visit }
    }

    /// The length to announce, which a broken body does not reach.
    pub(crate) fn length(&self) -> u64 {
        self.text.len() as u64 + self.filler
    }

    fn next_chunk(&mut self) -> Bytes {
        let room = self.break_at.map_or(u64::MAX, |limit| limit - self.sent);
        let chunk = if self.text.is_empty() {
            let size = self.filler.min(room).min(FILLER.len() as u64);
            self.filler -= size;
            Bytes::from_static(FILLER).slice(..size as usize)
        } else {
            self.text.split_to(self.text.len().min(usize::try_from(room).unwrap_or(usize::MAX)))
        };
        self.sent += chunk.len() as u64;
        chunk
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let body = self.get_mut();
        if body.break_at == Some(body.sent) {
            if !std::mem::replace(&mut body.flushed, true) {
                // An error would make hyper throw away what it has not written yet; it writes while a body is pending.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        let chunk = body.next_chunk();
        Poll::Ready((!chunk.is_empty()).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.break_at.is_none() && self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}

static FILLER: &[u8] = &[b'.'; 16 * 1024];

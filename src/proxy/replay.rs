//! A request body that streams to the origin and can be sent again while it is small.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// The body of one request, and the copy of what has been read of it.
///
/// Nothing waits for the whole body: each [`Sending`] yields what is kept and then reads on. The copy is dropped once it
/// passes the cap, by at most one frame; from then on the body can only be sent the once.
#[derive(Debug)]
pub(super) struct Replay<B> {
    shared: Arc<Mutex<State<B>>>,
    size: SizeHint,
    is_empty: bool,
}

impl<B> Replay<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Keeps at most `cap` bytes of `body`.
    pub(super) fn new(body: B, cap: u64) -> Self {
        let (size, is_empty) = (body.size_hint(), body.is_end_stream());
        let state = State {
            source: (!is_empty).then_some(body),
            kept: Vec::new(),
            kept_bytes: 0,
            trailers: None,
            cap,
            is_over: size.lower() > cap,
            is_lost: false,
            is_broken: false,
            turn: 0,
            sender: None,
        };
        Self { shared: Arc::new(Mutex::new(state)), size, is_empty }
    }

    /// The body from its first byte, for one more send; an earlier one ends with an error. `None`: its beginning is gone.
    pub(super) fn send(&self) -> Option<Sending<B>> {
        let mut state = lock(&self.shared);
        state.supersede();
        (!state.is_lost).then(|| Sending {
            shared: self.shared.clone(),
            turn: state.turn,
            next: 0,
            sent: 0,
            is_done: false,
            size: self.size,
            is_empty: self.is_empty,
        })
    }

    /// The request has no body.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// How far the copy has come.
    pub(super) fn copy(&self) -> Copy {
        let state = lock(&self.shared);
        match &*state {
            State { is_over: true, .. } | State { is_lost: true, .. } => Copy::TooLarge,
            State { is_broken: false, source: None, .. } => Copy::Whole,
            _ => Copy::Unfinished,
        }
    }

    /// Its beginning is gone: it cannot be sent again.
    pub(super) fn is_lost(&self) -> bool {
        lock(&self.shared).is_lost
    }

    /// The client broke off in the middle of the body.
    pub(super) fn is_broken(&self) -> bool {
        lock(&self.shared).is_broken
    }

    /// Waits until the copy is whole, which it never becomes past the cap or once the client has broken off. Earlier sends
    /// end with an error.
    pub(super) async fn complete(&self) {
        lock(&self.shared).supersede();
        poll_fn(|cx| {
            let mut state = lock(&self.shared);
            while state.source.is_some() && !state.is_over {
                ready!(state.pull(cx));
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Reads what the client sends into the copy while the request waits for its slot. Returns only when the client breaks
    /// off: hyper hears of that no other way while the body is unread.
    pub(super) async fn fill(&self) {
        poll_fn(|cx| {
            let mut state = lock(&self.shared);
            loop {
                if state.is_broken {
                    return Poll::Ready(());
                }
                if state.source.is_none() || state.is_over || state.kept_bytes >= state.cap {
                    return Poll::Pending;
                }
                ready!(state.pull(cx));
            }
        })
        .await;
    }
}

/// How far the copy of a request body has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copy {
    /// All of it is kept.
    Whole,
    /// The client is still sending it.
    Unfinished,
    /// It passed the cap.
    TooLarge,
}

/// One send of the body.
#[derive(Debug)]
pub(super) struct Sending<B> {
    shared: Arc<Mutex<State<B>>>,
    turn: u64,
    next: usize,
    sent: u64,
    is_done: bool,
    size: SizeHint,
    is_empty: bool,
}

impl<B> Body for Sending<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let shared = self.shared.clone();
        let mut state = lock(&shared);
        if state.turn != self.turn {
            return Poll::Ready(Some(Err(BodyError::Superseded)));
        }
        loop {
            if let Some(data) = state.kept.get(self.next).cloned() {
                self.next += 1;
                self.sent += data.len() as u64;
                if state.is_over && self.next == state.kept.len() {
                    state.kept.clear();
                    state.is_lost = true;
                    self.next = 0;
                }
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if state.is_broken {
                return Poll::Ready(Some(Err(BodyError::Client)));
            }
            if state.source.is_none() {
                let trailers = if self.is_done { None } else { state.trailers.clone() };
                self.is_done = true;
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            if state.pull(cx).is_pending() {
                state.sender = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }

    /// A body of known length is over with its last byte, so that it keeps its `Content-Length`; a chunked one only when
    /// it says so, so that it stays chunked.
    fn is_end_stream(&self) -> bool {
        self.is_empty || self.size.exact().is_some_and(|size| self.sent >= size)
    }

    fn size_hint(&self) -> SizeHint {
        match self.size.exact() {
            Some(size) => SizeHint::with_exact(size.saturating_sub(self.sent)),
            None => SizeHint::new(),
        }
    }
}

/// Why a request body ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    /// The client broke off.
    #[error("the client broke off in the middle of its request")]
    Client,
    /// The request is being sent again.
    #[error("the request is being sent again")]
    Superseded,
}

#[derive(Debug)]
struct State<B> {
    /// `None` once it has ended.
    source: Option<B>,
    kept: Vec<Bytes>,
    kept_bytes: u64,
    trailers: Option<HeaderMap>,
    cap: u64,
    /// The copy has passed the cap, and goes as soon as it is sent.
    is_over: bool,
    /// Its beginning is gone.
    is_lost: bool,
    is_broken: bool,
    /// Only the newest [`Sending`] may read.
    turn: u64,
    /// The task of a [`Sending`] that waits. The source wakes only whoever read it last.
    sender: Option<Waker>,
}

impl<B> State<B> {
    /// Ends the [`Sending`] under way, whose task would otherwise keep its connection, and the body, for good.
    fn supersede(&mut self) {
        self.turn += 1;
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

impl<B> State<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Reads one frame of the source into the copy; a failure shows in `is_broken`.
    fn pull(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(source) = &mut self.source else { return Poll::Ready(()) };
        match ready!(Pin::new(source).poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.kept_bytes += data.len() as u64;
                    self.is_over |= self.kept_bytes > self.cap;
                    if !data.is_empty() {
                        self.kept.push(data);
                    }
                }
                Err(frame) => self.trailers = frame.into_trailers().ok().or(self.trailers.take()),
            },
            Some(Err(_)) => {
                self.is_broken = true;
                self.source = None;
            }
            None => self.source = None,
        }
        // A body of known length says so with its last byte; reading on would wait for nothing.
        if self.source.as_ref().is_some_and(Body::is_end_stream) {
            self.source = None;
        }
        Poll::Ready(())
    }
}

fn lock<B>(shared: &Mutex<State<B>>) -> MutexGuard<'_, State<B>> {
    // The state is whole after every statement: a panic elsewhere leaves nothing half done.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_like::now;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    use super::*;

    mod futures_like {
        use std::{
            future::Future,
            pin::pin,
            task::{Context, Poll, Waker},
        };

        /// The output of a future that is ready at once.
        pub(super) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
            match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            }
        }
    }

    /// A body whose frames come through a channel; `None` is a broken connection.
    struct Wire {
        frames: mpsc::UnboundedReceiver<Option<Frame<Bytes>>>,
        left: Option<u64>,
    }

    impl Body for Wire {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            match ready!(self.frames.poll_recv(cx)) {
                Some(Some(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                    self.left = self.left.map(|left| left - length);
                    Poll::Ready(Some(Ok(frame)))
                }
                Some(None) => Poll::Ready(Some(Err("broken"))),
                None => Poll::Ready(None),
            }
        }

        fn is_end_stream(&self) -> bool {
            self.left == Some(0)
        }

        fn size_hint(&self) -> SizeHint {
            self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
        }
    }

    type Feed = mpsc::UnboundedSender<Option<Frame<Bytes>>>;

    fn wire(length: Option<u64>, cap: u64) -> (Feed, Replay<Wire>) {
        let (feed, frames) = mpsc::unbounded_channel();
        (feed, Replay::new(Wire { frames, left: length }, cap))
    }

    fn data(feed: &Feed, text: &'static str) {
        feed.send(Some(Frame::data(Bytes::from_static(text.as_bytes())))).unwrap();
    }

    fn drain(mut sending: Sending<Wire>) -> (String, Option<Result<(), BodyError>>) {
        let mut frames = VecDeque::new();
        let end = loop {
            match now(sending.frame()) {
                Some(Some(Ok(frame))) => frames.push_back(frame),
                Some(Some(Err(error))) => break Some(Err(error)),
                Some(None) => break Some(Ok(())),
                None => break None,
            }
        };
        let text = frames.into_iter().map(|frame| match frame.into_data() {
            Ok(data) => String::from_utf8(data.to_vec()).unwrap(),
            Err(frame) => format!("|{:?}", frame.into_trailers().unwrap()),
        });
        (text.collect(), end)
    }

    #[test]
    fn streams_without_waiting_for_the_end_and_sends_again() {
        let (feed, replay) = wire(Some(6), 64);
        data(&feed, "abc");
        assert_eq!(drain(replay.send().unwrap()), ("abc".into(), None));
        assert_eq!(replay.copy(), Copy::Unfinished);
        data(&feed, "def");
        assert_eq!(drain(replay.send().unwrap()), ("abcdef".into(), Some(Ok(()))));
        assert_eq!(replay.copy(), Copy::Whole);
        assert_eq!(drain(replay.send().unwrap()), ("abcdef".into(), Some(Ok(()))));
    }

    #[test]
    fn trailers_come_again_too() {
        let (feed, replay) = wire(None, 64);
        data(&feed, "abc");
        feed.send(Some(Frame::trailers(HeaderMap::from_iter([(
            http::header::ETAG,
            http::HeaderValue::from_static("1"),
        )]))))
        .unwrap();
        drop(feed);
        let first = drain(replay.send().unwrap());
        assert_eq!(first, ("abc|{\"etag\": \"1\"}".into(), Some(Ok(()))));
        assert_eq!(drain(replay.send().unwrap()), first);
    }

    #[test]
    fn above_the_cap_it_is_sent_once() {
        let (feed, replay) = wire(None, 4);
        data(&feed, "abc");
        data(&feed, "def");
        data(&feed, "ghi");
        drop(feed);
        assert_eq!(drain(replay.send().unwrap()), ("abcdefghi".into(), Some(Ok(()))));
        assert_eq!(replay.copy(), Copy::TooLarge);
        assert!(replay.is_lost() && replay.send().is_none());
    }

    #[test]
    fn a_length_above_the_cap_is_known_before_a_byte_comes() {
        let (_feed, replay) = wire(Some(5), 4);
        assert_eq!(replay.copy(), Copy::TooLarge);
        assert!(replay.send().is_some() && replay.send().is_some(), "nothing of it is gone yet");
    }

    #[test]
    fn reading_ahead_loses_nothing_whatever_the_cap() {
        for cap in [0, 4, 64] {
            let (feed, replay) = wire(None, cap);
            data(&feed, "abc");
            data(&feed, "def");
            assert!(now(replay.fill()).is_none());
            data(&feed, "ghi");
            assert!(now(replay.fill()).is_none());
            drop(feed);
            assert_eq!(drain(replay.send().unwrap()), ("abcdefghi".into(), Some(Ok(()))), "cap {cap}");
        }
    }

    #[test]
    fn a_client_that_breaks_off_is_noticed() {
        let (feed, replay) = wire(Some(6), 64);
        data(&feed, "abc");
        assert!(now(replay.fill()).is_none());
        feed.send(None).unwrap();
        assert!(now(replay.fill()).is_some() && replay.is_broken());
        assert_eq!(drain(replay.send().unwrap()), ("abc".into(), Some(Err(BodyError::Client))));
        assert_eq!(replay.copy(), Copy::Unfinished);
    }

    #[test]
    fn only_the_newest_send_reads() {
        let (feed, replay) = wire(Some(3), 64);
        let old = replay.send().unwrap();
        let new = replay.send().unwrap();
        data(&feed, "abc");
        assert_eq!(drain(old), (String::new(), Some(Err(BodyError::Superseded))));
        assert_eq!(drain(new), ("abc".into(), Some(Ok(()))));
    }

    #[tokio::test]
    async fn a_send_that_waits_hears_that_it_is_over() {
        for is_for_good in [false, true] {
            let (feed, replay) = wire(Some(6), 64);
            data(&feed, "abc");
            let mut sending = replay.send().unwrap();
            let waits = tokio::spawn(async move {
                sending.frame().await.unwrap().unwrap();
                sending.frame().await.unwrap().map(drop)
            });
            tokio::task::yield_now().await;
            if is_for_good {
                assert!(now(replay.complete()).is_none());
            } else {
                replay.send().unwrap();
            }
            assert_eq!(waits.await.unwrap(), Err(BodyError::Superseded));
        }
    }

    #[test]
    fn framing_survives() {
        let (_feed, sized) = wire(Some(6), 64);
        let sending = sized.send().unwrap();
        assert_eq!((sending.size_hint().exact(), sending.is_end_stream()), (Some(6), false));
        let (feed, chunked) = wire(None, 64);
        data(&feed, "abc");
        drop(feed);
        let _ = now(chunked.fill());
        let sending = chunked.send().unwrap();
        assert_eq!(
            (sending.size_hint().exact(), sending.is_end_stream()),
            (None, false),
            "read to its end, still chunked"
        );
        let (_feed, empty) = wire(Some(0), 64);
        assert!(empty.is_empty() && empty.send().unwrap().is_end_stream());
        assert_eq!(empty.copy(), Copy::Whole);
    }
}

//! What ties an upstream connection to the client connection that used it last.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use super::{
    Origin,
    connection::{Context, Line},
};

/// The upstream connection that one client connection used last, kept for its next request.
///
/// A client that is busy gets its own back without a lock that others want, and without a task that would have to run in
/// between: the connection is put here with the head of its answer, and whether it is free again is asked when the next
/// request wants it. What a client leaves lying goes to the pool, and so does everything when the client closes: what is
/// dropped with the last clone.
///
/// For a client connection that carries one request at a time.
#[derive(Clone, Default)]
pub struct Tether(Arc<Slot>);

impl Tether {
    /// The connection to `origin`, if it is this one and can carry another request.
    pub(super) async fn take(&self, origin: &Origin, context: &Arc<Context>) -> Option<Line> {
        let mut line = self.0.lock().line.take_if(|line| line.leads_to(origin, context))?;
        if !line.parked.is_open(Instant::now()) {
            return None;
        }
        if line.parked.sender.is_ready() {
            return Some(line);
        }
        // The client has its answer whole, so hyper is about to say so; unless the client is still sending.
        match timeout(SETTLE, line.parked.sender.ready()).await {
            Ok(ready) => ready.is_ok().then_some(line),
            Err(_) => {
                line.release();
                None
            }
        }
    }

    /// Keeps a connection that is free, or soon will be, for the client's next request.
    pub(super) fn hold(&self, line: Line) {
        if line.parked.sender.is_closed() {
            return;
        }
        let rounds = line.context.rounds.clone();
        let mut slot = self.0.lock();
        let former = slot.line.replace(line);
        let is_watched = mem::replace(&mut slot.is_watched, true);
        drop(slot);
        if !is_watched {
            rounds.watch(&self.0);
        }
        if let Some(former) = former {
            former.release();
        }
    }
}

impl std::fmt::Debug for Tether {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tether")
    }
}

#[derive(Default)]
struct Slot(Mutex<Held>);

#[derive(Default)]
struct Held {
    line: Option<Line>,
    /// Whether the rounds come by.
    is_watched: bool,
}

impl Slot {
    /// Gives the pool what has been left lying at `now`; `false` when there is nothing to come back for.
    fn is_worth_another_look(&self, now: Instant) -> bool {
        let mut held = self.lock();
        if let Some(Line { parked, .. }) = &mut held.line
            && !parked.sender.is_closed()
        {
            if !parked.sender.is_ready() {
                // The origin's clock starts with the end of the exchange.
                parked.used = now;
            }
            if now.saturating_duration_since(parked.used) < LEFT_LYING {
                return true;
            }
        }
        held.is_watched = false;
        let left = held.line.take();
        drop(held);
        if let Some(line) = left {
            line.release();
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // No statement under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client is gone.
impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(line) = self.lock().line.take() {
            line.release();
        }
    }
}

/// Comes by the tethers that hold a connection. One task for all of them, while there are any: a timer for each, set anew
/// with every request, would cost the busy.
#[derive(Default)]
pub(super) struct Rounds(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    slots: Vec<Weak<Slot>>,
    /// Whether the task runs.
    is_going: bool,
}

impl Rounds {
    fn watch(self: &Arc<Self>, slot: &Arc<Slot>) {
        // A connection may be dropped after its runtime, which has then closed it.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut watched = self.lock();
        watched.slots.push(Arc::downgrade(slot));
        if !mem::replace(&mut watched.is_going, true) {
            runtime.spawn(make_rounds(Arc::downgrade(self)));
        }
    }

    /// One round; `false` when another would find nothing.
    fn make(&self) -> bool {
        // Looked at without the lock: the last clone of a tether may end here, and give up what it holds.
        let mut slots = mem::take(&mut self.lock().slots);
        let now = Instant::now();
        slots.retain(|slot| slot.upgrade().is_some_and(|slot| slot.is_worth_another_look(now)));
        let mut watched = self.lock();
        watched.slots.append(&mut slots);
        watched.is_going = !watched.slots.is_empty();
        watched.is_going
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn make_rounds(rounds: Weak<Rounds>) {
    loop {
        sleep(ROUND).await;
        if !rounds.upgrade().is_some_and(|rounds| rounds.make()) {
            return;
        }
    }
}

/// A worker that goes on with its work has sent the next request by then. For one that has not, the pool costs no more than
/// a lock, while a connection kept from others costs them a handshake.
const LEFT_LYING: Duration = Duration::from_millis(100);

const ROUND: Duration = Duration::from_millis(50);

/// Far more than hyper takes from the last byte of an answer to being ready, and nothing that a client would notice.
const SETTLE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::{body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;

    use super::{
        super::{Body, Connection, Scheme, pool::Pool},
        *,
    };

    /// Connections that know which they are, without sockets: on those, time that a test stops would run by itself.
    struct Site {
        context: Arc<Context>,
        opened: Mutex<u32>,
    }

    impl Site {
        fn open() -> Self {
            let second = Duration::from_secs(4);
            let context = Context { pool: Pool::new(), rounds: Arc::default(), idle: second, response_timeout: second };
            Self { context: Arc::new(context), opened: Mutex::new(0) }
        }

        async fn checkout(&self, tether: &Tether) -> Connection {
            let origin = Origin { scheme: Scheme::Http, host: std::net::IpAddr::from([127, 0, 0, 1]).into(), port: 80 };
            if let Some(line) = tether.take(&origin, &self.context).await {
                return Connection::reuse(line, tether.clone());
            }
            if let Some(parked) = self.context.pool.take(&origin) {
                return Connection::reuse(Line { parked, origin, context: self.context.clone() }, tether.clone());
            }
            let number = {
                let mut opened = self.opened.lock().unwrap();
                *opened += 1;
                *opened
            };
            let (near, far) = tokio::io::duplex(1024);
            let service = service_fn(move |_: Request<Incoming>| {
                std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(number.to_string())))))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(far), service));
            Connection::start(near, origin, self.context.clone(), tether.clone()).await.unwrap()
        }

        /// On which connection a request of that client goes.
        async fn ask(&self, tether: &Tether) -> String {
            let body = Body::new(Full::default().map_err(|never: Infallible| match never {}));
            let request = Request::get("/").header("host", "o").body(body).unwrap();
            let answer = self.checkout(tether).await.send(request).await.unwrap();
            String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_are_busy_keep_their_own() {
        let (site, one, other) = (Site::open(), Tether::default(), Tether::default());
        for _ in 0..200 {
            assert_eq!((site.ask(&one).await.as_str(), site.ask(&other).await.as_str()), ("1", "2"));
            sleep(LEFT_LYING - Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_leaves_lying_is_for_all() {
        let (site, one, other) = (Site::open(), Tether::default(), Tether::default());
        for _ in 0..3 {
            assert_eq!(site.ask(&one).await, "1");
            sleep(LEFT_LYING + 2 * ROUND).await;
            assert_eq!(site.ask(&other).await, "1");
            sleep(LEFT_LYING + 2 * ROUND).await;
        }
        sleep(Duration::from_secs(5)).await;
        assert_eq!(site.ask(&one).await, "2", "idle for too long");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_leaves_behind_is_for_all_at_once() {
        let site = Site::open();
        for _ in 0..100 {
            assert_eq!(site.ask(&Tether::default()).await, "1");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_is_no_more_lends_nothing() {
        let (old, new, client) = (Site::open(), Site::open(), Tether::default());
        assert_eq!(old.ask(&client).await, "1");
        new.checkout(&client).await;
        assert_eq!(*new.opened.lock().unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_makes_rounds_where_nothing_is_held() {
        let (site, client) = (Site::open(), Tether::default());
        site.ask(&client).await;
        assert!(site.context.rounds.lock().is_going);
        sleep(LEFT_LYING + 2 * ROUND).await;
        assert!(!site.context.rounds.lock().is_going);
    }
}

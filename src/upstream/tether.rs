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
    auth::Bond,
    connection::{Context, Line},
};

/// The upstream connections that belong to one client connection.
///
/// One is that which it used last. A client that is busy gets its own back without a lock that others want, and without a
/// task that would have to run in between: the connection is put here with the head of its answer, and whether it is free
/// again is asked when the next request wants it. What a client leaves lying goes to the pool, and so does everything when
/// the client closes: what is dropped with the last clone.
///
/// Others are [bound](Bond) to the client. They stay until either side closes.
///
/// For a client connection that carries one request at a time.
#[derive(Clone, Default)]
pub struct Tether(Arc<Slot>);

/// What a tether holds for a request.
pub(super) enum Taken {
    Line(Line),
    Nothing,
    /// The connection was lost on which the origin waits for the client's answer to its challenge.
    LostHandshake,
}

impl Tether {
    /// The connection to `origin`, if there is one that can carry another request.
    pub(super) async fn take(&self, origin: &Origin, context: &Arc<Context>) -> Taken {
        let Some(mut line) = self.0.lock().take(origin, context) else { return Taken::Nothing };
        let lost = if line.bond == Bond::Handshake { Taken::LostHandshake } else { Taken::Nothing };
        if !line.parked.is_open(Instant::now()) {
            return lost;
        }
        if line.parked.sender.is_ready() {
            return Taken::Line(line);
        }
        // The client has its answer whole, so hyper is about to say so; unless the client is still sending.
        match timeout(SETTLE, line.parked.sender.ready()).await {
            Ok(Ok(())) => Taken::Line(line),
            Ok(Err(_)) => lost,
            Err(_) => {
                line.release();
                lost
            }
        }
    }

    /// Keeps a connection that is free, or soon will be, for the client's next request.
    pub(super) fn hold(&self, line: Line) {
        // One that was lost in the middle of a handshake is needed to say so.
        if line.parked.sender.is_closed() && line.bond != Bond::Handshake {
            return;
        }
        let rounds = line.context.rounds.clone();
        let mut held = self.0.lock();
        let former = held.put(line);
        let is_watched = mem::replace(&mut held.is_watched, true);
        drop(held);
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
    /// At most one of them is free for others.
    lines: Vec<Line>,
    /// Whether the rounds come by.
    is_watched: bool,
}

impl Held {
    fn take(&mut self, origin: &Origin, context: &Arc<Context>) -> Option<Line> {
        let bound = self.lines.iter().position(|line| line.bond != Bond::Free && line.origin == *origin);
        let at = bound.or_else(|| self.lines.iter().position(|line| line.leads_to(origin, context)))?;
        Some(self.lines.swap_remove(at))
    }

    /// Returns what has to go for it.
    fn put(&mut self, line: Line) -> Option<Line> {
        let is_free = line.bond == Bond::Free;
        let alike = |other: &Line| (other.bond == Bond::Free) == is_free;
        let most = if is_free { 1 } else { MOST_BOUND };
        let is_full = self.lines.iter().filter(|line| alike(line)).count() >= most;
        let former = is_full.then(|| self.lines.iter().position(alike)).flatten();
        let former = former.map(|at| self.lines.remove(at));
        self.lines.push(line);
        former
    }
}

impl Slot {
    /// Gives the pool what has been left lying at `now`; `false` when there is nothing to come back for.
    fn is_worth_another_look(&self, now: Instant) -> bool {
        let mut held = self.lock();
        held.lines.retain(|line| !line.parked.sender.is_closed() || line.bond == Bond::Handshake);
        let mut is_busy = false;
        for parked in held.lines.iter_mut().map(|line| &mut line.parked) {
            if !parked.sender.is_ready() && !parked.sender.is_closed() {
                // The origin's clock starts with the end of the exchange.
                parked.used = now;
                is_busy = true;
            }
        }
        let free = held.lines.iter().position(|line| line.bond == Bond::Free);
        let left = free.filter(|at| now.saturating_duration_since(held.lines[*at].parked.used) >= LEFT_LYING);
        held.is_watched = is_busy || (free.is_some() && left.is_none());
        let is_watched = held.is_watched;
        let left = left.map(|at| held.lines.remove(at));
        drop(held);
        if let Some(line) = left {
            line.release();
        }
        is_watched
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // No statement under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client is gone.
impl Drop for Slot {
    fn drop(&mut self) {
        for line in mem::take(&mut self.lock().lines) {
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

/// Origins that one client connection can be logged in to.
const MOST_BOUND: usize = 8;

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
        super::{Body, Scheme, connection::Exclusive, pool::Pool},
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
            let context = Context {
                pool: Pool::new(),
                rounds: Arc::default(),
                idle: second,
                response_timeout: second,
                parent: None,
            };
            Self { context: Arc::new(context), opened: Mutex::new(0) }
        }

        async fn checkout(&self, tether: &Tether) -> Exclusive {
            let origin = Origin { scheme: Scheme::Http, host: std::net::IpAddr::from([127, 0, 0, 1]).into(), port: 80 };
            if let Taken::Line(line) = tether.take(&origin, &self.context).await {
                return Exclusive::reuse(line, tether.clone());
            }
            if let Some(parked) = self.context.pool.take(&origin) {
                return Exclusive::reuse(Line::free(parked, origin, self.context.clone()), tether.clone());
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
            Exclusive::start(near, origin, self.context.clone(), tether.clone()).await.unwrap()
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

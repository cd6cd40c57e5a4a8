//! Idle connections, kept for reuse.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use hyper::client::conn::http1::SendRequest;
use tokio::{runtime::Handle, time::Instant};

use super::{Origin, upload::Upload};

pub(super) type Sender = SendRequest<Upload>;

/// A connection between two exchanges, or at the end of one.
pub(super) struct Parked {
    pub(super) sender: Sender,
    /// When it was last in use, as far as is known.
    pub(super) used: Instant,
    /// How long from then on it may be used again; later the origin may be about to close it.
    pub(super) lasts: Duration,
}

impl Parked {
    /// Whether the origin has not closed it, nor may be about to.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        !self.sender.is_closed() && now.saturating_duration_since(self.used) < self.lasts
    }

    fn is_free(&self, now: Instant) -> bool {
        self.is_open(now) && self.sender.is_ready()
    }
}

/// The idle connections of all origins: bounded in time and number, last in first out, so that a burst's extra
/// connections age and go.
pub(super) struct Pool {
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    by_origin: HashMap<Origin, Vec<Parked>>,
    total: usize,
    /// Whether a task is waiting to close what has aged. There is one while there is something to close.
    reaper: bool,
}

impl Pool {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { idle: Mutex::default() })
    }

    /// The freshest idle connection to `origin` that is open.
    pub(super) fn take(&self, origin: &Origin) -> Option<Parked> {
        let now = Instant::now();
        let mut guard = self.lock();
        let idle = &mut *guard;
        let stack = idle.by_origin.get_mut(origin)?;
        while let Some(parked) = stack.pop() {
            idle.total -= 1;
            if parked.is_free(now) {
                return Some(parked);
            }
        }
        None
    }

    /// Keeps a connection for reuse. Beyond the bounds the oldest of its origin goes, or, when other origins fill the
    /// pool, itself.
    pub(super) fn park(self: &Arc<Self>, origin: Origin, parked: Parked) {
        // A connection may be dropped after its runtime, which has then closed it.
        let Ok(runtime) = Handle::try_current() else { return };
        if !parked.is_free(Instant::now()) {
            return;
        }
        let mut guard = self.lock();
        let idle = &mut *guard;
        let stack = idle.by_origin.entry(origin).or_default();
        if stack.len() >= MAX_PER_ORIGIN {
            stack.remove(0);
            idle.total -= 1;
        }
        if idle.total >= MAX_TOTAL {
            return;
        }
        stack.push(parked);
        idle.total += 1;
        if !std::mem::replace(&mut idle.reaper, true) {
            runtime.spawn(reap(Arc::downgrade(self)));
        }
    }

    /// Closes what has aged, and says when to look again; `None` when nothing is left.
    fn reap(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut guard = self.lock();
        let idle = &mut *guard;
        idle.by_origin.retain(|_, stack| {
            stack.retain(|parked| parked.is_open(now));
            !stack.is_empty()
        });
        idle.total = idle.by_origin.values().map(Vec::len).sum();
        let next = idle.by_origin.values().flatten().map(|parked| parked.used + parked.lasts).min();
        idle.reaper = next.is_some();
        next.map(|next| next.max(now + REAP_INTERVAL))
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        // No code panics while it holds the lock, and a half-told count would only loosen a bound.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a connection may be idle before it is used again, given the origin's `Keep-Alive` header. An origin that names
/// its own limit is left a margin: a request that crosses the close on its way is lost.
pub(super) fn reusable_for(idle: Duration, headers: &http::HeaderMap) -> Duration {
    let announced = headers.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok()).find_map(timeout);
    announced.map_or(idle, |announced| idle.min(announced.saturating_sub(CLOSE_MARGIN)))
}

/// The `timeout` parameter (RFC 2068 section 19.7.1.1), in seconds.
fn timeout(keep_alive: &str) -> Option<Duration> {
    keep_alive.split(',').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("timeout").then(|| Duration::from_secs(seconds))
    })
}

async fn reap(pool: Weak<Pool>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.reap()) {
        tokio::time::sleep_until(next).await;
    }
}

const MAX_PER_ORIGIN: usize = 256;

const MAX_TOTAL: usize = 2048;

/// Many connections that age one by one are closed together.
const REAP_INTERVAL: Duration = Duration::from_millis(200);

const CLOSE_MARGIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_of_our_limit_and_the_origins_holds() {
        for (header, seconds) in [
            ("timeout=5, max=100", 4),
            ("max=100, Timeout=3", 2),
            ("timeout=1", 0),
            ("timeout=0", 0),
            ("timeout=3600", 4),
            ("timeout=soon", 4),
            ("max=100", 4),
        ] {
            let headers =
                http::HeaderMap::from_iter([(http::HeaderName::from_static("keep-alive"), header.parse().unwrap())]);
            let lasts = reusable_for(Duration::from_secs(4), &headers);
            assert_eq!(lasts, Duration::from_secs(seconds), "{header}");
        }
    }
}

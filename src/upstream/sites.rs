//! What is known of the origins that may be spoken to in HTTP/2: which version they chose, and their connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Offer, Origin,
    http2::{Place, Session},
};

/// The origins, by themselves.
#[derive(Default)]
pub(super) struct Sites(Mutex<HashMap<Origin, Arc<Site>>>);

impl Sites {
    /// What is known of `origin`.
    pub(super) fn of(&self, origin: &Origin) -> Arc<Site> {
        let mut sites = lock(&self.0);
        if let Some(site) = sites.get(origin) {
            return site.clone();
        }
        // A wildcard has as many hosts as clients name. What is forgotten is found out again.
        if sites.len() >= MAX_SITES {
            sites.retain(|_, site| site.has_session());
        }
        let site = Arc::new(Site {
            origin: origin.clone(),
            gate: tokio::sync::Mutex::default(),
            state: Mutex::new(State { version: Version::Unknown, sessions: Vec::new() }),
        });
        sites.insert(origin.clone(), site.clone());
        site
    }
}

/// An origin that may choose HTTP/2.
pub(super) struct Site {
    origin: Origin,
    /// Held by the one who connects; the others wait for a place on that connection.
    gate: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

struct State {
    version: Version,
    /// Those that take requests, the oldest first. There is more than one only where one does not suffice.
    sessions: Vec<Arc<Session>>,
}

/// What an origin speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Nobody has asked it yet.
    Unknown,
    /// HTTP/1.1, by its choice of last time.
    Http1,
    /// HTTP/1.1 alone: it answered a request in HTTP/2 so (`HTTP_1_1_REQUIRED`), and is believed until then.
    Http1Required(Instant),
    /// HTTP/2.
    Http2,
}

impl Site {
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What to offer it.
    pub(super) fn offer(&self) -> Offer {
        match lock(&self.state).version {
            Version::Http1Required(until) if Instant::now() < until => Offer::Http1,
            _ => Offer::Http2,
        }
    }

    /// Whether every request needs a connection of its own, as far as is known.
    pub(super) fn wants_http1(&self) -> bool {
        match lock(&self.state).version {
            Version::Http1 => true,
            Version::Http1Required(until) => Instant::now() < until,
            Version::Unknown | Version::Http2 => false,
        }
    }

    /// It has chosen HTTP/1.1.
    pub(super) fn chose_http1(&self) {
        self.learn(Version::Http1);
    }

    /// It wants HTTP/1.1, whatever it is offered. Not for ever: it may have been one request of many that wanted it.
    pub(super) fn require_http1(&self) {
        self.learn(Version::Http1Required(Instant::now() + BELIEVED));
    }

    /// It has chosen HTTP/2, on a connection that is ready.
    pub(super) fn add(&self, session: Arc<Session>) {
        self.learn(Version::Http2);
        lock(&self.state).sessions.push(session);
    }

    /// A place on a connection that is there.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let mut state = lock(&self.state);
        state.sessions.retain(|session| session.is_open());
        state.sessions.iter().find_map(|session| session.place(self))
    }

    /// Waits for whoever is connecting, and keeps others from it meanwhile.
    pub(super) async fn gate(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    fn learn(&self, version: Version) {
        let mut state = lock(&self.state);
        let is_required = matches!(state.version, Version::Http1Required(until) if Instant::now() < until);
        if !is_required {
            state.version = version;
        }
    }

    fn has_session(&self) -> bool {
        lock(&self.state).sessions.iter().any(|session| session.is_open())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement under these locks leaves anything half done.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An origin that still wants it says so again, at the price of one request that is sent twice.
const BELIEVED: Duration = Duration::from_secs(600);

/// Many times the hosts of all OTAs.
const MAX_SITES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Scheme;

    #[tokio::test(start_paused = true)]
    async fn an_origin_that_wanted_http1_is_asked_again_later() {
        let origin = Origin { scheme: Scheme::Https, host: std::net::IpAddr::from([127, 0, 0, 1]).into(), port: 443 };
        let site = Sites::default().of(&origin);
        assert_eq!((site.wants_http1(), site.offer()), (false, Offer::Http2));
        site.require_http1();
        tokio::time::advance(BELIEVED - Duration::from_secs(1)).await;
        site.chose_http1();
        assert_eq!((site.wants_http1(), site.offer()), (true, Offer::Http1));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((site.wants_http1(), site.offer()), (false, Offer::Http2));
    }
}

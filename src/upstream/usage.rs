//! How much an HTTP/2 connection is used, towards either side: how many streams are open on it, and since when there is
//! none.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Counts the streams of one connection. Clones count together.
#[derive(Debug, Clone)]
pub struct Usage(watch::Sender<State>);

#[derive(Debug, Clone, Copy)]
struct State {
    open: usize,
    /// When the last one ended.
    since: Instant,
}

/// One stream, for as long as it lives.
#[derive(Debug)]
pub struct InUse(Usage);

impl Usage {
    /// Of a connection that has just been made.
    pub fn new() -> Self {
        Self(watch::Sender::new(State { open: 0, since: Instant::now() }))
    }

    /// Counts one more.
    pub fn begin(&self) -> InUse {
        self.0.send_modify(|state| state.open += 1);
        InUse(self.clone())
    }

    /// How many are open.
    pub fn number(&self) -> usize {
        self.0.borrow().open
    }

    /// Returns once there has been none for `limit`, counted from now.
    pub async fn none_for(&self, limit: Duration) {
        let begun = Instant::now();
        let mut states = self.0.subscribe();
        loop {
            let State { open, since } = *states.borrow_and_update();
            // The channel cannot close: one of its senders is here.
            if open > 0 {
                drop(states.changed().await);
            } else if timeout_at(begun.max(since) + limit, states.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| *state = State { open: state.open - 1, since: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_unused_only_while_no_stream_is_open() {
        let usage = Usage::new();
        let started = Instant::now();
        let (first, second) = (usage.begin(), usage.begin());
        let is_used = async |usage: &Usage| timeout(10 * LIMIT, usage.none_for(LIMIT)).await.is_err();
        assert!(is_used(&usage).await);
        drop(first);
        assert!(is_used(&usage).await, "another stream is open");
        let unused = usage.none_for(LIMIT);
        let ends = async {
            advance(LIMIT).await;
            drop(second);
            advance(LIMIT / 2).await;
            // One that is over at once is use as well.
            drop(usage.begin());
        };
        tokio::join!(unused, ends);
        assert_eq!((started.elapsed() - 20 * LIMIT).as_secs(), (5 * LIMIT / 2).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_before_counts_for_nothing() {
        let usage = Usage::new();
        advance(10 * LIMIT).await;
        let started = Instant::now();
        usage.none_for(LIMIT).await;
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
    }
}

//! Waiting for a state.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// Asks until there is an answer; fails the test where there is none within `patience`.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, patience: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {patience:?}");
        sleep(Duration::from_millis(10));
    }
}

//! What an OTA's answer says about its limits. Pure: nothing here reads a clock, draws a number or does I/O.

mod backoff;
mod retry_after;

use http::StatusCode;

pub use backoff::Backoff;
pub use retry_after::retry_after;

/// An answer that means "too fast".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleSignal {
    /// 429 (RFC 6585 section 4). Whatever the method, the request was refused and not acted on.
    TooManyRequests,
}

impl ThrottleSignal {
    /// Reads the status of an answer; `None` where it is no throttle signal.
    pub fn of(status: StatusCode) -> Option<Self> {
        (status == StatusCode::TOO_MANY_REQUESTS).then_some(Self::TooManyRequests)
    }

    /// The value of the `signal` label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooManyRequests => "429",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_429_throttles() {
        let signals: Vec<u16> =
            (100..1000).filter(|code| ThrottleSignal::of(StatusCode::from_u16(*code).unwrap()).is_some()).collect();
        assert_eq!(signals, [429]);
    }
}

//! What the OTA has been told to answer.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::ValueEnum;
use serde::Deserialize;

/// Answers for the next requests to one path, taken before any limit is looked at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) path: String,
    pub(crate) answers: Vec<Answer>,
}

/// One scripted answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    #[serde(default = "ok")]
    pub(crate) status: u16,
    /// `date+2`: the HTTP-date that lies two seconds ahead, rounded up. Anything else is sent as written.
    pub(crate) retry_after: Option<String>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Option<String>,
    /// A body of this many filler bytes, where there is no `body`.
    pub(crate) body_bytes: Option<u64>,
    pub(crate) latency_ms: Option<u64>,
    pub(crate) fault: Option<Fault>,
    /// Answer without reading the request's body.
    #[serde(default)]
    pub(crate) early: bool,
    /// How many requests it is for.
    #[serde(default = "once")]
    pub(crate) repeat: u32,
    /// Instead of `repeat`: it is for all requests that come within so many milliseconds of the first.
    pub(crate) for_ms: Option<u64>,
    /// Until when it is in use because of that, on the OTA's clock.
    #[serde(skip)]
    pub(crate) until_us: Option<u64>,
}

/// A way of failing instead of answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// Reset the connection (TCP RST) once the request has been read.
    Reset,
    /// Never answer.
    Stall,
    /// Close the connection after half of the body.
    CloseEarly,
}

/// Changes to how unscripted requests are answered; what is left out stays as it is.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) latency_ms: Option<u64>,
    pub(crate) body_bytes: Option<u64>,
    pub(crate) retry_after: Option<RetryAfterForm>,
}

/// How an excess request is told to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RetryAfterForm {
    /// Whole seconds, rounded up.
    Seconds,
    /// An HTTP-date, rounded up.
    Date,
    /// Not at all.
    None,
}

impl Answer {
    /// The `Retry-After` to send at `now`.
    pub(crate) fn retry_after(&self, now: SystemTime) -> Option<String> {
        let written = self.retry_after.as_ref()?;
        match written.strip_prefix("date+").map(str::parse) {
            Some(Ok(seconds)) => Some(http_date(now, Duration::from_secs(seconds))),
            _ => Some(written.clone()),
        }
    }
}

impl RetryAfterForm {
    /// The `Retry-After` for a request that fits after `wait`.
    pub(crate) fn render(self, now: SystemTime, wait: Duration) -> Option<String> {
        match self {
            Self::Seconds => Some(whole_seconds(wait).to_string()),
            Self::Date => Some(http_date(now, wait)),
            Self::None => None,
        }
    }
}

/// The first full second that is at least `ahead` of `now`, since HTTP dates know no fractions (RFC 9110 section 5.6.7).
fn http_date(now: SystemTime, ahead: Duration) -> String {
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default() + ahead;
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(whole_seconds(since_epoch)))
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

fn ok() -> u16 {
    200
}

fn once() -> u32 {
    1
}

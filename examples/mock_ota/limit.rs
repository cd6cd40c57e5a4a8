//! What an OTA allows, as written on the command line and to the control port.

use std::str::FromStr;

/// One limit, and the path it holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// An exact path, or `*` for all paths together.
    pub(crate) path: String,
    pub(crate) limit: Limit,
}

/// How much one credential may send. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Starts full, gains `count` tokens every `period`, holds at most `capacity`.
    Bucket { count: u64, period: u64, capacity: u64 },
    /// At most `count` in any `window`.
    Sliding { count: u64, window: u64 },
    /// At most `count` in each `window` of the wall clock.
    Clock { count: u64, window: u64 },
    /// At most `count` unanswered at a time.
    Concurrent { count: u64 },
}

impl Rule {
    /// Whether requests to `path` are counted by this rule.
    pub(crate) fn covers(&self, path: &str) -> bool {
        self.path == "*" || self.path == path
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, limit) = text.rsplit_once('=').ok_or("expected `PATH=KIND:...`")?;
        if path != "*" && !path.starts_with('/') {
            return Err(format!("the path `{path}` must be `*` or start with `/`"));
        }
        Ok(Self { path: path.to_owned(), limit: limit.parse()? })
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').ok_or("expected `KIND:...`")?;
        match kind {
            "bucket" => {
                let (rate, capacity) = rest.split_once(':').ok_or("expected `bucket:COUNT/PERIOD:CAPACITY`")?;
                let (count, period) = parse_rate(rate)?;
                Ok(Self::Bucket { count, period, capacity: parse_count(capacity)? })
            }
            "sliding" => parse_rate(rest).map(|(count, window)| Self::Sliding { count, window }),
            "clock" => parse_rate(rest).map(|(count, window)| Self::Clock { count, window }),
            "concurrent" => parse_count(rest).map(|count| Self::Concurrent { count }),
            _ => Err(format!("unknown kind of limit `{kind}`; known are bucket, sliding, clock, concurrent")),
        }
    }
}

fn parse_rate(text: &str) -> Result<(u64, u64), String> {
    let (count, period) = text.split_once('/').ok_or_else(|| format!("expected `COUNT/PERIOD`, got `{text}`"))?;
    Ok((parse_count(count)?, parse_period(period)?))
}

fn parse_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count @ 1..=MAX_COUNT) => Ok(count),
        _ => Err(format!("`{text}` is not a whole number from 1 to {MAX_COUNT}")),
    }
}

/// `s`, `60s`, `250ms`, `min`, `h`, `d`.
fn parse_period(text: &str) -> Result<u64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = match unit {
        "ms" => 1_000,
        "s" => SECOND,
        "min" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        "d" => 86_400 * SECOND,
        _ => return Err(format!("unknown unit in `{text}`; known are ms, s, min, h, d")),
    };
    let number = if number.is_empty() { 1 } else { parse_count(number)? };
    Ok(number * unit)
}

const SECOND: u64 = 1_000_000;

/// Keeps a period in microseconds inside 64 bits whatever its unit.
const MAX_COUNT: u64 = 100_000;

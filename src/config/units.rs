//! Units that operators write: rates, durations, sizes.

use std::{fmt, time::Duration};

use super::mistake::{Invalid, listed, nearest};

/// A refill rate of cost units, positive and finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    micros_per_unit: f64,
}

impl Rate {
    /// `count` units every `per`, `None` unless both are positive and finite.
    pub fn new(count: f64, per: Duration) -> Option<Self> {
        let micros_per_unit = per.as_secs_f64() * 1e6 / count;
        (micros_per_unit.is_finite() && micros_per_unit > 0.0).then_some(Self { micros_per_unit })
    }

    /// The time one unit takes to refill, in microseconds.
    pub fn interval_micros(self) -> f64 {
        self.micros_per_unit
    }

    /// Units per second.
    pub fn per_second(self) -> f64 {
        1e6 / self.micros_per_unit
    }

    /// The same rate times `factor`, which must be positive and finite.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { micros_per_unit: self.micros_per_unit / factor }
    }
}

/// In the shortest period that gives a number worth reading: `20/s`, `0.5/s`, `5000/h`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, seconds) in [("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)] {
            let count = self.per_second() * seconds;
            let rounded = (count * 100.0).round() / 100.0;
            if rounded > 0.0 && (count - rounded).abs() <= count * 1e-9 {
                return write!(f, "{rounded}/{unit}");
            }
        }
        write!(f, "{:.6}/s", self.per_second())
    }
}

/// `20/s`, `0.5/s`, `300/min`, `5000/h`, `10000/d`, `1/90s`.
pub(super) fn rate(text: &str) -> Result<Rate, Invalid> {
    let Some((count, per)) = text.split_once('/') else {
        return Err(Invalid::new("a rate is a number per period", RATE_HINT));
    };
    let per = per.trim();
    let period = match per {
        "s" | "sec" | "second" => Duration::from_secs(1),
        "m" | "min" | "minute" => Duration::from_secs(60),
        "h" | "hour" => Duration::from_secs(3_600),
        "d" | "day" => Duration::from_secs(86_400),
        _ if per.starts_with(|c: char| c.is_ascii_digit()) => duration(per)?,
        _ => {
            let guess = nearest(per, SPELLINGS).map(|unit| format!("did you mean `/{unit}`? ")).unwrap_or_default();
            let hint = format!("{guess}a period is {} or a duration such as `90s`", listed(PERIODS, "or"));
            return Err(Invalid::new("unknown period in a rate", hint));
        }
    };
    let count = decimal(count).filter(|count| *count > 0.0);
    let Some(rate) = count.and_then(|count| Rate::new(count, period)) else {
        return Err(Invalid::new("a rate needs a positive number", RATE_HINT));
    };
    if !(SLOWEST..=FASTEST).contains(&rate.per_second()) {
        return Err(Invalid::new("no rate that can be kept", "a rate lies between 1 a year and 1000000 a second"));
    }
    Ok(rate)
}

/// A duration as `humantime` reads it, at most a year.
pub(super) fn duration(text: &str) -> Result<Duration, Invalid> {
    if decimal(text).is_some_and(|number| number != 0.0) {
        return Err(Invalid::new("a duration needs a unit", DURATION_HINT));
    }
    let duration = humantime::parse_duration(text.trim()).map_err(|_| Invalid::new("not a duration", DURATION_HINT))?;
    if duration > LONGEST {
        return Err(Invalid::new("longer than a year", DURATION_HINT));
    }
    Ok(duration)
}

/// A duration above zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, Invalid> {
    let duration = duration(text)?;
    if duration.is_zero() {
        return Err(Invalid::new("must be longer than zero", DURATION_HINT));
    }
    Ok(duration)
}

/// `1MiB`, `64KiB`, `1MB` or plain bytes.
pub(super) fn size(text: &str) -> Result<u64, Invalid> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let Ok(number) = number.parse::<u64>() else {
        return Err(Invalid::new("a size is a whole number of bytes, maybe with a unit", SIZE_HINT));
    };
    let factor = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        unit => {
            let guess = nearest(unit, SIZES).map(|unit| format!("did you mean `{unit}`? ")).unwrap_or_default();
            return Err(Invalid::new("unknown unit of a size", format!("{guess}units are {}", listed(SIZES, "and"))));
        }
    };
    number.checked_mul(factor).ok_or_else(|| Invalid::new("the size is too large", SIZE_HINT))
}

/// A plain decimal number: no exponent, no sign, no `inf`.
pub(super) fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    text.parse().ok()
}

const PERIODS: [&str; 4] = ["s", "min", "h", "d"];
const SPELLINGS: [&str; 8] = ["s", "sec", "second", "min", "minute", "hour", "d", "day"];
const SIZES: [&str; 7] = ["B", "kB", "KiB", "MB", "MiB", "GB", "GiB"];
const RATE_HINT: &str = "for example `20/s`, `300/min`, `5000/h`, `10000/d` or `1/90s`";
const DURATION_HINT: &str = "for example `250ms`, `5s`, `2m` or `1h 30m`";
const SIZE_HINT: &str = "for example `1MiB`, `64KiB` or `65536`";
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
const FASTEST: f64 = 1_000_000.0;
const SLOWEST: f64 = 1.0 / (365.0 * 86_400.0 + 1.0);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates() {
        for (text, shown) in [
            ("20/s", "20/s"),
            ("0.5/s", "0.5/s"),
            ("300/min", "5/s"),
            ("5000/h", "5000/h"),
            ("10000/d", "10000/d"),
            ("1/90s", "40/h"),
            (" 3 / second", "3/s"),
        ] {
            assert_eq!(rate(text).unwrap().to_string(), shown, "{text}");
        }
        assert_eq!(rate("1/250ms").unwrap().interval_micros(), 250_000.0);
        for text in
            ["", "20", "/s", "20/", "20/fortnight", "0/s", "-1/s", "1e3/s", "inf/s", "1/0s", "1/800d", "2000000/s", "."]
        {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_safety_factor_scales_the_rate() {
        assert_eq!(rate("20/s").unwrap().scaled(0.9).to_string(), "18/s");
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1h 30m").unwrap(), Duration::from_secs(5_400));
        assert_eq!(duration("0s").unwrap(), Duration::ZERO);
        assert_eq!(duration("5").unwrap_err().message, "a duration needs a unit");
        for text in ["", "soon", "5 fortnights", "400d", "-5s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("65536", 65_536), ("64KiB", 65_536), ("1 MiB", 1_048_576), ("1MB", 1_000_000), ("0", 0)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "1Mb", "99999999999GiB", "-1"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}", units in "[0-9./ smhdkKMGiB]{0,12}") {
            for text in [&text, &units] {
                let _ = (rate(text), duration(text), size(text));
            }
        }

        #[test]
        fn a_rate_shown_is_a_rate_read(count in 1u32..100_000, per in 0usize..4) {
            let rate = rate(&format!("{count}/{}", PERIODS[per])).unwrap();
            let again = super::rate(&rate.to_string()).unwrap();
            prop_assert!((again.per_second() / rate.per_second() - 1.0).abs() < 0.01);
        }
    }
}

//! `Retry-After` (RFC 9110 section 10.2.3), as servers really write it.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header};

/// How long the answer asks to wait; `None` where it does not say, or says nothing that makes sense.
///
/// Whole seconds, decimals (rounded up to a whole second, as Shopify and others send them) and the three forms of an
/// HTTP-date. A date counts from the answer's own `Date`, so that the two clocks need not agree, else from `now`; one in the
/// past is zero. Of several fields the longest wait holds. Huge values saturate: the caller caps them.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let sent = headers.get(header::DATE).and_then(http_date).unwrap_or(now);
    headers.get_all(header::RETRY_AFTER).iter().filter_map(|value| wait(value, sent)).max()
}

fn wait(value: &HeaderValue, sent: SystemTime) -> Option<Duration> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    seconds(text).or_else(|| Some(http_date(value)?.duration_since(sent).unwrap_or(Duration::ZERO)))
}

/// `120`, `1.5`, `.5`, `2.`; not a sign, an exponent or a unit.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    // Only overflow can fail here.
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().unwrap_or(u64::MAX) };
    let up = u64::from(fraction.bytes().any(|byte| byte != b'0'));
    Some(Duration::from_secs(whole.saturating_add(up)))
}

fn http_date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?.trim_matches([' ', '\t'])).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110 section 5.6.7.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    fn parsed(values: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::RETRY_AFTER, HeaderValue::from_str(value).unwrap());
        }
        retry_after(&headers, now()).map(|wait| wait.as_secs())
    }

    #[test]
    fn seconds_and_decimals() {
        for (text, wait) in [
            ("120", 120),
            ("0", 0),
            (" 7\t", 7),
            ("007", 7),
            ("1.5", 2),
            ("2.0", 2),
            ("0.129", 1),
            (".5", 1),
            ("3.", 3),
            ("9999999999", 9_999_999_999),
            ("99999999999999999999999999", u64::MAX),
            ("18446744073709551615.1", u64::MAX),
        ] {
            assert_eq!(parsed(&[text]), Some(wait), "{text:?}");
        }
    }

    #[test]
    fn the_three_forms_of_a_date() {
        for text in ["Sun, 06 Nov 1994 08:50:07 GMT", "Sunday, 06-Nov-94 08:50:07 GMT", "Sun Nov  6 08:50:07 1994"] {
            assert_eq!(parsed(&[text]), Some(30), "{text:?}");
        }
        assert_eq!(parsed(&["Sun, 06 Nov 1994 08:00:00 GMT"]), Some(0), "a date in the past is over");
    }

    #[test]
    fn a_date_counts_from_the_date_of_the_answer() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("Sat, 06 Nov 2094 08:50:07 GMT"));
        headers.insert(header::DATE, HeaderValue::from_static("Sat, 06 Nov 2094 08:49:37 GMT"));
        assert_eq!(retry_after(&headers, now()), Some(Duration::from_secs(30)));
        headers.insert(header::DATE, HeaderValue::from_static("soon"));
        assert!(retry_after(&headers, now()).unwrap() > Duration::from_secs(1_000_000), "junk in `Date` is ignored");
    }

    #[test]
    fn junk_is_absent() {
        for text in
            ["", "-1", "+1", "1e3", "5s", "soon", ".", "1.2.3", "0x10", "NaN", "5, 6", "Sun, 99 Nov 1994 08:50:07 GMT"]
        {
            assert_eq!(parsed(&[text]), None, "{text:?}");
        }
        assert_eq!(parsed(&[]), None);
    }

    #[test]
    fn of_several_the_longest() {
        assert_eq!(parsed(&["3", "soon", "Sun, 06 Nov 1994 08:50:07 GMT", "7"]), Some(30));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(value in proptest::collection::vec(any::<u8>(), 0..64), date in ".{0,40}") {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(header::RETRY_AFTER, value);
            }
            if let Ok(date) = HeaderValue::from_str(&date) {
                headers.append(header::RETRY_AFTER, date.clone());
                headers.append(header::DATE, date);
            }
            let _ = retry_after(&headers, now());
        }

        #[test]
        fn whole_seconds_come_back(seconds in any::<u64>()) {
            prop_assert_eq!(parsed(&[&seconds.to_string()]), Some(seconds));
        }
    }
}

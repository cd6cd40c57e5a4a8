//! What a client tells the proxy about its own requests: how long it would wait, and whether somebody waits for the answer.
//! None of it goes on to the origin.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::GeneralPurpose};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::headers::retain;
use crate::config::model::Class;

/// Takes `X-Pacer-Max-Wait` off a request: the longest it may be held, in seconds (`0`, `2`, `0.25`) or with units
/// (`250ms`, `1m 30s`).
///
/// # Errors
/// When there is more than one, or what it says is no duration.
pub(super) fn take_max_wait(headers: &mut HeaderMap) -> Result<Option<Duration>, PreferenceError> {
    take(headers, &MAX_WAIT)?.map(|value| read_duration(&value).ok_or(PreferenceError::MaxWait)).transpose()
}

/// Takes the class off a request or a CONNECT: what the header `name` says; without it, what the user name in the proxy's
/// URL does, which arrives as `Proxy-Authorization: Basic`. Other user names say nothing: they may be credentials of some
/// other proxy's.
///
/// # Errors
/// When there is more than one such header, or it names no class.
pub(super) fn take_class(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<Class>, PreferenceError> {
    let named = take(headers, name)?
        .map(|value| class(value.as_bytes()).ok_or_else(|| PreferenceError::Class(name.clone())))
        .transpose()?;
    Ok(named.or_else(|| headers.get(header::PROXY_AUTHORIZATION).and_then(class_of_user)))
}

/// Why a preference is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PreferenceError {
    /// `X-Pacer-Max-Wait` with anything but a duration.
    #[error("`X-Pacer-Max-Wait` holds no duration")]
    MaxWait,
    /// The priority header with anything but a class.
    #[error("`{0}` names no class")]
    Class(HeaderName),
    /// A header that can only mean one thing, twice.
    #[error("`{0}` is there more than once")]
    Repeated(HeaderName),
}

fn take(headers: &mut HeaderMap, name: &HeaderName) -> Result<Option<HeaderValue>, PreferenceError> {
    let is_repeated = headers.get_all(name).iter().nth(1).is_some();
    let value = headers.get(name).cloned();
    retain(headers, |field| field != name);
    if is_repeated { Err(PreferenceError::Repeated(name.clone())) } else { Ok(value) }
}

/// A wait that no clock can hold is no limit at all: the header never lengthens, so that it means nothing.
fn read_duration(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if text.bytes().any(|byte| byte.is_ascii_digit()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        let seconds = text.parse().ok()?;
        return Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    }
    humantime::parse_duration(text).ok()
}

fn class(text: &[u8]) -> Option<Class> {
    let text = text.trim_ascii();
    let is = |name: &str| text.eq_ignore_ascii_case(name.as_bytes());
    if is("interactive") {
        Some(Class::Interactive)
    } else if is("batch") {
        Some(Class::Batch)
    } else {
        None
    }
}

fn class_of_user(authorization: &HeaderValue) -> Option<Class> {
    let (scheme, credentials) = authorization.to_str().ok()?.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64.decode(credentials.trim()).ok()?;
    class(decoded.split(|byte| *byte == b':').next()?)
}

const MAX_WAIT: HeaderName = HeaderName::from_static("x-pacer-max-wait");

/// Clients differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    base64::engine::GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use base64::prelude::BASE64_STANDARD;
    use proptest::prelude::*;

    use super::*;

    const PRIORITY: HeaderName = HeaderName::from_static("x-pacer-priority");

    fn headers(fields: &[(&HeaderName, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn basic(user: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(user))
    }

    #[test]
    fn waits_are_seconds_or_durations() {
        for (text, millis) in
            [("0", 0), (" 2 ", 2000), ("0.25", 250), (".5", 500), ("250ms", 250), ("0s", 0), ("1m 30s", 90_000)]
        {
            let mut headers = headers(&[(&MAX_WAIT, text)]);
            assert_eq!(take_max_wait(&mut headers), Ok(Some(Duration::from_millis(millis))), "{text}");
            assert!(headers.is_empty(), "it is not forwarded");
        }
        let forever = take_max_wait(&mut headers(&[(&MAX_WAIT, &"9".repeat(400))]));
        assert_eq!(forever, Ok(Some(Duration::MAX)));
        assert_eq!(take_max_wait(&mut HeaderMap::new()), Ok(None));
    }

    #[test]
    fn the_other_fields_keep_their_order() {
        let rest = [header::HOST, header::ACCEPT, header::USER_AGENT, header::CONTENT_LENGTH];
        let [host, accept, agent, length] = &rest;
        let mut headers =
            headers(&[(host, "a"), (&MAX_WAIT, "1"), (accept, "b"), (&PRIORITY, "batch"), (agent, "c"), (length, "0")]);
        take_max_wait(&mut headers).unwrap();
        take_class(&mut headers, &PRIORITY).unwrap();
        assert!(headers.keys().eq(&rest), "{headers:?}");
    }

    #[test]
    fn other_waits_are_refused() {
        for text in ["", ".", "-1", "+1", "1e3", "1.2.3", "inf", "NaN", "soon", "5 parsecs", "1,5"] {
            assert_eq!(take_max_wait(&mut headers(&[(&MAX_WAIT, text)])), Err(PreferenceError::MaxWait), "{text}");
        }
        let twice = take_max_wait(&mut headers(&[(&MAX_WAIT, "1"), (&MAX_WAIT, "1")]));
        assert_eq!(twice, Err(PreferenceError::Repeated(MAX_WAIT)));
    }

    #[test]
    fn the_header_names_the_class() {
        for (text, class) in [("batch", Class::Batch), ("BATCH", Class::Batch), (" Interactive", Class::Interactive)] {
            let mut headers = headers(&[(&PRIORITY, text)]);
            assert_eq!(take_class(&mut headers, &PRIORITY), Ok(Some(class)), "{text}");
            assert!(headers.is_empty(), "it is not forwarded");
        }
        for text in ["", "high", "batch, interactive"] {
            let error = take_class(&mut headers(&[(&PRIORITY, text)]), &PRIORITY);
            assert_eq!(error, Err(PreferenceError::Class(PRIORITY)), "{text}");
        }
    }

    #[test]
    fn the_user_name_names_the_class_where_the_header_does_not() {
        let of = |value: &str| take_class(&mut headers(&[(&header::PROXY_AUTHORIZATION, value)]), &PRIORITY).unwrap();
        assert_eq!(of(&basic("batch:")), Some(Class::Batch));
        assert_eq!(of(&basic("Batch")), Some(Class::Batch));
        assert_eq!(of(&basic("interactive:secret")), Some(Class::Interactive));
        assert_eq!(of("basic YmF0Y2g6Og"), Some(Class::Batch), "unpadded");
        for value in [basic("alice:batch"), basic(":batch"), "Basic ???".into(), "Bearer batch".into(), "batch".into()]
        {
            assert_eq!(of(&value), None, "{value}");
        }
        let mut both = headers(&[(&PRIORITY, "interactive"), (&header::PROXY_AUTHORIZATION, &basic("batch:"))]);
        assert_eq!(take_class(&mut both, &PRIORITY), Ok(Some(Class::Interactive)));
    }

    proptest! {
        #[test]
        fn no_preference_panics(text in "[ -~]{0,40}") {
            let _ = take_max_wait(&mut headers(&[(&MAX_WAIT, &text)]));
            let _ = take_class(&mut headers(&[(&header::PROXY_AUTHORIZATION, &text)]), &PRIORITY);
        }
    }
}

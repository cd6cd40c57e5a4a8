//! Reads single values out of a request's head.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, HeaderName};

/// The first value of a header, without the space around it.
pub(super) fn header(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    Some(headers.get(name)?.as_bytes().trim_ascii().to_vec())
}

/// The first parameter of a query called `name`, decoded, so that two spellings of a value are one.
pub(super) fn parameter(query: &str, name: &str) -> Option<Vec<u8>> {
    query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find(|(key, _)| *decoded(key, Plus::IsSpace) == *name.as_bytes())
        .map(|(_, value)| decoded(value, Plus::IsSpace).into_owned())
}

/// The segment of `path` with this number, counted from 0, decoded; `None` when there is none.
pub(super) fn segment(path: &str, at: usize) -> Option<Vec<u8>> {
    Some(decoded(path.split('/').skip(1).nth(at)?, Plus::IsPlus).into_owned())
}

/// The user-id of `Basic` credentials: what stands before the first colon (RFC 7617 section 2). The scheme is
/// case-insensitive (RFC 9110 section 11.1).
pub(super) fn basic_user(authorization: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = authorization.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) || rest.first() != Some(&b' ') {
        return None;
    }
    let mut user = BASE64.decode(rest.trim_ascii()).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    user.truncate(colon);
    Some(user)
}

/// The first `name=value` among the parameters of an `Authorization` header of any scheme, quoted or not. Commas separate
/// the parameters, names are case-insensitive (RFC 9110 section 11.2).
pub(super) fn authorization_parameter(authorization: &[u8], name: &str) -> Option<Vec<u8>> {
    let authorization = authorization.trim_ascii();
    let scheme = authorization.iter().position(|byte| *byte == b' ')?;
    let mut rest = &authorization[scheme..];
    while !rest.is_empty() {
        let (parameter, after) = rest.split_at(end_of_parameter(rest));
        rest = after.get(1..).unwrap_or_default();
        let Some(equals) = parameter.iter().position(|byte| *byte == b'=') else { continue };
        // A quoted value may hold `=`, and an unquoted one as well: base64 ends with it.
        let (key, value) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
        if key.eq_ignore_ascii_case(name.as_bytes()) {
            return Some(unquoted(value));
        }
    }
    None
}

/// The position of the first comma outside of quotes, or the length.
fn end_of_parameter(text: &[u8]) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    let is_end = |byte: &u8| {
        match byte {
            _ if std::mem::take(&mut escaped) => {}
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' => return !quoted,
            _ => {}
        }
        false
    };
    text.iter().position(is_end).unwrap_or(text.len())
}

/// What a quoted-string stands for (RFC 9110 section 5.6.4); anything else as it is.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let Some(inner) = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) else {
        return value.to_vec();
    };
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        out.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    out
}

/// What `+` stands for: a space in a query (application/x-www-form-urlencoded), itself in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    IsSpace,
    IsPlus,
}

/// Percent-decoding; a `%` that escapes nothing stays.
fn decoded(text: &str, plus: Plus) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let escaped = || std::str::from_utf8(after.get(..2)?).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = after;
        match byte {
            b'+' if plus == Plus::IsSpace => out.push(b' '),
            b'%' => match escaped() {
                Some(value) => {
                    out.push(value);
                    rest = &after[2..];
                }
                None => out.push(b'%'),
            },
            byte => out.push(*byte),
        }
    }
    Cow::Owned(out)
}

const BASIC: &[u8] = b"Basic";
/// Some clients leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(bytes: Option<Vec<u8>>) -> Option<String> {
        bytes.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_user_of_basic_authorization() {
        for (value, user) in [
            // `hotel:p:w`, padded, unpadded, in another case.
            ("Basic aG90ZWw6cDp3", Some("hotel")),
            ("basic   aG90ZWw6cHc=", Some("hotel")),
            ("BASIC aG90ZWw6cHc", Some("hotel")),
            ("Basic aG90ZWw=", None),
            ("Basic !!", None),
            ("Basicx aG90ZWw6cHc=", None),
            ("Bearer aG90ZWw6cHc=", None),
            ("Basic", None),
        ] {
            assert_eq!(text(basic_user(value.as_bytes())).as_deref(), user, "{value}");
        }
    }

    #[test]
    fn one_parameter_of_authorization() {
        for (value, key) in [
            // As Expedia Rapid is signed: the signature and the time change, the key does not.
            ("EAN APIKey=k1,Signature=0f3c,timestamp=1700000000", Some("k1")),
            ("EAN Signature=0f3c, timestamp=1700000001 , apikey = k1", Some("k1")),
            ("Hawk id=\"x\", APIKey=\"k1\", mac=\"a=\"", Some("k1")),
            ("X APIKey=\"a,b \\\"c\\\" \\\\\",z=1", Some("a,b \"c\" \\")),
            ("X note=\"APIKey=forged,APIKey=forged\",APIKey=k1", Some("k1")),
            ("X APIKey=abc==", Some("abc==")),
            ("X APIKey=", Some("")),
            ("X ,,APIKey=k1", Some("k1")),
            ("X APIKey=k1,APIKey=k2", Some("k1")),
            ("X APIKey=\"open", Some("\"open")),
            ("X APIKeys=k1,MyAPIKey=k2", None),
            ("Bearer APIKey", None),
            ("Basic aG90ZWw6cHc=", None),
            ("APIKey=k1", None),
            ("", None),
        ] {
            assert_eq!(text(authorization_parameter(value.as_bytes(), "APIKey")).as_deref(), key, "{value}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_one_value() {
        for (query, value) in [
            ("a=1&apiKey=k%31&apiKey=z", Some("k1")),
            ("api%4bey=a+b%", Some("a b%")),
            ("apiKey", Some("")),
            ("apikey=k", None),
            ("", None),
        ] {
            assert_eq!(text(parameter(query, "apiKey")).as_deref(), value, "{query}");
        }
        for (path, value) in [("/a/b%2Fc%20d/e", Some("b/c d")), ("/a/b+c", Some("b+c")), ("/a", None), ("*", None)] {
            assert_eq!(text(segment(path, 1)).as_deref(), value, "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}", short in "[a=&%+0-9é/]{0,16}", header in "[aA =,\"\\\\é]{0,16}", at in 0usize..4) {
            for text in [&text, &short, &header] {
                let _ = (basic_user(text.as_bytes()), authorization_parameter(text.as_bytes(), "a"));
                let _ = (parameter(text, "a"), segment(text, at));
            }
        }

        /// However a client quotes a value, it is the same.
        #[test]
        fn a_quoted_value_is_read_back(value in "[ -~]{0,16}", before in "[a-z]{1,4}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let header = format!("X {before}=\"{quoted}\", Key=\"{quoted}\", z=1");
            prop_assume!(before != "key");
            prop_assert_eq!(authorization_parameter(header.as_bytes(), "key"), Some(value.into_bytes()));
        }
    }
}

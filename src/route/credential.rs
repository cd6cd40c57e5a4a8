//! What the OTA counts a request by.

use std::{borrow::Cow, fmt};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretSlice};

use crate::config::model::Credential;

/// The value of a credential. Wiped from memory when dropped; never printed.
pub struct CredentialValue(SecretSlice<u8>);

impl CredentialValue {
    /// Takes the credential out of a request; `None` when it is not there or cannot be read.
    pub(super) fn of(credential: &Credential, query: Option<&str>, headers: &HeaderMap) -> Option<Self> {
        let value = match credential {
            Credential::BasicUser => basic_user(headers.get(AUTHORIZATION)?.as_bytes())?,
            Credential::Header(name) => headers.get(name)?.as_bytes().trim_ascii().to_vec(),
            Credential::Query(name) => parameter(query?, name)?,
            Credential::AuthorizationParam(name) => {
                authorization_parameter(headers.get(AUTHORIZATION)?.as_bytes(), name)?
            }
            Credential::Label(label) => label.clone().into_bytes(),
        };
        Some(Self(SecretSlice::from(value)))
    }

    /// The value itself, to be hashed.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for CredentialValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialValue([redacted])")
    }
}

/// The user-id of `Basic` credentials: what stands before the first colon (RFC 7617 section 2). The scheme is
/// case-insensitive (RFC 9110 section 11.1).
fn basic_user(authorization: &[u8]) -> Option<Vec<u8>> {
    let (scheme, rest) = authorization.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) || rest.first() != Some(&b' ') {
        return None;
    }
    let mut user = BASE64.decode(rest.trim_ascii()).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    user.truncate(colon);
    Some(user)
}

/// The value of `name=value` among the parameters of an `Authorization` header, which commas separate (RFC 9110 section
/// 11.4); quoted or not. Parameter names are case-insensitive.
fn authorization_parameter(authorization: &[u8], name: &str) -> Option<Vec<u8>> {
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    authorization[space..].split(|byte| *byte == b',').find_map(|parameter| {
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        key.eq_ignore_ascii_case(name.as_bytes()).then(|| unquoted.to_vec())
    })
}

/// The first parameter called `name`, decoded, so that two spellings of a value are one credential.
fn parameter(query: &str, name: &str) -> Option<Vec<u8>> {
    query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .find(|(key, _)| *form_decoded(key) == *name.as_bytes())
        .map(|(_, value)| form_decoded(value).into_owned())
}

/// Percent-decoding with `+` for a space (application/x-www-form-urlencoded); a `%` that escapes nothing stays.
fn form_decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let escaped = || std::str::from_utf8(after.get(..2)?).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = after;
        match byte {
            b'+' => out.push(b' '),
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
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn of(credential: Credential, query: Option<&str>, header: Option<(&'static str, &str)>) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let value = CredentialValue::of(&credential, query, &headers)?;
        Some(String::from_utf8(value.expose().to_vec()).unwrap())
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
            assert_eq!(of(Credential::BasicUser, None, Some(("authorization", value))).as_deref(), user, "{value}");
        }
        assert_eq!(of(Credential::BasicUser, None, None), None);
    }

    #[test]
    fn headers_parameters_and_labels() {
        let header = Credential::Header(HeaderName::from_static("api-key"));
        assert_eq!(of(header.clone(), None, Some(("api-key", " k1 "))).as_deref(), Some("k1"));
        assert_eq!(of(header, None, None), None);
        let query = || Credential::Query("apiKey".to_owned());
        assert_eq!(of(query(), Some("a=1&apiKey=k%31&apiKey=z"), None).as_deref(), Some("k1"));
        assert_eq!(of(query(), Some("api%4bey=a+b%"), None).as_deref(), Some("a b%"));
        assert_eq!(of(query(), Some("apikey=k"), None), None);
        assert_eq!(of(query(), None, None), None);
        assert_eq!(of(Credential::Label("all".to_owned()), None, None).as_deref(), Some("all"));
    }

    #[test]
    fn a_value_is_never_printed() {
        let value = CredentialValue::of(&Credential::Label("secret".to_owned()), None, &HeaderMap::new()).unwrap();
        assert_eq!(format!("{value:?}"), "CredentialValue([redacted])");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}", query in "[a=&%+0-9é]{0,16}") {
            for text in [&text, &query] {
                let _ = (basic_user(text.as_bytes()), parameter(text, "a"));
            }
        }
    }
}

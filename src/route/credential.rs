//! What the OTA counts a request by.

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretSlice};

use crate::config::model::Credential;

use super::extract::{authorization_parameter, basic_user, header, parameter};

/// The value of a credential. Wiped from memory when dropped; never printed.
pub struct CredentialValue(SecretSlice<u8>);

impl CredentialValue {
    /// Takes the credential out of a request; `None` when it is not there or cannot be read.
    pub(super) fn of(credential: &Credential, query: Option<&str>, headers: &HeaderMap) -> Option<Self> {
        let value = match credential {
            Credential::BasicUser => basic_user(headers.get(AUTHORIZATION)?.as_bytes())?,
            Credential::Header(name) => header(headers, name)?,
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

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

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
    fn each_kind_of_credential() {
        let header = Credential::Header(HeaderName::from_static("api-key"));
        assert_eq!(of(header.clone(), None, Some(("api-key", " k1 "))).as_deref(), Some("k1"));
        assert_eq!(of(header, None, None), None);
        let query = || Credential::Query("apiKey".to_owned());
        assert_eq!(of(query(), Some("a=1&apiKey=k%31"), None).as_deref(), Some("k1"));
        assert_eq!(of(query(), None, None), None);
        let basic = Some(("authorization", "Basic aG90ZWw6cHc="));
        assert_eq!(of(Credential::BasicUser, None, basic).as_deref(), Some("hotel"));
        assert_eq!(of(Credential::BasicUser, None, None), None);
        let parameter = || Credential::AuthorizationParam("APIKey".to_owned());
        let signed = Some(("authorization", "EAN APIKey=k1,Signature=0f3c,timestamp=1700000000"));
        assert_eq!(of(parameter(), None, signed).as_deref(), Some("k1"));
        assert_eq!(of(parameter(), None, basic), None);
        assert_eq!(of(parameter(), None, None), None);
        assert_eq!(of(Credential::Label("all".to_owned()), None, None).as_deref(), Some("all"));
    }

    #[test]
    fn a_value_is_never_printed() {
        let value = CredentialValue::of(&Credential::Label("secret".to_owned()), None, &HeaderMap::new()).unwrap();
        assert_eq!(format!("{value:?}"), "CredentialValue([redacted])");
    }
}

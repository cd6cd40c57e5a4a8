//! The parts of a limit's `key`.

use std::fmt;

use http::HeaderName;

use super::{
    mistake::{Invalid, nearest},
    model::KeyPart,
};

impl KeyPart {
    /// `credential`, `path.NAME`, `header.NAME` or `query.NAME`.
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        if text == "credential" {
            return Ok(Self::Credential);
        }
        match text.split_once('.') {
            Some((_, "")) => Err(Invalid::new("no name after the dot", KEY_HINT)),
            Some(("path", name)) => Ok(Self::Path(name.to_owned())),
            Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
                .map(Self::Header)
                .map_err(|_| Invalid::new("not the name of a header", "for example `header.X-Property-Id`")),
            Some(("query", name)) => Ok(Self::Query(name.to_owned())),
            _ => {
                let kind = text.split('.').next().unwrap_or_default();
                let guess = nearest(kind, KINDS).map(|kind| format!("did you mean `{kind}`? ")).unwrap_or_default();
                Err(Invalid::new("not a part of a request", format!("{guess}{KEY_HINT}")))
            }
        }
    }
}

/// As it would be written in the file.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credential => f.write_str("credential"),
            Self::Path(name) => write!(f, "path.{name}"),
            Self::Header(name) => write!(f, "header.{name}"),
            Self::Query(name) => write!(f, "query.{name}"),
        }
    }
}

const KINDS: [&str; 4] = ["credential", "path.", "header.", "query."];
const KEY_HINT: &str = "a key is made of `credential`, `path.NAME`, `header.NAME` and `query.NAME`";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts() {
        for (text, shown) in [
            ("credential", "credential"),
            ("path.hotel_id", "path.hotel_id"),
            (" header.X-Property-ID ", "header.x-property-id"),
            ("query.filter.id", "query.filter.id"),
        ] {
            assert_eq!(KeyPart::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", "path", "path.", "header.", "header.a b", "query.", "Credential", "body.id", ".", ".x"] {
            assert!(KeyPart::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}", part in "(path|header|query|credential)[.é a]{0,4}") {
            for text in [&text, &part] {
                let _ = KeyPart::parse(text);
            }
        }
    }
}

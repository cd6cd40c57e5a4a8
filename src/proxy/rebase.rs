//! What in an answer through the gateway would lead the client past it, put right: `Location`, `Content-Location` and
//! `Set-Cookie`. Bodies are never touched.

use std::{borrow::Cow, mem};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::gateway::{Base, origin_named, prefix};
use crate::upstream::{Origin, Scheme};

/// Has every reference and cookie in `headers` stay within the gateway. References to other origins stay as they are, but
/// for those that `is_ours` says belong to a channel.
pub(super) fn rebase(headers: &mut HeaderMap, base: &Base, is_ours: impl Fn(&Origin) -> bool) {
    for (name, value) in headers.iter_mut() {
        let rebased = match *name {
            header::LOCATION | CONTENT_LOCATION => {
                value.to_str().ok().and_then(|text| reference(base, text, &is_ours)).map(HeaderValue::try_from)
            }
            header::SET_COOKIE => Some(HeaderValue::try_from(cookie(base, value.as_bytes()))),
            _ => continue,
        };
        // What was a value stays one, whatever stands before it.
        if let Some(Ok(rebased)) = rebased {
            let _ = mem::replace(value, rebased);
        }
    }
}

/// A reference (RFC 3986 section 4.1) as a client of the gateway has to follow it: resolved here, as the gateway's paths are
/// not the origin's, and absolute, as PHP's SoapClient takes the port in `/https/host:8443/` for its own. `None`: it stays as
/// it is.
fn reference(base: &Base, text: &str, is_ours: impl Fn(&Origin) -> bool) -> Option<String> {
    let (head, tail) = text.split_at(text.find(['?', '#']).unwrap_or(text.len()));
    let (origin, path) = match absolute(head, base.origin.scheme)? {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Cow::Owned(origin_named(scheme, authority).ok()?), Cow::Borrowed(path))
        }
        // A query or fragment alone keeps the path.
        None if head.is_empty() => return None,
        None if head.starts_with('/') => (Cow::Borrowed(&base.origin), Cow::Borrowed(head)),
        None => (Cow::Borrowed(&base.origin), Cow::Owned(format!("{}/{head}", directory(&base.path)))),
    };
    let prefix = if *origin == base.origin {
        Cow::Borrowed(&base.prefix)
    } else if origin.host == base.origin.host || is_ours(&origin) {
        Cow::Owned(prefix(&origin))
    } else {
        return None;
    };
    let path = if path.is_empty() { Cow::Borrowed("/") } else { without_dots(&path) };
    Some(format!("{}{prefix}{path}{tail}", base.root))
}

/// The scheme of a reference, and what follows its `//`; `Some(None)` for one without. `None`: another scheme, or none that
/// can be read.
#[expect(clippy::option_option, reason = "absent and foreign are two things")]
fn absolute(head: &str, own: Scheme) -> Option<Option<(Scheme, &str)>> {
    if let Some(rest) = head.strip_prefix("//") {
        return Some(Some((own, rest)));
    }
    let Some((scheme, rest)) = head.split_once(':').filter(|(scheme, _)| !scheme.contains('/')) else {
        return Some(None);
    };
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return None,
    };
    rest.strip_prefix("//").map(|rest| Some((scheme, rest)))
}

/// RFC 3986 section 5.2.4, for a path that begins with a slash.
fn without_dots(path: &str) -> Cow<'_, str> {
    let segments = || path.split('/').skip(1);
    if !segments().any(|segment| matches!(segment, "." | "..")) {
        return Cow::Borrowed(path);
    }
    let mut kept = Vec::new();
    for segment in segments() {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    Cow::Owned(format!("/{}", kept.join("/")))
}

/// A cookie for the gateway's name and clear connection, and for no path but the origin's: without `Domain` and `Secure`,
/// which clients would take for a reason to drop it, and with a `Path` below the prefix, where no other origin sees it.
fn cookie(base: &Base, value: &[u8]) -> Vec<u8> {
    let mut parts = value.split(|byte| *byte == b';');
    let mut out = parts.next().unwrap_or_default().to_vec();
    // Without one it holds where it was set (RFC 6265 section 5.1.4).
    let mut path = directory(&base.path).as_bytes();
    for part in parts {
        let (name, value) = part.split_at(part.iter().position(|byte| *byte == b'=').unwrap_or(part.len()));
        let is = |known: &str| name.trim_ascii().eq_ignore_ascii_case(known.as_bytes());
        if is("path") {
            let value = value.strip_prefix(b"=").unwrap_or_default().trim_ascii();
            path = if value.starts_with(b"/") { value } else { directory(&base.path).as_bytes() };
        } else if !is("domain") && !is("secure") {
            out.push(b';');
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"; Path=");
    out.extend_from_slice(base.prefix.as_bytes());
    out.extend_from_slice(if path == b"/" { b"" } else { path });
    out
}

/// What stands before the last slash.
fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

const CONTENT_LOCATION: HeaderName = header::CONTENT_LOCATION;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base(prefix: &str, path: &str) -> Base {
        let origin = origin_named(Scheme::Https, "ota.test").unwrap();
        Base { root: String::new(), prefix: prefix.to_owned(), origin, path: path.to_owned() }
    }

    fn located(base: &Base, text: &str) -> String {
        let is_ours = |origin: &Origin| origin.host.as_str() == "sister.test";
        reference(base, text, is_ours).unwrap_or_else(|| "as it was".to_owned())
    }

    #[test]
    fn references_stay_within_the_gateway() {
        let base = base("/https/OTA.test", "/a/b/c");
        for (text, wanted) in [
            ("/x?y=/z#f", "/https/OTA.test/x?y=/z#f"),
            ("/", "/https/OTA.test/"),
            ("/x/../../y/.", "/https/OTA.test/y/"),
            ("//ota.test/x", "/https/OTA.test/x"),
            ("https://ota.test:443/x", "/https/OTA.test/x"),
            ("HTTPS://OTA.TEST", "/https/OTA.test/"),
            ("https://ota.test?q", "/https/OTA.test/?q"),
            ("http://ota.test/x", "/http/ota.test/x"),
            ("https://sister.test:8443/x", "/https/sister.test:8443/x"),
            ("d", "/https/OTA.test/a/b/d"),
            ("../d/", "/https/OTA.test/a/d/"),
            ("../../../../d", "/https/OTA.test/d"),
            ("./d:e", "/https/OTA.test/a/b/d:e"),
            ("?page=2", "as it was"),
            ("#f", "as it was"),
            ("", "as it was"),
            ("https://elsewhere.test/x", "as it was"),
            ("https://user:pw@ota.test/x", "as it was"),
            ("https:x", "as it was"),
            ("mailto:a@b.test", "as it was"),
            ("https://ota.test:x/", "as it was"),
        ] {
            assert_eq!(located(&base, text), wanted, "{text}");
        }
        let named = Base { root: "http://gateway:8081".to_owned(), ..self::base("/ota", "/") };
        assert_eq!(located(&named, "https://ota.test/x"), "http://gateway:8081/ota/x");
        // A client would resolve it against the gateway's own `/https`.
        assert_eq!(located(&self::base("/https/ota.test", "/"), "x"), "/https/ota.test/x");
    }

    #[test]
    fn cookies_stay_with_their_origin() {
        let base = base("/ota", "/a/b");
        for (value, wanted) in [
            ("id=1; Path=/; Domain=.ota.test; Secure; HttpOnly", "id=1; HttpOnly; Path=/ota"),
            ("id=1;path=/hotels/;SameSite=Lax", "id=1;SameSite=Lax; Path=/ota/hotels/"),
            ("id=1", "id=1; Path=/ota/a"),
            ("id=1; Path=relative", "id=1; Path=/ota/a"),
            ("id=1; Path", "id=1; Path=/ota/a"),
            ("id=secure; Max-Age=5", "id=secure; Max-Age=5; Path=/ota/a"),
        ] {
            assert_eq!(String::from_utf8(cookie(&base, value.as_bytes())).unwrap(), wanted, "{value}");
        }
        assert_eq!(cookie(&self::base("/ota", "/"), b"id=\xe9"), b"id=\xe9; Path=/ota");
    }

    #[test]
    fn the_other_fields_and_their_order_stay() {
        let fields =
            [("date", "now"), ("set-cookie", "a=1"), ("location", "/x"), ("set-cookie", "b=2"), ("link", "</x>")];
        let parse = |(name, value): (&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::from_iter(fields.map(parse));
        rebase(&mut headers, &base("/ota", "/"), |_| false);
        let got: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let wanted = [
            ("date", "now"),
            ("set-cookie", "a=1; Path=/ota"),
            ("set-cookie", "b=2; Path=/ota"),
            ("location", "/ota/x"),
            ("link", "</x>"),
        ];
        assert_eq!(got, wanted);
    }

    proptest! {
        #[test]
        fn what_is_put_right_is_within_the_gateway(text in "(https?:)?(//)?[ -~]{0,30}", cookies in "[ -~]{0,30}") {
            let base = base("/ota", "/a/b");
            let located = located(&base, &text);
            prop_assert!(located == "as it was" || ["/ota/", "/http/", "/https/"].iter().any(|place| located.starts_with(place)));
            let _ = cookie(&base, cookies.as_bytes());
        }
    }
}

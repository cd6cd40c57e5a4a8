//! Which header fields end at the proxy (RFC 9110 section 7.6.1). Everything else passes as it came.

use http::{HeaderMap, HeaderName, HeaderValue, Version, header, request};

/// Whether the client asks to leave HTTP, e.g. for WebSocket (RFC 9110 section 7.8).
pub(super) fn wants_upgrade(parts: &request::Parts) -> bool {
    parts.version == Version::HTTP_11
        && parts.headers.contains_key(header::UPGRADE)
        && connection_names(&parts.headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

/// Takes the fields off a request that are between client and proxy. `Expect` is one of them here: the proxy answers it
/// itself, by asking for the body once it can be of use.
pub(super) fn strip_request(headers: &mut HeaderMap, is_upgrade: bool) {
    let accepts_trailers = headers.get_all(header::TE).iter().any(lists_trailers);
    strip(headers, is_upgrade);
    headers.remove(header::EXPECT);
    headers.remove(header::PROXY_AUTHORIZATION);
    if accepts_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        headers.append(header::CONNECTION, HeaderValue::from_static("TE"));
    }
}

/// Takes the fields off an answer that are between origin and proxy. `is_upgrade`: it is a 101.
pub(super) fn strip_response(headers: &mut HeaderMap, is_upgrade: bool) {
    strip(headers, is_upgrade);
    // Chunks win over a length (RFC 9112 section 6.3), and only one of them may go on.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    headers.remove(header::PROXY_AUTHENTICATE);
}

/// `Transfer-Encoding` stays: hyper has taken the chunks apart and puts them together again by it, so what came chunked
/// leaves chunked, and it drops the field where the client is HTTP/1.0 or the answer has no body.
fn strip(headers: &mut HeaderMap, is_upgrade: bool) {
    let named: Vec<HeaderName> = connection_names(headers)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| !END_TO_END.contains(name))
        .collect();
    let upgrade: Vec<HeaderValue> =
        if is_upgrade { headers.get_all(header::UPGRADE).iter().cloned().collect() } else { Vec::new() };
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if is_upgrade {
        for value in upgrade {
            headers.append(header::UPGRADE, value);
        }
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn lists_trailers(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| text.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")))
}

const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::UPGRADE,
];

/// What `Connection` may not name away: a client, or something in front of it, would change the request's meaning or its
/// framing with it.
const END_TO_END: [HeaderName; 5] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::AUTHORIZATION, header::TRAILER];

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn hop_by_hop_fields_end_here() {
        let mut request = headers(&[
            ("Host", "ota.test"),
            ("Connection", "close, X-Hop"),
            ("Connection", "x-other"),
            ("X-Hop", "1"),
            ("X-Other", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic c2VjcmV0"),
            ("TE", "gzip"),
            ("Upgrade", "h2c"),
            ("Expect", "100-continue"),
            ("Accept-Encoding", "gzip"),
            ("Transfer-Encoding", "chunked"),
        ]);
        strip_request(&mut request, false);
        assert_eq!(names(&request), ["accept-encoding", "host", "transfer-encoding"]);
        let mut response = headers(&[
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authenticate", "Basic"),
            ("WWW-Authenticate", "Basic"),
        ]);
        strip_response(&mut response, false);
        assert_eq!(names(&response), ["www-authenticate"]);
    }

    #[test]
    fn connection_cannot_name_away_what_matters() {
        let mut request = headers(&[
            ("Connection", "Host, content-length, authorization, transfer-encoding"),
            ("Host", "ota.test"),
            ("Content-Length", "3"),
            ("Authorization", "Basic c2VjcmV0"),
        ]);
        strip_request(&mut request, false);
        assert_eq!(names(&request), ["authorization", "content-length", "host"]);
    }

    #[test]
    fn te_trailers_passes_alone() {
        let mut request = headers(&[("TE", "gzip;q=0.5, Trailers"), ("Connection", "TE")]);
        strip_request(&mut request, false);
        assert_eq!(request.get(header::TE).unwrap(), "trailers");
        assert_eq!(request.get(header::CONNECTION).unwrap(), "TE");
    }

    #[test]
    fn an_upgrade_passes() {
        let mut request = headers(&[
            ("Connection", "keep-alive, Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Protocol", "a, b"),
        ]);
        strip_request(&mut request, true);
        assert_eq!(names(&request), ["connection", "sec-websocket-protocol", "upgrade"]);
        assert_eq!(request.get(header::CONNECTION).unwrap(), "Upgrade");
        assert_eq!(request.get(header::UPGRADE).unwrap(), "websocket");
    }

    #[test]
    fn an_upgrade_needs_both_fields_and_http_11() {
        let wants = |version: Version, fields: &[(&str, &str)]| {
            let (mut parts, ()) = http::Request::new(()).into_parts();
            parts.version = version;
            parts.headers = headers(fields);
            wants_upgrade(&parts)
        };
        assert!(wants(Version::HTTP_11, &[("Connection", "keep-alive, upgrade"), ("Upgrade", "websocket")]));
        assert!(!wants(Version::HTTP_11, &[("Upgrade", "websocket")]));
        assert!(!wants(Version::HTTP_11, &[("Connection", "upgrade")]));
        assert!(!wants(Version::HTTP_10, &[("Connection", "upgrade"), ("Upgrade", "websocket")]));
    }
}

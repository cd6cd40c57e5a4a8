//! Which header fields end at the proxy (RFC 9110 section 7.6.1). Everything else passes as it came, in the same order.

use std::mem;

use http::{HeaderMap, HeaderName, HeaderValue, Version, header, request};
use hyper::body::Body;

/// Whether the client asks to leave HTTP, e.g. for WebSocket (RFC 9110 section 7.8). HTTP/2 is no other protocol: requests in
/// it would pass unread (`Upgrade: h2c`, which RFC 9113 has given up).
pub(super) fn wants_upgrade(parts: &request::Parts) -> bool {
    parts.version == Version::HTTP_11
        && parts.headers.contains_key(header::UPGRADE)
        && !parts.headers.get_all(header::UPGRADE).iter().any(|value| lists(value, "h2c"))
        && connection_names(&parts.headers).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

/// Takes the fields off a request that are between client and proxy. `Expect` is one of them here: the proxy answers it
/// itself, by asking for the body once it can be of use.
///
/// A bare `Connection: keep-alive` stays where it stands: it is as true of the proxy's own connection, and its absence
/// would be the one thing that tells a request from that of the client.
pub(super) fn strip_request(headers: &mut HeaderMap, is_upgrade: bool) {
    let accepts_trailers = headers.get_all(header::TE).iter().any(|value| lists(value, "trailers"));
    let connection = match (is_upgrade, accepts_trailers) {
        (true, true) => Some("Upgrade, TE"),
        (true, false) => Some("Upgrade"),
        (false, true) => Some("TE"),
        (false, false) => None,
    };
    let keeps_connection = connection.is_some() || says_keep_alive_alone(headers);
    strip(headers, keeps_connection, |name| {
        *name == header::EXPECT
            || *name == header::PROXY_AUTHORIZATION
            || (*name == header::TE && !accepts_trailers)
            || (*name == header::UPGRADE && !is_upgrade)
    });
    if let Some(options) = connection {
        headers.insert(header::CONNECTION, HeaderValue::from_static(options));
    }
    if accepts_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Takes the fields off an answer that are between origin and proxy. `is_upgrade`: it is a 101.
pub(super) fn strip_response(headers: &mut HeaderMap, is_upgrade: bool) {
    // Chunks win over a length (RFC 9112 section 6.3), and only one of them may go on.
    let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
    strip(headers, is_upgrade, |name| {
        *name == header::PROXY_AUTHENTICATE
            || *name == header::TE
            || (*name == header::UPGRADE && !is_upgrade)
            || (*name == header::CONTENT_LENGTH && is_chunked)
    });
    if is_upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Takes off what HTTP/2 says in frames and forbids as fields (RFC 9113 section 8.2.2), once what `Connection` names is off.
pub(super) fn strip_connection(headers: &mut HeaderMap) {
    retain(headers, |name| {
        ![header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE].contains(name) && !HOP_BY_HOP.contains(name)
    });
}

/// Puts the pieces together that HTTP/2 lets clients cut `Cookie` into (RFC 9113 section 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() > 1
        && let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, whole);
    }
}

/// Says in HTTP/1's words that a body of unknown length follows, where HTTP/2 has said so by leaving the stream open: hyper
/// takes a GET or HEAD without such a field for one without a body.
pub(super) fn announce_body(headers: &mut HeaderMap, body: &impl Body) {
    if !body.is_end_stream() && !headers.contains_key(header::CONTENT_LENGTH) {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Says `host` in place of what `Host` says, or before all others where it is missing, as it is in HTTP/2.
pub(super) fn put_host(headers: &mut HeaderMap, host: HeaderValue) {
    if let Some(field) = headers.get_mut(header::HOST) {
        *field = host;
        return;
    }
    let others = mem::replace(headers, HeaderMap::from_iter([(header::HOST, host)]));
    headers.extend(others);
}

/// Takes off what is always between two hops, what `Connection` names, and what `ends_here` says. `Transfer-Encoding`
/// stays: hyper has taken the chunks apart and puts them together again by it, so what came chunked leaves chunked, and
/// it drops the field where the client is HTTP/1.0 or the answer has no body.
fn strip(headers: &mut HeaderMap, keeps_connection: bool, ends_here: impl Fn(&HeaderName) -> bool) {
    let named: Vec<HeaderName> = connection_names(headers)
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| !END_TO_END.contains(name) && !DECIDED_APART.contains(name))
        .collect();
    retain(headers, |name| match *name {
        header::CONNECTION => keeps_connection,
        _ => !ends_here(name) && !HOP_BY_HOP.contains(name) && !named.contains(name),
    });
}

/// Keeps the order of the others, which [`HeaderMap::remove`] does not: it moves the last field into the gap.
pub(super) fn retain(headers: &mut HeaderMap, keeps: impl Fn(&HeaderName) -> bool) {
    if headers.keys().all(&keeps) {
        return;
    }
    let mut field = None;
    for (name, value) in mem::take(headers) {
        // Only the first of several values comes with its name.
        field = name.or(field);
        if let Some(name) = field.as_ref().filter(|name| keeps(name)) {
            headers.append(name, value);
        }
    }
}

fn says_keep_alive_alone(headers: &HeaderMap) -> bool {
    let is_readable = headers.get_all(header::CONNECTION).iter().all(|value| value.to_str().is_ok());
    let mut names = connection_names(headers);
    is_readable && names.next().is_some_and(|name| name.eq_ignore_ascii_case("keep-alive")) && names.next().is_none()
}

fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn lists(value: &HeaderValue, member: &str) -> bool {
    value.to_str().is_ok_and(|text| text.split(',').any(|one| one.trim().eq_ignore_ascii_case(member)))
}

const HOP_BY_HOP: [HeaderName; 2] =
    [HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection")];

/// What `Connection` has to name where it passes (RFC 9110 sections 7.8 and 10.1.4).
const DECIDED_APART: [HeaderName; 2] = [header::TE, header::UPGRADE];

/// What `Connection` may not name away: a client, or something in front of it, would change the request's meaning or its
/// framing with it.
const END_TO_END: [HeaderName; 5] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::AUTHORIZATION, header::TRAILER];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
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
        assert_eq!(names(&request), ["host", "accept-encoding", "transfer-encoding"]);
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
        assert_eq!(names(&request), ["host", "content-length", "authorization"]);
    }

    #[test]
    fn what_passes_keeps_its_order() {
        let mut request = headers(&[
            ("Host", "ota.test"),
            ("Connection", "keep-alive, TE"),
            ("TE", "deflate"),
            ("X-Twice", "1"),
            ("Keep-Alive", "300"),
            ("Expect", "100-continue"),
            ("X-Twice", "2"),
            ("User-Agent", "worker"),
            ("Content-Length", "3"),
        ]);
        strip_request(&mut request, false);
        assert_eq!(names(&request), ["host", "x-twice", "user-agent", "content-length"]);
        assert!(request.get_all("x-twice").iter().eq(["1", "2"]));
    }

    #[test]
    fn a_bare_keep_alive_stays_where_it_stands() {
        let mut request = headers(&[("Host", "ota.test"), ("Connection", "Keep-Alive"), ("Accept", "*/*")]);
        strip_request(&mut request, false);
        assert_eq!(names(&request), ["host", "connection", "accept"]);
        assert_eq!(request.get(header::CONNECTION).unwrap(), "Keep-Alive");
        let mut response = headers(&[("Connection", "keep-alive"), ("Date", "now")]);
        strip_response(&mut response, false);
        assert_eq!(names(&response), ["date"]);
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
        assert_eq!(names(&request), ["connection", "upgrade", "sec-websocket-protocol"]);
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
        assert!(!wants(Version::HTTP_11, &[("Connection", "upgrade, http2-settings"), ("Upgrade", "H2C")]));
        assert!(!wants(Version::HTTP_10, &[("Connection", "upgrade"), ("Upgrade", "websocket")]));
    }

    #[test]
    fn http2_has_no_fields_of_a_connection() {
        let mut response = headers(&[
            ("Date", "now"),
            ("Connection", "close"),
            ("Transfer-Encoding", "chunked"),
            ("Keep-Alive", "timeout=5"),
            ("Upgrade", "h2c"),
            ("Trailer", "etag"),
        ]);
        strip_connection(&mut response);
        assert_eq!(names(&response), ["date", "trailer"]);
    }

    #[test]
    fn cookies_become_one_and_host_comes_first() {
        let mut request = headers(&[("Accept", "*/*"), ("Cookie", "a=1"), ("X-Last", "1"), ("Cookie", "b=2; c=3")]);
        join_cookies(&mut request);
        put_host(&mut request, HeaderValue::from_static("ota.test"));
        assert_eq!(names(&request), ["host", "accept", "cookie", "x-last"]);
        assert_eq!(request.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
        put_host(&mut request, HeaderValue::from_static("other.test"));
        assert_eq!((names(&request)[0], &request["host"]), ("host", &HeaderValue::from_static("other.test")));
    }

    const NAMES: [&str; 18] = [
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Authorization",
        "Trailer",
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Proxy-Authorization",
        "Proxy-Authenticate",
        "TE",
        "Upgrade",
        "Expect",
        "Accept",
        "Cookie",
        "X-Hop",
        "X-Other",
        "X-Pacer-Wait",
    ];

    const VALUES: [&str; 12] = [
        "close",
        "keep-alive",
        "X-Hop",
        "x-other , X-HOP,,",
        "host, content-length, AUTHORIZATION",
        "Upgrade, TE",
        "trailers",
        "gzip, Trailers;q=1",
        "chunked",
        "websocket",
        "",
        "\u{e4}\u{f6}",
    ];

    fn any_fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
        let field = (prop::sample::select(&NAMES[..]), prop::sample::select(&VALUES[..]));
        proptest::collection::vec(field, 0..16)
    }

    fn in_order(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    proptest! {
        #[test]
        fn whatever_a_message_says_only_what_is_between_hops_ends_here(
            fields in any_fields(), is_request: bool, is_upgrade: bool,
        ) {
            let came: HeaderMap = fields
                .iter()
                .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap()))
                .collect();
            let mut passes = came.clone();
            let strip = |headers: &mut HeaderMap| match is_request {
                true => strip_request(headers, is_upgrade),
                false => strip_response(headers, is_upgrade),
            };
            strip(&mut passes);

            let named: Vec<String> = connection_names(&came).map(str::to_ascii_lowercase).collect();
            let is_kept_always = |name: &HeaderName| match *name {
                header::HOST | header::AUTHORIZATION | header::TRAILER | header::TRANSFER_ENCODING => true,
                header::CONTENT_LENGTH => is_request || !came.contains_key(header::TRANSFER_ENCODING),
                header::CONNECTION | header::TE | header::UPGRADE => false,
                ref other => {
                    let is_between = HOP_BY_HOP.contains(other)
                        || if is_request {
                            [header::EXPECT, header::PROXY_AUTHORIZATION].contains(other)
                        } else {
                            *other == header::PROXY_AUTHENTICATE
                        };
                    !is_between && !named.iter().any(|named| named == other.as_str())
                }
            };
            let decided = [header::CONNECTION, header::TE, header::UPGRADE];
            let expected: Vec<_> = in_order(&came).into_iter().filter(|(name, _)| is_kept_always(name)).collect();
            let found: Vec<_> = in_order(&passes).into_iter().filter(|(name, _)| !decided.contains(name)).collect();
            prop_assert_eq!(found, expected);

            // What is decided apart: never more than what this hop means.
            for (name, value) in &passes {
                match *name {
                    header::TE => prop_assert!(is_request && value == "trailers"),
                    header::UPGRADE => prop_assert!(is_upgrade),
                    header::CONNECTION => prop_assert!(
                        ["Upgrade", "TE", "Upgrade, TE"].contains(&value.to_str().unwrap())
                            || value.to_str().unwrap().trim_matches([' ', ',']).eq_ignore_ascii_case("keep-alive"),
                        "{value:?}"
                    ),
                    _ => {}
                }
            }
            let once = passes.clone();
            strip(&mut passes);
            prop_assert_eq!(in_order(&passes), in_order(&once), "the next hop finds nothing more to take off");
        }
    }
}

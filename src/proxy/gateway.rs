//! The gateway: requests that name their origin in the path, from clients that can name no proxy.
//!
//! `/https/HOST[:PORT]/path` and `/http/HOST[:PORT]/path` name it themselves; in `/CHANNEL/path` the channel does. What
//! follows is the origin's and passes as it is written.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use http::{HeaderMap, HeaderValue, uri::PathAndQuery};

use super::target::{Target, TargetError, default_port, host_header};
use crate::{
    config::{
        host::Host,
        model::{Channel, GatewayOrigin},
    },
    upstream::{Origin, Scheme},
};

/// What the names of channels stand for; `None` where a channel has no one origin.
#[derive(Debug)]
pub(super) struct Names(HashMap<String, Option<Origin>>);

impl Names {
    pub(super) fn new(channels: &[Arc<Channel>]) -> Self {
        let origin = |GatewayOrigin { is_tls, host, port }: &GatewayOrigin| Origin {
            scheme: if *is_tls { Scheme::Https } else { Scheme::Http },
            host: host.clone(),
            port: *port,
        };
        Self(channels.iter().map(|c| (c.name.clone(), c.gateway_origin.as_ref().map(origin))).collect())
    }
}

/// The place of an origin in the paths of the gateway.
#[derive(Debug, Clone)]
pub(super) struct Base {
    /// What the client calls the gateway, such as `http://127.0.0.1:8081`; empty where it does not say.
    pub(super) root: String,
    /// What stands before the origin's own path, as the client wrote it; no slash at the end.
    pub(super) prefix: String,
    /// Where the request went.
    pub(super) origin: Origin,
    /// The path it asked the origin for.
    pub(super) path: String,
}

/// Reads the target of a request to the gateway from its path and query, as written. The origin is sent its own name in
/// `Host`.
pub(super) fn target(
    names: &Names,
    text: &str,
    is_http_10: bool,
    headers: &HeaderMap,
) -> Result<(Target, Base), TargetError> {
    let asked = match host_header(headers)? {
        None if !is_http_10 => return Err(TargetError::HostHeader),
        None => None,
        Some(name) => {
            let asked = origin_named(Scheme::Http, &name).map_err(|_| TargetError::HostHeader)?;
            Some((name, asked))
        }
    };
    let (origin, prefix) = origin_of(names, text)?;
    // Its name need not be its address: it knows itself by what the client calls it.
    if asked.as_ref().is_some_and(|(_, asked)| *asked == origin) {
        return Err(TargetError::Itself);
    }
    let root = asked.map_or_else(String::new, |(name, _)| format!("http://{name}"));
    let rest = &text[prefix.len()..];
    let path = if rest.starts_with('/') { Cow::Borrowed(rest) } else { Cow::Owned(format!("/{rest}")) };
    let path = PathAndQuery::try_from(&*path).map_err(|_| TargetError::GatewayPath)?;
    let host_header = HeaderValue::try_from(authority(&origin)).map_err(|_| TargetError::HostHeader)?;
    let base = Base { root, prefix: prefix.to_owned(), origin: origin.clone(), path: path.path().to_owned() };
    Ok((Target { origin, path, host_header: Some(host_header) }, base))
}

/// The prefix under which the gateway has the paths of `origin`.
pub(super) fn prefix(origin: &Origin) -> String {
    let scheme = match origin.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    format!("/{scheme}/{}", authority(origin))
}

/// Reads `host[:port]` with the default port of `scheme`.
pub(super) fn origin_named(scheme: Scheme, text: &str) -> Result<Origin, TargetError> {
    if text.contains('@') {
        return Err(TargetError::UserInfo);
    }
    let (host, port) = match text.find(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some("") | None if port.len() < 2 => default_port(scheme),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port != 0).ok_or(TargetError::Port)?
        }
        _ => return Err(TargetError::Port),
    };
    Ok(Origin { scheme, host: Host::parse(host)?, port })
}

/// The origin that a path of the gateway begins with, and that beginning.
fn origin_of<'t>(names: &Names, text: &'t str) -> Result<(Origin, &'t str), TargetError> {
    let name = first_segment(text).ok_or(TargetError::GatewayPath)?;
    let scheme = match name {
        _ if name.eq_ignore_ascii_case("http") => Scheme::Http,
        _ if name.eq_ignore_ascii_case("https") => Scheme::Https,
        _ => {
            let origin = names.0.get(name).ok_or(TargetError::GatewayPath)?;
            return Ok((origin.clone().ok_or(TargetError::ManyHosts)?, &text[..=name.len()]));
        }
    };
    let authority = first_segment(&text[1 + name.len()..]).ok_or(TargetError::GatewayPath)?;
    Ok((origin_named(scheme, &decoded(authority)?)?, &text[..name.len() + authority.len() + 2]))
}

/// What stands between the slash at the beginning and the next one, or the query.
fn first_segment(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('/')?;
    let segment = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    (!segment.is_empty()).then_some(segment)
}

/// Percent-decoding, once: libraries escape brackets and letters beyond ASCII in a path, though not in a host.
fn decoded(text: &str) -> Result<Cow<'_, str>, TargetError> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(TargetError::GatewayPath)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(TargetError::GatewayPath);
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| TargetError::GatewayPath)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| TargetError::GatewayPath)
}

/// As `Host` names it: with the port where it is not the scheme's own.
fn authority(origin: &Origin) -> String {
    let Origin { scheme, host, port } = origin;
    if *port == default_port(*scheme) { host.to_string() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use http::header;
    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        let config = crate::config::parse(
            "test.yaml",
            "channels: { ota: { hosts: [ota.example] }, clear: { hosts: [a.test, b.test], gateway_origin: 'http://b.test:81' }, \
             many: { hosts: [c.test, d.test] } }",
            |_| None,
        );
        Names::new(&config.unwrap().channels)
    }

    fn read(path: &str) -> Result<(Target, Base), TargetError> {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("gateway.test:8081"))]);
        target(&names(), path, false, &headers)
    }

    #[test]
    fn the_path_names_the_origin() {
        for (text, origin, path, host, prefix) in [
            ("/https/ota.test/a%2Fb/../c?d=/e", "https://ota.test", "/a%2Fb/../c?d=/e", "ota.test", "/https/ota.test"),
            ("/HTTPS/OTA.Test.:8443/", "https://ota.test:8443", "/", "ota.test:8443", "/HTTPS/OTA.Test.:8443"),
            ("/http/ota.test:80//a", "http://ota.test", "//a", "ota.test", "/http/ota.test:80"),
            ("/https/ota.test", "https://ota.test", "/", "ota.test", "/https/ota.test"),
            ("/https/ota.test?q", "https://ota.test", "/?q", "ota.test", "/https/ota.test"),
            ("/https/[::1]:8443/x", "https://[::1]:8443", "/x", "[::1]:8443", "/https/[::1]:8443"),
            ("/https/%5B::1%5D%3A8443/x", "https://[::1]:8443", "/x", "[::1]:8443", "/https/%5B::1%5D%3A8443"),
            (
                "/https/b%C3%BCcher.test/",
                "https://xn--bcher-kva.test",
                "/",
                "xn--bcher-kva.test",
                "/https/b%C3%BCcher.test",
            ),
            ("/ota/x?y", "https://ota.example", "/x?y", "ota.example", "/ota"),
            ("/ota", "https://ota.example", "/", "ota.example", "/ota"),
            ("/clear/x", "http://b.test:81", "/x", "b.test:81", "/clear"),
        ] {
            let (target, base) = read(text).unwrap();
            let got = (target.origin.to_string(), target.path.as_str(), target.host_header.unwrap(), base.prefix);
            assert_eq!(got, (origin.to_owned(), path, HeaderValue::from_static(host), prefix.to_owned()), "{text}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for (text, error) in [
            ("/", TargetError::GatewayPath),
            ("*", TargetError::GatewayPath),
            ("/?https", TargetError::GatewayPath),
            ("/https", TargetError::GatewayPath),
            ("/https/", TargetError::GatewayPath),
            ("/https//ota.test/", TargetError::GatewayPath),
            ("/ftp/ota.test/", TargetError::GatewayPath),
            ("/OTA/x", TargetError::GatewayPath),
            ("/https/%zz/", TargetError::GatewayPath),
            ("/https/%+1a/", TargetError::GatewayPath),
            ("/https/%ff/", TargetError::GatewayPath),
            ("/many/x", TargetError::ManyHosts),
            ("/https/user@ota.test/", TargetError::UserInfo),
            ("/https/user%3Apw%40ota.test/", TargetError::UserInfo),
            ("/https/ota.test:0/", TargetError::Port),
            ("/https/ota.test:65536/", TargetError::Port),
            ("/https/ota.test:+1/", TargetError::Port),
            ("/https/[::1]8443/", TargetError::Port),
            ("", TargetError::GatewayPath),
            ("/http/gateway.test:8081/http/gateway.test:8081/", TargetError::Itself),
        ] {
            assert_eq!(read(text).unwrap_err(), error, "{text}");
        }
        for text in
            ["/https/ota.test%2Fa/", "/https/a%00b/", "/https/::1/", "/https/[ota.test]/", "/https/%255B::1%255D/"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn http_11_names_the_gateway_once() {
        let ask = |is_http_10, headers: &HeaderMap| target(&names(), "/ota/", is_http_10, headers);
        assert_eq!(ask(false, &HeaderMap::new()).unwrap_err(), TargetError::HostHeader);
        assert!(ask(true, &HeaderMap::new()).is_ok());
        let bad = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("a/b"))]);
        assert_eq!(ask(false, &bad).unwrap_err(), TargetError::HostHeader);
        let twice = ["a", "a"].map(|host| (header::HOST, HeaderValue::from_static(host)));
        assert_eq!(ask(false, &HeaderMap::from_iter(twice)).unwrap_err(), TargetError::HostHeader);
    }

    proptest! {
        #[test]
        fn a_target_stays_what_it_names(text in "/(https?|ota)(/[ -~]{0,24}){0,2}") {
            if let Ok((target, base)) = super::target(&names(), &text, true, &HeaderMap::new()) {
                let again = format!("{}{}", prefix(&target.origin), target.path);
                let (second, _) = super::target(&names(), &again, true, &HeaderMap::new()).unwrap();
                prop_assert_eq!(second.origin, target.origin);
                prop_assert_eq!(second.path.as_str(), target.path.as_str());
                prop_assert!(text.starts_with(&base.prefix));
            }
        }
    }
}

//! Where a request goes: the request target (RFC 9112 section 3.2), read for the three places it can stand in.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use http::{HeaderMap, HeaderValue, Uri, header, uri::PathAndQuery};

use super::entrance::Own;
use crate::{
    config::host::{self, Host, HostError},
    upstream::{Origin, Scheme},
};

/// `host:port` of a CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    /// The host, normalized.
    pub(super) host: Host,
    /// The port, never 0.
    pub(super) port: u16,
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The origin of a request, and what to ask it for.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Whom to connect to.
    pub(super) origin: Origin,
    /// The request target in origin-form; `*` for a server-wide OPTIONS.
    pub(super) path: PathAndQuery,
    /// What `Host` must say, where the client's own does not name the origin.
    pub(super) host_header: Option<HeaderValue>,
}

/// Reads the target of a CONNECT: `host:port` and nothing else. `Host` is ignored, HTTP/1.0 clients send none.
pub(super) fn connect(uri: &Uri) -> Result<Authority, TargetError> {
    let authority = uri.authority().filter(|_| uri.scheme().is_none()).ok_or(TargetError::ConnectForm)?;
    if authority.as_str().contains('@') {
        return Err(TargetError::UserInfo);
    }
    let port = authority.port_u16().filter(|port| *port != 0).ok_or(TargetError::Port)?;
    Ok(Authority { host: Host::parse(authority.host())?, port })
}

/// Reads an absolute-form target, `http://host/path`, as proxies get it outside of tunnels. It wins over `Host`
/// (RFC 9112 section 3.2.2); user information is dropped.
pub(super) fn absolute(uri: &Uri, headers: &HeaderMap) -> Result<Target, TargetError> {
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(TargetError::OriginForm);
    };
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return Err(TargetError::Scheme),
    };
    let host = Host::parse(authority.host())?;
    let port = port_of(authority, scheme)?;
    let origin = Origin { scheme, host, port };
    let agrees = matches!(host_header(headers), Ok(Some(ref text)) if names(text, &origin));
    let host_header = if agrees { None } else { Some(header_of(authority)?) };
    Ok(Target { path: path(uri), origin, host_header })
}

/// Reads the target of a request inside a tunnel to `tunnel`. What the tunnel carries may not change host: another name in
/// an absolute-form target or in `Host` is [`TargetError::Misdirected`] (RFC 9110 section 15.5.20).
pub(super) fn inside(
    tunnel: &Authority,
    scheme: Scheme,
    uri: &Uri,
    is_http_10: bool,
    headers: &HeaderMap,
) -> Result<Target, TargetError> {
    let origin = Origin { scheme, host: tunnel.host.clone(), port: tunnel.port };
    if uri.scheme().is_some() {
        let target = absolute(uri, headers)?;
        return if target.origin == origin { Ok(target) } else { Err(TargetError::Misdirected) };
    }
    if uri.authority().is_some() {
        return Err(TargetError::OriginForm);
    }
    let host_header = match host_header(headers)? {
        Some(text) if names(&text, &origin) => None,
        Some(_) => return Err(TargetError::Misdirected),
        None if is_http_10 => Some(HeaderValue::try_from(tunnel.to_string()).map_err(|_| TargetError::HostHeader)?),
        None => return Err(TargetError::HostHeader),
    };
    Ok(Target { path: path(uri), origin, host_header })
}

/// Reads the target of a request that came in HTTP/2 inside a tunnel to `tunnel`. `:authority` takes the place of `Host`,
/// which may stand beside it or in its place (RFC 9113 section 8.3.1): both must name the host of the tunnel.
pub(super) fn stream(
    tunnel: &Authority,
    scheme: Scheme,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Target, TargetError> {
    let origin = Origin { scheme, host: tunnel.host.clone(), port: tunnel.port };
    let authority = uri.authority();
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(TargetError::UserInfo);
    }
    if uri.scheme_str().is_some_and(|named| named != name_of(scheme)) {
        return Err(TargetError::Misdirected);
    }
    let host = host_header(headers)?;
    let mut said = host.as_deref().into_iter().chain(authority.map(|authority| authority.as_str())).peekable();
    if said.peek().is_none() {
        return Err(TargetError::HostHeader);
    }
    if !said.all(|text| names(text, &origin)) {
        return Err(TargetError::Misdirected);
    }
    Ok(Target { path: path(uri), origin, host_header: authority.map(header_of).transpose()? })
}

/// Whether a connection to `host:port` would come back to a listener of this proxy. Names that resolve to one are caught
/// after the connection is made.
pub(super) fn is_own_address(host: &Host, port: u16, own: Own) -> bool {
    own.addresses().any(|own| is_at(host, port, own))
}

fn is_at(host: &Host, port: u16, own: SocketAddr) -> bool {
    if port != own.port() {
        return false;
    }
    // The system takes 0.0.0.0 for the loopback address, and ::ffff:127.0.0.1 for 127.0.0.1.
    let is_local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let own = own.ip().to_canonical();
    match host.ip().map(|ip| ip.to_canonical()) {
        Some(ip) => ip == own || (is_local(ip) && is_local(own) && (ip.is_unspecified() || own.is_unspecified())),
        None => is_local(own) && (host.as_str() == "localhost" || host.as_str().ends_with(".localhost")),
    }
}

/// Why a request target is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TargetError {
    /// `GET /path` sent to the proxy's own port, which is never guessed at.
    #[error("the request names no host: a proxy expects `http://host/path`")]
    OriginForm,
    /// CONNECT with anything but `host:port`.
    #[error("CONNECT expects `host:port`")]
    ConnectForm,
    /// CONNECT without a port, or a port that is no number from 1 to 65535.
    #[error("the target's port is missing or no number from 1 to 65535")]
    Port,
    /// `user@host` in a CONNECT, or in a path of the gateway.
    #[error("the target holds user information")]
    UserInfo,
    /// Not http, not https.
    #[error("the target's scheme is neither http nor https")]
    Scheme,
    /// No host by any reading.
    #[error("{0}")]
    Host(#[from] HostError),
    /// `Host` is missing in HTTP/1.1, there twice, or unreadable (RFC 9112 section 3.2).
    #[error("the request must carry exactly one valid `Host`")]
    HostHeader,
    /// Another host than the one the tunnel was opened to.
    #[error("the request names another host than the one its tunnel was opened to")]
    Misdirected,
    /// A path of the gateway that begins with no origin.
    #[error("the path names no origin")]
    GatewayPath,
    /// A channel's name in the path that stands for no one origin.
    #[error("the channel in the path has several hosts, and no `gateway_origin`")]
    ManyHosts,
    /// CONNECT or an absolute-form target at the gateway.
    #[error("this is the gateway; the proxy listens on `{0}`")]
    NotAProxy(SocketAddr),
    /// The gateway, by the name it is asked under.
    #[error("the target is this gateway itself")]
    Itself,
}

fn port_of(authority: &http::uri::Authority, scheme: Scheme) -> Result<u16, TargetError> {
    let named = host::port(authority).map_err(|_| TargetError::Port)?;
    Ok(named.unwrap_or(default_port(scheme)))
}

fn name_of(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    }
}

pub(super) fn default_port(scheme: Scheme) -> u16 {
    match scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    }
}

/// `http://host` and `http://host/` are the same to the parser: `asterisk` tells them apart.
fn path(uri: &Uri) -> PathAndQuery {
    let Some(path) = uri.path_and_query() else { return PathAndQuery::from_static("/") };
    if path.as_str().starts_with('?') {
        // Printing puts the missing `/` there; the raw text would go on the wire without it.
        return PathAndQuery::try_from(path.to_string()).unwrap_or_else(|_| path.clone());
    }
    path.clone()
}

/// The one `Host`, unless there is none.
pub(super) fn host_header(headers: &HeaderMap) -> Result<Option<String>, TargetError> {
    let mut values = headers.get_all(header::HOST).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(TargetError::HostHeader);
    }
    value.to_str().map(|text| Some(text.to_owned())).map_err(|_| TargetError::HostHeader)
}

/// Whether a `Host` names the origin. A port left out means the origin's: clients of unusual ports forget it.
fn names(text: &str, origin: &Origin) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (text, ""),
    };
    let same_port = port.is_empty() || (port.bytes().all(|b| b.is_ascii_digit()) && port.parse() == Ok(origin.port));
    same_port && Host::parse(host).is_ok_and(|host| host == origin.host)
}

fn header_of(authority: &http::uri::Authority) -> Result<HeaderValue, TargetError> {
    let text = authority.as_str();
    let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
    HeaderValue::from_str(text).map_err(|_| TargetError::HostHeader)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn host(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(text).unwrap())])
    }

    #[test]
    fn connect_wants_host_and_port_alone() {
        for (text, wanted) in [
            ("ota.test:443", "ota.test:443"),
            ("OTA.Test.:443", "ota.test:443"),
            ("10.0.0.1:4443", "10.0.0.1:4443"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
        ] {
            assert_eq!(connect(&uri(text)).unwrap().to_string(), wanted);
        }
        for (text, error) in [
            ("ota.test", TargetError::Port),
            ("ota.test:0", TargetError::Port),
            ("user@ota.test:443", TargetError::UserInfo),
            ("https://ota.test:443", TargetError::ConnectForm),
            ("/path", TargetError::ConnectForm),
        ] {
            assert_eq!(connect(&uri(text)), Err(error), "{text}");
        }
    }

    #[test]
    fn absolute_form_is_normalized_for_matching_only() {
        let target = absolute(&uri("HTTP://user:pw@OTA.test.:8080/A/b?q=1"), &host("OTA.test.:8080")).unwrap();
        assert_eq!(target.origin, Origin { scheme: Scheme::Http, host: Host::parse("ota.test").unwrap(), port: 8080 });
        assert_eq!(target.path.as_str(), "/A/b?q=1");
        assert_eq!(target.host_header, None, "the client's `Host` goes on as written");
        let target = absolute(&uri("https://ota.test/"), &host("ota.test")).unwrap();
        assert_eq!((target.origin.scheme, target.origin.port), (Scheme::Https, 443));
    }

    #[test]
    fn the_target_wins_over_host() {
        for headers in [host("other.test"), host("ota.test:81"), HeaderMap::new()] {
            let target = absolute(&uri("http://user@ota.test/"), &headers).unwrap();
            assert_eq!(target.host_header.unwrap(), "ota.test");
        }
    }

    #[test]
    fn empty_paths() {
        let path = |text| absolute(&uri(text), &HeaderMap::new()).unwrap().path;
        // Compared as they go on the wire.
        assert_eq!(path("http://ota.test?q=1").as_str(), "/?q=1");
        assert_eq!(path("http://ota.test").as_str(), "/");
        assert_eq!(path("http://ota.test/").as_str(), "/");
    }

    #[test]
    fn other_forms_are_refused() {
        assert_eq!(absolute(&uri("/path"), &host("ota.test")).unwrap_err(), TargetError::OriginForm);
        assert_eq!(absolute(&uri("ftp://ota.test/"), &HeaderMap::new()).unwrap_err(), TargetError::Scheme);
        for text in ["http://ota.test:0/", "http://ota.test:99999/", "https://u@[::1]:65536/", "http://[::1]1?q"] {
            assert_eq!(absolute(&uri(text), &HeaderMap::new()).unwrap_err(), TargetError::Port, "{text}");
        }
    }

    #[test]
    fn a_tunnel_keeps_its_host() {
        let tunnel = connect(&uri("ota.test:443")).unwrap();
        let read = |text: &str, headers: &HeaderMap| inside(&tunnel, Scheme::Https, &uri(text), false, headers);
        for (text, headers) in [
            ("/p", host("ota.test")),
            ("/p", host("OTA.TEST.:443")),
            ("https://ota.test/p", host("ota.test")),
            ("https://ota.test:443/p", host("ota.test")),
        ] {
            assert_eq!(read(text, &headers).unwrap().path.as_str(), "/p", "{text}");
        }
        for (text, headers) in [
            ("/p", host("other.test")),
            ("/p", host("ota.test:8443")),
            ("https://other.test/p", host("ota.test")),
            ("http://ota.test/p", host("ota.test")),
            ("https://ota.test:8443/p", host("ota.test")),
        ] {
            assert_eq!(read(text, &headers).unwrap_err(), TargetError::Misdirected, "{text} {headers:?}");
        }
        let mut twice = host("ota.test");
        twice.append(header::HOST, HeaderValue::from_static("ota.test"));
        assert_eq!(read("/p", &twice).unwrap_err(), TargetError::HostHeader);
        assert_eq!(read("/p", &HeaderMap::new()).unwrap_err(), TargetError::HostHeader);
        let old = inside(&tunnel, Scheme::Https, &uri("/p"), true, &HeaderMap::new()).unwrap();
        assert_eq!(old.host_header.unwrap(), "ota.test:443");
    }

    #[test]
    fn a_stream_keeps_the_host_of_its_tunnel() {
        let tunnel = connect(&uri("ota.test:8443")).unwrap();
        let read = |text: &str, headers: &HeaderMap| stream(&tunnel, Scheme::Https, &uri(text), headers);
        for (text, headers, host) in [
            ("https://ota.test:8443/p", HeaderMap::new(), Some("ota.test:8443")),
            ("https://OTA.test./p", HeaderMap::new(), Some("OTA.test.")),
            ("https://ota.test:8443/p", host("ota.test"), Some("ota.test:8443")),
            ("/p", host("ota.test:8443"), None),
        ] {
            let target = read(text, &headers).unwrap();
            assert_eq!((target.path.as_str(), target.origin.port), ("/p", 8443), "{text}");
            assert_eq!(target.host_header.as_ref().map(|host| host.to_str().unwrap()), host, "{text}");
        }
        for (text, headers, error) in [
            ("https://other.test:8443/p", HeaderMap::new(), TargetError::Misdirected),
            ("https://ota.test:443/p", HeaderMap::new(), TargetError::Misdirected),
            ("http://ota.test:8443/p", HeaderMap::new(), TargetError::Misdirected),
            ("https://ota.test:8443/p", host("other.test"), TargetError::Misdirected),
            ("/p", host("other.test"), TargetError::Misdirected),
            ("https://u@ota.test:8443/p", HeaderMap::new(), TargetError::UserInfo),
            ("/p", HeaderMap::new(), TargetError::HostHeader),
        ] {
            assert_eq!(read(text, &headers).unwrap_err(), error, "{text} {headers:?}");
        }
    }

    #[test]
    fn own_addresses_are_known() {
        let own = |host: &str, port, own: &str| is_at(&Host::parse(host).unwrap(), port, own.parse().unwrap());
        assert!(own("127.0.0.1", 8080, "127.0.0.1:8080"));
        assert!(own("localhost", 8080, "127.0.0.1:8080"));
        assert!(own("127.0.0.2", 8080, "0.0.0.0:8080"));
        assert!(own("[::1]", 8080, "[::]:8080"));
        for (host, listener) in [
            ("0.0.0.0", "127.0.0.1:8080"),
            ("[::]", "[::1]:8080"),
            ("[::ffff:127.0.0.1]", "127.0.0.1:8080"),
            ("[::ffff:0.0.0.0]", "127.0.0.1:8080"),
            ("[::ffff:127.0.0.1]", "0.0.0.0:8080"),
            ("[::ffff:10.0.0.1]", "10.0.0.1:8080"),
            ("127.0.0.1", "[::ffff:127.0.0.1]:8080"),
        ] {
            assert!(own(host, 8080, listener), "{host} is {listener}");
        }
        assert!(!own("127.0.0.2", 8080, "127.0.0.1:8080"));
        assert!(!own("0.0.0.0", 8080, "10.0.0.1:8080"));
        assert!(!own("127.0.0.1", 8081, "127.0.0.1:8080"));
        assert!(!own("10.0.0.1", 8080, "127.0.0.1:8080"));
        assert!(!own("ota.test", 8080, "127.0.0.1:8080"));
        let both = Own { proxy: "127.0.0.1:1".parse().unwrap(), gateway: Some("127.0.0.1:2".parse().unwrap()) };
        let localhost = Host::parse("localhost").unwrap();
        assert_eq!([1, 2, 3].map(|port| is_own_address(&localhost, port, both)), [true, true, false]);
    }

    /// Authorities as they are, as they should not be, and as nobody has thought of.
    fn authority() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("ota.test".to_owned()),
            Just("OTA.Test.".to_owned()),
            Just("other.test".to_owned()),
            Just("xn--bcher-kva.test".to_owned()),
            Just("b\u{fc}cher.test".to_owned()),
            Just("127.0.0.1".to_owned()),
            Just("0x7f.1".to_owned()),
            Just("[::1]".to_owned()),
            Just("[::ffff:10.0.0.1]".to_owned()),
            Just("[ota.test]".to_owned()),
            Just("@".to_owned()),
            Just("user:pw@".to_owned()),
            Just(":443".to_owned()),
            Just(":8443".to_owned()),
            Just(":0".to_owned()),
            Just(":65536".to_owned()),
            Just(":".to_owned()),
            Just("%2e".to_owned()),
            Just("..".to_owned()),
            Just("\\".to_owned()),
            "[ -~]{0,6}",
        ];
        proptest::collection::vec(part, 1..4).prop_map(|parts| parts.concat())
    }

    fn headers_of(host: Option<&str>) -> HeaderMap {
        host.and_then(|host| HeaderValue::from_str(host).ok()).map(|host| (header::HOST, host)).into_iter().collect()
    }

    proptest! {
        #[test]
        fn a_connect_is_read_in_one_way_or_refused(text in authority()) {
            let Ok(Ok(read)) = text.parse::<Uri>().map(|uri| connect(&uri)) else { return Ok(()) };
            prop_assert!(!text.contains('@') && read.port != 0);
            // Whoever reads on, the resolver, the certificate or a parent proxy, reads the same.
            prop_assert_eq!(connect(&uri(&read.to_string())).unwrap(), read.clone());
            prop_assert_eq!(Host::parse(&read.host.to_string()).unwrap(), read.host);
        }

        #[test]
        fn an_absolute_form_leads_where_it_says_whatever_host_says(
            text in authority(), host in proptest::option::of(authority()), path in "[/?#][ -~]{0,10}",
        ) {
            let Ok(target) = format!("http://{text}{path}").parse::<Uri>().map_err(drop)
                .and_then(|uri| absolute(&uri, &headers_of(host.as_deref())).map_err(drop)) else { return Ok(()) };
            let said = text.split(['/', '?', '#']).next().unwrap();
            let said = said.rsplit_once('@').map_or(said, |(_, host)| host);
            prop_assert!(names(said, &target.origin), "{said} is {}", target.origin);
            let sent = target.host_header.as_ref().map(|value| value.to_str().unwrap()).or(host.as_deref());
            prop_assert!(sent.is_some_and(|host| names(host, &target.origin)), "{:?} is sent to {}", sent, target.origin);
            prop_assert!(target.path.as_str().starts_with('/') || target.path == "*");
        }

        #[test]
        fn nothing_leaves_its_tunnel(
            target in prop_oneof![
                "/[ -~]{0,10}", authority(), authority().prop_map(|text| format!("https://{text}/p")), Just("*".to_owned())
            ],
            host in proptest::option::of(authority()),
            is_http_10: bool,
        ) {
            let tunnel = connect(&uri("ota.test:443")).unwrap();
            let headers = headers_of(host.as_deref());
            let Ok(uri) = target.parse::<Uri>() else { return Ok(()) };
            let Ok(target) = inside(&tunnel, Scheme::Https, &uri, is_http_10, &headers) else { return Ok(()) };
            prop_assert_eq!((&target.origin.host, target.origin.port), (&tunnel.host, tunnel.port));
            let sent = target.host_header.as_ref().or(headers.get(header::HOST)).map(|value| value.to_str().unwrap());
            prop_assert!(sent.is_some_and(|host| names(host, &target.origin)), "{:?} is sent to {}", sent, target.origin);
        }
    }
}

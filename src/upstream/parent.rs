//! The parent proxy, `upstream.proxy`: tunnels through it, and requests that it forwards.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Uri,
    header::{HOST, PROXY_AUTHORIZATION, VIA},
    uri::{self, PathAndQuery},
};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use tokio_rustls::TlsConnector;

use super::{
    ConnectError, Origin, Step, Stream,
    dial::{Deadline, dial},
    tls,
};
use crate::config::{host::Host, model::ParentProxy};

/// The proxy between this one and the origins.
///
/// It is who resolves their names. Its credentials go to it alone: with a CONNECT, or with a request that it forwards, which
/// it takes them off.
pub(super) struct Parent {
    proxy: ParentProxy,
    connector: TlsConnector,
    authorization: Option<HeaderValue>,
    /// A name that nobody else has. Proxies pass `Via` on (RFC 9110 section 7.6.3), so that a request which comes back is
    /// known by it. The origin of a forwarded one sees it beside the parent's own.
    pseudonym: String,
    via: HeaderValue,
}

impl Parent {
    pub(super) fn new(proxy: ParentProxy, connector: TlsConnector) -> Self {
        let authorization = proxy.credentials.as_ref().map(|credentials| {
            let mut value = HeaderValue::try_from(format!("Basic {}", credentials.expose_secret()))
                .expect("Base64 may stand in a header");
            value.set_sensitive(true);
            value
        });
        let pseudonym = format!("ota-pacer-{:016x}", rand::random::<u64>());
        let via = HeaderValue::try_from(format!("1.1 {pseudonym}")).expect("a name and digits may stand in a header");
        Self { proxy, connector, authorization, pseudonym, via }
    }

    pub(super) fn leads_to(&self, host: &Host, port: u16) -> bool {
        self.proxy.leads_to(host, port)
    }

    /// A connection to the proxy itself.
    pub(super) async fn dial(&self, deadline: Deadline) -> Result<Stream, ConnectError> {
        let connect = async {
            let tcp = dial(&self.proxy.host, self.proxy.port, deadline).await?;
            if !self.proxy.tls {
                return Ok(Stream::Tcp(tcp));
            }
            let handshake = tls::handshake(&self.connector, &self.proxy.host, tcp);
            let tls = deadline.bound(Step::Tls, &self.proxy.host, handshake).await?;
            Ok(Stream::Tls(Box::new(tls)))
        };
        connect.await.map_err(|error| ConnectError::Parent(Box::new(error)))
    }

    /// A tunnel to `host:port`. What the proxy sends behind its 200 is read from it first.
    pub(super) async fn tunnel(&self, host: &Host, port: u16, deadline: Deadline) -> Result<Stream, ConnectError> {
        let stream = self.dial(deadline).await?;
        let asked = async {
            let failed = |error: hyper::Error| ConnectError::Tunnel { host: host.clone(), reason: describe(&error) };
            let (mut sender, connection) = http1::Builder::new()
                .title_case_headers(true)
                .max_buf_size(MAX_HEAD)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(failed)?;
            // Ends with the tunnel's opening, or when nobody waits for that any more.
            tokio::spawn(connection.with_upgrades());
            let answer = sender.send_request(self.connect_to(host, port)).await.map_err(failed)?;
            if !answer.status().is_success() {
                return Err(ConnectError::Refused { host: host.clone(), status: answer.status() });
            }
            let tunnel = hyper::upgrade::on(answer).await.map_err(failed)?;
            Ok(Stream::Tunnel(TokioIo::new(tunnel)))
        };
        deadline.bound(Step::Tunnel, host, asked).await
    }

    /// Makes a request to `origin` one that this proxy forwards: absolute-form (RFC 9112 section 3.2.2).
    ///
    /// An `OPTIONS *` becomes one of `/`, as the `http` crate knows no absolute form without a path.
    pub(super) fn address<B>(&self, request: &mut Request<B>, origin: &Origin) {
        let authority = match origin.port {
            80 => origin.host.to_string(),
            port => format!("{}:{port}", origin.host),
        };
        let mut parts = uri::Parts::default();
        parts.scheme = Some(uri::Scheme::HTTP);
        parts.authority = Some(authority.parse().expect(AUTHORITY));
        let path = request.uri().path_and_query().filter(|path| path.as_str() != "*");
        parts.path_and_query = Some(path.cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).expect("scheme, authority and path are there");
        self.introduce(request.headers_mut());
    }

    /// Whether a request has been to this proxy before, and has come back.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        let name = self.pseudonym.as_bytes();
        let comes_from_here = |via: &HeaderValue| via.as_bytes().windows(name.len()).any(|window| window == name);
        headers.get_all(VIA).iter().any(comes_from_here)
    }

    fn connect_to(&self, host: &Host, port: u16) -> Request<Empty<Bytes>> {
        let authority = format!("{host}:{port}");
        let mut request = Request::connect(&authority).header(HOST, &authority).body(Empty::new()).expect(AUTHORITY);
        self.introduce(request.headers_mut());
        request
    }

    fn introduce(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        headers.append(VIA, self.via.clone());
    }
}

/// Why a proxy's answer to a CONNECT is none.
fn describe(error: &hyper::Error) -> &'static str {
    if error.is_parse_too_large() {
        "its answer is too large"
    } else if error.is_parse() {
        "its answer is no valid HTTP"
    } else {
        "it closed the connection before its answer"
    }
}

/// Of the answer to a CONNECT.
const MAX_HEAD: usize = 16 * 1024;

const AUTHORITY: &str = "a host and a port make an authority";

#[cfg(test)]
mod tests {
    use super::{super::Scheme, *};

    fn parent() -> Parent {
        let proxy = ParentProxy {
            tls: false,
            host: Host::parse("proxy.test").unwrap(),
            port: 3128,
            credentials: Some("c2VjcmV0".to_owned().into()),
            bypass: Vec::new(),
        };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Parent::new(proxy, std::sync::Arc::new(config).into())
    }

    #[test]
    fn a_forwarded_request_names_its_origin() {
        let long = format!("/{}", "a".repeat(65_500));
        for (host, port, path, expected) in [
            ("ota.test", 80, "/a?b=1", "http://ota.test/a?b=1".to_owned()),
            ("ota.test", 8080, "*", "http://ota.test:8080/".to_owned()),
            ("[2001:db8::1]", 443, "/", "http://[2001:db8::1]:443/".to_owned()),
            ("ota.test", 80, &long, format!("http://ota.test{long}")),
        ] {
            let origin = Origin { scheme: Scheme::Http, host: Host::parse(host).unwrap(), port };
            let mut request = Request::get(path).body(()).unwrap();
            parent().address(&mut request, &origin);
            assert_eq!(request.uri().to_string(), expected);
            assert_eq!(request.headers()[PROXY_AUTHORIZATION], "Basic c2VjcmV0");
        }
    }

    #[test]
    fn what_it_sends_back_is_known_and_nothing_else() {
        let (one, other) = (parent(), parent());
        let mut request = one.connect_to(&Host::parse("[2001:db8::1]").unwrap(), 443);
        assert_eq!(request.headers()[HOST], "[2001:db8::1]:443");
        assert!(one.knows(request.headers()) && !other.knows(request.headers()));
        other.introduce(request.headers_mut());
        assert!(one.knows(request.headers()) && other.knows(request.headers()));
        let joined =
            request.headers().get_all(VIA).iter().map(|via| via.to_str().unwrap()).collect::<Vec<_>>().join(", ");
        let joined = HeaderMap::from_iter([(VIA, HeaderValue::try_from(joined).unwrap())]);
        assert!(one.knows(&joined) && !parent().knows(&joined));
    }
}

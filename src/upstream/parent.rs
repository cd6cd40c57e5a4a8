//! The parent proxy, `upstream.proxy`: tunnels through it, and requests that it forwards.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Uri,
    header::{HOST, PROXY_AUTHORIZATION, VIA},
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
    /// known by it.
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
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "*" { "/" } else { path };
        *request.uri_mut() =
            Uri::try_from(format!("{origin}{path}")).expect("an origin and a path make a URI, as they came out of one");
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
        let mut request = Request::connect(&authority)
            .header(HOST, &authority)
            .body(Empty::new())
            .expect("a host and a port make an authority");
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

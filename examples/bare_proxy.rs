//! The least that an intercepting forward proxy does: the yardstick of `make bench`.
//!
//! hyper on both sides, one upstream connection for each downstream one, one certificate for `localhost`. It matches
//! nothing, paces nothing, retries nothing and measures nothing; what ota-pacer costs more is its own doing.

use std::{io::Read, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Parser;
use http::{Method, Request, Response, StatusCode, Uri, uri::PathAndQuery};
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self as client, SendRequest},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A proxy without any feature.
#[derive(Parser)]
struct Args {
    /// Where the certificate that clients must trust is written
    #[arg(long)]
    ca_file: PathBuf,
    /// The certificate that origins are verified by
    #[arg(long)]
    upstream_ca: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let tls = Arc::new(Tls::new(&args)?);
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    std::thread::spawn(|| {
        // An error means that nothing more can be read, which is the end too.
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    println!("{}", serde_json::json!({ "address": listener.local_addr()? }));
    loop {
        let (tcp, _) = listener.accept().await?;
        tcp.set_nodelay(true)?;
        tokio::spawn(converse(tcp, tls.clone(), None));
    }
}

type Body = BoxBody<Bytes, hyper::Error>;

struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Tls {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &ca)?;
        std::fs::write(&args.ca_file, ca.pem())?;
        let mut server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
        server.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&args.upstream_ca).context("`--upstream-ca` is PEM")?)?;
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(server)), connector: TlsConnector::from(Arc::new(client)) })
    }
}

/// Serves one downstream connection; inside a tunnel `authority` is where it leads.
async fn converse<S>(stream: S, tls: Arc<Tls>, authority: Option<String>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upstream = Arc::new(Mutex::new(None));
    let service = service_fn(move |request| {
        let (tls, upstream, authority) = (tls.clone(), upstream.clone(), authority.clone());
        async move {
            match request.method() {
                &Method::CONNECT => Ok(intercept(request, tls)),
                _ => forward(request, &tls, &upstream, authority).await,
            }
        }
    });
    // A client that leaves, or an origin that does, ends the connection.
    server::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await.ok();
}

fn intercept(request: Request<Incoming>, tls: Arc<Tls>) -> Response<Body> {
    let authority = request.uri().authority().map(ToString::to_string);
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
        let Ok(stream) = tls.acceptor.accept(TokioIo::new(upgraded)).await else { return };
        // A box, or the type of this future would contain itself.
        let inner: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(converse(stream, tls, authority));
        inner.await;
    });
    Response::new(Empty::new().map_err(|never| match never {}).boxed())
}

async fn forward(
    mut request: Request<Incoming>,
    tls: &Tls,
    upstream: &Mutex<Option<SendRequest<Incoming>>>,
    tunnel: Option<String>,
) -> anyhow::Result<Response<Body>> {
    let mut upstream = upstream.lock().await;
    let reusable = match upstream.as_mut() {
        Some(sender) => sender.ready().await.is_ok(),
        None => false,
    };
    if !reusable {
        let authority = tunnel.as_deref().or(request.uri().authority().map(|authority| authority.as_str()));
        let Some(authority) = authority else {
            let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed());
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return Ok(response);
        };
        *upstream = Some(connect(authority, tunnel.is_some().then_some(&tls.connector)).await?);
    }
    let sender = upstream.as_mut().context("there is a connection")?;
    let path = request.uri().path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    Ok(sender.send_request(request).await?.map(BodyExt::boxed))
}

async fn connect(authority: &str, tls: Option<&TlsConnector>) -> anyhow::Result<SendRequest<Incoming>> {
    let tcp = TcpStream::connect(authority).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else { return handshake(tcp).await };
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    handshake(tls.connect(ServerName::try_from(host.to_owned())?, tcp).await?).await
}

async fn handshake<S>(stream: S) -> anyhow::Result<SendRequest<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

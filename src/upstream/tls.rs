//! TLS towards origins: verified strictly, and told in words when it fails.

use std::{io, path::Path, sync::Arc};

use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{ConnectError, SetupError};
use crate::config::host::Host;

/// TLS with origins, which are offered either HTTP/1.1 alone or HTTP/2 before it.
#[derive(Clone)]
pub(super) struct Connectors {
    pub(super) http1: TlsConnector,
    pub(super) http2: TlsConnector,
}

/// Trusts the system's roots and those of `ca_file`.
pub(super) fn connectors(ca_file: Option<&Path>) -> Result<Connectors, SetupError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "some system root certificates could not be read");
    }
    // Old roots that cannot be parsed are common in system stores, and merely not trusted.
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = ca_file {
        add_file(&mut roots, path)
            .map_err(|reason| SetupError::CaFile { path: path.to_owned(), reason: reason.to_string() })?;
    }
    if roots.is_empty() {
        return Err(SetupError::NoRoots);
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let offering = |protocols: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    };
    Ok(Connectors { http1: offering(&[b"http/1.1"]), http2: offering(&[b"h2", b"http/1.1"]) })
}

/// Agrees on TLS with `host`, whose name is sent as SNI; an address is not (RFC 6066 section 3).
pub(super) async fn handshake<S>(connector: &TlsConnector, host: &Host, stream: S) -> Result<TlsStream<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = match host.ip() {
        Some(ip) => ServerName::IpAddress(ip.into()),
        None => ServerName::try_from(host.as_str().to_owned()).map_err(|_| ConnectError::Tls {
            host: host.clone(),
            reason: "the host can stand in no certificate".to_owned(),
            certificate: false,
        })?,
    };
    connector.connect(name, stream).await.map_err(|error| describe(&error, host))
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let pem = std::fs::read(path)?;
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate?)?;
    }
    if roots.len() == before { Err("it holds no certificate".into()) } else { Ok(()) }
}

fn describe(error: &io::Error, host: &Host) -> ConnectError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let (reason, certificate) = match tls {
        Some(rustls::Error::InvalidCertificate(fault)) => (describe_certificate(fault, host), true),
        Some(rustls::Error::InvalidMessage(_)) => ("what answers there does not speak TLS".to_owned(), false),
        Some(rustls::Error::AlertReceived(alert)) => (format!("it was refused with the alert {alert:?}"), false),
        Some(other) => (other.to_string(), false),
        None if error.kind() == io::ErrorKind::UnexpectedEof => ("the connection was closed".to_owned(), false),
        None => (error.to_string(), false),
    };
    ConnectError::Tls { host: host.clone(), reason, certificate }
}

fn describe_certificate(fault: &CertificateError, host: &Host) -> String {
    match fault {
        CertificateError::UnknownIssuer => {
            "its certificate is signed by no root that is trusted here (`upstream.ca_file` adds roots)".to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            // rustls presents them as `DnsName("a.example")`.
            let names: Vec<_> = presented.iter().map(|name| name.split('"').nth(1).unwrap_or(name)).collect();
            format!("its certificate is for `{}`, not for `{}`", names.join("`, `"), host.as_str())
        }
        CertificateError::NotValidForName => format!("its certificate is not for `{}`", host.as_str()),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet, or this machine's clock is behind".to_owned()
        }
        CertificateError::Revoked => "its certificate has been revoked".to_owned(),
        // What `openssl req -x509` makes unless told otherwise. rustls has no name for it.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority (`CA:TRUE`), which can stand for no host: issue one without it"
                .to_owned()
        }
        other => format!("its certificate is not acceptable ({other})"),
    }
}

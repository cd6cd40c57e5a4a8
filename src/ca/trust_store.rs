//! Certificates to trust, in the formats that clients read. Never a key.

use std::time::SystemTime;

use rustls_pki_types::CertificateDer;

use super::{Authority, bundle, jks, pkcs12};

/// A format of [`export`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text, any number of certificates.
    Pem,
    /// One certificate, the one that leaves are verified up to.
    Der,
    /// A trust store that Java reads since 8, and most other software.
    Pkcs12,
    /// A trust store for older Java software.
    Jks,
}

/// One trusted certificate and the name a store knows it by.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    pub(super) alias: String,
    pub(super) certificate: &'a CertificateDer<'static>,
}

/// The certificates that clients of `authority` must trust, with the system's roots where asked for: most trust stores
/// replace those a client has. `password` guards the integrity of a store, not what it holds.
pub fn export(authority: &Authority, format: Format, with_system_roots: bool, password: Option<&str>) -> Vec<u8> {
    let ours = authority.trusted();
    let all = if with_system_roots { authority.with_system_roots() } else { ours.to_vec() };
    match format {
        Format::Pem => bundle::pem(&all).into_bytes(),
        Format::Der => authority.anchor().to_vec(),
        Format::Pkcs12 => pkcs12::encode(&entries(&all, ours), password),
        Format::Jks => jks::encode(&entries(&all, ours), password.unwrap_or(DEFAULT_PASSWORD), SystemTime::now()),
    }
}

/// Names every certificate: `ota-pacer` those of `ours`, `system` the others.
pub(super) fn entries<'a>(all: &'a [CertificateDer<'static>], ours: &[CertificateDer<'static>]) -> Vec<Entry<'a>> {
    let mut counts = [0, 0];
    all.iter()
        .map(|certificate| {
            let (kind, name) = if ours.contains(certificate) { (0, "ota-pacer") } else { (1, "system") };
            counts[kind] += 1;
            Entry { alias: format!("{name}-{}", counts[kind]), certificate }
        })
        .collect()
}

/// What Java's own store has, and everybody expects.
const DEFAULT_PASSWORD: &str = "changeit";

//! What clients trust instead of the system's roots: those and ours.

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;

/// The system's roots, as they are on this machine now.
pub(super) fn system_roots() -> Vec<CertificateDer<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some system root certificates could not be read");
    }
    if found.certs.is_empty() {
        tracing::warn!(
            "no system root certificates found: clients that trust only the bundle will reach intercepted hosts alone"
        );
    }
    found.certs
}

/// `system` and `ours`, each certificate once, and none of `retired`: after `eval "$(ota-pacer env)"` the system's roots
/// *are* the bundle as it was then, with ours in it.
///
/// Most clients' CA variables replace the roots rather than add to them, and hosts of no channel are tunnelled: their
/// certificates must go on verifying. So the bundle holds the public roots as well, and is brought up to date at every
/// start.
pub(super) fn merge(
    system: &[CertificateDer<'static>],
    ours: &[CertificateDer<'static>],
    retired: &[CertificateDer<'static>],
) -> Vec<CertificateDer<'static>> {
    let mut merged: Vec<CertificateDer<'static>> = Vec::new();
    for certificate in system.iter().filter(|certificate| !ours.contains(certificate)).chain(ours) {
        if !merged.contains(certificate) && !retired.contains(certificate) {
            merged.push(certificate.clone());
        }
    }
    merged
}

/// RFC 7468, one after the other.
pub(super) fn pem(certificates: &[CertificateDer<'static>]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        append_pem(&mut text, certificate);
    }
    text
}

/// RFC 7468 section 3: lines of 64 characters.
fn append_pem(text: &mut String, certificate: &CertificateDer<'_>) {
    let encoded = STANDARD.encode(certificate);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str("-----END CERTIFICATE-----\n");
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject;

    use super::*;

    fn certificates(count: u8) -> Vec<CertificateDer<'static>> {
        (0..count).map(|byte| CertificateDer::from(vec![byte; 100])).collect()
    }

    #[test]
    fn the_bundle_reads_back_as_what_went_in_each_once_without_the_retired() {
        let system = certificates(3);
        let ours = vec![CertificateDer::from(vec![9; 48])];
        let retired = vec![CertificateDer::from(vec![8; 48])];
        let all = [system.clone(), ours.clone(), retired.clone(), system.clone()].concat();
        let bundle = pem(&merge(&all, &ours, &retired));
        let read: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(read, [system, ours].concat());
        assert!(bundle.lines().all(|line| line.len() <= 64));
    }
}

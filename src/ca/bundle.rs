//! The file that clients trust instead of the system's: its roots and ours.

use std::{fs, io, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;

use super::files::{self, Readers};

/// Writes `path` unless it already holds the system's roots and `ours`.
///
/// Most clients' CA variables replace the roots rather than add to them, and hosts of no channel are tunnelled: their
/// certificates must go on verifying. So the bundle holds the public roots as well, and is brought up to date at every
/// start.
pub(super) fn refresh(path: &Path, ours: &[CertificateDer<'static>]) -> io::Result<()> {
    let bundle = render(&system_roots(), ours);
    match fs::read(path) {
        Ok(current) if current == bundle.as_bytes() => Ok(()),
        _ => files::write(path, bundle.as_bytes(), Readers::Everyone),
    }
}

fn system_roots() -> Vec<CertificateDer<'static>> {
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

/// Each certificate once: after `eval "$(ota-pacer env)"` the system's roots *are* this bundle, with ours in it.
fn render(system: &[CertificateDer<'static>], ours: &[CertificateDer<'static>]) -> String {
    let mut bundle = String::new();
    for (index, certificate) in system.iter().enumerate() {
        if !ours.contains(certificate) && !system[..index].contains(certificate) {
            append_pem(&mut bundle, certificate);
        }
    }
    for certificate in ours {
        append_pem(&mut bundle, certificate);
    }
    bundle
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
    fn the_bundle_reads_back_as_what_went_in_each_once() {
        let system = certificates(3);
        let ours = vec![CertificateDer::from(vec![9; 48])];
        let bundle = render(&[system.clone(), ours.clone(), system.clone()].concat(), &ours);
        let read: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(read, [system, ours].concat());
        assert!(bundle.lines().all(|line| line.len() <= 64));
    }
}

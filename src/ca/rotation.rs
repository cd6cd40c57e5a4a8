//! Replacing an authority while clients that trust the old one are running.
//!
//! `ca.pem` and the bundles trust both from the moment of the rotation, and a proxy signs with the key it has loaded: so
//! clients are restarted first, then the proxies, and then nothing needs the old authority any more.

use std::{path::PathBuf, time::SystemTime};

use rustls_pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{Authority, CaError, authority, bundle, certificate, directory::Directory, files::Readers};
use crate::config::model::Ca;

/// A new authority beside the old one.
#[derive(Debug)]
pub struct Rotation {
    /// The new one.
    pub authority: Authority,
    /// Copies of the old one's certificate and key.
    pub retired: [PathBuf; 2],
}

/// Makes a new authority by the settings of `ca`. Clients that read our files from now on trust it and the old one; a
/// running proxy signs with the old one until it is restarted.
///
/// # Errors
/// When there is no authority made here, which leaves an operator's own alone, or a file cannot be written.
pub fn rotate(ca: &Ca, now: SystemTime) -> Result<Rotation, CaError> {
    let directory = Directory::open(&ca.dir)?;
    let old = ours(&directory)?;
    let retired = directory.set_aside(now)?;
    authority::create(&directory, ca, &old, now)?;
    let authority = Authority::load(&directory, ca.key_type, now)?;
    authority.write_bundles(&directory)?;
    Ok(Rotation { authority, retired })
}

/// Has clients trust only the newest authority from now on, and says how many were dropped.
///
/// # Errors
/// When there is no authority made here, or a file cannot be written.
pub fn drop_old(ca: &Ca, now: SystemTime) -> Result<(Authority, usize), CaError> {
    let directory = Directory::open(&ca.dir)?;
    let all = ours(&directory)?;
    if all.len() > 1 {
        directory.write(&directory.certificate(), bundle::pem(&all[..1]).as_bytes(), Readers::Everyone)?;
    }
    let authority = Authority::load(&directory, ca.key_type, now)?;
    authority.write_bundles(&directory)?;
    Ok((authority, all.len() - 1))
}

/// The certificates of `ca.pem`, where the first one was made here. It may have expired: that is what rotation is for.
fn ours(directory: &Directory) -> Result<Vec<CertificateDer<'static>>, CaError> {
    let certificates = directory.certificates()?;
    let is_ours = certificates.first().is_some_and(|first| {
        X509Certificate::from_der(first).is_ok_and(|(_, first)| {
            let mut organizations = first.subject().iter_organization();
            first.subject() == first.issuer()
                && organizations.any(|name| name.as_str() == Ok(certificate::ORGANIZATION))
        })
    });
    if is_ours { Ok(certificates) } else { Err(CaError::NotOurs { path: directory.certificate() }) }
}

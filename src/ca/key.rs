//! Private keys: made, read, told apart.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};

use super::{CaError, files};
use crate::config::model::KeyType;

/// A fresh key.
pub(super) fn generate(key_type: KeyType) -> Result<KeyPair, rcgen::Error> {
    match key_type {
        KeyType::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        KeyType::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
    }
}

/// Whether it is an RSA key, of whatever size.
pub(super) fn is_rsa(key: &KeyPair) -> bool {
    // Keys that are read sign with SHA-256, as those made here do.
    key.algorithm() == &PKCS_RSA_SHA256
}

/// Refuses a key that every user of the machine may use rather than warn: whoever reads it can impersonate any site to
/// every client that trusts us, and a warning in a log has never closed such a hole. The group is let be, for
/// containers that mount secrets for one.
pub(super) fn read(path: &Path) -> Result<KeyPair, CaError> {
    let unreadable = |cause: io::Error| CaError::Read { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(unreadable)?;
    if let Some(mode) = files::exposed_mode(&file).map_err(unreadable)? {
        return Err(CaError::KeyExposed { path: path.to_owned(), mode });
    }
    let mut pem = Vec::new();
    file.read_to_end(&mut pem).map_err(unreadable)?;
    let unusable = || CaError::Key { path: path.to_owned() };
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable())?;
    KeyPair::try_from(&der).map_err(|_| unusable())
}

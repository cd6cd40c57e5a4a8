//! The OTA's own certificate authority and its server certificate, made anew at each start.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A CA certificate and a leaf signed by it.
pub(crate) struct Identity {
    ca_pem: String,
    leaf: CertificateDer<'static>,
    leaf_key: KeyPair,
}

impl Identity {
    /// Makes a CA and a leaf for `hosts`, names or address literals.
    pub(crate) fn generate(hosts: &[String]) -> Result<Self, rcgen::Error> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "mock OTA test CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let mut leaf = CertificateParams::new(hosts)?;
        leaf.distinguished_name.push(DnType::CommonName, "mock OTA");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Strict verifiers (Python 3.13's default) refuse a leaf that does not name its issuer's key.
        leaf.use_authority_key_identifier_extension = true;
        let leaf_key = KeyPair::generate()?;
        let leaf = leaf.signed_by(&leaf_key, &ca)?;
        Ok(Self { ca_pem: ca.pem(), leaf: leaf.der().clone(), leaf_key })
    }

    /// The certificate that clients must trust.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// TLS settings of the OTA: HTTP/1.1 only.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, rustls::Error> {
        let key = PrivateKeyDer::Pkcs8(self.leaf_key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.leaf.clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

//! An authority in words, for the operator who has to say which one clients must trust.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use x509_parser::{
    certificate::X509Certificate,
    extensions::{GeneralName, GeneralSubtree},
    prelude::FromDer,
    public_key::PublicKey,
};

use super::Authority;

/// What `ota-pacer ca show` prints.
pub struct Description<'a>(&'a Authority);

impl<'a> Description<'a> {
    /// Of `authority`.
    pub fn of(authority: &'a Authority) -> Self {
        Self(authority)
    }
}

impl fmt::Debug for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Description({:?})", self.0)
    }
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.0;
        let trusted: Vec<X509Certificate<'_>> = authority.trusted().iter().filter_map(parsed).collect();
        let Some(signing) = trusted.first() else { return Ok(()) };
        writeln!(f, "certificate   {}", authority.certificate_path().display())?;
        writeln!(f, "bundle        {} (with the system's roots)", authority.bundle_path().display())?;
        writeln!(f, "trust store   {} (the same, for Java)", authority.trust_store_path().display())?;
        writeln!(f, "subject       {}", signing.subject())?;
        if signing.subject() != signing.issuer() {
            writeln!(f, "issued by     {}", signing.issuer())?;
        }
        writeln!(f, "SHA-256       {}", fingerprint(&authority.trusted()[0]))?;
        writeln!(f, "key           {}", key(signing))?;
        writeln!(f, "valid         {} to {}", signing.validity().not_before, signing.validity().not_after)?;
        let vouches = constraints(signing).unwrap_or_else(|| "every host".to_owned());
        writeln!(f, "vouches for   {vouches}")?;
        if authority.intermediates() > 0 {
            writeln!(f, "sent along    {} above the leaf", certificates(authority.intermediates()))?;
        }
        for (der, other) in authority.trusted().iter().zip(&trusted).skip(1) {
            writeln!(
                f,
                "also trusted  {}, until {}, SHA-256 {}",
                other.subject(),
                other.validity().not_after,
                fingerprint(der)
            )?;
        }
        Ok(())
    }
}

fn parsed<'a>(der: &'a CertificateDer<'static>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().map(|(_, parsed)| parsed)
}

/// As browsers and `openssl x509 -fingerprint` show it.
fn fingerprint(der: &CertificateDer<'_>) -> String {
    let hash = digest(&SHA256, der);
    hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

fn key(certificate: &X509Certificate<'_>) -> String {
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => format!("RSA {}", key.key_size()),
        Ok(PublicKey::EC(point)) => format!("ECDSA P-{}", if point.key_size() == 528 { 521 } else { point.key_size() }),
        _ => "of another kind".to_owned(),
    }
}

fn constraints(certificate: &X509Certificate<'_>) -> Option<String> {
    let constraints = certificate.name_constraints().ok()??.value;
    let listed = |subtrees: &Option<Vec<GeneralSubtree<'_>>>| -> Vec<String> {
        subtrees.iter().flatten().map(|subtree| base(&subtree.base)).collect()
    };
    let (permitted, excluded) = (listed(&constraints.permitted_subtrees), listed(&constraints.excluded_subtrees));
    let permitted = if permitted.is_empty() { "every host".to_owned() } else { permitted.join(", ") };
    Some(if excluded.is_empty() { permitted } else { format!("{permitted}; not for {}", excluded.join(", ")) })
}

fn base(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress(range) => match *range {
            [a, b, c, d, 255, 255, 255, 255] => format!("{a}.{b}.{c}.{d}"),
            [.., 0] if range.iter().all(|byte| *byte == 0) => {
                if range.len() == 8 { "any IPv4 address" } else { "any IPv6 address" }.to_owned()
            }
            _ => match <[u8; 16]>::try_from(&range[..range.len() / 2]) {
                Ok(octets) => std::net::Ipv6Addr::from(octets).to_string(),
                Err(_) => "a range of addresses".to_owned(),
            },
        },
        _ => "names of other kinds".to_owned(),
    }
}

fn certificates(number: usize) -> String {
    if number == 1 { "1 certificate".to_owned() } else { format!("{number} certificates") }
}

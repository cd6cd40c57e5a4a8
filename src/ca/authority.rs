//! The authority and its files.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{CertificateParams, Issuer, KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, oid_registry::OID_X509_COMMON_NAME, prelude::FromDer};

use super::{
    CaError, MintError, bundle,
    certificate::{self, Validity},
    files::{self, Readers},
    settings,
};
use crate::config::host::Host;

/// A certificate authority that signs leaves for intercepted hosts.
pub struct Authority {
    certificate_path: PathBuf,
    bundle_path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// What follows a leaf in a handshake: the signing certificate and those above it, without the root, which a client
    /// must already have.
    intermediates: Vec<CertificateDer<'static>>,
    validity: Validity,
    /// The common name of the signing certificate, where that is its whole subject.
    sole_common_name: Option<String>,
}

impl Authority {
    /// Loads `ca.pem` and `ca.key` from `dir`, making the directory and the pair where there are none, and brings
    /// `bundle.pem` (the system's roots and ours) up to date.
    ///
    /// The pair may be the operator's own. `ca.pem` then begins with the certificate that signs; further certificates
    /// are those above it, up to the root. Two processes that start at once on one directory end up with one pair.
    ///
    /// # Errors
    /// When a file cannot be read or written, the two do not belong together, the certificate is no CA or not valid
    /// now, or the key can be read by users other than the owner and its group.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        Self::open_at(dir, SystemTime::now())
    }

    /// The same, `now` being the time.
    ///
    /// # Errors
    /// See [`Authority::open`].
    pub fn open_at(dir: &Path, now: SystemTime) -> Result<Self, CaError> {
        let unusable = |source| CaError::Directory { dir: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(unusable)?;
        // Clients get these paths in their environment, wherever they run.
        let dir = fs::canonicalize(dir).map_err(unusable)?;
        let (certificate_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
        let lock = files::lock(&dir).map_err(unusable)?;
        match (certificate_path.exists(), key_path.exists()) {
            (true, true) => {}
            (false, false) => create(&certificate_path, &key_path, now)?,
            (true, false) => return Err(CaError::HalfAPair { present: certificate_path, missing: key_path }),
            (false, true) => return Err(CaError::HalfAPair { present: key_path, missing: certificate_path }),
        }
        drop(lock);

        let key = read_key(&key_path)?;
        let certificates = read_certificates(&certificate_path)?;
        let authority = Self::load(certificate_path, &key_path, dir.join("bundle.pem"), key, &certificates, now)?;
        bundle::refresh(&authority.bundle_path, &certificates)
            .map_err(|source| CaError::Write { path: authority.bundle_path.clone(), source })?;
        settings::refresh(&dir).map_err(|source| CaError::Write { path: dir, source })?;
        Ok(authority)
    }

    /// Our certificate alone, in PEM; for clients that add it to their own roots. An absolute path.
    pub fn certificate_path(&self) -> &Path {
        &self.certificate_path
    }

    /// The system's roots and ours, in PEM; for clients whose setting replaces the roots. An absolute path.
    pub fn bundle_path(&self) -> &Path {
        &self.bundle_path
    }

    /// Signs a leaf for `key`, and says when to replace it.
    pub(super) fn sign_leaf(
        &self,
        host: &Host,
        sni: Option<&Host>,
        key: &KeyPair,
        now: SystemTime,
    ) -> Result<(Vec<CertificateDer<'static>>, SystemTime), MintError> {
        let validity = Validity::of_leaf(now, self.validity).ok_or(MintError::AuthorityExpired)?;
        let issuer_name = self.sole_common_name.as_deref();
        let params = certificate::leaf(host, sni, issuer_name, validity, certificate::random_serial())?;
        let leaf = CertificateDer::from(params.signed_by(key, &self.issuer)?);
        let chain = std::iter::once(leaf).chain(self.intermediates.iter().cloned()).collect();
        Ok((chain, validity.renew_at(now)))
    }

    fn load(
        certificate_path: PathBuf,
        key_path: &Path,
        bundle_path: PathBuf,
        key: KeyPair,
        certificates: &[CertificateDer<'static>],
        now: SystemTime,
    ) -> Result<Self, CaError> {
        let malformed = |reason: String| CaError::Certificate { path: certificate_path.clone(), reason };
        let parse =
            |der| X509Certificate::from_der(der).map(|(_, parsed)| parsed).map_err(|e| malformed(e.to_string()));
        let signing =
            certificates.first().ok_or_else(|| malformed("it has no PEM section `CERTIFICATE`".to_owned()))?;
        let parsed = parse(signing)?;

        if parsed.public_key().subject_public_key.data != key.der_bytes() {
            return Err(CaError::Mismatch { certificate: certificate_path, key: key_path.to_owned() });
        }
        if let Some(reason) = why_no_authority(&parsed) {
            return Err(CaError::NotAnAuthority { path: certificate_path, reason });
        }
        let validity = Validity {
            not_before: parsed.validity().not_before.to_datetime().into(),
            not_after: parsed.validity().not_after.to_datetime().into(),
        };
        check_validity(&parsed, validity, now, &certificate_path)?;

        let issuer = Issuer::from_ca_cert_der(signing, key).map_err(|error| malformed(error.to_string()))?;
        if !reproduces_subject(&issuer, &parsed)? {
            return Err(CaError::Subject { path: certificate_path });
        }
        let mut intermediates = Vec::new();
        for der in certificates {
            let parsed = parse(der)?;
            if parsed.subject() != parsed.issuer() {
                intermediates.push(der.clone());
            }
        }
        let sole_common_name = sole_common_name(&parsed);
        Ok(Self { certificate_path, bundle_path, issuer, intermediates, validity, sole_common_name })
    }
}

/// No key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("certificate_path", &self.certificate_path)
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}

/// The key goes first: where this is cut short, what is left is refused with a hint rather than signed with something
/// else.
fn create(certificate_path: &Path, key_path: &Path, now: SystemTime) -> Result<(), CaError> {
    let key = KeyPair::generate().map_err(MintError::from)?;
    let params = certificate::authority(now, rand::random(), certificate::random_serial());
    let certificate = params.self_signed(&key).map_err(MintError::from)?;
    for (path, pem, readers) in
        [(key_path, key.serialize_pem(), Readers::Owner), (certificate_path, certificate.pem(), Readers::Everyone)]
    {
        files::write(path, pem.as_bytes(), readers)
            .map_err(|source| CaError::Write { path: path.to_owned(), source })?;
    }
    tracing::info!(certificate = %certificate_path.display(), "made a certificate authority");
    Ok(())
}

/// Refuses a key that every user of the machine may use rather than warn: whoever reads it can impersonate any site to
/// every client that trusts us, and a warning in a log has never closed such a hole. The group is let be, for
/// containers that mount secrets for one.
fn read_key(path: &Path) -> Result<KeyPair, CaError> {
    let unreadable = |source: io::Error| CaError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    if let Some(mode) = files::exposed_mode(&file).map_err(unreadable)? {
        return Err(CaError::KeyExposed { path: path.to_owned(), mode });
    }
    let mut pem = Vec::new();
    file.read_to_end(&mut pem).map_err(unreadable)?;
    let unusable = || CaError::Key { path: path.to_owned() };
    let der = rustls_pki_types::PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable())?;
    KeyPair::try_from(&der).map_err(|_| unusable())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CaError> {
    let pem = fs::read(path).map_err(|source| CaError::Read { path: path.to_owned(), source })?;
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| CaError::Certificate { path: path.to_owned(), reason: error.to_string() })
}

fn why_no_authority(certificate: &X509Certificate<'_>) -> Option<&'static str> {
    if !certificate.is_ca() {
        return Some("it has no basicConstraints `CA:TRUE`");
    }
    match certificate.key_usage() {
        Ok(Some(usage)) if !usage.value.key_cert_sign() => Some("its keyUsage has no `keyCertSign`"),
        _ => None,
    }
}

fn check_validity(
    certificate: &X509Certificate<'_>,
    validity: Validity,
    now: SystemTime,
    path: &Path,
) -> Result<(), CaError> {
    let error = |state, hint| Err(CaError::Validity { path: path.to_owned(), state, hint });
    if now < validity.not_before {
        let state = format!("not valid before {}", certificate.validity().not_before);
        return error(state, "check this machine's clock");
    }
    match validity.not_after.duration_since(now) {
        Ok(left) if left > Duration::ZERO => {
            if left < EXPIRY_WARNING {
                let (path, until) = (path.display(), certificate.validity().not_after);
                tracing::warn!(%path, %until, "the CA certificate expires soon: replace it and have clients trust the new one");
            }
            Ok(())
        }
        _ => error(
            format!("expired since {}", certificate.validity().not_after),
            "replace it and have clients trust the new one, or remove `ca.pem` and `ca.key` to have a new pair made",
        ),
    }
}

/// `rcgen` keeps a subject as a map and loses what a map cannot hold, such as two organizational units. Clients look an
/// issuer up by the bytes of its name, so such a leaf would verify nowhere; that is better told now.
fn reproduces_subject(issuer: &Issuer<'static, KeyPair>, certificate: &X509Certificate<'_>) -> Result<bool, MintError> {
    let probe = CertificateParams::default().signed_by(issuer.key(), issuer)?;
    let (_, parsed) = X509Certificate::from_der(probe.der()).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    Ok(parsed.issuer().as_raw() == certificate.subject().as_raw())
}

fn sole_common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let mut attributes = certificate.subject().iter_attributes();
    match (attributes.next(), attributes.next()) {
        (Some(only), None) if *only.attr_type() == OID_X509_COMMON_NAME => only.as_str().ok().map(str::to_owned),
        _ => None,
    }
}

/// Long enough to roll a new authority out to a fleet.
const EXPIRY_WARNING: Duration = Duration::from_secs(60 * 24 * 60 * 60);

//! The authority: what it signs with, and what it may sign.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{CertificateParams, Issuer, KeyPair, PublicKeyData};
use rustls_pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, oid_registry::OID_X509_COMMON_NAME, prelude::FromDer};

use super::{
    CaError, MintError, bundle,
    certificate::{self, Validity},
    constraints::{self, Constraints},
    directory::Directory,
    files::Readers,
    key, pkcs12, settings, trust_store,
};
use crate::config::{
    host::Host,
    model::{Ca, KeyType},
};

/// A certificate authority that signs leaves for intercepted hosts.
pub struct Authority {
    certificate_path: PathBuf,
    bundle_path: PathBuf,
    trust_store_path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// What `ca.pem` holds, the signing certificate first.
    trusted: Vec<CertificateDer<'static>>,
    /// What follows a leaf in a handshake: the signing certificate and those above it, without the root, which a client
    /// must already have.
    intermediates: Vec<CertificateDer<'static>>,
    /// Of the signing certificate and those above it.
    constraints: Vec<Constraints>,
    validity: Validity,
    /// The common name of the signing certificate, where that is its whole subject.
    sole_common_name: Option<String>,
    leaf_key: KeyType,
}

impl Authority {
    /// Loads `ca.pem` and `ca.key` from the directory of `ca`, making it and the pair where there are none, and brings
    /// `bundle.pem` and `bundle.p12` (the system's roots and ours) up to date.
    ///
    /// The pair may be the operator's own. `ca.pem` then begins with the certificate that signs; further certificates
    /// are those above it, up to the root, and any others that clients shall trust. What is there is used as it is: the
    /// other settings of `ca` hold for a pair that is made now, and a log line says so where they differ. Two processes
    /// that start at once on one directory end up with one pair.
    ///
    /// # Errors
    /// When a file cannot be read or written, the two do not belong together, the certificate is no CA or not valid
    /// now, or the key can be read by users other than the owner and its group.
    pub fn open(ca: &Ca) -> Result<Self, CaError> {
        Self::open_at(ca, SystemTime::now())
    }

    /// The same, `now` being the time.
    ///
    /// # Errors
    /// See [`Authority::open`].
    pub fn open_at(ca: &Ca, now: SystemTime) -> Result<Self, CaError> {
        let directory = Directory::open(&ca.dir)?;
        let (certificate, key) = (directory.certificate(), directory.key());
        match (certificate.exists(), key.exists()) {
            (true, true) => {}
            (false, false) => create(&directory, ca, &[], now)?,
            (true, false) => return Err(CaError::HalfAPair { present: certificate, missing: key }),
            (false, true) => return Err(CaError::HalfAPair { present: key, missing: certificate }),
        }
        let authority = Self::load(&directory, ca.key_type, now)?;
        authority.compare(ca);
        authority.write_bundles(&directory)?;
        let dir = authority.bundle_path.parent().expect("it stands in a directory");
        settings::refresh(dir).map_err(|cause| CaError::Write { path: dir.to_owned(), cause })?;
        Ok(authority)
    }

    /// Our certificates alone, in PEM; for clients that add them to their own roots. An absolute path.
    pub fn certificate_path(&self) -> &Path {
        &self.certificate_path
    }

    /// The system's roots and ours, in PEM; for clients whose setting replaces the roots. An absolute path.
    pub fn bundle_path(&self) -> &Path {
        &self.bundle_path
    }

    /// The same as a PKCS#12 trust store without a password, for Java. An absolute path.
    pub fn trust_store_path(&self) -> &Path {
        &self.trust_store_path
    }

    /// Where these files are. An absolute path.
    pub fn dir(&self) -> &Path {
        self.certificate_path.parent().expect("the certificate stands in a directory")
    }

    /// What `ca.pem` holds: the signing certificate, those above it, and those of authorities before it.
    pub(super) fn trusted(&self) -> &[CertificateDer<'static>] {
        &self.trusted
    }

    /// The system's roots and ours.
    pub(super) fn with_system_roots(&self) -> Vec<CertificateDer<'static>> {
        // What cannot be read is trusted by nobody.
        let retired = Directory::retired(self.dir(), &self.trusted).unwrap_or_default();
        bundle::merge(&bundle::system_roots(), &self.trusted, &retired)
    }

    /// The certificate that clients verify a leaf up to: the root where `ca.pem` has it, else what is nearest to it.
    pub(super) fn anchor(&self) -> &CertificateDer<'static> {
        let root = chain(&self.trusted).last().copied().unwrap_or_default();
        &self.trusted[root]
    }

    /// How many certificates are sent behind a leaf.
    pub(super) fn intermediates(&self) -> usize {
        self.intermediates.len()
    }

    /// Which kind of key leaves have.
    pub(super) fn leaf_key(&self) -> KeyType {
        self.leaf_key
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
        // One name that the authority may not vouch for would void the leaf for the other as well.
        let names: Vec<&Host> = [Some(host), sni.filter(|sni| self.permits(sni))].into_iter().flatten().collect();
        let params = certificate::leaf(
            &names,
            self.common_name(host),
            key::is_rsa(key),
            validity,
            certificate::random_serial(),
        )?;
        let leaf = CertificateDer::from(params.signed_by(key, &self.issuer)?);
        let chain = std::iter::once(leaf).chain(self.intermediates.iter().cloned()).collect();
        Ok((chain, validity.renew_at(now)))
    }

    /// Whether clients accept a leaf for `host` from this authority.
    fn permits(&self, host: &Host) -> bool {
        self.constraints.iter().all(|constraints| constraints.permit(host))
    }

    /// The common name of a leaf. None where it would equal the authority's subject, as the leaf would then look
    /// self-signed, and none for an address under constraints: OpenSSL takes the one for a name that is not permitted.
    fn common_name<'a>(&self, host: &'a Host) -> Option<&'a str> {
        let is_taken = self.sole_common_name.as_deref() == Some(host.as_str());
        let is_misread = host.ip().is_some() && !self.constraints.is_empty();
        (!is_taken && !is_misread).then_some(host.as_str())
    }

    /// Says in the log where the authority that is there differs from what the configuration would have made, as
    /// [`Authority::open`] does; for a configuration that has changed since.
    pub fn compare(&self, ca: &Ca) {
        let path = self.certificate_path.display();
        for host in &ca.hosts {
            if !self.constraints.iter().all(|constraints| constraints.permit_all(host)) {
                let hint =
                    "`ota-pacer ca rotate` makes one for the hosts of the configuration, which clients must then trust";
                tracing::warn!(%host, %path, hint, "the CA's name constraints leave a configured host out: clients will not accept its certificates");
            }
        }
        if ca.name_constraints && self.constraints.is_empty() {
            let hint = "`ota-pacer ca rotate` makes one that may not";
            tracing::warn!(%path, hint, "`ca.name_constraints` is set, but the CA that is there may vouch for every host");
        }
        if ca.key_type == KeyType::Rsa2048 && !key::is_rsa(self.issuer.key()) {
            let hint = "`ota-pacer ca rotate` makes an RSA CA";
            tracing::warn!(%path, hint, "`ca.key_type` is `rsa2048`, but the CA that is there signs with ECDSA");
        }
    }

    /// Brings the files up to date that clients read.
    pub(super) fn write_bundles(&self, directory: &Directory) -> Result<(), CaError> {
        let all = self.with_system_roots();
        let entries = trust_store::entries(&all, &self.trusted);
        directory.update(&self.bundle_path, bundle::pem(&all).as_bytes())?;
        directory.update(&self.trust_store_path, &pkcs12::encode(&entries, None))
    }

    /// Reads what is in the directory.
    pub(super) fn load(directory: &Directory, leaf_key: KeyType, now: SystemTime) -> Result<Self, CaError> {
        let (certificate_path, key_path) = (directory.certificate(), directory.key());
        let key = key::read(&key_path)?;
        let trusted = directory.certificates()?;
        let malformed = |reason: String| CaError::Certificate { path: certificate_path.clone(), reason };
        let parsed = parse_all(&trusted).map_err(malformed)?;
        let signing = parsed.first().ok_or_else(|| malformed("it has no PEM section `CERTIFICATE`".to_owned()))?;

        if signing.public_key().subject_public_key.data != key.der_bytes() {
            return Err(CaError::Mismatch { certificate: certificate_path, key: key_path });
        }
        if let Some(reason) = why_no_authority(signing) {
            return Err(CaError::NotAnAuthority { path: certificate_path, reason });
        }
        let validity = Validity {
            not_before: signing.validity().not_before.to_datetime().into(),
            not_after: signing.validity().not_after.to_datetime().into(),
        };
        check_validity(signing, validity, now, &certificate_path)?;

        let issuer = Issuer::from_ca_cert_der(&trusted[0], key).map_err(|error| malformed(error.to_string()))?;
        if !reproduces_subject(&issuer, signing)? {
            return Err(CaError::Subject { path: certificate_path });
        }
        let chain = chain(&trusted);
        let is_root = |index: &usize| parsed[*index].subject() == parsed[*index].issuer();
        let intermediates = chain.iter().filter(|index| !is_root(index)).map(|index| trusted[*index].clone()).collect();
        let constraints = chain.iter().filter_map(|index| Constraints::of(&parsed[*index])).collect();
        let sole_common_name = sole_common_name(signing);
        drop(parsed);
        Ok(Self {
            certificate_path,
            bundle_path: directory.bundle(),
            trust_store_path: directory.trust_store(),
            issuer,
            trusted,
            intermediates,
            constraints,
            validity,
            sole_common_name,
            leaf_key,
        })
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

/// Makes a pair, whose certificate is written with `also` behind it. The key goes first: where this is cut short, what is
/// left is refused with a hint rather than signed with something else.
pub(super) fn create(
    directory: &Directory,
    ca: &Ca,
    also: &[CertificateDer<'static>],
    now: SystemTime,
) -> Result<(), CaError> {
    let key = key::generate(ca.key_type).map_err(MintError::from)?;
    let mut params = certificate::authority(now, rand::random(), certificate::random_serial());
    params.name_constraints = ca.name_constraints.then(|| constraints::for_hosts(&ca.hosts));
    let certificate = params.self_signed(&key).map_err(MintError::from)?.der().clone();
    let all = [&[certificate], also].concat();
    directory.write(&directory.key(), key.serialize_pem().as_bytes(), Readers::Owner)?;
    directory.write(&directory.certificate(), bundle::pem(&all).as_bytes(), Readers::Everyone)?;
    tracing::info!(certificate = %directory.certificate().display(), "made a certificate authority");
    Ok(())
}

/// Which of `certificates` lead from the first one to its root, by their indexes, as far as they are there.
fn chain(certificates: &[CertificateDer<'static>]) -> Vec<usize> {
    let Ok(parsed) = parse_all(certificates) else { return Vec::new() };
    let mut chain = vec![0];
    while let Some(last) = chain.last().map(|index| &parsed[*index]) {
        if last.subject() == last.issuer() {
            break;
        }
        let above = |index: &usize| parsed[*index].subject().as_raw() == last.issuer().as_raw();
        // Two that issued each other would go round for ever.
        match (0..parsed.len()).find(|index| above(index) && !chain.contains(index)) {
            Some(index) => chain.push(index),
            None => break,
        }
    }
    chain
}

fn parse_all<'a>(certificates: &'a [CertificateDer<'static>]) -> Result<Vec<X509Certificate<'a>>, String> {
    let parse = |der: &'a CertificateDer<'static>| X509Certificate::from_der(der).map(|(_, parsed)| parsed);
    certificates.iter().map(|der| parse(der).map_err(|error| error.to_string())).collect()
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
            "replace it and have clients trust the new one; `ota-pacer ca rotate` makes one",
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

//! What stands in our certificates, and why. Pure: time and randomness come in as arguments.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SanType, SerialNumber,
};

use crate::config::host::Host;

/// From when until when a certificate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
}

impl Validity {
    /// Of an authority made `now`.
    pub(super) fn of_authority(now: SystemTime) -> Self {
        Self { not_before: now - BACKDATE, not_after: now + AUTHORITY_LIFETIME }
    }

    /// Of a leaf minted `now`: within the time of its `authority`, beyond which no client would accept it.
    /// `None` when that is over.
    pub(super) fn of_leaf(now: SystemTime, authority: Self) -> Option<Self> {
        let not_before = (now - BACKDATE).max(authority.not_before);
        let not_after = (now + LEAF_LIFETIME).min(authority.not_after);
        (now < not_after).then_some(Self { not_before, not_after })
    }

    /// When two thirds of what remained at `now` are over, and a certificate minted then should be replaced.
    pub(super) fn renew_at(self, now: SystemTime) -> SystemTime {
        now + self.not_after.duration_since(now).unwrap_or_default() * 2 / 3
    }
}

/// The certificate of a new authority.
///
/// `unique` makes its subject differ from that of every other installation: two authorities of one name and different
/// keys confuse clients that trust both. There is no extendedKeyUsage, which would constrain what it may sign.
pub(super) fn authority(now: SystemTime, unique: u64, serial: [u8; 16]) -> CertificateParams {
    let mut params = dated(Validity::of_authority(now), serial);
    params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
    params.distinguished_name.push(DnType::CommonName, format!("ota-pacer CA {unique:016x}"));
    // Signs leaves only. `rcgen` marks this and keyUsage critical and adds the subject key identifier, all of which
    // `openssl verify -x509_strict`, and so Python 3.13, insists on.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// The certificate of an intercepted host, good for all of `names`.
pub(super) fn leaf(
    names: &[&Host],
    common_name: Option<&str>,
    is_rsa: bool,
    validity: Validity,
    serial: [u8; 16],
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = dated(validity, serial);
    params.subject_alt_names = names.iter().map(|host| alternative_name(host)).collect::<Result<_, _>>()?;
    // A common name is at most 64 characters (RFC 5280, ub-common-name), and some clients take 63 for the bound.
    // Without one the subject is empty, and `rcgen` marks the alternative name critical as RFC 5280 section 4.2.1.6
    // then demands.
    if let Some(name) = common_name.filter(|name| name.len() <= COMMON_NAME_MAX) {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if is_rsa {
        // What TLS 1.2 did with RSA keys before it had forward secrecy, and some clients still look for.
        params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Copied from the identifier stored in the authority's certificate, however that was computed. A leaf has no
    // subject key identifier and no basicConstraints (`IsCa::NoCa` writes neither).
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A positive serial of exactly 16 bytes with 126 random bits. `rcgen`'s own choice is a hash of the subject's key,
/// which our leaves share: clients reject two certificates of one issuer with one serial.
pub(super) fn random_serial() -> [u8; 16] {
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

fn dated(validity: Validity, serial: [u8; 16]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    params
}

/// An address as `iPAddress`: no client matches it in a `dNSName`.
fn alternative_name(host: &Host) -> Result<SanType, rcgen::Error> {
    Ok(match host.ip() {
        Some(ip) => SanType::IpAddress(ip),
        None => SanType::DnsName(host.as_str().try_into()?),
    })
}

/// By which an authority made here is told from an operator's own.
pub(super) const ORGANIZATION: &str = "ota-pacer";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Clients' clocks run behind.
const BACKDATE: Duration = Duration::from_secs(2 * DAY.as_secs());

const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * DAY.as_secs());

/// With the backdating far below every bound that clients know or have announced (47 days from March 2029).
const LEAF_LIFETIME: Duration = Duration::from_secs(30 * DAY.as_secs());

const COMMON_NAME_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    #[test]
    fn a_leaf_is_renewed_at_two_thirds_and_never_outlives_its_authority() {
        let authority = Validity::of_authority(now());
        let fresh = Validity::of_leaf(now(), authority).unwrap();
        assert_eq!(fresh.renew_at(now()), now() + 20 * DAY);
        assert_eq!(fresh.not_after, now() + 30 * DAY);
        assert_eq!(fresh.not_before, now() - 2 * DAY);

        let late = authority.not_after - 3 * DAY;
        let last = Validity::of_leaf(late, authority).unwrap();
        assert_eq!(last.not_after, authority.not_after);
        assert_eq!(last.renew_at(late), late + 2 * DAY);
        assert_eq!(Validity::of_leaf(authority.not_after, authority), None);
    }

    #[test]
    fn serials_are_positive_and_differ() {
        let serials: Vec<_> = (0..100).map(|_| random_serial()).collect();
        assert!(serials.iter().all(|serial| (0x40..0x80).contains(&serial[0])));
        assert!((1..100).all(|index| !serials[..index].contains(&serials[index])));
    }
}

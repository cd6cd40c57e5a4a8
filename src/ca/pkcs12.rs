//! PKCS#12 trust stores (RFC 7292), as Java reads them.
//!
//! Certificates are public, so they stand in clear: such a file opens with any password and with none. Java takes a
//! certificate for trusted only where it carries an attribute of Oracle's.

use aws_lc_rs::{
    digest::{self, SHA256},
    hmac,
};

use super::{
    der::{bmp_string, integer, null, octets, oid, sequence, set, tagged, value},
    trust_store::Entry,
};

/// The file. With a password it says by a MAC whether it was tampered with, which some libraries insist on; the same
/// entries without one are the same bytes each time.
pub(super) fn encode(entries: &[Entry<'_>], password: Option<&str>) -> Vec<u8> {
    let bags: Vec<u8> = entries.iter().flat_map(bag).collect();
    let contents = sequence([data(&value(0x30, &bags))]);
    let mac = password.map(|password| mac(&contents, password, &rand::random::<[u8; 16]>()));
    sequence([integer(3), data(&contents), mac.unwrap_or_default()])
}

fn bag(entry: &Entry<'_>) -> Vec<u8> {
    let certificate = sequence([oid(X509_CERTIFICATE), tagged(&octets(entry.certificate))]);
    let name = sequence([oid(FRIENDLY_NAME), set([bmp_string(&entry.alias)])]);
    let trusted = sequence([oid(TRUSTED_KEY_USAGE), set([oid(ANY_EXTENDED_KEY_USAGE)])]);
    sequence([oid(CERT_BAG), tagged(&certificate), set([name, trusted])])
}

fn data(contents: &[u8]) -> Vec<u8> {
    sequence([oid(DATA), tagged(&octets(contents))])
}

fn mac(contents: &[u8], password: &str, salt: &[u8; 16]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, derive(password, salt).as_ref());
    let tag = hmac::sign(&key, contents);
    let digest = sequence([sequence([oid(SHA256_OID), null()]), octets(tag.as_ref())]);
    sequence([digest, octets(salt), integer(ITERATIONS)])
}

/// RFC 7292 appendix B.2, for one block of a MAC key.
fn derive(password: &str, salt: &[u8]) -> digest::Digest {
    let password: Vec<u8> = password.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect();
    let filled = |bytes: &[u8]| -> Vec<u8> {
        let length = bytes.len().next_multiple_of(SHA256.block_len());
        bytes.iter().copied().cycle().take(length).collect()
    };
    let block = [vec![MAC_KEY; SHA256.block_len()], filled(salt), filled(&password)].concat();
    (1..ITERATIONS).fold(digest::digest(&SHA256, &block), |hash, _| digest::digest(&SHA256, hash.as_ref()))
}

/// As Java 17 has it.
const ITERATIONS: u32 = 10_000;

/// What RFC 7292 appendix B.3 calls the ID.
const MAC_KEY: u8 = 3;

/// 1.2.840.113549.1.7.1
const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
/// 1.2.840.113549.1.12.10.1.3
const CERT_BAG: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x0c, 0x0a, 0x01, 0x03];
/// 1.2.840.113549.1.9.22.1
const X509_CERTIFICATE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x16, 0x01];
/// 1.2.840.113549.1.9.20
const FRIENDLY_NAME: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x14];
/// 2.16.840.1.113894.746875.1.1, which Oracle assigned and only its sources document.
const TRUSTED_KEY_USAGE: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf9, 0x66, 0xad, 0xca, 0x7b, 0x01, 0x01];
/// 2.5.29.37.0
const ANY_EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
/// 2.16.840.1.101.3.4.2.1
const SHA256_OID: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];

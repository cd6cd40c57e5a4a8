//! Java's own key store format, for software older than its PKCS#12.

use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use super::trust_store::Entry;

/// The file. Its digest, which is no more than a check against damage, takes the password.
pub(super) fn encode(entries: &[Entry<'_>], password: &str, now: SystemTime) -> Vec<u8> {
    let made = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut store = Vec::new();
    store.extend(MAGIC.to_be_bytes());
    store.extend(VERSION.to_be_bytes());
    store.extend(length_of(entries.len()).to_be_bytes());
    for entry in entries {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        append_text(&mut store, &entry.alias);
        store.extend(u64::try_from(made).unwrap_or_default().to_be_bytes());
        append_text(&mut store, "X.509");
        store.extend(length_of(entry.certificate.len()).to_be_bytes());
        store.extend_from_slice(entry.certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(&password.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    digest.update(WHITENER);
    digest.update(&store);
    store.extend_from_slice(digest.finish().as_ref());
    store
}

/// As `DataOutput.writeUTF`, which is UTF-8 for what stands in an alias.
fn append_text(store: &mut Vec<u8>, text: &str) {
    store.extend(u16::try_from(text.len()).expect("an alias is short").to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

fn length_of(length: usize) -> u32 {
    u32::try_from(length).expect("certificates and stores are far below 4 GiB")
}

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;

/// A constant of the format.
const WHITENER: &[u8] = b"Mighty Aphrodite";

//! The names of buckets in the store, and the hash that hides credentials in them.

use std::{fmt, sync::Arc};

use aws_lc_rs::hmac;
use secrecy::{ExposeSecret, SecretString};

use crate::config::model::{Channel, Endpoint, Limit, LimitKind, Start};

use super::{
    bucket::LimitSpec,
    store::{BucketSpec, Group},
};

/// Names buckets: `bkt:{booking_com:9f3c…}:availability`.
///
/// The braces are a Redis Cluster hash tag: all that one request takes from lies in one slot.
pub struct KeyMaker {
    prefix: String,
    key: hmac::Key,
}

impl KeyMaker {
    /// `hash_key` must be the same on every instance of a fleet; without one, whoever reads the store can try credentials
    /// against the names.
    pub fn new(prefix: &str, hash_key: Option<&SecretString>) -> Self {
        let secret = hash_key.map_or(DEFAULT_HASH_KEY.as_bytes(), |key| key.expose_secret().as_bytes());
        Self { prefix: prefix.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    /// What is common to the names of one credential's buckets.
    pub fn scope(&self, channel: &str, credential: Option<&[u8]>) -> String {
        let mut scope = format!("{}:{{{channel}", self.prefix);
        if let Some(credential) = credential {
            let mut context = hmac::Context::with_key(&self.key);
            context.update(channel.as_bytes());
            context.update(&[0]);
            context.update(credential);
            scope.push(':');
            for byte in &context.sign().as_ref()[..HASH_BYTES] {
                scope.push_str(&format!("{byte:02x}"));
            }
        }
        scope.push('}');
        scope
    }

    /// The key of the line before an endpoint's buckets; unique to a lane.
    pub fn line(scope: &str, endpoint: Option<&Arc<Endpoint>>) -> String {
        format!("{scope}:{}:line", endpoint.map_or(NO_ENDPOINT, |endpoint| &endpoint.name))
    }
}

impl fmt::Debug for KeyMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyMaker").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The buckets a request takes from: what its channel shares, then what its endpoint has alone. `None` when nothing limits
/// it and no endpoint could be paused.
pub fn group(scope: &str, channel: &Channel, endpoint: Option<&Arc<Endpoint>>) -> Option<Group> {
    let mut buckets = Vec::with_capacity(2);
    if !channel.limits.is_empty() {
        buckets.push(BucketSpec { key: scope.to_owned(), limits: specs(&channel.limits) });
    }
    if let Some(endpoint) = endpoint {
        // An endpoint that has no limit of its own shares the channel's bucket, pauses included.
        if !endpoint.limits.is_empty() || buckets.is_empty() {
            buckets.push(BucketSpec { key: format!("{scope}:{}", endpoint.name), limits: specs(&endpoint.limits) });
        }
    }
    let cost = endpoint.map_or(1.0, |endpoint| f64::from(endpoint.cost.get()));
    (!buckets.is_empty()).then(|| Group { buckets, line: KeyMaker::line(scope, endpoint), cost })
}

/// What metrics and logs say for requests of a channel that match no endpoint.
pub const NO_ENDPOINT: &str = "-";

fn specs(limits: &[Limit]) -> Vec<LimitSpec> {
    limits
        .iter()
        .filter_map(|limit| match limit.kind {
            LimitKind::TokenBucket { rate, capacity, start } => Some((rate, capacity, start)),
            LimitKind::Window { .. } | LimitKind::Concurrent { .. } => None,
        })
        .map(|(rate, capacity, start)| LimitSpec {
            // Instants of this century have a resolution of a quarter microsecond as doubles. Rounded up, so that what
            // is lost to it makes the rate lower, never higher.
            interval: (rate.interval_micros() * 4.0).ceil() / 4.0,
            capacity: f64::from(capacity.get()),
            starts_full: start == Start::Full,
        })
        .collect()
}

const DEFAULT_HASH_KEY: &str = "ota-pacer credential v1";
/// 64 bits: two of a thousand credentials share a bucket with a chance of 3 in 10^14.
const HASH_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hide_the_credential_and_tell_credentials_apart() {
        let keys = KeyMaker::new("bkt", None);
        let scope = keys.scope("booking_com", Some(b"machine-user"));
        assert!(scope.starts_with("bkt:{booking_com:") && scope.ends_with('}'), "{scope}");
        assert!(!scope.contains("machine-user"));
        assert_eq!(scope, keys.scope("booking_com", Some(b"machine-user")));
        assert_ne!(scope, keys.scope("booking_com", Some(b"machine-uses")));
        assert_ne!(
            scope,
            KeyMaker::new("bkt", Some(&"fleet secret".into())).scope("booking_com", Some(b"machine-user"))
        );
        assert_eq!(keys.scope("booking_com", None), "bkt:{booking_com}");
    }
}

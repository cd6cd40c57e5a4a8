//! The names of buckets in the store, and the hashes that hide credentials and other values in them.

use std::{fmt, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use secrecy::{ExposeSecret, SecretString};

use crate::config::model::{Channel, Endpoint, KeyPart, Limit, LimitKind, Start, Window};

use super::{
    bucket::{AdaptiveSpec, LimitSpec},
    claim::{BucketSpec, Group},
};

/// Names buckets: `bkt:{booking_com:9f3c…}:availability`.
///
/// The braces are a Redis Cluster hash tag: all that one request takes from lies in one slot. They hold the credential where
/// every limit of the channel counts by it, so that credentials spread over a cluster.
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

    /// The buckets a request takes from: what its channel shares, then what its endpoint has alone, the widest first. `None`
    /// when nothing limits it and no endpoint could be paused.
    ///
    /// `value` says what a part of a key is in the request.
    pub fn group<'v>(
        &self,
        channel: &Channel,
        endpoint: Option<&Arc<Endpoint>>,
        value: impl Fn(&KeyPart) -> Option<&'v [u8]>,
    ) -> Option<Group> {
        let counts_by_credential = all_limits(channel).all(|limit| limit.key.contains(&KeyPart::Credential));
        let credential = value(&KeyPart::Credential).filter(|_| counts_by_credential);
        let mut scope = format!("{}:{{{}", self.prefix, channel.name);
        if let Some(credential) = credential {
            scope.push(':');
            self.hash(&channel.name, &[Some(credential)], &mut scope);
        }
        scope.push('}');
        // Where the scope says it, names need not.
        let in_scope = |part: &KeyPart| counts_by_credential && *part == KeyPart::Credential;
        let mut buckets = Vec::with_capacity(2);
        let mut add = |name: &str, limits: &[Limit]| {
            for (key, limits) in by_key(limits) {
                let mut bucket = format!("{scope}{name}");
                let parts: Vec<_> = key.iter().filter(|part| !in_scope(part)).collect();
                if !parts.is_empty() {
                    let values: Vec<_> = parts.iter().map(|part| value(part)).collect();
                    for part in parts {
                        bucket.push(':');
                        bucket.push_str(&label(part));
                    }
                    bucket.push(':');
                    self.hash(&channel.name, &values, &mut bucket);
                }
                buckets.push(BucketSpec { key: bucket, limits: limits.into_iter().map(spec).collect() });
            }
        };
        add("", &channel.limits);
        let name = endpoint.map_or(NO_ENDPOINT, |endpoint| &endpoint.name);
        if let Some(endpoint) = endpoint {
            add(&format!(":{name}"), &endpoint.limits);
        }
        if let (true, Some(_)) = (buckets.is_empty(), endpoint) {
            // No limit, but a throttle answer must be able to pause it.
            buckets.push(BucketSpec { key: format!("{scope}:{name}"), limits: Vec::new() });
        }
        buckets.last()?;
        let mut line = format!("{scope}:{name}:line");
        if buckets.iter().any(|bucket: &BucketSpec| bucket.key.len() > scope.len() + 1 + name.len()) {
            // One line for each set of buckets.
            line.push(':');
            let all: Vec<_> = buckets.iter().map(|bucket| Some(bucket.key.as_bytes())).collect();
            self.hash(&channel.name, &all, &mut line);
        }
        let cost = endpoint.map_or(1.0, |endpoint| f64::from(endpoint.cost.get()));
        Some(Group { buckets, line, cost })
    }

    /// Appends a keyed hash of `values`, as hexadecimal digits.
    fn hash(&self, channel: &str, values: &[Option<&[u8]>], name: &mut String) {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(channel.as_bytes());
        for value in values {
            // A value that is absent differs from an empty one, and no two lists run together.
            context.update(&[0, u8::from(value.is_some())]);
            context.update(&value.map_or(0, <[u8]>::len).to_le_bytes());
            context.update(value.unwrap_or_default());
        }
        for byte in &context.sign().as_ref()[..HASH_BYTES] {
            name.push(char::from(HEX[usize::from(byte >> 4)]));
            name.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

impl fmt::Debug for KeyMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyMaker").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What metrics and logs say for requests of a channel that match no endpoint.
pub const NO_ENDPOINT: &str = "-";

fn all_limits(channel: &Channel) -> impl Iterator<Item = &Limit> {
    channel.limits.iter().chain(channel.endpoints.iter().flat_map(|endpoint| endpoint.limits.iter()))
}

/// Limits with the same key share a bucket; buckets with more parts to their key are narrower, and come later.
fn by_key(limits: &[Limit]) -> Vec<(&[KeyPart], Vec<&Limit>)> {
    let mut groups: Vec<(&[KeyPart], Vec<&Limit>)> = Vec::new();
    for limit in limits {
        match groups.iter_mut().find(|(key, _)| *key == limit.key) {
            Some((_, members)) => members.push(limit),
            None => groups.push((&limit.key, vec![limit])),
        }
    }
    groups.sort_by_key(|(key, _)| key.len());
    groups
}

/// How a part of a key is called in names.
fn label(part: &KeyPart) -> String {
    match part {
        KeyPart::Credential => "credential".to_owned(),
        KeyPart::Path(name) => format!("path.{name}"),
        KeyPart::Header(name) => format!("header.{name}"),
        KeyPart::Query(name) => format!("query.{name}"),
    }
}

fn spec(limit: &Limit) -> LimitSpec {
    match limit.kind {
        LimitKind::TokenBucket { rate, capacity, start } => LimitSpec::Bucket {
            // Instants of this century have a resolution of a quarter microsecond as doubles. Rounded up, so that what is
            // lost to it makes the rate lower, never higher.
            interval: (rate.interval_micros() * 4.0).ceil() / 4.0,
            capacity: f64::from(capacity.get()),
            starts_full: start == Start::Full,
            adaptive: limit.adaptive.map(|adaptive| AdaptiveSpec {
                cut: adaptive.cut,
                floor: adaptive.floor,
                recover: adaptive.recover,
            }),
        },
        LimitKind::Window { count, per, window } => LimitSpec::Window {
            count: f64::from(count.get()),
            per: per.as_secs_f64() * 1e6,
            margin: margin(per, window).as_secs_f64() * 1e6,
            is_clock: window == Window::Clock,
        },
        LimitKind::Concurrent { most } => LimitSpec::Concurrent { most: f64::from(most.get()) },
    }
}

/// What is kept from the edges of a window: requests take their time to the OTA, not all the same, and its clock is not the
/// store's.
fn margin(per: Duration, window: Window) -> Duration {
    match window {
        Window::Sliding => (per / 200).clamp(Duration::from_millis(1), Duration::from_millis(50)).min(per / 4),
        Window::Clock => (per / 20).min(Duration::from_millis(500)),
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";
const DEFAULT_HASH_KEY: &str = "ota-pacer credential v1";
/// 64 bits: two of a thousand credentials share a bucket with a chance of 3 in 10^14.
const HASH_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn keys(hash_key: Option<&str>, limits: &str, user: &str) -> Vec<String> {
        let yaml = format!(
            "channels: {{ booking_com: {{ hosts: [a.test], endpoints: {{ rates: {{ match: {{ path: /a }}, limits: {limits} }} }} }} }}"
        );
        let config = config::parse("test.yaml", &yaml, |_| None).unwrap();
        let channel = &config.channels[0];
        let keys = KeyMaker::new("bkt", hash_key.map(SecretString::from).as_ref());
        let group = keys.group(channel, channel.endpoints.first(), |_| Some(user.as_bytes())).unwrap();
        group.buckets.into_iter().map(|bucket| bucket.key).chain([group.line]).collect()
    }

    #[test]
    fn names_read_well_hide_the_credential_and_tell_credentials_apart() {
        let limits = "[{ rate: 1/s }]";
        let names = keys(None, limits, "machine-user");
        assert!(names[0].starts_with("bkt:{booking_com:") && names[0].ends_with("}:rates"), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("machine-user")), "{names:?}");
        let tag = |name: &str| name.split_once('}').unwrap().0.to_owned();
        assert!(names.iter().all(|name| tag(name) == tag(&names[0])), "one slot of a cluster: {names:?}");
        assert_eq!(names, keys(None, limits, "machine-user"));
        assert_ne!(names, keys(None, limits, "machine-uses"));
        assert_ne!(names, keys(Some("fleet secret"), limits, "machine-user"));
    }

    #[test]
    fn windows_keep_off_their_edges() {
        let millis = |per, window| margin(Duration::from_millis(per), window).as_millis();
        assert_eq!([1_000, 60_000, 86_400_000].map(|per| millis(per, Window::Sliding)), [5, 50, 50]);
        assert_eq!([1_000, 60_000, 86_400_000].map(|per| millis(per, Window::Clock)), [50, 500, 500]);
    }
}

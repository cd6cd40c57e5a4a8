//! What tells the buckets of a request apart, beyond its credential.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use secrecy::{ExposeSecret, SecretSlice};

use crate::config::model::{Channel, Endpoint, KeyPart, Limit};

use super::extract::{header, parameter, segment};

/// Which parts of a request the keys of its limits name. Made once for each endpoint, so that routing reads no header and
/// no parameter that no limit asks for.
#[derive(Debug, Clone)]
pub(super) struct KeyPlan(Arc<[Step]>);

#[derive(Debug)]
struct Step {
    part: KeyPart,
    source: Source,
}

/// Where a part stands.
#[derive(Debug)]
enum Source {
    /// In this segment of the path, counted from 0.
    Segment(usize),
    Header(HeaderName),
    Query(String),
}

/// The parts that the plan of a request asks for. Wiped from memory when dropped; never printed.
#[derive(Debug)]
pub(super) struct KeyValues {
    plan: KeyPlan,
    /// One for each step.
    values: Vec<Option<SecretSlice<u8>>>,
}

impl KeyPlan {
    /// The plan of requests that match `endpoint`, or none of the channel's endpoints.
    pub(super) fn new(channel: &Channel, endpoint: Option<&Endpoint>) -> Self {
        let limits: Vec<&Limit> = match endpoint {
            Some(endpoint) if endpoint.exempt => Vec::new(),
            Some(endpoint) => channel.limits.iter().chain(&endpoint.limits).collect(),
            None => channel.limits.iter().collect(),
        };
        let mut steps: Vec<Step> = Vec::new();
        for part in limits.iter().flat_map(|limit| &limit.key) {
            let source = match part {
                KeyPart::Credential => continue,
                KeyPart::Path(name) => {
                    let mut captures = endpoint.into_iter().flat_map(|endpoint| endpoint.matcher.path.captures());
                    let (at, _) = captures
                        .find(|(_, capture)| capture == name)
                        .expect("a key names captures of its endpoint's path only, which loading has checked");
                    Source::Segment(at)
                }
                KeyPart::Header(name) => Source::Header(name.clone()),
                KeyPart::Query(name) => Source::Query(name.clone()),
            };
            if !steps.iter().any(|step| step.part == *part) {
                steps.push(Step { part: part.clone(), source });
            }
        }
        Self(steps.into())
    }

    /// Takes the parts out of a request; `path` is normalized.
    pub(super) fn values(&self, path: &str, query: Option<&str>, headers: &HeaderMap) -> KeyValues {
        let value = |step: &Step| match &step.source {
            Source::Segment(at) => segment(path, *at),
            Source::Header(name) => header(headers, name),
            Source::Query(name) => parameter(query?, name),
        };
        let values = self.0.iter().map(|step| value(step).map(SecretSlice::from)).collect();
        KeyValues { plan: self.clone(), values }
    }
}

impl KeyValues {
    /// The value of `part`; `None` when the request does not have it, or no limit of the request asks for it.
    pub(super) fn value(&self, part: &KeyPart) -> Option<&[u8]> {
        let at = self.plan.0.iter().position(|step| step.part == *part)?;
        self.values[at].as_ref().map(|value| value.expose_secret())
    }
}

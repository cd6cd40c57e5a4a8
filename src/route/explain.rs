//! Why a request is routed as it is: every rule that was looked at, with its verdict.

use std::sync::Arc;

use http::Method;

use crate::config::{
    host::Host,
    model::{Channel, Endpoint, HostPattern},
    path::normalize,
};

use super::{Entry, Router, rules::Fit};

/// What became of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It claims the request.
    Taken,
    /// It would fit, but a more specific rule claims the request.
    LessSpecific,
    /// It wants another port.
    OtherPort,
    /// Its path fits, its methods do not.
    OtherMethod,
    /// Its path does not fit.
    OtherPath,
}

/// A host pattern that fits the name of the host.
#[derive(Debug)]
pub struct HostCandidate<'a> {
    /// The channel of the pattern.
    pub channel: &'a Arc<Channel>,
    /// The pattern.
    pub pattern: &'a HostPattern,
    /// What became of it.
    pub verdict: Verdict,
}

/// An endpoint of the channel that claims the host.
#[derive(Debug)]
pub struct EndpointCandidate<'a> {
    /// The endpoint.
    pub endpoint: &'a Arc<Endpoint>,
    /// What became of it.
    pub verdict: Verdict,
}

impl Router {
    /// The host patterns that fit the name of `host`, most specific first.
    pub fn explain_host(&self, host: &Host, port: u16) -> Vec<HostCandidate<'_>> {
        let mut candidates: Vec<HostCandidate<'_>> = self
            .channels
            .iter()
            .flat_map(|Entry { channel, .. }| channel.hosts.iter().map(move |pattern| (channel, pattern)))
            .filter(|(_, pattern)| fits_name(pattern, host))
            .map(|(channel, pattern)| {
                let fits = pattern.port.is_none_or(|wanted| wanted == port);
                let verdict = if fits { Verdict::LessSpecific } else { Verdict::OtherPort };
                HostCandidate { channel, pattern, verdict }
            })
            .collect();
        candidates.sort_by_key(|HostCandidate { pattern, .. }| {
            (pattern.wildcard, std::cmp::Reverse(pattern.host.len()), pattern.port.is_none())
        });
        if let Some(taken) = candidates.iter_mut().find(|candidate| candidate.verdict == Verdict::LessSpecific) {
            taken.verdict = Verdict::Taken;
        }
        candidates
    }

    /// The endpoints of the channel that claims `host`, most specific first.
    pub fn explain_path(&self, host: &Host, port: u16, method: &Method, path: &str) -> Vec<EndpointCandidate<'_>> {
        let Some(found) = self.hosts.find(host, port) else { return Vec::new() };
        let Entry { channel, rules, .. } = &self.channels[found.channel];
        let mut taken = false;
        let verdict = |fit| match fit {
            Fit::OtherPath => Verdict::OtherPath,
            Fit::OtherMethod => Verdict::OtherMethod,
            Fit::Both if std::mem::replace(&mut taken, true) => Verdict::LessSpecific,
            Fit::Both => Verdict::Taken,
        };
        let path = normalize(path);
        let (indexes, fits): (Vec<_>, Vec<_>) = rules.in_order(method, &path).unzip();
        let endpoints = indexes.into_iter().map(|index| &channel.endpoints[index]);
        endpoints
            .zip(fits.into_iter().map(verdict))
            .map(|(endpoint, verdict)| EndpointCandidate { endpoint, verdict })
            .collect()
    }
}

fn fits_name(pattern: &HostPattern, host: &Host) -> bool {
    if !pattern.wildcard {
        return pattern.host == host.as_str();
    }
    let below = host.as_str().strip_suffix(pattern.host.as_str()).and_then(|below| below.strip_suffix('.'));
    host.ip().is_none() && below.is_some()
}

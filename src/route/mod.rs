//! Which channel and endpoint a request belongs to, and by which credential the OTA counts it. Pure: no I/O, no clock.

mod credential;
mod explain;
mod extract;
mod hosts;
mod key;
mod rules;

use std::sync::Arc;

use http::{HeaderMap, Method, uri::PathAndQuery};

use crate::config::{
    Config,
    host::Host,
    model::{Channel, Endpoint, HostPattern, KeyPart, Policy},
    path::normalize,
};

use self::{
    hosts::HostTable,
    key::{KeyPlan, KeyValues},
    rules::Rules,
};

pub use self::{
    credential::CredentialValue,
    explain::{EndpointCandidate, HostCandidate, Verdict},
};

/// Matches requests to the channels of a configuration. Built once, immutable.
///
/// The most specific rule wins: for hosts, exact over wildcard, a longer wildcard over a shorter one, a pattern with the port
/// over one without; for paths, exact over template over prefix, more literal segments, the longer prefix, and then a rule
/// with methods over one without. A rule whose method or port does not fit is passed over, not an obstacle. Two rules with
/// the same right do not survive loading the configuration.
#[derive(Debug)]
pub struct Router {
    hosts: HostTable,
    /// In the order of the configuration; indexes of `hosts` point here.
    channels: Vec<Entry>,
}

/// A channel, prepared.
#[derive(Debug)]
struct Entry {
    channel: Arc<Channel>,
    rules: Rules,
    /// Of each endpoint, in the order of the configuration, and of requests that match none.
    plans: (Vec<KeyPlan>, KeyPlan),
}

/// Where a request belongs.
#[derive(Debug)]
pub enum Route {
    /// A host of no channel.
    Unmatched,
    /// A host of a channel, and maybe one of its endpoints.
    Matched(Match),
}

/// The rule of a request.
#[derive(Debug)]
pub struct Match {
    /// The channel that claims the host.
    pub channel: Arc<Channel>,
    /// The endpoint that claims method and path; `None`: only the channel's limits hold.
    pub endpoint: Option<Arc<Endpoint>>,
    /// What the OTA counts the request by; `None` when the request does not carry it.
    pub credential: Option<CredentialValue>,
    /// What else the keys of its limits ask for.
    keys: KeyValues,
}

impl Match {
    /// What `part` of a limit's key is in this request, decoded; `None` where the request does not have it, or no limit it
    /// takes from asks for it.
    pub fn value(&self, part: &KeyPart) -> Option<&[u8]> {
        match part {
            KeyPart::Credential => self.credential.as_ref().map(CredentialValue::expose),
            part => self.keys.value(part),
        }
    }

    /// How the request waits and is retried.
    pub fn policy(&self) -> &Policy {
        self.endpoint.as_ref().map_or(&self.channel.policy, |endpoint| &endpoint.policy)
    }
}

impl Router {
    /// Prepares the rules of `config`.
    pub fn new(config: &Config) -> Self {
        let hosts = HostTable::new(&config.channels);
        let entry = |channel: &Arc<Channel>| Entry {
            channel: Arc::clone(channel),
            rules: Rules::new(&channel.endpoints),
            plans: (
                channel.endpoints.iter().map(|endpoint| KeyPlan::new(channel, Some(endpoint))).collect(),
                KeyPlan::new(channel, None),
            ),
        };
        Self { hosts, channels: config.channels.iter().map(entry).collect() }
    }

    /// The channel that claims this host, if any (decides intercept or tunnel at CONNECT).
    pub fn channel(&self, host: &Host, port: u16) -> Option<&Arc<Channel>> {
        self.hosts.find(host, port).map(|found| &self.channels[found.channel].channel)
    }

    /// The pattern by which a channel claims this host.
    pub fn pattern(&self, host: &Host, port: u16) -> Option<&HostPattern> {
        self.hosts.find(host, port).map(|found| &self.channels[found.channel].channel.hosts[found.pattern])
    }

    /// Matches a tunnel to a host whose channel is not intercepted: by the host alone.
    pub fn tunnel(&self, host: &Host, port: u16) -> Option<Match> {
        let found = self.hosts.find(host, port)?;
        let Entry { channel, plans: (_, plan), .. } = &self.channels[found.channel];
        let headers = HeaderMap::new();
        (!channel.intercept).then(|| Match {
            channel: Arc::clone(channel),
            endpoint: None,
            credential: CredentialValue::of(&channel.credential, None, &headers),
            keys: plan.values("/", None, &headers),
        })
    }

    /// Matches one request by its target and its final head. The path is compared in the form of
    /// [`normalize`](crate::config::path::normalize()); the query and headers only yield the credential and what
    /// else the keys of the matched limits ask for.
    pub fn route(
        &self,
        host: &Host,
        port: u16,
        method: &Method,
        path_and_query: &PathAndQuery,
        headers: &HeaderMap,
    ) -> Route {
        let Some(host) = self.hosts.find(host, port) else { return Route::Unmatched };
        let Entry { channel, rules, plans: (plans, without_endpoint) } = &self.channels[host.channel];
        let (path, query) = (normalize(path_and_query.path()), path_and_query.query());
        let found = rules.find(method, &path);
        let plan = found.map_or(without_endpoint, |index| &plans[index]);
        Route::Matched(Match {
            channel: Arc::clone(channel),
            endpoint: found.map(|index| Arc::clone(&channel.endpoints[index])),
            credential: CredentialValue::of(&channel.credential, query, headers),
            keys: plan.values(&path, query, headers),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn router(channels: &str) -> Router {
        Router::new(&crate::config::parse("test.yaml", channels, |_| None).unwrap())
    }

    fn routed(router: &Router, method: &str, host: &str, port: u16, path: &str) -> String {
        let route = router.route(
            &Host::parse(host).unwrap(),
            port,
            &method.parse().unwrap(),
            &path.parse().unwrap(),
            &HeaderMap::new(),
        );
        match route {
            Route::Unmatched => "-".to_owned(),
            Route::Matched(Match { channel, endpoint: None, .. }) => channel.name.clone(),
            Route::Matched(Match { channel, endpoint: Some(endpoint), .. }) => {
                format!("{}/{}", channel.name, endpoint.name)
            }
        }
    }

    #[test]
    fn the_most_specific_host_wins() {
        let router = router(
            r#"
channels:
  wide: { hosts: ["*.example.com"] }
  wide_port: { hosts: ["*.example.com:8443"] }
  deep: { hosts: ["*.api.example.com"] }
  exact: { hosts: [a.api.example.com] }
  exact_port: { hosts: ["a.api.example.com:8443"] }
  only_port: { hosts: ["b.example.com:9000"] }
  address: { hosts: ["[2001:db8::1]:443", 192.0.2.1] }
"#,
        );
        for (host, port, expected) in [
            ("x.example.com", 443, "wide"),
            ("x.example.com", 8443, "wide_port"),
            ("example.com", 443, "-"),
            ("notexample.com", 443, "-"),
            ("x.y.api.example.com", 443, "deep"),
            ("api.example.com", 443, "wide"),
            ("A.API.example.com.", 443, "exact"),
            ("a.api.example.com", 8443, "exact_port"),
            ("b.example.com", 9000, "only_port"),
            ("b.example.com", 443, "wide"),
            ("[2001:db8::1]", 443, "address"),
            ("[2001:db8::1]", 80, "-"),
            ("192.0.2.1", 80, "address"),
        ] {
            assert_eq!(routed(&router, "GET", host, port, "/"), expected, "{host}:{port}");
        }
    }

    #[test]
    fn a_host_has_its_pattern_and_a_tunnel_its_channel() {
        let router = router(
            r#"
channels:
  opened: { hosts: [ota.example, "*.ota.example:8443"] }
  unread: { hosts: ["*.pinned.example"], intercept: false, credential: { label: ours }, limits: [{ rate: 1/s }] }
"#,
        );
        let host = |text| Host::parse(text).unwrap();
        for (name, port, pattern, credential) in [
            ("OTA.example.", 443, Some("ota.example"), None),
            ("a.ota.example", 8443, Some("*.ota.example:8443"), None),
            ("a.ota.example", 443, None, None),
            ("a.pinned.example", 443, Some("*.pinned.example"), Some(&b"ours"[..])),
        ] {
            assert_eq!(router.pattern(&host(name), port).map(ToString::to_string).as_deref(), pattern, "{name}");
            let tunnel = router.tunnel(&host(name), port);
            let counted = tunnel.as_ref().and_then(|found| found.value(&KeyPart::Credential));
            assert_eq!((tunnel.is_some(), counted), (credential.is_some(), credential), "{name}");
        }
    }

    #[test]
    fn the_most_specific_path_wins() {
        let router = router(
            r#"
channels:
  ota:
    hosts: [ota.example]
    endpoints:
      all: { match: { path: /** } }
      hotels: { match: { path: /hotels/** } }
      pair: { match: { path: "/hotels/{id}/{what}" } }
      rates: { match: { path: "/hotels/{id}/rates" } }
      rates_get: { match: { path: "/hotels/{id}/rates", method: [GET, HEAD] } }
      seven: { match: { path: /hotels/7/rates, method: POST } }
      root: { match: { path: / } }
"#,
        );
        for (method, path, expected) in [
            ("GET", "/", "root"),
            ("GET", "/x", "all"),
            ("GET", "/hotels", "hotels"),
            ("GET", "/hotels/", "hotels"),
            ("GET", "/hotelsx", "all"),
            ("GET", "/hotels/7/photos", "pair"),
            ("GET", "/hotels//photos", "hotels"),
            ("PUT", "/hotels/8/rates?x=1", "rates"),
            ("GET", "/hotels/8/rates", "rates_get"),
            ("HEAD", "/hotels/8/rates", "rates_get"),
            ("POST", "/hotels/7/rates", "seven"),
            // The exact rule wants POST, so the next one takes it.
            ("PUT", "/hotels/7/rates", "rates"),
            ("POST", "/hotels/7/rates/", "hotels"),
            ("POST", "//hotels/./%37/x/../rates;v=1", "seven"),
            ("POST", "/Hotels/7/rates", "all"),
        ] {
            assert_eq!(routed(&router, method, "ota.example", 443, path), format!("ota/{expected}"), "{method} {path}");
        }
    }

    #[test]
    fn a_path_of_no_endpoint_belongs_to_the_channel() {
        let router = router(
            "channels: { ota: { hosts: [ota.example], max_wait: 9s, endpoints: { a: { match: { path: /a } } } } }",
        );
        assert_eq!(routed(&router, "GET", "ota.example", 80, "/b"), "ota");
        assert!(router.channel(&Host::parse("ota.example").unwrap(), 1).is_some());
        assert!(router.channel(&Host::parse("other.example").unwrap(), 1).is_none());
    }

    /// The values of `parts` in one request, `-` for none.
    fn values(router: &Router, path: &str, headers: &[(&'static str, &'static str)], parts: &[KeyPart]) -> Vec<String> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let host = Host::parse("ota.example").unwrap();
        let Route::Matched(found) = router.route(&host, 443, &Method::GET, &path.parse().unwrap(), &headers) else {
            panic!("the host is that of the channel")
        };
        let shown = format!("{found:?}");
        let value = |part| match found.value(part).map(|value| String::from_utf8(value.to_vec()).unwrap()) {
            // Too short a value stands in the text by chance.
            Some(value) if value.len() > 2 => {
                assert!(!shown.contains(&value), "{value} is shown");
                value
            }
            Some(value) => value,
            None => "-".to_owned(),
        };
        parts.iter().map(value).collect()
    }

    #[test]
    fn a_request_yields_what_the_keys_of_its_limits_name() {
        let router = router(
            r#"
channels:
  ota:
    hosts: [ota.example]
    credential: { header: X-Api-Key }
    limits: [{ rate: 9/s, key: [header.X-Property, query.site] }]
    endpoints:
      rates:
        match: { path: "/hotels/{hotel}/rates/{rate}" }
        limits: [{ concurrent: 1, key: [path.rate, credential] }, { rate: 1/s, key: [path.rate, query.room] }]
      token: { match: { path: "/token/{id}" }, exempt: true }
"#,
        );
        let [hotel, rate] = ["hotel", "rate"].map(|name| KeyPart::Path(name.to_owned()));
        let [site, room] = ["site", "room"].map(|name| KeyPart::Query(name.to_owned()));
        let property = KeyPart::Header(HeaderName::from_static("x-property"));
        let parts = [KeyPart::Credential, hotel, rate, site, room, property];
        let headers = [("x-api-key", "abc-key"), ("x-property", " 7734 ")];
        for (path, headers, expected) in [
            (
                "/hotels/4711/rates/best%2Frate;v=1?site=d%65&room=a+b",
                &headers[..],
                ["abc-key", "-", "best/rate", "de", "a b", "7734"],
            ),
            // Another spelling of the same request.
            (
                "//hotels/./4711/rates/%62est%2frate?site=de&room=a%20b",
                &headers,
                ["abc-key", "-", "best/rate", "de", "a b", "7734"],
            ),
            ("/hotels/4711/rates/best", &[], ["-", "-", "best", "-", "-", "-"]),
            ("/elsewhere?site=de&room=7", &headers, ["abc-key", "-", "-", "de", "-", "7734"]),
            ("/token/9?site=de", &headers, ["abc-key", "-", "-", "-", "-", "-"]),
        ] {
            assert_eq!(values(&router, path, headers, &parts), expected, "{path}");
        }
    }
}

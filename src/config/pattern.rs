//! Host patterns.

use std::{fmt, net::IpAddr};

use super::{host::Host, mistake::Invalid, model::HostPattern};

impl HostPattern {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        if text.contains("://") || text.contains('/') {
            return Err(Invalid::new("a host has no scheme and no path", HOST_HINT));
        }
        let (host, port) = split_port(text)?;
        let (wildcard, name) = match host.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, host),
        };
        if name.contains('*') || name.is_empty() {
            let hint = "`*.` stands once, at the beginning: `\"*.example.com\"`";
            return Err(Invalid::new("not a host or wildcard", hint));
        }
        let host = Host::parse(name).map_err(|error| Invalid::new(error.to_string(), HOST_HINT))?;
        if wildcard && host.ip().is_some() {
            return Err(Invalid::new("an address has no subdomains", "write the address alone"));
        }
        Ok(Self { wildcard, host: host.as_str().to_owned(), port })
    }

    /// Whether it matches `host` at `port`.
    pub(super) fn covers(&self, host: &Host, port: u16) -> bool {
        let is_named = if self.wildcard {
            host.ip().is_none() && host.as_str().strip_suffix(&self.host).is_some_and(|labels| labels.ends_with('.'))
        } else {
            host.as_str() == self.host
        };
        is_named && self.port.is_none_or(|own| own == port)
    }
}

/// As it would be written in the file.
impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.wildcard {
            f.write_str("*.")?;
        }
        match self.host.parse() {
            Ok(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
            _ => f.write_str(&self.host)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Splits `host:port`; an IPv6 address needs its brackets (RFC 3986 section 3.2.2).
pub(super) fn split_port(text: &str) -> Result<(&str, Option<u16>), Invalid> {
    let (host, port) = match text.rfind(']') {
        Some(end) if text.starts_with('[') => text.split_at(end + 1),
        _ => match text.find(':') {
            Some(at) if text[at + 1..].contains(':') => {
                return Err(Invalid::new("an IPv6 address needs brackets", "for example `\"[2001:db8::1]:443\"`"));
            }
            Some(at) => text.split_at(at),
            None => (text, ""),
        },
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    match port.strip_prefix(':').and_then(|port| port.parse().ok()) {
        Some(port) if port != 0 => Ok((host, Some(port))),
        _ => Err(Invalid::new("not a port", "a port is a number from 1 to 65535; without one, any port matches")),
    }
}

const HOST_HINT: &str = "for example `supply-xml.booking.com`, `\"*.example.com\"` or `example.com:8443`";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        for (text, shown) in [
            ("OTA.Example.", "ota.example"),
            ("*.Example.com:8443", "*.example.com:8443"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("bücher.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(HostPattern::parse(text).unwrap().to_string(), shown);
        }
        for text in [
            "",
            "*",
            "*.",
            "a.*.b",
            "*a.b",
            "https://a",
            "a/b",
            "a:0",
            "a:x",
            "a:",
            "::1",
            "*.127.0.0.1",
            "a b",
            "[::1]x",
            "a:65536",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_covers_its_hosts() {
        let covers = |pattern: &str, host: &str, port| {
            HostPattern::parse(pattern).unwrap().covers(&Host::parse(host).unwrap(), port)
        };
        assert!(covers("ota.example", "OTA.example.", 80));
        assert!(covers("*.ota.example", "a.b.ota.example", 80));
        assert!(covers("[::1]:443", "[::1]", 443));
        assert!(!covers("ota.example:8443", "ota.example", 443));
        assert!(!covers("*.ota.example", "ota.example", 443));
        assert!(!covers("*.ota.example", "no-ota.example", 443));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}", host in "[a.*:0\\[\\]]{0,12}") {
            for text in [&text, &host] {
                let _ = HostPattern::parse(text);
            }
        }
    }
}

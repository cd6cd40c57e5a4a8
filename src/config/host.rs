//! A host, normalized for comparison.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A host as matching, pooling and certificates compare it: a lower-case A-label name without its trailing dot, or an IP
/// address. What is forwarded stays as the client wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    text: String,
    ip: Option<IpAddr>,
}

impl Host {
    /// Reads `name`, `name.`, `192.0.2.1` or `[2001:db8::1]`; internationalized names become A-labels (RFC 5891).
    ///
    /// # Errors
    /// When the text is no host: empty, over 253 bytes, a name in brackets, an unbracketed IPv6 address, an empty label, or
    /// a character that no host name holds, or an IPv4 address in another form than four decimal numbers.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(HostError::Bracket)?;
            let ip: Ipv6Addr = inner.parse().map_err(|_| HostError::Bracket)?;
            return Ok(Self::from(IpAddr::V6(ip)));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        let ascii = if name.is_ascii() {
            name.to_ascii_lowercase()
        } else {
            idna::domain_to_ascii(name).map_err(|_| HostError::Idna)?
        };
        // After mapping: `127.0.0.1.` and full-width digits name the same address.
        if let Ok(ip) = ascii.parse::<Ipv4Addr>() {
            return Ok(Self::from(IpAddr::V4(ip)));
        }
        if ascii.len() > MAX_NAME {
            return Err(HostError::Long);
        }
        for label in ascii.split('.') {
            if label.is_empty() || label.len() > MAX_LABEL {
                return Err(HostError::Label);
            }
            // Underscores are no host names by RFC 1123, yet resolvers and OTAs' staging hosts use them.
            if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
                return Err(HostError::Character);
            }
        }
        // Resolvers take `127.1` and `0x7f.1` for addresses, which no rule for that address would match.
        if ascii.rsplit('.').next().is_some_and(is_number) {
            return Err(HostError::Number);
        }
        Ok(Self { text: ascii, ip: None })
    }

    /// The normalized text; an IPv6 address has no brackets.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The address, where the host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }
}

impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        Self { text: ip.to_string(), ip: Some(ip) }
    }
}

/// As it stands in an authority: an IPv6 address in brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            _ => f.write_str(&self.text),
        }
    }
}

/// The port that `authority` names; `None` where it names none, or an empty one (RFC 3986 section 3.2.3).
///
/// # Errors
/// When it is no number from 1 to 65535. `Authority::port_u16` takes such a port for none at all, and the request would go to
/// the scheme's own.
pub fn port(authority: &http::uri::Authority) -> Result<Option<u16>, HostError> {
    let text = authority.as_str();
    let text = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let rest = text.strip_prefix(authority.host()).unwrap_or_default();
    // `[::1]1` is a host with something behind it, and no port.
    match (rest, rest.strip_prefix(':')) {
        ("", _) | (_, Some("")) => Ok(None),
        (_, Some(digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port != 0).map(Some).ok_or(HostError::Port)
        }
        _ => Err(HostError::Port),
    }
}

/// Decimal, octal or hexadecimal.
fn is_number(label: &str) -> bool {
    let is_hexadecimal = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    label.bytes().all(|byte| byte.is_ascii_digit()) || label.strip_prefix("0x").is_some_and(is_hexadecimal)
}

/// Why a text is no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("host is empty")]
    Empty,
    /// Brackets hold an IPv6 address and nothing else (RFC 3986 section 3.2.2).
    #[error("brackets must hold an IPv6 address")]
    Bracket,
    /// RFC 1035 section 2.3.4.
    #[error("host is longer than 253 bytes")]
    Long,
    /// RFC 1035 section 2.3.4.
    #[error("a label of the host is empty or longer than 63 bytes")]
    Label,
    /// Beyond 16 bits, zero, or no number.
    #[error("the port is no number from 1 to 65535")]
    Port,
    /// No host name holds it.
    #[error("host holds a character that no host name may hold")]
    Character,
    /// What ends in a number is an IPv4 address (URL Standard section 3.5), and this is none.
    #[error("a host that ends in a number must be an IPv4 address of four decimal numbers")]
    Number,
    /// RFC 5891.
    #[error("host is no valid internationalized name")]
    Idna,
}

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_port_is_read_or_refused_but_never_left_out() {
        let read = |text: &str| port(&text.parse().unwrap());
        for (text, expected) in
            [("ota.test", None), ("ota.test:", None), ("u:1@[::1]", None), ("[::1]:8443", Some(8443))]
        {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for text in ["ota.test:0", "ota.test:65536", "u:1@ota.test:99999999999", "[::1]:70000"] {
            assert_eq!(read(text), Err(HostError::Port), "{text}");
        }
    }

    #[test]
    fn an_address_is_written_in_one_way_or_refused() {
        for text in
            ["127.1", "2130706433", "0x7f.1", "0x7F000001", "127.0.0.0x1", "0177.0.0.1", "0", "1.2.3.4.5", "a.1"]
        {
            assert_eq!(Host::parse(text), Err(HostError::Number), "{text}");
        }
        for text in ["127.0.0.1", "1.2.3.4.test", "ota1", "0xa.test", "0xg", "a-1"] {
            assert!(Host::parse(text).is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_host_stays_as_it_is(text in "\\PC{0,24}", host in "[a-zA-Z0-9.:\\[\\]é-]{0,16}") {
            for text in [&text, &host] {
                if let Ok(host) = Host::parse(text) {
                    prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
                }
            }
        }
    }

    #[test]
    fn names_compare_as_lower_case_a_labels_without_trailing_dot() {
        for text in ["OTA.Example", "ota.example.", "ota.example"] {
            assert_eq!(Host::parse(text).unwrap().as_str(), "ota.example");
        }
        assert_eq!(Host::parse("bücher.example").unwrap().as_str(), "xn--bcher-kva.example");
    }

    #[test]
    fn addresses_are_addresses() {
        assert_eq!(Host::parse("[2001:DB8::1]").unwrap().to_string(), "[2001:db8::1]");
        assert_eq!(Host::parse("[2001:DB8::1]").unwrap().as_str(), "2001:db8::1");
        for text in ["127.0.0.1", "127.0.0.1.", "１２７.0.0.1"] {
            assert_eq!(Host::parse(text).unwrap().ip(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in ["", ".", "[ota.example]", "[::1", "::1", "a..b", "a b", "user@ota", "ota/", "[::1%25eth0]"] {
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
        assert!(Host::parse(&"a".repeat(64)).is_err());
        assert!(Host::parse(&["a".repeat(60).as_str(); 5].join(".")).is_err());
    }
}

//! Name constraints (RFC 5280 section 4.2.1.10): what a certificate authority may vouch for.

use std::net::IpAddr;

use rcgen::{CidrSubnet, GeneralSubtree};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{GeneralName, NameConstraints},
};

use crate::config::{host::Host, model::HostPattern};

/// What an authority for `hosts` alone is permitted, and what it is denied.
///
/// A kind of name of which nothing is permitted must be denied outright, as a constraint on one kind leaves the others
/// free. A name permits those below it as well; there is no narrower way to say it.
pub(super) fn for_hosts(hosts: &[HostPattern]) -> rcgen::NameConstraints {
    let mut permitted_subtrees: Vec<GeneralSubtree> = Vec::new();
    let mut excluded_subtrees = Vec::new();
    for pattern in hosts {
        let subtree = match pattern.host.parse() {
            Ok(ip) => GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(ip, if ip.is_ipv4() { 32 } else { 128 })),
            Err(_) => GeneralSubtree::DnsName(pattern.host.clone()),
        };
        if !permitted_subtrees.contains(&subtree) {
            permitted_subtrees.push(subtree);
        }
    }
    if !permitted_subtrees.iter().any(|subtree| matches!(subtree, GeneralSubtree::IpAddress(_))) {
        excluded_subtrees = vec![
            GeneralSubtree::IpAddress(CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(CidrSubnet::V6([0; 16], [0; 16])),
        ];
    }
    if !permitted_subtrees.iter().any(|subtree| matches!(subtree, GeneralSubtree::DnsName(_))) {
        // No name is ever registered below it (RFC 6761 section 6.4), and clients disagree on what an empty one denies.
        permitted_subtrees.push(GeneralSubtree::DnsName("invalid".to_owned()));
    }
    rcgen::NameConstraints { permitted_subtrees, excluded_subtrees }
}

/// The constraints of one certificate, as far as they concern hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Constraints {
    permitted: Option<Subtrees>,
    excluded: Subtrees,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Subtrees {
    names: Vec<String>,
    /// Address and mask.
    addresses: Vec<Vec<u8>>,
}

impl Constraints {
    /// Those of `certificate`; `None` when it may vouch for everything.
    pub(super) fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        let NameConstraints { permitted_subtrees, excluded_subtrees } = certificate.name_constraints().ok()??.value;
        Some(Self {
            permitted: permitted_subtrees.as_ref().map(|trees| Subtrees::of(trees.iter().map(|tree| &tree.base))),
            excluded: Subtrees::of(excluded_subtrees.iter().flatten().map(|tree| &tree.base)),
        })
    }

    /// Whether clients accept a leaf for `host`.
    pub(super) fn permit(&self, host: &Host) -> bool {
        match host.ip() {
            Some(ip) => {
                let permitted = self.permitted.as_ref().filter(|permitted| !permitted.addresses.is_empty());
                permitted.is_none_or(|permitted| permitted.have_address(ip)) && !self.excluded.have_address(ip)
            }
            None => {
                let permitted = self.permitted.as_ref().filter(|permitted| !permitted.names.is_empty());
                permitted.is_none_or(|permitted| permitted.have_name(host.as_str()))
                    && !self.excluded.have_name(host.as_str())
            }
        }
    }

    /// Whether clients accept a leaf for every host that `pattern` matches.
    pub(super) fn permit_all(&self, pattern: &HostPattern) -> bool {
        // What is below a permitted name is permitted. What is below a name may be denied even where that is not, which
        // is for the operator who wrote such a constraint to know.
        let name = if pattern.wildcard { format!("any.{}", pattern.host) } else { pattern.host.clone() };
        let bracketed = if name.contains(':') { format!("[{name}]") } else { name };
        Host::parse(&bracketed).is_ok_and(|host| self.permit(&host))
    }
}

impl Subtrees {
    fn of<'a>(bases: impl Iterator<Item = &'a GeneralName<'a>>) -> Self {
        let mut subtrees = Self::default();
        for base in bases {
            match base {
                GeneralName::DNSName(name) => subtrees.names.push(name.to_ascii_lowercase()),
                GeneralName::IPAddress(range) => subtrees.addresses.push(range.to_vec()),
                _ => {}
            }
        }
        subtrees
    }

    fn have_name(&self, name: &str) -> bool {
        self.names.iter().any(|base| {
            // A leading dot is no form of RFC 5280, but many write it for "below this name".
            match name.strip_suffix(base.as_str()) {
                Some(below) => below.is_empty() || base.is_empty() || base.starts_with('.') || below.ends_with('.'),
                None => false,
            }
        })
    }

    fn have_address(&self, ip: IpAddr) -> bool {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        self.addresses.iter().filter(|range| range.len() == 2 * octets.len()).any(|range| {
            let (address, mask) = range.split_at(octets.len());
            octets.iter().zip(address).zip(mask).all(|((octet, address), mask)| octet & mask == address & mask)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn names_are_permitted_with_what_is_below_them() {
        let names =
            |names: &[&str]| Subtrees { names: names.iter().map(ToString::to_string).collect(), addresses: vec![] };
        let constraints = Constraints {
            permitted: Some(names(&["ota.example", ".dotted.example"])),
            excluded: names(&["no.ota.example"]),
        };
        for (name, permitted) in [
            ("ota.example", true),
            ("a.b.ota.example", true),
            ("notota.example", false),
            ("example", false),
            ("no.ota.example", false),
            ("deep.no.ota.example", false),
            ("a.dotted.example", true),
            ("dotted.example", false),
        ] {
            assert_eq!(constraints.permit(&host(name)), permitted, "{name}");
        }
        assert!(constraints.permit(&host("192.0.2.1")), "a constraint on names leaves addresses free");
    }

    #[test]
    fn addresses_are_compared_under_their_mask() {
        let addresses = vec![[192, 0, 2, 0, 255, 255, 255, 0].to_vec()];
        let permitted = Some(Subtrees { names: vec![], addresses });
        let constraints = Constraints { permitted, ..Constraints::default() };
        for (address, permitted) in [("192.0.2.7", true), ("192.0.3.7", false), ("[2001:db8::1]", false)] {
            assert_eq!(constraints.permit(&host(address)), permitted, "{address}");
        }
    }
}

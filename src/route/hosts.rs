//! Finds the channel of a host.

use std::{collections::HashMap, sync::Arc};

use crate::config::{
    host::Host,
    model::{Channel, HostPattern},
};

/// Host patterns, by their text.
#[derive(Debug, Default)]
pub(super) struct HostTable {
    exact: HashMap<String, Ports>,
    wildcard: HashMap<String, Ports>,
}

/// The channels of one pattern, by port.
#[derive(Debug, Default)]
struct Ports {
    any: Option<usize>,
    one: HashMap<u16, usize>,
}

impl HostTable {
    pub(super) fn new(channels: &[Arc<Channel>]) -> Self {
        let mut table = Self::default();
        for (index, channel) in channels.iter().enumerate() {
            for HostPattern { wildcard, host, port } in &channel.hosts {
                let kind = if *wildcard { &mut table.wildcard } else { &mut table.exact };
                let ports = kind.entry(host.clone()).or_default();
                match port {
                    Some(port) => drop(ports.one.insert(*port, index)),
                    None => ports.any = Some(index),
                }
            }
        }
        table
    }

    /// The index of the channel with the most specific pattern.
    pub(super) fn find(&self, host: &Host, port: u16) -> Option<usize> {
        let exact = self.exact.get(host.as_str()).and_then(|ports| ports.find(port));
        exact.or_else(|| parents(host).find_map(|parent| self.wildcard.get(parent)?.find(port)))
    }
}

impl Ports {
    fn find(&self, port: u16) -> Option<usize> {
        self.one.get(&port).copied().or(self.any)
    }
}

/// The domains above a name, nearest first; none for an address.
fn parents(host: &Host) -> impl Iterator<Item = &str> {
    let name = if host.ip().is_some() { "" } else { host.as_str() };
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..])
}

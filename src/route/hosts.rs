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

/// A pattern of the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The index of its channel.
    pub(super) channel: usize,
    /// Its own index among those of the channel.
    pub(super) pattern: usize,
}

/// The patterns of one name, by port.
#[derive(Debug, Default)]
struct Ports {
    any: Option<Found>,
    one: HashMap<u16, Found>,
}

impl HostTable {
    pub(super) fn new(channels: &[Arc<Channel>]) -> Self {
        let mut table = Self::default();
        for (index, channel) in channels.iter().enumerate() {
            for (pattern, HostPattern { wildcard, host, port }) in channel.hosts.iter().enumerate() {
                let found = Found { channel: index, pattern };
                let kind = if *wildcard { &mut table.wildcard } else { &mut table.exact };
                let ports = kind.entry(host.clone()).or_default();
                match port {
                    Some(port) => drop(ports.one.insert(*port, found)),
                    None => ports.any = Some(found),
                }
            }
        }
        table
    }

    /// The most specific pattern.
    pub(super) fn find(&self, host: &Host, port: u16) -> Option<Found> {
        let exact = self.exact.get(host.as_str()).and_then(|ports| ports.find(port));
        exact.or_else(|| parents(host).find_map(|parent| self.wildcard.get(parent)?.find(port)))
    }
}

impl Ports {
    fn find(&self, port: u16) -> Option<Found> {
        self.one.get(&port).copied().or(self.any)
    }
}

/// The domains above a name, nearest first; none for an address.
fn parents(host: &Host) -> impl Iterator<Item = &str> {
    let name = if host.ip().is_some() { "" } else { host.as_str() };
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..])
}

//! TLS session tickets that hold for one host.

use std::sync::Arc;

use rustls::server::ProducesTickets;

use crate::config::host::Host;

/// One leaf's view of the tickets of the process.
///
/// Clients that reconnect resume their session, which spares both sides the signature. The keys are shared by all
/// leaves, so resumption survives a leaf's renewal or eviction and costs no memory a session. But a session must not
/// cross hosts: what is resumed skips the certificate, and rustls compares the SNI alone, which is absent for addresses
/// and may differ from the host that the client asked the proxy for. So the name is sealed into the ticket, and another
/// host's ticket counts as none: the handshake is then simply a full one.
#[derive(Debug)]
pub(super) struct HostTickets {
    shared: Arc<dyn ProducesTickets>,
    /// Ends in NUL, which no host name holds: the prefix of no other host's.
    binding: Vec<u8>,
}

impl HostTickets {
    pub(super) fn new(shared: Arc<dyn ProducesTickets>, host: &Host, sni: Option<&Host>) -> Self {
        let sni = sni.map_or("", Host::as_str);
        Self { shared, binding: format!("{}\0{sni}\0", host.as_str()).into_bytes() }
    }
}

impl ProducesTickets for HostTickets {
    fn enabled(&self) -> bool {
        self.shared.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.shared.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.shared.encrypt(&[&self.binding, plain].concat())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.shared.decrypt(cipher)?.strip_prefix(self.binding.as_slice()).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::Ticketer;

    use super::*;

    #[test]
    fn a_ticket_opens_for_its_own_host_only() {
        let shared = Ticketer::new().unwrap();
        let tickets = |host: &str, sni: Option<&str>| {
            let sni = sni.map(|name| Host::parse(name).unwrap());
            HostTickets::new(shared.clone(), &Host::parse(host).unwrap(), sni.as_ref())
        };
        let ota = tickets("ota.example", None);
        let ticket = ota.encrypt(b"session").unwrap();
        assert_eq!(ota.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(tickets("ota.example", None).decrypt(&ticket).as_deref(), Some(&b"session"[..]), "after a renewal");
        for (host, sni) in [("ota.exampl", None), ("other.example", None), ("ota.example", Some("a.example"))] {
            assert_eq!(tickets(host, sni).decrypt(&ticket), None, "{host} {sni:?}");
        }
    }
}

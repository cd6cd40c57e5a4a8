//! Leaves for intercepted hosts: minted when first asked for, kept until two thirds of their time are over.

use std::{fmt, sync::Arc, time::SystemTime};

use quick_cache::sync::Cache;
use rcgen::KeyPair;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs::Ticketer},
    server::{NoServerSessionStorage, ProducesTickets},
    sign::{CertifiedKey, SigningKey, SingleCertAndKey},
};
use rustls_pki_types::PrivateKeyDer;

use super::{Authority, CaError, MintError, key, tickets::HostTickets};
use crate::config::host::Host;

/// Mints and keeps leaves.
pub struct Leaves {
    authority: Authority,
    provider: Arc<CryptoProvider>,
    /// One for all leaves of the process, and not the authority's: SChannel rejects a chain in which both are the same.
    /// Making one a leaf would triple the cost of minting and protect nothing, since all of them live in this process.
    key: KeyPair,
    signer: Arc<dyn SigningKey>,
    tickets: Arc<dyn ProducesTickets>,
    /// Bounded because the SNI is the client's to choose.
    minted: Cache<Wanted, Leaf>,
}

impl Leaves {
    /// Makes the key that all leaves of this process share.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new(authority: Authority) -> Result<Self, CaError> {
        Self::generate(authority).map_err(CaError::from)
    }

    /// TLS settings for a client that asked for `host`: a leaf for it, also good for `sni` where that is another valid
    /// name, so that the handshake succeeds and the mismatch can be answered in HTTP. TLS 1.2 and 1.3, the versions of HTTP
    /// that `alpn` says, no early data, which could be replayed.
    ///
    /// # Errors
    /// When the authority has expired, or signing fails.
    pub fn server_config(&self, host: &Host, sni: Option<&str>, alpn: Alpn) -> Result<Arc<ServerConfig>, MintError> {
        self.server_config_at(host, sni, alpn, SystemTime::now())
    }

    /// The same, `now` being the time.
    ///
    /// # Errors
    /// When the authority has expired, or signing fails.
    pub fn server_config_at(
        &self,
        host: &Host,
        sni: Option<&str>,
        alpn: Alpn,
        now: SystemTime,
    ) -> Result<Arc<ServerConfig>, MintError> {
        // What is no name would not verify either; the leaf for the host alone is the best answer to it.
        let sni = sni.and_then(|name| Host::parse(name).ok()).filter(|name| name.ip().is_none() && name != host);
        let wanted = Wanted { host: host.clone(), sni, alpn };
        if let Some(leaf) = self.minted.get(&wanted).filter(|leaf| now < leaf.renew_at) {
            return Ok(leaf.config);
        }
        self.minted.remove_if(&wanted, |leaf| now >= leaf.renew_at);
        // One client mints, and the others that come at once wait for it: as long as minting takes, which is some 25
        // microseconds (a millisecond where the authority's key is RSA), less than the handshake that follows. It needs
        // no thread of its own.
        self.minted.get_or_insert_with(&wanted, || self.mint(&wanted, now)).map(|leaf| leaf.config)
    }

    /// The authority that signs them.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    fn generate(authority: Authority) -> Result<Self, MintError> {
        let provider = ServerConfig::builder().crypto_provider().clone();
        let key = key::generate(authority.leaf_key())?;
        let signer = provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
        Ok(Self { authority, provider, key, signer, tickets: Ticketer::new()?, minted: Cache::new(CAPACITY) })
    }

    fn mint(&self, wanted: &Wanted, now: SystemTime) -> Result<Leaf, MintError> {
        let Wanted { host, sni, alpn } = wanted;
        let (chain, renew_at) = self.authority.sign_leaf(host, sni.as_ref(), &self.key, now)?;
        let certified = CertifiedKey::new(chain, self.signer.clone());
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = alpn.protocols();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(HostTickets::new(self.tickets.clone(), host, sni.as_ref()));
        Ok(Leaf { config: Arc::new(config), renew_at })
    }
}

/// No keys.
impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaves")
            .field("authority", &self.authority)
            .field("minted", &self.minted.len())
            .finish_non_exhaustive()
    }
}

/// The versions of HTTP that a client is offered, of which it takes one (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2, and HTTP/1.1 for clients that do not speak it.
    Http2,
}

impl Alpn {
    /// Its names, the preferred one first.
    fn protocols(self) -> Vec<Vec<u8>> {
        let protocols: &[&[u8]] = match self {
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2", b"http/1.1"],
        };
        protocols.iter().map(|protocol| protocol.to_vec()).collect()
    }
}

/// What a leaf is good for, and what is said beside it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wanted {
    host: Host,
    sni: Option<Host>,
    alpn: Alpn,
}

#[derive(Debug, Clone)]
struct Leaf {
    config: Arc<ServerConfig>,
    renew_at: SystemTime,
}

/// Many times the hosts of all OTAs; about 2 KiB each.
const CAPACITY: usize = 1024;

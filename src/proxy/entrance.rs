//! Where a connection came in, which decides how its requests name their origin.

use std::{net::SocketAddr, sync::Arc};

use http::{Method, Version, request, uri::PathAndQuery};

use super::{
    Rules,
    downstream::{Downstream, Tunnel},
    gateway::{self, Base},
    target::{self, Target, TargetError},
};

/// Where a connection came in.
#[derive(Debug, Clone)]
pub(super) enum Entrance {
    /// The proxy's own port.
    Proxy,
    /// The gateway.
    Gateway,
    /// A tunnel through the proxy.
    Tunnel(Arc<Tunnel>),
}

/// The addresses of the listeners.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    pub(super) proxy: SocketAddr,
    pub(super) gateway: Option<SocketAddr>,
}

impl Own {
    pub(super) fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.proxy), self.gateway].into_iter().flatten()
    }
}

/// Where a request goes, by the rules of the place it stands in; at the gateway, with that place.
pub(super) fn target(
    client: &Downstream,
    rules: &Rules,
    parts: &request::Parts,
) -> Result<(Target, Option<Base>), TargetError> {
    let is_http_10 = parts.version == Version::HTTP_10;
    let asks_all = client.takes_no_path() && parts.method == Method::OPTIONS;
    let (mut target, base) = match client.entrance() {
        Entrance::Proxy => (target::absolute(&parts.uri, &parts.headers)?, None),
        Entrance::Gateway if parts.uri.authority().is_some() => {
            return Err(TargetError::NotAProxy(client.own().proxy));
        }
        Entrance::Gateway => {
            let path = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
            let (target, base) = gateway::target(&rules.names, path, is_http_10, &parts.headers)?;
            (target, Some(base))
        }
        Entrance::Tunnel(tunnel) if parts.version == Version::HTTP_2 => {
            (target::stream(&tunnel.authority, tunnel.scheme, &parts.uri, &parts.headers)?, None)
        }
        Entrance::Tunnel(tunnel) => {
            let target = target::inside(&tunnel.authority, tunnel.scheme, &parts.uri, is_http_10, &parts.headers)?;
            (target, None)
        }
    };
    if asks_all {
        target.path = PathAndQuery::from_static("*");
    }
    Ok((target, base))
}

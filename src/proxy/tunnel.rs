//! CONNECT: a tunnel to a configured host is opened here and its requests are paced; any other is relayed unread.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Request, Response, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    Rules,
    answer::Answer,
    downstream::{Downstream, Tunnel},
    metrics::Outcome,
    preference,
    record::Record,
    relay::relay,
    respond::{self, Refusal},
    sniff::{Protocol, sniff},
    target::{self, Authority},
};
use crate::{
    config::model::{Channel, Class, UnmatchedHost},
    upstream::Scheme,
};

/// Answers a CONNECT: 200 once the tunnel leads somewhere, or why it does not, and then the connection closes.
pub(super) async fn open(client: &Downstream, mut request: Request<Incoming>) -> Response<Answer> {
    let upgrade = hyper::upgrade::on(&mut request);
    let rules = client.proxy().rules();
    let authority = match destination(client, &request) {
        Ok(authority) => authority,
        Err(refusal) => return refused(unmatched(&rules), refusal),
    };
    let Some(channel) = rules.router.channel(&authority.host, authority.port) else {
        return open_blind(client, &rules, upgrade, authority).await;
    };
    match preference::take_class(request.headers_mut(), &rules.settings.priority_header) {
        Ok(class) => open_intercepted(client, upgrade, authority, channel.clone(), class),
        Err(error) => refused(unmatched(&rules), Refusal::preference(&error)),
    }
}

fn destination(client: &Downstream, request: &Request<Incoming>) -> Result<Authority, Refusal> {
    let authority = target::connect(request.uri()).map_err(Refusal::target)?;
    if has_body(request.headers()) {
        return Err(Refusal::connect_with_body());
    }
    if target::is_own_address(&authority.host, authority.port, client.own_address()) {
        return Err(Refusal::own_address());
    }
    Ok(authority)
}

/// Nothing is dialled for a configured host: its requests find their own connections.
fn open_intercepted(
    client: &Downstream,
    upgrade: OnUpgrade,
    authority: Authority,
    channel: Arc<Channel>,
    class: Option<Class>,
) -> Response<Answer> {
    let inner = client.clone();
    client.leave_http();
    client.spawn(async move {
        // A client gone before its 200 is no event.
        let Ok(upgraded) = upgrade.await else { return };
        intercept(&inner, TokioIo::new(upgraded), authority, &channel, class).await;
    });
    respond::established()
}

/// Dials first, so that a host that cannot be reached shows as what it is, and a server that speaks first is heard.
async fn open_blind(client: &Downstream, rules: &Rules, upgrade: OnUpgrade, authority: Authority) -> Response<Answer> {
    let mut record = unmatched(rules);
    if rules.settings.unmatched.host == UnmatchedHost::Refuse {
        return refused(record, Refusal::unmatched_host());
    }
    let origin = match rules.upstream.dial(&authority.host, authority.port).await {
        Ok(origin) => origin,
        Err(error) => return refused(record, Refusal::connect(&error)),
    };
    if leads_back(&origin, client) {
        return refused(record, Refusal::own_address());
    }
    client.leave_http();
    let (tunnel, shutdown) = (rules.metrics.tunnel(), client.shutdown().clone());
    client.spawn(async move {
        let _tunnel = tunnel;
        let Ok(upgraded) = upgrade.await else { return };
        if let Err(error) = relay(TokioIo::new(upgraded), origin, &shutdown).await {
            tracing::debug!(%error, "tunnel ended");
        }
    });
    let response = respond::established();
    record.answer(response.status(), Outcome::Answered);
    record.complete();
    response
}

/// Serves what the client sends through a tunnel to a configured host.
async fn intercept<I>(client: &Downstream, io: I, authority: Authority, channel: &Channel, class: Option<Class>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let sniffed = tokio::select! {
        sniffed = timeout(FIRST_BYTE, sniff(io)) => sniffed,
        // Nothing was asked for yet.
        () = client.shutdown().cancelled() => return,
    };
    let Ok(Ok(Some((protocol, io)))) = sniffed else { return };
    // The first byte may have been long in coming.
    let rules = client.proxy().rules();
    match protocol {
        Protocol::Http => client.inside(Tunnel { authority, scheme: Scheme::Http, class }).serve(io).await,
        Protocol::Tls => match terminate(client, io, &authority).await {
            Ok(tls) => client.inside(Tunnel { authority, scheme: Scheme::Https, class }).serve(tls).await,
            Err(error) => {
                rules.metrics.interception_failed(channel);
                let hint = "the client must trust the proxy's `ca.pem`; see `ota-pacer env`";
                tracing::warn!(channel = channel.name, %error, hint, "a client did not accept the intercepted connection");
            }
        },
        Protocol::Opaque => {
            rules.metrics.interception_failed(channel);
            tracing::warn!(channel = channel.name, "a tunnel carries neither TLS nor HTTP: relayed unpaced");
            let Ok(origin) = rules.upstream.dial(&authority.host, authority.port).await else { return };
            let _tunnel = rules.metrics.tunnel();
            if let Err(error) = relay(io, origin, client.shutdown()).await {
                tracing::debug!(%error, "tunnel ended");
            }
        }
    }
}

/// Ends the client's TLS with a leaf for the host that the tunnel was opened to.
async fn terminate<I>(client: &Downstream, io: I, authority: &Authority) -> Result<TlsStream<I>, InterceptError>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = async {
        // The ClientHello comes first: its server name may differ from the target, and is then put on the leaf as well.
        let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io).await?;
        let config = client.proxy().leaves.server_config(&authority.host, hello.client_hello().server_name())?;
        Ok(hello.into_stream(config).await?)
    };
    timeout(HANDSHAKE, handshake).await.map_err(|_| InterceptError::Timeout)?
}

/// Why a client's TLS could not be ended here.
#[derive(Debug, thiserror::Error)]
enum InterceptError {
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] std::io::Error),
    #[error(transparent)]
    Mint(#[from] crate::ca::MintError),
    #[error("the TLS handshake took too long")]
    Timeout,
}

/// A refused CONNECT closes: what the client has sent behind it was meant for the tunnel, and must not be read as requests.
fn refused(mut record: Record, refusal: Refusal) -> Response<Answer> {
    record.answer(refusal.status(), refusal.outcome);
    refusal.closing().into_response().map(|body| body.recorded(record))
}

fn unmatched(rules: &Rules) -> Record {
    Record::new(rules.metrics.unmatched().clone())
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

/// Whether the connection has come out at this proxy's own listener, by whatever name.
fn leads_back(origin: &TcpStream, client: &Downstream) -> bool {
    let own = client.own_address();
    match (origin.peer_addr(), origin.local_addr()) {
        (Ok(peer), Ok(local)) if peer.port() == own.port() => {
            peer.ip() == own.ip() || (own.ip().is_unspecified() && peer.ip() == local.ip())
        }
        _ => false,
    }
}

/// How long a client may keep a tunnel ready before its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(330);

/// A bound on the whole TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);

//! CONNECT: a tunnel to a configured host is opened here and its requests are paced; any other is relayed unread, paced
//! itself where its channel says so.

use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, Request, Response, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::{
    Rules,
    answer::Answer,
    downstream::{Downstream, Tunnel},
    http2,
    interception::{Failure, Trust},
    metrics::Outcome,
    preference,
    record::Record,
    refusal::{Bound, Refusal},
    relay::relay,
    sniff::{Prefixed, Protocol, sniff},
    target::{self, Authority},
};
use crate::{
    ca::Alpn,
    config::model::{Class, HostPattern, UnmatchedHost},
    limiter::{Lane, Permit, Refused, Turn},
    route::Match,
    upstream::{Scheme, Stream},
};

/// Answers a CONNECT: 200 once the tunnel leads somewhere, or why it does not, and then the connection closes.
pub(super) async fn open(client: &Downstream, mut request: Request<Incoming>) -> Response<Answer> {
    let upgrade = hyper::upgrade::on(&mut request);
    let rules = client.proxy().rules();
    let authority = match destination(client, &rules, &request) {
        Ok(authority) => authority,
        Err(refusal) => return refused(unmatched(&rules), refusal),
    };
    let Some(pattern) = rules.router.pattern(&authority.host, authority.port).cloned() else {
        return open_blind(client, &rules, upgrade, authority).await;
    };
    let headers = request.headers_mut();
    let said = preference::take_max_wait(headers)
        .and_then(|patience| Ok((patience, preference::take_class(headers, &rules.settings.priority_header)?)));
    let (patience, class) = match said {
        Ok(said) => said,
        Err(error) => return refused(unmatched(&rules), Refusal::preference(&error)),
    };
    match rules.router.tunnel(&authority.host, authority.port) {
        Some(found) => {
            let wish = Wish { patience, class: class.unwrap_or_default() };
            open_paced(client, &rules, upgrade, authority, found, wish).await
        }
        None => {
            let tunnel = Intercepted { authority, class, pattern, trust: Trust::of(request.headers()) };
            open_intercepted(client, upgrade, tunnel)
        }
    }
}

/// A tunnel to a configured host, which is opened here.
struct Intercepted {
    authority: Authority,
    class: Option<Class>,
    /// By which the host is configured.
    pattern: HostPattern,
    trust: Trust,
}

impl Intercepted {
    fn carrying(&self, scheme: Scheme) -> Tunnel {
        Tunnel { authority: self.authority.clone(), scheme, class: self.class }
    }
}

fn destination(client: &Downstream, rules: &Rules, request: &Request<Incoming>) -> Result<Authority, Refusal> {
    let authority = target::connect(request.uri()).map_err(Refusal::target)?;
    if has_body(request.headers()) {
        return Err(Refusal::connect_with_body());
    }
    if target::is_own_address(&authority.host, authority.port, client.own()) {
        return Err(Refusal::own_address());
    }
    if rules.upstream.comes_back(request.headers()) {
        return Err(Refusal::came_back());
    }
    Ok(authority)
}

/// Nothing is dialled for a configured host: its requests find their own connections.
fn open_intercepted(client: &Downstream, upgrade: OnUpgrade, tunnel: Intercepted) -> Response<Answer> {
    let inner = client.clone();
    client.leave_http();
    client.spawn(async move {
        // A client gone before its 200 is no event.
        let Ok(upgraded) = upgrade.await else { return };
        let Err((failure, lost)) = intercept(&inner, TokioIo::new(upgraded), &tunnel).await else { return };
        let proxy = inner.proxy();
        // The first byte may have been long in coming.
        let rules = proxy.rules();
        let ca_dir = proxy.leaves.authority().dir();
        rules.metrics.interception_failures().report(&tunnel.pattern, &failure, tunnel.trust, ca_dir);
        if let Some(io) = lost {
            relay_unread(&inner, &rules, io, &tunnel.authority).await;
        }
    });
    established()
}

/// What the client says of its tunnel's wait.
#[derive(Debug, Clone, Copy)]
struct Wish {
    /// The longest it would be held.
    patience: Option<Duration>,
    class: Class,
}

/// A tunnel that is not opened takes one slot of its channel, and counts as under way for as long as it lasts.
async fn open_paced(
    client: &Downstream,
    rules: &Rules,
    upgrade: OnUpgrade,
    authority: Authority,
    found: Match,
    wish: Wish,
) -> Response<Answer> {
    let mut record = Record::new(rules.metrics.route(&found.channel, None).clone());
    let lane = client.proxy().limiter.lane(&found.channel, None, |part| found.value(part));
    let reached = match lane {
        Some(lane) => {
            let line = Line { lane, max_wait: found.policy().max_wait, wish };
            reach_in_turn(client, rules, &authority, &line, &mut record).await
        }
        None => reach(rules, &authority).await.map(|origin| (origin, None)),
    };
    match reached {
        Ok((origin, permit)) => join(client, rules, upgrade, origin, record, permit),
        Err(refusal) => refused(record, refusal),
    }
}

async fn open_blind(client: &Downstream, rules: &Rules, upgrade: OnUpgrade, authority: Authority) -> Response<Answer> {
    let record = unmatched(rules);
    if rules.settings.unmatched.host == UnmatchedHost::Refuse {
        return refused(record, Refusal::unmatched_host());
    }
    match reach(rules, &authority).await {
        Ok(origin) => join(client, rules, upgrade, origin, record, None),
        Err(refusal) => refused(record, refusal),
    }
}

/// Where a tunnel waits for its slot, and how.
struct Line {
    lane: Lane,
    max_wait: Duration,
    wish: Wish,
}

/// Waits for a slot and connects. In a short line the connection comes first, so that no slot ages on the way; elsewhere one
/// that takes longer than the slot is good for costs another slot, once.
async fn reach_in_turn(
    client: &Downstream,
    rules: &Rules,
    authority: &Authority,
    line: &Line,
    record: &mut Record,
) -> Result<(Stream, Option<Permit>), Refusal> {
    let ready = if line.lane.is_short() { Some(reach(rules, authority).await?) } else { None };
    let permit = slot(client, line, record).await?;
    let origin = match ready {
        Some(origin) => origin,
        None => reach(rules, authority).await?,
    };
    if permit.is_fresh() {
        return Ok((origin, Some(permit)));
    }
    drop(permit);
    Ok((origin, Some(slot(client, line, record).await?)))
}

async fn slot(client: &Downstream, line: &Line, record: &mut Record) -> Result<Permit, Refusal> {
    let Wish { patience, class } = line.wish;
    let (hold, bound) = match patience {
        Some(patience) if patience < line.max_wait => (patience, Bound::Client),
        _ => (line.max_wait, Bound::Policy),
    };
    let turn = Turn { arrived: record.arrived, class, max_wait: hold.saturating_sub(record.waited()) };
    record.hold();
    let granted = tokio::select! {
        biased;
        granted = line.lane.slot(turn) => granted,
        () = client.departure().happened() => return Err(Refusal::client_gone()),
    };
    record.release();
    granted.map_err(|refused| match refused {
        Refused::TooLong { retry_after } => Refusal::wait_too_long(retry_after, bound),
        Refused::QueueFull { retry_after } => Refusal::queue_full(retry_after),
        Refused::StoreClosed => Refusal::store_closed(),
    })
}

/// Dials before the client hears of a tunnel, so that a host that cannot be reached shows as what it is, and a server that
/// speaks first is heard.
async fn reach(rules: &Rules, authority: &Authority) -> Result<Stream, Refusal> {
    let dialled = rules.upstream.dial(&authority.host, authority.port).await;
    dialled.map_err(|error| Refusal::connect(&error))
}

/// Relays from now on.
fn join(
    client: &Downstream,
    rules: &Rules,
    upgrade: OnUpgrade,
    origin: Stream,
    mut record: Record,
    permit: Option<Permit>,
) -> Response<Answer> {
    client.leave_http();
    let (tunnel, shutdown) = (rules.metrics.tunnel(), client.shutdown().clone());
    client.spawn(async move {
        let _until_its_end = (tunnel, permit);
        let Ok(upgraded) = upgrade.await else { return };
        if let Err(error) = relay(TokioIo::new(upgraded), origin, &shutdown).await {
            tracing::debug!(%error, "tunnel ended");
        }
    });
    let response = established();
    record.answer(response.status(), Outcome::Answered);
    record.complete();
    response
}

/// Serves what the client sends through a tunnel to a configured host. What carries neither TLS nor HTTP is given back.
async fn intercept<I>(client: &Downstream, io: I, tunnel: &Intercepted) -> Result<(), (Failure, Option<Prefixed<I>>)>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let sniffed = tokio::select! {
        sniffed = timeout(FIRST_BYTE, sniff(io)) => sniffed,
        // Nothing was asked for yet.
        () = client.shutdown().cancelled() => return Ok(()),
    };
    let Ok(Ok(Some((protocol, io)))) = sniffed else { return Ok(()) };
    match protocol {
        Protocol::Http => client.inside(tunnel.carrying(Scheme::Http)).serve(io).await,
        Protocol::Http2 if allows_http2(client, &tunnel.authority) => {
            http2::serve(client.inside(tunnel.carrying(Scheme::Http)), io).await;
        }
        Protocol::Http2 => {
            // A client that does not hear it has left.
            drop(http2::refuse(io).await);
            return Err((Failure::Protocol, None));
        }
        Protocol::Tls => {
            let tls = terminate(client, io, &tunnel.authority).await.map_err(|failure| (failure, None))?;
            let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let tls = verdict(tls).await.map_err(|failure| (failure, None))?;
            let inside = client.inside(tunnel.carrying(Scheme::Https));
            if is_http2 { http2::serve(inside, tls).await } else { inside.serve(tls).await }
        }
        Protocol::Opaque => return Err((Failure::Opaque, Some(io))),
    }
    Ok(())
}

/// Relays a tunnel whose client has had its 200 already.
async fn relay_unread<I>(client: &Downstream, rules: &Rules, io: I, authority: &Authority)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let Ok(origin) = rules.upstream.dial(&authority.host, authority.port).await else { return };
    let _tunnel = rules.metrics.tunnel();
    if let Err(error) = relay(io, origin, client.shutdown()).await {
        tracing::debug!(%error, "tunnel ended");
    }
}

/// Ends the client's TLS with a leaf for the host that the tunnel was opened to.
async fn terminate<I>(client: &Downstream, io: I, authority: &Authority) -> Result<TlsStream<I>, Failure>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = async {
        // The ClientHello comes first: its server name may differ from the target, and is then put on the leaf as well.
        let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io).await?;
        let alpn = if allows_http2(client, authority) { Alpn::Http2 } else { Alpn::Http1 };
        let config = client.proxy().leaves.server_config(&authority.host, hello.client_hello().server_name(), alpn)?;
        Ok(hello.into_stream(config).await?)
    };
    timeout(HANDSHAKE, handshake).await.map_err(|_| Failure::Timeout)?
}

/// Whether clients may speak HTTP/2 in tunnels to this host.
fn allows_http2(client: &Downstream, authority: &Authority) -> bool {
    let rules = client.proxy().rules();
    rules.router.channel(&authority.host, authority.port).is_some_and(|channel| channel.http2.clients)
}

/// Waits a moment for what the client makes of the certificate: in TLS 1.3 its alert may follow a handshake that looked
/// complete from here, and wget with GnuTLS looks at the certificate only then, and leaves without a word. A client that
/// keeps a connection ready for later is not that quick to close it.
async fn verdict<I>(mut tls: TlsStream<I>) -> Result<Prefixed<TlsStream<I>>, Failure>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let mut first = BytesMut::with_capacity(FIRST_READ);
    match timeout(VERDICT, tls.read_buf(&mut first)).await {
        Ok(Ok(0)) => Err(Failure::Unused),
        Ok(Err(error)) => Err(match Failure::from(error) {
            Failure::Closed => Failure::Unused,
            failure => failure,
        }),
        Ok(Ok(_)) | Err(_) => Ok(Prefixed::new(first.freeze(), tls)),
    }
}

/// A refused CONNECT closes: what the client has sent behind it was meant for the tunnel, and must not be read as requests.
fn refused(mut record: Record, refusal: Refusal) -> Response<Answer> {
    record.answer(refusal.status(), refusal.outcome);
    refusal.closing().into_response().map(|body| body.recorded(record))
}

/// The tunnel is open: 200, alone (RFC 9110 section 9.3.6).
fn established() -> Response<Answer> {
    Response::new(Answer::empty())
}

fn unmatched(rules: &Rules) -> Record {
    Record::new(rules.metrics.unmatched().clone())
}

fn has_body(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length.as_bytes() != b"0")
}

/// How long a client may keep a tunnel ready before its first byte.
const FIRST_BYTE: Duration = Duration::from_secs(330);

/// Within which a client that does not like the certificate has left.
const VERDICT: Duration = Duration::from_secs(1);

/// Room for the head of most requests.
const FIRST_READ: usize = 4 * 1024;

/// A bound on the whole TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);

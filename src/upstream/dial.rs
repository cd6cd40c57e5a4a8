//! From a host to a TCP connection.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::{ConnectError, Step};
use crate::config::host::Host;

/// One bound over all the steps of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Runs one step; when time runs out, the error names it.
    pub(super) async fn bound<T>(
        self,
        step: Step,
        host: &Host,
        work: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        match timeout_at(self.at, work).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Timeout { step, host: host.clone(), limit: self.limit }),
        }
    }
}

/// Resolves `host` and connects to the first of its addresses that accepts.
pub(super) async fn dial(host: &Host, port: u16, deadline: Deadline) -> Result<TcpStream, ConnectError> {
    let addresses = match host.ip() {
        Some(ip) => vec![SocketAddr::new(ip, port)],
        None => deadline.bound(Step::Resolve, host, resolve(host, port)).await?,
    };
    deadline
        .bound(Step::Connect, host, async {
            let connected = race(alternate(addresses)).await;
            connected.map_err(|(address, source)| ConnectError::Connect { host: host.clone(), address, source })
        })
        .await
}

async fn resolve(host: &Host, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |source| ConnectError::Resolve { host: host.clone(), source };
    let addresses: Vec<_> = lookup_host((host.as_str(), port)).await.map_err(failed)?.collect();
    if addresses.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(addresses)
}

/// RFC 8305 section 4: the families take turns, beginning with the one the resolver prefers, so that a family that
/// leads nowhere costs one delay and not one for each of its addresses.
fn alternate(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let preferred = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| address.is_ipv6() == preferred);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    while first.len() + second.len() > 0 {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered
}

/// RFC 8305 section 5: starts the next attempt when one fails or has been silent for a while, and takes the first that
/// succeeds. The error is that of the attempt that failed last.
async fn race(addresses: Vec<SocketAddr>) -> Result<TcpStream, (SocketAddr, io::Error)> {
    if let [address] = *addresses {
        return connect(address).await.map_err(|error| (address, error));
    }
    // Dropping the set aborts the attempts that lost.
    let mut attempts = JoinSet::new();
    let mut waiting = addresses.into_iter();
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(async move { connect(address).await.map_err(|error| (address, error)) });
        }
        tokio::select! {
            Some(attempt) = attempts.join_next() => {
                match attempt.expect("attempts do not panic and are not aborted before the set is dropped") {
                    Err(error) if waiting.len() == 0 && attempts.is_empty() => return Err(error),
                    Err(_) => {}
                    Ok(stream) => return Ok(stream),
                }
            }
            () = sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // A request is written in two parts, and Nagle would hold the second back until the first is acknowledged, 40 ms
    // later.
    stream.set_nodelay(true)?;
    // A peer that vanished without a word is noticed before a tunnel or a slow answer has waited for hours.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// RFC 8305 section 8 recommends it.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

const KEEPALIVE: Duration = Duration::from_secs(60);

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_from_the_preferred_one_on() {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        assert_eq!(
            alternate(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"])),
            parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"])
        );
        assert_eq!(
            alternate(parse(&["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"])),
            parse(&["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"])
        );
    }

    #[tokio::test]
    async fn an_address_that_refuses_gives_way_to_the_next_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let taken = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
            taken.local_addr().unwrap()
        };
        assert_eq!(race(vec![closed, open]).await.unwrap().peer_addr().unwrap(), open);
        let (last, error) = race(vec![closed, closed]).await.unwrap_err();
        assert_eq!((last, error.kind()), (closed, io::ErrorKind::ConnectionRefused));
    }
}

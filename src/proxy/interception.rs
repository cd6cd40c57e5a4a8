//! Connections to configured hosts that could not be intercepted: why, what to do about it, and how often to say so.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, header::USER_AGENT};
use metrics::{Counter, counter};
use rustls::{AlertDescription, PeerIncompatible};
use tokio::time::Instant;

use crate::{
    ca::MintError,
    config::model::{Channel, HostPattern},
};

/// Why a connection could not be intercepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The client says that it does not know our authority.
    #[error("the client does not trust the CA")]
    Untrusted,
    /// The client says that it does not like the certificate.
    #[error("the client does not accept the certificate: {0}")]
    Unaccepted(String),
    /// The client closed the connection in place of an answer to the certificate.
    #[error("the client closed the connection during the TLS handshake, without an alert")]
    Closed,
    /// The client closed the connection as soon as it had seen the certificate: some look at it only after the handshake.
    #[error("the client closed the connection right after the TLS handshake, without a request")]
    Unused,
    /// The client has no version or algorithm of TLS in common with us.
    #[error("the client's TLS is too old: {0}")]
    Incompatible(String),
    /// The client speaks no HTTP/1.1.
    #[error("the client does not offer HTTP/1.1")]
    Protocol,
    /// Neither TLS nor HTTP.
    #[error("the tunnel carries neither TLS nor HTTP: relayed unpaced")]
    Opaque,
    /// The handshake did not end.
    #[error("the TLS handshake took too long")]
    Timeout,
    /// There is no certificate for the host.
    #[error("there is no certificate for the host: {0}")]
    Mint(#[from] MintError),
    /// Anything else.
    #[error("the TLS handshake failed: {0}")]
    Other(String),
}

/// What is broken in a handshake, from what TLS says.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::AlertReceived(AlertDescription::UnknownCA)) => Self::Untrusted,
            Some(rustls::Error::AlertReceived(
                alert @ (AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied),
            )) => Self::Unaccepted(format!("{alert:?}")),
            Some(rustls::Error::AlertReceived(
                alert @ (AlertDescription::ProtocolVersion
                | AlertDescription::HandshakeFailure
                | AlertDescription::InsufficientSecurity),
            )) => Self::Incompatible(format!("{alert:?}")),
            Some(rustls::Error::NoApplicationProtocol) => Self::Protocol,
            Some(rustls::Error::PeerIncompatible(reason)) => Self::Incompatible(incompatible(reason)),
            Some(other) => Self::Other(other.to_string()),
            None if is_closed(error.kind()) => Self::Closed,
            None => Self::Other(error.to_string()),
        }
    }
}

impl Failure {
    /// What to do about it. `trust` is how the client is made to trust us.
    fn hint(&self, trust: Trust) -> String {
        let trust = trust.0;
        match self {
            Self::Untrusted => format!("{trust}; `ota-pacer env` prints it"),
            Self::Unaccepted(_) => {
                format!("{trust}; if it is set, the client pins the host's own certificate: {EXCLUDE}")
            }
            Self::Closed | Self::Unused => format!(
                "clients that pin the host's certificate do so, and some that do not trust the CA: {trust}; if it is set, {EXCLUDE}"
            ),
            Self::Incompatible(_) => format!(
                "a client that knows no ECDSA needs `ca.key_type: rsa2048` and `ota-pacer ca rotate`; for one that knows no TLS 1.2, {EXCLUDE}"
            ),
            Self::Protocol => {
                format!("allow the client HTTP/1.1, set `http2.clients: true` for the channel, or {EXCLUDE}")
            }
            Self::Opaque => format!("to have its tunnels paced, {EXCLUDE}"),
            Self::Timeout => "the client, or the network before it, is stuck".to_owned(),
            Self::Mint(MintError::AuthorityExpired) => "`ota-pacer ca rotate` makes a new CA".to_owned(),
            Self::Mint(_) | Self::Other(_) => format!("if it goes on, {EXCLUDE}"),
        }
    }
}

/// How a client is made to trust our authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trust(&'static str);

impl Trust {
    /// By what the client calls itself. Many say nothing in a CONNECT.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let agent = agent.to_ascii_lowercase();
        let known = TRUST.iter().find(|(product, _)| agent.contains(product));
        Self(known.map_or("its CA variable must name `bundle.pem`", |(_, trust)| trust))
    }
}

/// The failures of every configured host.
#[derive(Debug)]
pub(super) struct Failures {
    hosts: HashMap<HostPattern, Host>,
}

#[derive(Debug)]
struct Host {
    channel: String,
    count: Counter,
    told: Mutex<Told>,
}

impl Failures {
    /// Registers a counter for each host of `channels`.
    pub(super) fn new(channels: &[Arc<Channel>]) -> Self {
        let hosts = channels.iter().flat_map(|channel| channel.hosts.iter().map(move |host| (channel, host)));
        let host = |(channel, host): (&Arc<Channel>, &HostPattern)| {
            let count = counter!(INTERCEPTION_FAILURES, "host" => host.to_string());
            (host.clone(), Host { channel: channel.name.clone(), count, told: Mutex::default() })
        };
        Self { hosts: hosts.map(host).collect() }
    }

    /// Counts a failure at `host`, and says so, unless one was told of within a minute. `ca_dir` has the files that the
    /// remedy names.
    pub(super) fn report(&self, host: &HostPattern, failure: &Failure, trust: Trust, ca_dir: &Path) {
        let Some(Host { channel, count, told }) = self.hosts.get(host) else { return };
        count.increment(1);
        let Some(untold) = told.lock().unwrap_or_else(PoisonError::into_inner).tell(Instant::now()) else { return };
        let (hint, ca_dir) = (failure.hint(trust), ca_dir.display());
        tracing::warn!(channel, %host, %failure, untold, hint, %ca_dir, "a connection could not be intercepted");
    }
}

/// When it was last told, and how often it was not since.
#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

impl Told {
    /// Whether to tell at `now`: then of how many that were not told.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < TELL_EVERY) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// As every reason for it in [`PeerIncompatible`] is named for itself, that is the best text there is.
fn incompatible(reason: &PeerIncompatible) -> String {
    format!("{reason:?}")
}

fn is_closed(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};

    [UnexpectedEof, ConnectionReset, ConnectionAborted, BrokenPipe].contains(&kind)
}

/// The family of the counter.
pub(super) const INTERCEPTION_FAILURES: &str = "ota_pacer_interception_failures_total";

const TELL_EVERY: Duration = Duration::from_secs(60);

const EXCLUDE: &str = "set `intercept: false` for a channel of this host alone";

/// What products in a User-Agent read, the more specific first.
const TRUST: [(&str, &str); 22] = [
    ("python-requests", "its `REQUESTS_CA_BUNDLE` must name `bundle.pem`"),
    ("pip/", "its `PIP_CERT` must name `bundle.pem`"),
    ("boto", "its `AWS_CA_BUNDLE` must name `bundle.pem`"),
    ("aws-", "its `AWS_CA_BUNDLE` must name `bundle.pem`"),
    ("python", "its `SSL_CERT_FILE` must name `bundle.pem`"),
    ("guzzle", "`curl.cainfo` in its php.ini must name `bundle.pem`"),
    ("php", "`curl.cainfo` and `openssl.cafile` in its php.ini must name `bundle.pem`"),
    ("git/", "its `GIT_SSL_CAINFO` must name `bundle.pem`"),
    ("cargo", "its `CARGO_HTTP_CAINFO` must name `bundle.pem`"),
    ("curl/", "its `CURL_CA_BUNDLE` must name `bundle.pem`"),
    ("wget/", "`ca_certificate` in the file that its `WGETRC` names must name `bundle.pem`"),
    ("go-http-client", "its `SSL_CERT_FILE` must name `bundle.pem`"),
    ("node", "its `NODE_EXTRA_CA_CERTS` must name `ca.pem` before it starts"),
    ("undici", "its `NODE_EXTRA_CA_CERTS` must name `ca.pem` before it starts"),
    ("axios", "its `NODE_EXTRA_CA_CERTS` must name `ca.pem` before it starts"),
    ("deno", "its `DENO_CERT` must name `ca.pem`"),
    ("java", "its `JAVA_TOOL_OPTIONS` must hold `-Djavax.net.ssl.trustStore=` with `bundle.p12`"),
    ("apache-httpclient", "its `JAVA_TOOL_OPTIONS` must hold `-Djavax.net.ssl.trustStore=` with `bundle.p12`"),
    ("okhttp", "its `JAVA_TOOL_OPTIONS` must hold `-Djavax.net.ssl.trustStore=` with `bundle.p12`"),
    ("ruby", "its `SSL_CERT_FILE` must name `bundle.pem`"),
    ("faraday", "its `SSL_CERT_FILE` must name `bundle.pem`"),
    ("libwww-perl", "its `PERL_LWP_SSL_CA_FILE` must name `bundle.pem`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of_alert(alert: AlertDescription) -> Failure {
        Failure::from(io::Error::other(rustls::Error::AlertReceived(alert)))
    }

    #[test]
    fn the_remedy_is_that_of_the_kind_and_the_client() {
        let trust = |agent: &str| Trust::of(&HeaderMap::from_iter([(USER_AGENT, agent.parse().unwrap())]));
        for (failure, agent, remedies) in [
            (of_alert(AlertDescription::UnknownCA), "curl/8.5.0", &["`CURL_CA_BUNDLE`", "`ota-pacer env`"][..]),
            (of_alert(AlertDescription::UnknownCA), "python-requests/2.34", &["`REQUESTS_CA_BUNDLE`"]),
            (
                of_alert(AlertDescription::CertificateUnknown),
                "Java-http-client/17.0.15",
                &["bundle.p12", "`intercept: false`"],
            ),
            (of_alert(AlertDescription::BadCertificate), "Go-http-client/1.1", &["`SSL_CERT_FILE`", "pins"]),
            (io::Error::from(io::ErrorKind::UnexpectedEof).into(), "Wget/1.21.3", &["`WGETRC`", "`intercept: false`"]),
            (
                io::Error::other(rustls::Error::NoApplicationProtocol).into(),
                "",
                &["HTTP/1.1", "`http2.clients: true`", "`intercept: false`"],
            ),
            (
                io::Error::other(rustls::Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon)).into(),
                "",
                &["`ca.key_type: rsa2048`", "`intercept: false`"],
            ),
            (MintError::AuthorityExpired.into(), "", &["`ota-pacer ca rotate`"]),
        ] {
            let hint = failure.hint(trust(agent));
            assert!(remedies.iter().all(|remedy| hint.contains(remedy)), "{failure}: {hint}");
        }
        assert_eq!(Trust::of(&HeaderMap::new()).0, "its CA variable must name `bundle.pem`");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_at_once_and_then_one_a_minute_with_a_count() {
        let mut told = Told::default();
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let tells: Vec<_> = [0, 1, 59, 60, 61, 200].map(|second| told.tell(after(second))).to_vec();
        assert_eq!(tells, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}

//! Why a request is not answered by its origin, one constructor a case: what the client is told, and how it counts.
//!
//! Texts come from this program alone: no path, query or credential.

mod render;

use std::time::Duration;

use http::StatusCode;

use super::{metrics::Outcome, preference::PreferenceError, target::TargetError};
use crate::upstream::{ConnectError, SendError, SendErrorKind, Step};

/// An answer of the proxy's own, and how it counts.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The `outcome` it counts as.
    pub(super) outcome: Outcome,
    status: StatusCode,
    /// An error type of RFC 9209 section 2.3.
    error: &'static str,
    /// Which of several problems of one status it is.
    problem: Option<Problem>,
    detail: String,
    hint: Option<&'static str>,
    /// What the next hop answered.
    received: Option<StatusCode>,
    retry_after: Option<u64>,
    is_closing: bool,
}

impl Refusal {
    /// The request's target cannot be read, or may not stand where it stands.
    pub(super) fn target(error: TargetError) -> Self {
        if error == TargetError::Itself {
            return Self::own_address();
        }
        let status = match error {
            TargetError::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            _ => StatusCode::BAD_REQUEST,
        };
        let hint = match error {
            TargetError::OriginForm => Some(
                "this is a proxy: name it in `HTTP_PROXY` and `HTTPS_PROXY`, and leave the worker's URLs as they are; for \
                 a client that can name none, set `gateway`",
            ),
            TargetError::GatewayPath => Some(
                "the gateway's paths are `/https/HOST/path`, `/http/HOST:PORT/path` and, by its name, `/CHANNEL/path`",
            ),
            TargetError::ManyHosts => Some("name the host, `/https/HOST/path`, or set the channel's `gateway_origin`"),
            TargetError::NotAProxy(_) => {
                Some("name the proxy in `HTTP_PROXY` and `HTTPS_PROXY`, and the gateway in the URLs that are asked for")
            }
            TargetError::Misdirected => Some("open another tunnel for another host"),
            _ => None,
        };
        let outcome = Outcome::BadRequest;
        Self { hint, is_closing: true, ..Self::new(outcome, status, "http_request_error", error.to_string()) }
    }

    /// A head that cannot be read, for which hyper has answered `status`; `None` where it does not do that.
    pub(super) fn unreadable(status: u16) -> Option<Self> {
        let (status, detail, hint) = match status {
            400 => (StatusCode::BAD_REQUEST, "the request cannot be read as HTTP/1.1", None),
            414 => (StatusCode::URI_TOO_LONG, "the request's target is longer than 64 KiB", None),
            431 => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request's head is too large",
                Some("at most 256 fields and 400 KiB are taken"),
            ),
            _ => return None,
        };
        let refusal = Self::new(Outcome::BadRequest, status, "http_request_error", detail.to_owned());
        Some(Self { hint, is_closing: true, ..refusal })
    }

    /// The client says something of its request that cannot be read.
    pub(super) fn preference(error: &PreferenceError) -> Self {
        let hint = match error {
            PreferenceError::MaxWait => "give seconds, such as `0` or `2.5`, or a duration such as `250ms`",
            PreferenceError::Class(_) => "the classes are `interactive` and `batch`",
            PreferenceError::Repeated(_) => "send it once",
        };
        let (outcome, status) = (Outcome::BadRequest, StatusCode::BAD_REQUEST);
        Self { hint: Some(hint), ..Self::new(outcome, status, "http_request_error", error.to_string()) }
    }

    /// A CONNECT inside a tunnel.
    pub(super) fn nested_connect() -> Self {
        let detail = "CONNECT inside a tunnel".to_owned();
        Self {
            is_closing: true,
            ..Self::new(Outcome::BadRequest, StatusCode::METHOD_NOT_ALLOWED, "http_request_error", detail)
        }
    }

    /// A CONNECT that brings a body, which nobody could tell from what is tunnelled.
    pub(super) fn connect_with_body() -> Self {
        let detail = "CONNECT with a body".to_owned();
        Self {
            is_closing: true,
            ..Self::new(Outcome::BadRequest, StatusCode::BAD_REQUEST, "http_request_error", detail)
        }
    }

    /// A request of which two readers see two ends.
    pub(super) fn ambiguous_end() -> Self {
        let detail = "where the request ends is ambiguous".to_owned();
        Self {
            hint: Some("`Transfer-Encoding` must end in its only `chunked`"),
            is_closing: true,
            ..Self::new(Outcome::BadRequest, StatusCode::BAD_REQUEST, "http_request_error", detail)
        }
    }

    /// The client's body broke off; it will hardly read this.
    pub(super) fn body_broken() -> Self {
        let detail = "the request's body did not arrive".to_owned();
        Self {
            is_closing: true,
            ..Self::new(Outcome::ClientGone, StatusCode::BAD_REQUEST, "http_request_error", detail)
        }
    }

    /// The client has closed its connection; nobody will read this.
    pub(super) fn client_gone() -> Self {
        Self { detail: "the client has left".to_owned(), ..Self::body_broken() }
    }

    /// The target is the proxy itself.
    pub(super) fn own_address() -> Self {
        let detail = "the target is this proxy itself".to_owned();
        Self {
            hint: Some("list the proxy's own address in `NO_PROXY`"),
            is_closing: true,
            ..Self::new(Outcome::Refused, StatusCode::FORBIDDEN, "proxy_loop_detected", detail)
        }
    }

    /// The request has been to the parent proxy before.
    pub(super) fn came_back() -> Self {
        let detail = "the parent proxy (`upstream.proxy`) has sent the request back here".to_owned();
        Self {
            hint: Some(
                "the parent must not use this proxy in its turn; hosts that it cannot reach are for `upstream.no_proxy`",
            ),
            is_closing: true,
            ..Self::new(Outcome::Refused, StatusCode::LOOP_DETECTED, "proxy_loop_detected", detail)
        }
    }

    /// `unmatched.host: refuse`.
    pub(super) fn unmatched_host() -> Self {
        let detail = "no channel of the configuration has this host".to_owned();
        Self {
            hint: Some("add the host to a channel, or set `unmatched.host: tunnel`"),
            is_closing: true,
            ..Self::new(Outcome::Refused, StatusCode::FORBIDDEN, "http_request_denied", detail)
        }
    }

    /// `unmatched.path: refuse`.
    pub(super) fn unmatched_path() -> Self {
        let detail = "no endpoint of the channel has this path".to_owned();
        Self {
            hint: Some("add an endpoint for it, or set `unmatched.path: pass`"),
            ..Self::new(Outcome::Refused, StatusCode::FORBIDDEN, "http_request_denied", detail)
        }
    }

    /// No slot within what `bound` allows. `retry_after` is the wait as quoted.
    pub(super) fn wait_too_long(retry_after: Duration, bound: Bound) -> Self {
        let seconds = whole_seconds(retry_after);
        let (bound, hint) = match bound {
            Bound::Policy => ("max_wait", "wait as `Retry-After` says, or raise `max_wait`"),
            Bound::Client => ("X-Pacer-Max-Wait", "wait as `Retry-After` says, or allow a longer wait"),
        };
        let detail = format!("the wait for a slot is longer than `{bound}`: about {seconds} s");
        Self {
            problem: Some(Problem::WaitTooLong),
            hint: Some(hint),
            retry_after: Some(seconds),
            ..Self::new(Outcome::WaitTooLong, StatusCode::TOO_MANY_REQUESTS, "http_request_denied", detail)
        }
    }

    /// The line is as long as it may be. `retry_after` is the wait of one that came now, as quoted.
    pub(super) fn queue_full(retry_after: Duration) -> Self {
        let detail = "as many requests wait for a slot as `max_queue` allows".to_owned();
        Self {
            problem: Some(Problem::QueueFull),
            hint: Some("wait as `Retry-After` says, send from fewer workers, or raise `max_queue`"),
            retry_after: Some(whole_seconds(retry_after)),
            ..Self::new(Outcome::QueueFull, StatusCode::TOO_MANY_REQUESTS, "http_request_denied", detail)
        }
    }

    /// The store is lost and the configuration says to send nothing then.
    pub(super) fn store_closed() -> Self {
        let detail = "the store of the buckets cannot be reached, and `on_outage` is `closed`".to_owned();
        Self {
            retry_after: Some(1),
            ..Self::new(Outcome::StoreClosed, StatusCode::SERVICE_UNAVAILABLE, "proxy_internal_error", detail)
        }
    }

    /// The origin cannot be reached; nothing was sent.
    pub(super) fn connect(error: &ConnectError) -> Self {
        if matches!(error, ConnectError::Own { .. }) {
            return Self::own_address();
        }
        let (status, kind) = connect_error(error);
        let hint = match error {
            ConnectError::Tls { certificate: true, .. } => Some(OWN_AUTHORITY),
            ConnectError::Tls { .. } => Some(CLIENT_CERTIFICATE),
            ConnectError::Parent(error) => {
                matches!(**error, ConnectError::Tls { certificate: true, .. }).then_some(OWN_AUTHORITY)
            }
            ConnectError::Refused { status: StatusCode::PROXY_AUTHENTICATION_REQUIRED, .. } => Some(PARENT_LOGIN),
            _ => None,
        };
        let received = match error {
            ConnectError::Refused { status, .. } => Some(*status),
            _ => None,
        };
        // A client begins anew on a new connection of its own.
        let is_closing = matches!(error, ConnectError::LostHandshake { .. });
        Self { hint, received, is_closing, ..Self::new(Outcome::UpstreamFailed, status, kind, error.to_string()) }
    }

    /// The origin was reached and gave no answer.
    pub(super) fn send(error: &SendError) -> Self {
        let (status, kind) = match error.kind {
            SendErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "http_response_timeout"),
            SendErrorKind::Malformed => (StatusCode::BAD_GATEWAY, "http_protocol_error"),
            SendErrorKind::ClosedEarly
            | SendErrorKind::Read
            | SendErrorKind::Write
            | SendErrorKind::Refused
            | SendErrorKind::Reset => (StatusCode::BAD_GATEWAY, "connection_terminated"),
            SendErrorKind::Body => return Self::body_broken(),
            SendErrorKind::ParentLogin => return Self::parent_login(error),
        };
        let kind = if error.wants_client_certificate() { "tls_alert_received" } else { kind };
        let fate = match error.kind {
            _ if error.written => "the request was sent and not retried, as it may have been acted on",
            SendErrorKind::Refused => "it was not acted on",
            _ => "nothing of the request was sent",
        };
        let hint = error.wants_client_certificate().then_some(CLIENT_CERTIFICATE);
        Self { hint, ..Self::new(Outcome::UpstreamFailed, status, kind, format!("{}; {fate}", error.kind)) }
    }

    /// A 407 is between this proxy and its parent: whoever passed it on would have clients send their own logins.
    fn parent_login(error: &SendError) -> Self {
        let (status, kind) = (StatusCode::BAD_GATEWAY, "proxy_configuration_error");
        Self {
            hint: Some(PARENT_LOGIN),
            received: Some(StatusCode::PROXY_AUTHENTICATION_REQUIRED),
            ..Self::new(Outcome::UpstreamFailed, status, kind, error.kind.to_string())
        }
    }

    /// The origin changed protocols unasked.
    pub(super) fn unasked_upgrade() -> Self {
        let detail = "the origin switched protocols without having been asked to".to_owned();
        Self::new(Outcome::UpstreamFailed, StatusCode::BAD_GATEWAY, "http_upgrade_failed", detail)
    }

    /// The connection is of no use after this answer: what follows on it may be meant for a tunnel that is not there.
    pub(super) fn closing(self) -> Self {
        Self { is_closing: true, ..self }
    }

    /// The status it will have.
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    fn new(outcome: Outcome, status: StatusCode, error: &'static str, detail: String) -> Self {
        Self {
            outcome,
            status,
            error,
            problem: None,
            detail,
            hint: None,
            received: None,
            retry_after: None,
            is_closing: false,
        }
    }
}

/// What a request's wait is bounded by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// `max_wait` of the configuration.
    Policy,
    /// The client's `X-Pacer-Max-Wait`.
    Client,
}

/// The problems (RFC 9457 section 3.1.1) that a worker may want to tell apart without reading the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    WaitTooLong,
    QueueFull,
}

impl Problem {
    fn kind(self) -> &'static str {
        match self {
            Self::WaitTooLong => "urn:ota-pacer:problem:wait-too-long",
            Self::QueueFull => "urn:ota-pacer:problem:queue-full",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::WaitTooLong => "Wait too long",
            Self::QueueFull => "Queue full",
        }
    }
}

/// The status, and the error type of RFC 9209 section 2.3, for a connection that was not made.
fn connect_error(error: &ConnectError) -> (StatusCode, &'static str) {
    match error {
        ConnectError::Timeout { step: Step::Resolve, .. } => (StatusCode::GATEWAY_TIMEOUT, "dns_timeout"),
        ConnectError::Timeout { .. } => (StatusCode::GATEWAY_TIMEOUT, "connection_timeout"),
        ConnectError::Resolve { .. } => (StatusCode::BAD_GATEWAY, "dns_error"),
        ConnectError::Own { .. } => (StatusCode::FORBIDDEN, "proxy_loop_detected"),
        ConnectError::Connect { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused => {
            (StatusCode::BAD_GATEWAY, "connection_refused")
        }
        ConnectError::Connect { .. } => (StatusCode::BAD_GATEWAY, "destination_unavailable"),
        ConnectError::Tls { certificate: true, .. } => (StatusCode::BAD_GATEWAY, "tls_certificate_error"),
        ConnectError::Tls { .. } => (StatusCode::BAD_GATEWAY, "tls_protocol_error"),
        ConnectError::Http2 { .. } => (StatusCode::BAD_GATEWAY, "http_protocol_error"),
        ConnectError::Parent(error) => connect_error(error),
        ConnectError::Refused { status: StatusCode::GATEWAY_TIMEOUT, .. } => {
            (StatusCode::GATEWAY_TIMEOUT, "connection_timeout")
        }
        ConnectError::Refused { status: StatusCode::PROXY_AUTHENTICATION_REQUIRED, .. } => {
            (StatusCode::BAD_GATEWAY, "proxy_configuration_error")
        }
        ConnectError::Refused { .. } => (StatusCode::BAD_GATEWAY, "destination_unavailable"),
        ConnectError::Tunnel { .. } => (StatusCode::BAD_GATEWAY, "http_protocol_error"),
        ConnectError::LostHandshake { .. } => (StatusCode::BAD_GATEWAY, "connection_terminated"),
    }
}

/// Rounded up: a client that comes back at that second must not be early. At least 1: 0 would mean at once.
fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).max(1)
}

const CLIENT_CERTIFICATE: &str =
    "an origin that wants a certificate of the client cannot be intercepted: set `intercept: false` for its channel";

const OWN_AUTHORITY: &str =
    "if it has a certificate of an authority of your own, name that authority in `upstream.ca_file`";

const PARENT_LOGIN: &str = "put the user and the password that it wants into `upstream.proxy`: `http://user:password@proxy:3128`; only Basic is spoken";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (61_500, 62)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}

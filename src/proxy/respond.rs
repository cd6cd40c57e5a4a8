//! The one place that turns an error into a response, one constructor a case.
//!
//! Every answer that the proxy makes itself names it as its source in `Proxy-Status` (RFC 9209) and says why in an
//! `application/problem+json` body (RFC 9457). Texts come from this program alone: no path, query or credential.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header, response};

use super::{answer::Answer, metrics::Outcome, preference::PreferenceError, target::TargetError};
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

    /// The answer as it stands on the wire, for where there is no request to answer.
    pub(super) fn into_bytes(self) -> Bytes {
        let (parts, body) = self.into_parts();
        let reason = parts.status.canonical_reason().unwrap_or_default();
        let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_str()).into_bytes();
        let length = HeaderValue::from(body.len());
        for (name, value) in parts.headers.iter().chain([(&header::CONTENT_LENGTH, &length)]) {
            bytes.extend_from_slice(title_case(name).as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&body);
        bytes.into()
    }

    /// The answer itself.
    pub(super) fn into_response(self) -> Response<Answer> {
        let (parts, body) = self.into_parts();
        Response::from_parts(parts, Answer::whole(body))
    }

    fn into_parts(self) -> (response::Parts, Bytes) {
        let (kind, title) = match self.problem {
            Some(problem) => (problem.kind(), problem.title()),
            None => ("about:blank", self.status.canonical_reason().unwrap_or_default()),
        };
        let mut problem = serde_json::json!({
            "type": kind,
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(hint) = self.hint {
            problem["hint"] = hint.into();
        }
        let mut response = Response::new(Bytes::from(problem.to_string() + "\n"));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let received =
            self.received.map_or_else(String::new, |status| format!("; received-status={}", status.as_u16()));
        let status = format!("ota-pacer; error={}{received}; details={}", self.error, quoted(&self.detail));
        if let Ok(status) = HeaderValue::try_from(status) {
            headers.insert(PROXY_STATUS, status);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_closing {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.into_parts()
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

/// The tunnel is open: 200, alone (RFC 9110 section 9.3.6).
pub(super) fn established() -> Response<Answer> {
    Response::new(Answer::empty())
}

/// `Content-Type`, as hyper spells the names that the proxy adds.
fn title_case(name: &HeaderName) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at_checked(1).unwrap_or_default();
        first.to_ascii_uppercase() + rest
    };
    name.as_str().split('-').map(word).collect::<Vec<_>>().join("-")
}

/// A string of structured fields (RFC 9651 section 3.3.3): printable ASCII in quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
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

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (61_500, 62)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn details_are_structured_strings() {
        assert_eq!(quoted(r#"a "b" \ é"#), r#""a \"b\" \\ ?""#);
    }

    #[tokio::test]
    async fn a_refusal_says_who_why_and_when() {
        let response = Refusal::wait_too_long(Duration::from_millis(2500), Bound::Policy).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "3");
        assert_eq!(
            response.headers()["proxy-status"],
            r#"ota-pacer; error=http_request_denied; details="the wait for a slot is longer than `max_wait`: about 3 s""#
        );
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key("connection"));
        let problem = problem(response).await;
        assert_eq!((&problem["status"], &problem["title"]), (&429.into(), &"Wait too long".into()));
    }

    #[test]
    fn a_head_that_cannot_be_read_is_answered_like_any_refusal() {
        let bytes = Refusal::unreadable(431).unwrap().into_bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(
                "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/problem+json\r\n"
            )
        );
        assert!(head.contains("\r\nProxy-Status: ota-pacer; error=http_request_error; "), "{head}");
        assert!(head.ends_with(&format!("\r\nConnection: close\r\nContent-Length: {}", body.len())), "{head}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["status"], 431);
        assert!(Refusal::unreadable(500).is_none());
    }

    #[tokio::test]
    async fn a_full_queue_is_told_from_a_long_wait() {
        let response = Refusal::queue_full(Duration::from_secs(7)).into_response();
        assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"7".parse().unwrap()));
        let status = response.headers()["proxy-status"].to_str().unwrap();
        assert!(status.contains("as many requests wait for a slot as `max_queue` allows"), "{status}");
        assert_eq!(problem(response).await["type"], "urn:ota-pacer:problem:queue-full");
    }

    #[tokio::test]
    async fn a_refused_preference_keeps_the_connection_and_says_what_is_wanted() {
        let response = Refusal::preference(&PreferenceError::MaxWait).into_response();
        assert_eq!(response.status(), 400);
        assert!(!response.headers().contains_key("connection"));
        let problem = problem(response).await;
        assert_eq!((&problem["type"], &problem["title"]), (&"about:blank".into(), &"Bad Request".into()));
        assert!(problem["hint"].as_str().unwrap().contains("`250ms`"), "{problem}");
    }

    async fn problem(response: Response<Answer>) -> serde_json::Value {
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn what_refuses_a_tunnel_closes() {
        for refusal in [
            Refusal::target(TargetError::Port),
            Refusal::target(TargetError::Misdirected),
            Refusal::nested_connect(),
            Refusal::own_address(),
            Refusal::unmatched_host(),
        ] {
            assert_eq!(refusal.into_response().headers()["connection"], "close");
        }
    }
}

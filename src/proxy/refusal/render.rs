//! A refusal as an answer: it names this proxy as its source in `Proxy-Status` (RFC 9209) and says why in an
//! `application/problem+json` body (RFC 9457).

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header, response};

use super::{super::answer::Answer, Refusal};

impl Refusal {
    /// The answer as it stands on the wire, for where there is no request to answer.
    pub(in crate::proxy) fn into_bytes(self) -> Bytes {
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
    pub(in crate::proxy) fn into_response(self) -> Response<Answer> {
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

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::{
        super::{
            super::{preference::PreferenceError, target::TargetError},
            Bound,
        },
        *,
    };

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

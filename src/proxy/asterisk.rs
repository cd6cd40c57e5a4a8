//! The one request target whose meaning the URI type loses: `OPTIONS http://host`, without a path, asks about the server as a
//! whole and goes on as `OPTIONS *` (RFC 9112 section 3.2.4), while `OPTIONS http://host/` asks about `/`.

/// Watches the beginning of a request head, which may come a byte at a time.
#[derive(Debug, Default)]
pub(super) struct RequestLine {
    seen: Vec<u8>,
    is_decided: bool,
}

impl RequestLine {
    /// Takes the next bytes; true, once, when they complete an `OPTIONS` without a path.
    pub(super) fn lacks_path(&mut self, bytes: &[u8]) -> bool {
        if self.is_decided {
            return false;
        }
        // Some clients put line breaks before a request (RFC 9112 section 2.2).
        let breaks =
            if self.seen.is_empty() { bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count() } else { 0 };
        let room = LONGEST - self.seen.len();
        self.seen.extend(bytes[breaks..].iter().take(room));
        let begins = self.seen.iter().zip(METHOD).all(|(seen, wanted)| seen == wanted);
        let target = self.seen.get(METHOD.len()..).unwrap_or_default();
        let end = target.iter().position(|byte| *byte == b' ');
        self.is_decided = !begins || end.is_some() || self.seen.len() == LONGEST;
        begins && end.is_some_and(|end| is_bare(&target[..end]))
    }
}

/// `scheme://authority` and nothing behind it.
fn is_bare(target: &[u8]) -> bool {
    std::str::from_utf8(target)
        .ok()
        .and_then(|target| target.split_once("://"))
        .is_some_and(|(_, rest)| !rest.is_empty() && !rest.contains(['/', '?']))
}

const METHOD: &[u8] = b"OPTIONS ";

/// Room for the longest host and then some.
const LONGEST: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_options_without_a_path_lacks_one() {
        for (line, wanted) in [
            ("OPTIONS http://ota.test HTTP/1.1\r\n", true),
            ("\r\nOPTIONS HTTPS://[::1]:8443 HTTP/1.1\r\n", true),
            ("OPTIONS http://ota.test/ HTTP/1.1\r\n", false),
            ("OPTIONS http://ota.test?q HTTP/1.1\r\n", false),
            ("OPTIONS * HTTP/1.1\r\n", false),
            ("OPTIONS http:// HTTP/1.1\r\n", false),
            ("GET http://ota.test HTTP/1.1\r\n", false),
            ("OPTION http://ota.test HTTP/1.1\r\n", false),
        ] {
            assert_eq!(RequestLine::default().lacks_path(line.as_bytes()), wanted, "{line}");
            let mut trickled = RequestLine::default();
            assert_eq!(
                line.bytes().filter(|byte| trickled.lacks_path(&[*byte])).count(),
                usize::from(wanted),
                "{line}"
            );
        }
        let long = format!("OPTIONS http://{} HTTP/1.1\r\n", "a".repeat(2 * LONGEST));
        assert!(!RequestLine::default().lacks_path(long.as_bytes()));
    }
}

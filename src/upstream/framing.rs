//! Where a message ends, when its head says so in a way that only one reader understands.

use http::{HeaderMap, Version, header};

/// Whether all readers of a head agree on its transfer codings. hyper refuses differing lengths itself, but takes `chunked` that
/// stands twice, and reads an answer on to the end of the connection after codings that do not end in it, to pass them on with
/// another `chunked` behind. In HTTP/1.0 there are no codings at all (RFC 9112 section 6.1), and `chunked` stands once
/// (section 7).
pub fn is_clearly_framed(version: Version, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::TRANSFER_ENCODING).iter().peekable();
    if values.peek().is_none() {
        return true;
    }
    let codings: Option<Vec<&str>> = values.map(|value| value.to_str().ok()).collect();
    let Some(codings) = codings else { return false };
    let is_chunked = |coding: &str| coding.trim().eq_ignore_ascii_case("chunked");
    let mut codings = codings.iter().flat_map(|value| value.split(',')).rev();
    version == Version::HTTP_11 && codings.next().is_some_and(is_chunked) && !codings.any(is_chunked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_chunked_at_the_end_of_http_11_is_clear() {
        let framed = |version, codings: &[&str]| {
            let field = |coding: &&str| (header::TRANSFER_ENCODING, coding.parse().unwrap());
            is_clearly_framed(version, &codings.iter().map(field).collect())
        };
        assert!(framed(Version::HTTP_10, &[]));
        for codings in [&["chunked"][..], &["Chunked"], &["gzip, chunked"], &["gzip", "chunked"]] {
            assert!(framed(Version::HTTP_11, codings), "{codings:?}");
            assert!(!framed(Version::HTTP_10, codings), "{codings:?}");
        }
        for codings in [&["gzip"][..], &["chunked, gzip"], &["chunked", "chunked"], &["xchunked"], &[""], &["chunked,"]]
        {
            assert!(!framed(Version::HTTP_11, codings), "{codings:?}");
        }
    }
}

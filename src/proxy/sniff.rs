//! What a tunnel carries, told from its first bytes, which may arrive one at a time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What a tunnel carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// A TLS handshake.
    Tls,
    /// HTTP/1 in clear: some clients tunnel plain http too.
    Http,
    /// HTTP/2 in clear, with prior knowledge.
    Http2,
    /// Anything else.
    Opaque,
}

/// Reads until the protocol is clear. The bytes read are the first that the returned stream yields again, without the line
/// breaks some clients put before them. `None`: the client left without a byte.
///
/// # Errors
/// Those of reading.
pub(super) async fn sniff<I: AsyncRead + AsyncWrite + Unpin>(mut io: I) -> io::Result<Option<(Protocol, Prefixed<I>)>> {
    let mut seen = BytesMut::with_capacity(FIRST_READ);
    loop {
        let is_end = io.read_buf(&mut seen).await? == 0;
        let breaks = seen.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        seen.advance(breaks);
        match classify(&seen) {
            Some(protocol) => return Ok(Some((protocol, Prefixed { prefix: seen.freeze(), io }))),
            None if is_end && seen.is_empty() => return Ok(None),
            None if is_end => return Ok(Some((Protocol::Opaque, Prefixed { prefix: seen.freeze(), io }))),
            None => {}
        }
    }
}

/// `None`: too few bytes to tell.
fn classify(seen: &[u8]) -> Option<Protocol> {
    match seen {
        [] | [HANDSHAKE] => None,
        [HANDSHAKE, 3, ..] => Some(Protocol::Tls),
        _ if seen.starts_with(PREFACE) => Some(Protocol::Http2),
        _ if PREFACE.starts_with(seen) => None,
        _ => {
            let method = seen.iter().take(LONGEST_METHOD + 1).take_while(|byte| is_token(**byte)).count();
            match seen.get(method) {
                Some(b' ') if method > 0 && method <= LONGEST_METHOD => Some(Protocol::Http),
                None if method <= LONGEST_METHOD => None,
                _ => Some(Protocol::Opaque),
            }
        }
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A stream that yields some bytes before its own.
#[derive(Debug)]
pub(super) struct Prefixed<I> {
    prefix: Bytes,
    io: I,
}

impl<I> Prefixed<I> {
    /// A stream of which `prefix` has been read.
    pub(super) fn new(prefix: Bytes, io: I) -> Self {
        Self { prefix, io }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Prefixed<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let length = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Prefixed<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Content type of a TLS record that opens a connection (RFC 8446 section 5.1); its version starts with 3.
const HANDSHAKE: u8 = 0x16;

/// How the client's preface begins (RFC 9113 section 3.4), chosen to be no request of HTTP/1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// The longest registered method has 17 bytes (`UPDATEREDIRECTREF`).
const LONGEST_METHOD: usize = 24;

const FIRST_READ: usize = 2048;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn first_bytes_tell() {
        for (bytes, protocol) in [
            (&b""[..], None),
            (b"\x16", None),
            (b"\x16\x03\x01", Some(Protocol::Tls)),
            (b"\x16\x02", Some(Protocol::Opaque)),
            (b"G", None),
            (b"GET", None),
            (b"GET ", Some(Protocol::Http)),
            (b"M-SEARCH *", Some(Protocol::Http)),
            (b"PRI * HTTP/2", None),
            (b"PRI * HTTP/2.0\r\n\r\nSM", Some(Protocol::Http2)),
            (b"PRI /", Some(Protocol::Http)),
            (b" GET", Some(Protocol::Opaque)),
            (b"\0\0", Some(Protocol::Opaque)),
            (b"SSH-2.0-OpenSSH_9\r\n", Some(Protocol::Opaque)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Some(Protocol::Opaque)),
        ] {
            assert_eq!(classify(bytes), protocol, "{bytes:?}");
        }
    }

    async fn sniffed(parts: &[&[u8]]) -> Option<(Protocol, Vec<u8>)> {
        let (mut client, proxy) = tokio::io::duplex(1);
        let sent = parts.concat();
        tokio::spawn(async move { client.write_all(&sent).await });
        let (protocol, mut io) = sniff(proxy).await.unwrap()?;
        let mut all = Vec::new();
        io.read_to_end(&mut all).await.unwrap();
        Some((protocol, all))
    }

    #[tokio::test]
    async fn no_byte_is_lost_when_they_come_one_at_a_time() {
        let (protocol, all) = sniffed(&[b"GET / HTTP/1.1\r\n\r\n"]).await.unwrap();
        assert_eq!((protocol, &all[..]), (Protocol::Http, &b"GET / HTTP/1.1\r\n\r\n"[..]));
        let (protocol, all) = sniffed(&[b"\x16\x03\x01 hello"]).await.unwrap();
        assert_eq!((protocol, &all[..]), (Protocol::Tls, &b"\x16\x03\x01 hello"[..]));
    }

    #[tokio::test]
    async fn stray_line_breaks_are_skipped() {
        let (protocol, all) = sniffed(&[b"\r\n\r\n", b"\x16\x03\x03"]).await.unwrap();
        assert_eq!((protocol, &all[..]), (Protocol::Tls, &b"\x16\x03\x03"[..]));
    }

    #[tokio::test]
    async fn a_client_that_leaves_early() {
        assert!(sniffed(&[]).await.is_none());
        assert!(sniffed(&[b"\r\n"]).await.is_none());
        assert_eq!(sniffed(&[b"GE"]).await.unwrap(), (Protocol::Opaque, b"GE".to_vec()));
    }

    /// What real clients begin with, cut anywhere, among bytes of every other kind.
    fn beginning() -> impl Strategy<Value = Vec<u8>> {
        const KNOWN: [&[u8]; 8] = [
            b"\r\n",
            b"\n",
            b"\x16",
            b"\x16\x03\x01\x02\x00\x01",
            b"GET / HTTP/1.1\r\nHost: ota.test\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"SSH-2.0-",
            b"MKCALENDAR ",
        ];
        let known = prop::sample::select(&KNOWN[..]).prop_map(<[u8]>::to_vec);
        let part = prop_oneof![known, proptest::collection::vec(any::<u8>(), 0..40)];
        (proptest::collection::vec(part, 0..5), any::<prop::sample::Index>()).prop_map(|(parts, end)| {
            let all = parts.concat();
            let end = end.index(all.len() + 1);
            all[..end].to_vec()
        })
    }

    proptest! {
        #[test]
        fn however_the_bytes_come_the_verdict_is_the_same_and_none_is_lost(bytes in beginning(), at_once in 1_usize..80) {
            let breaks = bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count();
            let meant = &bytes[breaks..];
            let expected = (!meant.is_empty()).then(|| (classify(meant).unwrap_or(Protocol::Opaque), meant.to_vec()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(async {
                let (mut client, proxy) = tokio::io::duplex(at_once);
                let sent = bytes.clone();
                let sending = tokio::spawn(async move { client.write_all(&sent).await });
                let (protocol, mut io) = sniff(proxy).await.unwrap()?;
                let mut all = Vec::new();
                io.read_to_end(&mut all).await.unwrap();
                sending.await.unwrap().unwrap();
                Some((protocol, all))
            });
            prop_assert_eq!(found, expected);
        }
    }
}

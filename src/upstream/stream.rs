//! What the bytes to an origin travel on.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// A connection to an origin, or to the parent proxy, before anything is said on it.
#[derive(Debug)]
pub enum Stream {
    /// Straight there.
    Tcp(TcpStream),
    /// To a parent proxy that is spoken to over TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// Through a tunnel that the parent proxy has opened.
    Tunnel(TokioIo<Upgraded>),
}

macro_rules! delegate {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self.get_mut() {
            Self::Tcp(io) => Pin::new(io).$method($($argument),*),
            Self::Tls(io) => Pin::new(io).$method($($argument),*),
            Self::Tunnel(io) => Pin::new(io).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
            Self::Tunnel(io) => io.is_write_vectored(),
        }
    }
}

//! A proxy that only looks how far a client comes: it answers every tunnel itself, with a leaf of the real authority.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    ca::{Alpn, Leaves},
    config::host::Host,
};

/// How far a client has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It never came to the proxy.
    #[default]
    Nowhere,
    /// It came to the proxy.
    Proxy,
    /// It trusted our certificate, and asked.
    Trusted,
}

/// Listens until dropped.
pub(super) struct Witness {
    address: SocketAddr,
    stage: Arc<Mutex<Stage>>,
    task: tokio::task::JoinHandle<()>,
}

impl Witness {
    /// Answers as the origin of `host` itself.
    ///
    /// # Errors
    /// When no port is to be had.
    pub(super) async fn answering(leaves: Leaves, host: Host) -> io::Result<Self> {
        let (leaves, host) = (Arc::new(leaves), Arc::new(host));
        Self::start(move |stream, stage| {
            let (leaves, host) = (leaves.clone(), host.clone());
            async move { answer(stream, &leaves, &host, &stage).await }
        })
        .await
    }

    /// Passes everything on to the proxy at `upstream`. It cannot see whether the client trusts what it gets there.
    ///
    /// # Errors
    /// When no port is to be had.
    pub(super) async fn before(upstream: SocketAddr) -> io::Result<Self> {
        Self::start(move |mut stream, stage| async move {
            reach(&stage, Stage::Proxy);
            let mut proxy = TcpStream::connect(upstream).await?;
            proxy.set_nodelay(true)?;
            io::copy_bidirectional(&mut stream, &mut proxy).await.map(drop)
        })
        .await
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How far any client has come since the last call.
    pub(super) fn take_stage(&self) -> Stage {
        std::mem::take(&mut self.stage.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn start<S, F>(serve: S) -> io::Result<Self>
    where
        S: Fn(TcpStream, Arc<Mutex<Stage>>) -> F + Send + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let stage = Arc::<Mutex<Stage>>::default();
        let reached = stage.clone();
        let task = tokio::spawn(async move {
            // Where accepting fails the client is told of as one that never came.
            while let Ok((stream, _)) = listener.accept().await {
                if stream.set_nodelay(true).is_ok() {
                    // A client that leaves, or distrusts us, has shown what it is here to show.
                    tokio::spawn(timeout(PATIENCE, serve(stream, reached.clone())));
                }
            }
        });
        Ok(Self { address, stage, task })
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, leaves: &Leaves, host: &Host, stage: &Mutex<Stage>) -> io::Result<()> {
    reach(stage, Stage::Proxy);
    let head = read_head(&mut stream).await?;
    if !head.starts_with(b"CONNECT ") {
        // Some clients send `GET https://…` to the proxy in clear and leave TLS, and whom to trust, to it.
        if head.windows(SECURE.len()).any(|window| window == SECURE) {
            reach(stage, Stage::Trusted);
        }
        return respond(&mut stream).await;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let config = leaves.server_config(host, None, Alpn::Http1).map_err(io::Error::other)?;
    let mut stream = TlsAcceptor::from(config).accept(stream).await?;
    // With TLS 1.3 a client may find our certificate wanting after the handshake is over here: only a request proves it.
    read_head(&mut stream).await?;
    reach(stage, Stage::Trusted);
    respond(&mut stream).await?;
    stream.shutdown().await
}

async fn read_head<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == LONGEST_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(io.read_u8().await?);
    }
    Ok(head)
}

async fn respond<I: AsyncWrite + Unpin>(io: &mut I) -> io::Result<()> {
    io.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        .await?;
    io.flush().await
}

fn reach(stage: &Mutex<Stage>, reached: Stage) {
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    *stage = reached.max(*stage);
}

const SECURE: &[u8] = b" https://";

const LONGEST_HEAD: usize = 16 * 1024;

/// Longer than any client is given.
const PATIENCE: Duration = Duration::from_secs(120);

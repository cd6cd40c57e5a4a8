//! A client that sends through a proxy, or directly.

use std::pin::Pin;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    contestant::{Contestant, Ota},
    load::BODY,
};

/// A connection that requests are sent on one after the other.
pub(crate) struct Client {
    sender: SendRequest<Empty<Bytes>>,
    /// As the request line has it: absolute for a proxy of plain http (RFC 9112 section 3.2.2), else the path.
    target: String,
    host: String,
}

impl Client {
    /// Connects as a client with a proxy in its environment does.
    pub(crate) async fn connect(contestant: &Contestant, ota: &Ota, https: bool) -> anyhow::Result<Self> {
        let port = if https { ota.https } else { ota.http };
        let host = format!("localhost:{port}");
        let mut tcp = match &contestant.proxy {
            Some(proxy) => TcpStream::connect(proxy.address).await?,
            None => TcpStream::connect(("127.0.0.1", port)).await?,
        };
        tcp.set_nodelay(true)?;
        if https && contestant.proxy.is_some() {
            open_tunnel(&mut tcp, &host).await?;
        }
        let stream: Pin<Box<dyn Stream>> = if https {
            let name = ServerName::try_from("localhost")?;
            Box::pin(TlsConnector::from(contestant.tls.clone()).connect(name, tcp).await?)
        } else {
            Box::pin(tcp)
        };
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let absolute = !https && contestant.proxy.is_some();
        let target = if absolute { format!("http://{host}{}", contestant.path) } else { contestant.path.to_owned() };
        Ok(Self { sender, target, host })
    }

    /// Sends one request and checks the answer.
    pub(crate) async fn exchange(&mut self) -> anyhow::Result<()> {
        self.sender.ready().await?;
        let request = Request::get(&self.target).header("host", &self.host).body(Empty::new())?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == StatusCode::OK && body.len() == BODY, "answered {status} with {} bytes", body.len());
        Ok(())
    }
}

trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

async fn open_tunnel(tcp: &mut TcpStream, host: &str) -> anyhow::Result<()> {
    tcp.write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut head = [0; 1024];
    let mut length = 0;
    while !head[..length].ends_with(b"\r\n\r\n") {
        let read = tcp.read(&mut head[length..]).await?;
        ensure!(read > 0, "the proxy closed a tunnel");
        length += read;
    }
    let status = head[..length].split(|byte| *byte == b' ').nth(1).context("an answer has a status")?;
    ensure!(status == b"200", "the proxy refused a tunnel");
    Ok(())
}

//! A parent proxy: one that relays, or does what a test has it do.

use std::{net::Ipv4Addr, sync::Arc};

use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::proxy_rig::{Wire, field, within};

/// A parent proxy, until it is dropped. Every name is this machine's, so that no test needs a resolver.
pub(crate) struct Parent {
    pub(crate) port: u16,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

struct State {
    manners: Manners,
    heads: watch::Sender<Vec<String>>,
    opened: watch::Sender<u32>,
    closed: watch::Sender<u32>,
}

/// What it does with a request.
pub(crate) enum Manners {
    /// Relays it; with a login, only if it carries that (`Basic …`).
    Relay(Option<&'static str>),
    /// Says this, and closes.
    Say(String),
    /// Says this, and waits.
    SayAndWait(&'static str),
    /// Says this again and again.
    SayForEver(&'static str),
}

impl Parent {
    pub(crate) async fn start(manners: Manners) -> Self {
        Self::accepting(manners, None).await
    }

    /// One that is spoken to over TLS, as `localhost`, and the file with its certificate.
    pub(crate) async fn start_tls(manners: Manners) -> (Self, NamedTempFile) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let root = NamedTempFile::new().unwrap();
        std::fs::write(root.path(), own.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        (Self::accepting(manners, Some(TlsAcceptor::from(Arc::new(config)))).await, root)
    }

    async fn accepting(manners: Manners, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            manners,
            heads: watch::Sender::default(),
            opened: watch::Sender::default(),
            closed: watch::Sender::default(),
        });
        let shared = state.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.opened.send_modify(|number| *number += 1);
                let (state, tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(Wire::new(stream), &state).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(Wire::new(stream), &state).await;
                            }
                        }
                    }
                    state.closed.send_modify(|number| *number += 1);
                });
            }
        });
        Self { port, state, accepting }
    }

    /// The heads of what it was asked.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.state.heads.borrow().clone()
    }

    /// How many connections have been made to it.
    pub(crate) fn connections(&self) -> u32 {
        *self.state.opened.borrow()
    }

    /// Waits until that many of them have closed.
    pub(crate) async fn has_closed(&self, number: u32) {
        let mut closed = self.state.closed.subscribe();
        within(closed.wait_for(|closed| *closed >= number)).await.unwrap();
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut client: Wire<S>, state: &State) {
    while let Some(head) = client.try_head().await {
        state.heads.send_modify(|heads| heads.push(head.clone()));
        match &state.manners {
            Manners::Relay(login) if login.is_some() && field(&head, "proxy-authorization") != *login => {
                client.body(&head).await;
                client.send("HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n").await;
            }
            Manners::Relay(_) if head.starts_with("CONNECT ") => return tunnel(client, &head).await,
            Manners::Relay(_) => forward(&mut client, head).await,
            Manners::Say(bytes) => {
                client.body(&head).await;
                return client.send(bytes).await;
            }
            Manners::SayAndWait(bytes) => {
                client.send(bytes).await;
                client.rest().await;
            }
            Manners::SayForEver(bytes) => while client.stream.write_all(bytes.as_bytes()).await.is_ok() {},
        }
    }
}

async fn tunnel<S: AsyncRead + AsyncWrite + Unpin>(mut client: Wire<S>, head: &str) {
    let mut origin = dial(head.split(' ').nth(1).unwrap()).await;
    client.send("HTTP/1.1 200 Connection established\r\n\r\n").await;
    let _ = tokio::io::copy_bidirectional(&mut client.stream, &mut origin).await;
}

async fn forward<S: AsyncRead + AsyncWrite + Unpin>(client: &mut Wire<S>, head: String) {
    let body = client.body(&head).await;
    let url = head.split(' ').nth(1).unwrap();
    let (authority, _) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let head = head.replacen(&format!("http://{authority}"), "", 1);
    let mut origin = Wire::new(dial(authority).await);
    origin.send(head + &body).await;
    let head = origin.head().await;
    let body = origin.body(&head).await;
    client.send(head + &body).await;
}

async fn dial(authority: &str) -> TcpStream {
    let port: u16 = authority.rsplit(':').next().unwrap().parse().unwrap();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap()
}

//! A way to Redis that breaks: forwards what is asked, and drops, delays or cuts off what is answered.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Forwards connections until it is dropped.
pub(crate) struct Cutter {
    port: u16,
    rules: Arc<Rules>,
}

#[derive(Default)]
struct Rules {
    closed: AtomicBool,
    /// Cuts a connection at every n-th answer, before it is passed on. Zero: never.
    cut_every: AtomicU64,
    answers: AtomicU64,
    /// Milliseconds that every answer takes longer.
    delay: AtomicU64,
    /// Answers go nowhere; the connections stay.
    silent: AtomicBool,
}

impl Cutter {
    /// Starts one before the server on `port`, letting everything through.
    pub(crate) fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the system has a free port");
        let own = listener.local_addr().expect("a bound socket has an address").port();
        let rules = Arc::new(Rules::default());
        let shared = Arc::clone(&rules);
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.closed.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect((Ipv4Addr::LOCALHOST, port))) else {
                    continue;
                };
                forward(client, server, &shared);
            }
        });
        Self { port: own, rules }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn cut_every(&self, answers: u64) {
        self.rules.cut_every.store(answers, Ordering::Relaxed);
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.rules.delay.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    pub(crate) fn silence(&self, silent: bool) {
        self.rules.silent.store(silent, Ordering::Relaxed);
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.rules.closed.store(true, Ordering::Relaxed);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

fn forward(client: TcpStream, server: TcpStream, rules: &Arc<Rules>) {
    let (mut questions, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        std::io::copy(&mut questions, &mut to_server).ok();
        to_server.shutdown(Shutdown::Both).ok();
    });
    let (mut answers, mut to_client, rules) = (server, client, Arc::clone(rules));
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(length @ 1..) = answers.read(&mut buffer) {
            thread::sleep(Duration::from_millis(rules.delay.load(Ordering::Relaxed)));
            if rules.silent.load(Ordering::Relaxed) {
                continue;
            }
            let every = rules.cut_every.load(Ordering::Relaxed);
            // Setting a connection up takes a few answers; what is counted is all of them.
            if every > 0 && rules.answers.fetch_add(1, Ordering::Relaxed) % every == every - 1 {
                break;
            }
            if to_client.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        to_client.shutdown(Shutdown::Both).ok();
        answers.shutdown(Shutdown::Both).ok();
    });
}

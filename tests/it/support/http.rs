//! A client for control ports: one request a connection, everything in memory.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// An answer, read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// `GET target`.
#[track_caller]
pub(crate) fn read(address: SocketAddr, target: &str) -> Answer {
    exchange(address, &format!("GET {target} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
}

/// `POST target` with a JSON body.
#[track_caller]
pub(crate) fn post(address: SocketAddr, target: &str, json: &serde_json::Value) -> Answer {
    let body = json.to_string();
    let length = body.len();
    exchange(address, &format!("POST {target} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"))
}

/// Sends `request` as it is and reads to the end. HTTP/1.0, so that the end of the body is that of the connection.
#[track_caller]
pub(crate) fn exchange(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address} does not answer: {error}"));
    stream.set_nodelay(true).expect("a socket takes TCP_NODELAY");
    stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    stream.write_all(request.as_bytes()).expect("a request is written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer is read to its end");
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer {
        status: status.unwrap_or_else(|| panic!("no status in {head:?}")),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

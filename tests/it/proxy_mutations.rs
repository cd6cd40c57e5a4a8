//! Messages that were broken on their way: cut, doubled, swapped and salted. Whatever comes of them, the proxy goes on, an
//! origin gets nothing but well-formed requests that are meant for it, and no request gets another's answer.
//!
//! The same messages in every run; `OTA_PACER_MUTATIONS` makes more of them.

use std::{
    convert::Infallible,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use http_body_util::BodyExt;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use super::proxy_rig::{Rig, Wire};

#[tokio::test]
async fn broken_requests_reach_no_origin_but_their_own() {
    let origin = StrictOrigin::start(true).await;
    // A tunnel whose client speaks neither TLS nor HTTP is relayed as it is.
    let tunnelled = StrictOrigin::start(false).await;
    let rig = Rig::start().await;
    let port = origin.port;
    let requests = [
        format!("GET http://localhost:{port}/fast/a?q=1 HTTP/1.1\r\nHost: localhost:{port}\r\nAccept: */*\r\n\r\n"),
        format!(
            "POST http://localhost:{port}/fast/b HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
        ),
        format!(
            "POST http://LOCALHOST.:{port}/fast/c HTTP/1.1\r\nHost: localhost:{port}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
        ),
        format!("GET http://localhost:{port}/fast/d HTTP/1.0\r\nConnection: keep-alive, X-A\r\nX-A: 1\r\n\r\n"),
        format!("GET http://127.0.0.1:{port}/e HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nTE: trailers\r\n\r\n"),
    ];
    let gateway = [format!("GET /http/localhost:{port}/fast/h HTTP/1.1\r\nHost: gateway.test\r\n\r\n")];
    let port = tunnelled.port;
    let inside = [
        format!("GET /fast/f HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: a=b\r\n\r\n"),
        format!(
            "PUT /fast/g HTTP/1.1\r\nHost: localhost:{port}\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
        ),
    ];
    let tunnel = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let mut random = StdRng::seed_from_u64(20_261_129);
    for round in 0..rounds() {
        let at =
            |texts: &[String], random: &mut StdRng| texts[random.random_range(0..texts.len())].clone().into_bytes();
        let (mut wire, text) = match round % 4 {
            0 => {
                let mut wire = rig.connect().await;
                wire.send(&tunnel).await;
                let head = wire.head().await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                (wire, at(&inside, &mut random))
            }
            1 => (rig.connect_to_gateway().await, at(&gateway, &mut random)),
            2 if round % 8 == 2 => (rig.connect().await, tunnel.clone().into_bytes()),
            _ => (rig.connect().await, at(&requests, &mut random)),
        };
        let broken = mutated(&text, &mut random);
        // The proxy may have closed on the first half of it.
        let _ = wire.stream.write_all(&broken).await;
        let answer = what_comes(&mut wire).await;
        assert!(answers_are_whole(&answer), "{:?} was answered {:?}", lossy(&broken), lossy(&answer));
    }
    let mut wire = rig.connect().await;
    wire.send(&requests[0]).await;
    assert!(wire.head().await.starts_with("HTTP/1.1 200 "), "the proxy goes on");
    for origin in [origin, tunnelled] {
        assert_eq!(*origin.faults.lock().unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn broken_answers_poison_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi",
    ];
    tokio::spawn(async move {
        let mut random = StdRng::seed_from_u64(20_261_130);
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let broken = mutated(answers[random.random_range(0..answers.len())].as_bytes(), &mut random);
            tokio::spawn(async move {
                let mut read = Vec::new();
                let mut broken = Some(broken);
                loop {
                    let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
                        match stream.read_buf(&mut read).await {
                            Ok(1..) => continue,
                            _ => return,
                        }
                    };
                    let head = lossy(&read[..end]);
                    read.drain(..end + 4);
                    let sent = if head.starts_with("GET /broken ") {
                        match broken.take() {
                            Some(broken) => stream.write_all(&broken).await,
                            None => return,
                        }
                    } else {
                        // Says to whom it answers.
                        let mark = head.split(' ').nth(1).unwrap_or_default();
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{mark}", mark.len());
                        stream.write_all(answer.as_bytes()).await
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let rig = Rig::with("upstream: { response_timeout: 200ms }\nannotate: false").await;
    for round in 0..rounds() {
        let mut wire = rig.connect().await;
        wire.send(format!("GET http://127.0.0.1:{port}/broken HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).await;
        drop(what_comes(&mut wire).await);
        // Whatever that was, the next request is answered with what was meant for it, or not at all.
        let mark = format!("/{round}");
        let mut other = rig.connect().await;
        other.send(format!("GET http://127.0.0.1:{port}{mark} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).await;
        let head = other.head().await;
        assert_eq!(other.body(&head).await, mark, "{head}");
    }
}

/// An origin whose parser is strict, and that writes down what it should never have seen.
struct StrictOrigin {
    port: u16,
    faults: Arc<Mutex<Vec<String>>>,
}

impl StrictOrigin {
    async fn start(minds_noise: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let faults = Arc::<Mutex<Vec<String>>>::default();
        let noted = faults.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let noted = noted.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request: Request<Incoming>| {
                        let noted = noted.clone();
                        async move {
                            if let Some(fault) = fault_of(&request, port) {
                                noted.lock().unwrap().push(fault);
                            }
                            let _ = request.into_body().collect().await;
                            Ok::<_, Infallible>(Response::new("ok".to_owned()))
                        }
                    });
                    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    if let Err(error) = served
                        && error.is_parse()
                        && minds_noise
                    {
                        noted.lock().unwrap().push(error.to_string());
                    }
                });
            }
        });
        Self { port, faults }
    }
}

fn fault_of(request: &Request<Incoming>, port: u16) -> Option<String> {
    let headers = request.headers();
    let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let (name, named) = host.rsplit_once(':').unwrap_or((&host, ""));
    let is_meant = ["localhost", "localhost.", "127.0.0.1", "127.0.0.1."].contains(&name);
    let is_path =
        request.uri().authority().is_none() && ["/", "*"].iter().any(|start| request.uri().path().starts_with(start));
    let is_framed_once = !(headers.contains_key("content-length") && headers.contains_key("transfer-encoding"));
    let is_fine = is_meant && (named.is_empty() || named == port.to_string()) && is_path && is_framed_once;
    (!is_fine).then(|| format!("{} {} {headers:?}", request.method(), request.uri()))
}

/// Waits until the answer is whole, or the proxy closes, or nothing more has come for a moment: what is still asked for may
/// never come.
async fn what_comes<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Ok(Ok(1..)) = timeout(MOMENT, wire.stream.read_buf(&mut all)).await {
        if matches!(whole_answer(&all), Some(end) if end == all.len() && !all.starts_with(b"HTTP/1.1 1")) {
            break;
        }
    }
    all
}

/// Nothing, or answers of which at most the last is still on its way; behind a 200 to a CONNECT or a 101, anything.
fn answers_are_whole(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        if !bytes.starts_with(&b"HTTP/1."[..bytes.len().min(7)]) {
            return false;
        }
        match whole_answer(bytes) {
            Some(end) => bytes = &bytes[end..],
            None => return true,
        }
    }
    true
}

/// Where the first answer ends.
fn whole_answer(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = lossy(&bytes[..head]).to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        let end = bytes[head..].windows(5).position(|window| window == b"0\r\n\r\n")?;
        return Some(head + end + 5);
    }
    let length = text.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length = length.map_or(0, |length| length.parse::<usize>().unwrap());
    (bytes.len() >= head + length).then_some(head + length)
}

/// One to three things go wrong with it.
fn mutated(text: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..random.random_range(1..4) {
        let span = span(&text, random);
        let at = random.random_range(0..text.len() + 1);
        let part = text[span.clone()].to_vec();
        match random.random_range(0..6) {
            0 => drop(text.drain(span)),
            1 => text.splice(at..at, part).for_each(drop),
            2 => text.splice(at..at, SALT[random.random_range(0..SALT.len())].iter().copied()).for_each(drop),
            3 if !text.is_empty() => {
                let at = at.min(text.len() - 1);
                text[at] = random.random();
            }
            4 => text.truncate(at),
            _ => {
                let other = text.len() / 2;
                text.rotate_left(other.min(at));
            }
        }
    }
    text
}

fn span(text: &[u8], random: &mut StdRng) -> Range<usize> {
    let from = random.random_range(0..text.len() + 1);
    from..(from + random.random_range(0..20)).min(text.len())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rounds() -> usize {
    std::env::var("OTA_PACER_MUTATIONS").map_or(400, |rounds| rounds.parse().expect("a number"))
}

/// What parsers stumble over.
const SALT: [&[u8]; 18] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b" ",
    b"\t",
    b":",
    b"\r\n ",
    b"Content-Length: 3\r\n",
    b"Content-Length: 3, 3\r\n",
    b"Content-Length: +3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Host: other.test\r\n",
    b"Connection: host, content-length\r\n",
    b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
];

/// As long as nothing more is expected to take; longer only looks at less.
const MOMENT: Duration = Duration::from_millis(40);

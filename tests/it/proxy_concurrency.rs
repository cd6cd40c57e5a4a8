//! Limits on requests under way: each counts from its slot to the last byte of its answer, and not while it waits.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use super::proxy_rig::{Origin, Reply, Rig, Wire, field, ok, status, within};

const LIMITS: &str = "
      two:
        match: { path: '/two/**' }
        limits: [{ concurrent: 2 }]
      one:
        match: { path: '/one/**' }
        limits: [{ concurrent: 1 }]
";

async fn rig() -> Rig {
    Rig::with_endpoints("defaults: { max_wait: 15s }", LIMITS).await
}

fn get(port: u16, path: &str) -> String {
    format!("GET http://localhost:{port}/{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_request_counts_to_the_last_byte_of_its_answer() {
    let mut origin = Gated::start().await;
    let rig = rig().await;
    let _clients = ask(&rig, origin.port, "two/", 3).await;
    let first = origin.arrival().await;
    let _second = origin.arrival().await;
    origin.nobody_comes().await;
    // The head and half of the body are not its end.
    first.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha").unwrap();
    origin.nobody_comes().await;
    first.send("lf").unwrap();
    origin.arrival().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_answer_gives_its_place_back() {
    let mut origin = Gated::start().await;
    let rig = rig().await;
    let mut leaver = ask(&rig, origin.port, "one/", 1).await.remove(0);
    let arrival = origin.arrival().await;
    arrival.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha").unwrap();
    leaver.head().await;
    let _next = ask(&rig, origin.port, "one/", 1).await;
    origin.nobody_comes().await;
    drop(leaver);
    origin.arrival().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_gives_its_place_back() {
    let mut origin = Gated::start().await;
    let rig = rig().await;
    let leaver = ask(&rig, origin.port, "one/", 1).await;
    let _arrival = origin.arrival().await;
    let _next = ask(&rig, origin.port, "one/", 1).await;
    origin.nobody_comes().await;
    drop(leaver);
    origin.arrival().await;
}

#[tokio::test]
async fn a_request_that_waits_after_a_throttle_answer_is_not_under_way() {
    let throttled = "HTTP/1.1 429 Slow Down\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nslow".to_owned();
    let origin = Origin::start([Reply::Answer(throttled), ok("done")]).await;
    let rig = rig().await;
    let answer = rig.ask(get(origin.port, "one/")).await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")), "{answer}");
}

#[tokio::test]
async fn a_request_that_is_lost_or_refused_is_not_under_way() {
    let origin = Origin::start([Reply::Nothing, ok("warm"), Reply::Nothing, ok("done")]).await;
    let rig = rig().await;
    let post = |port: u16| {
        format!("POST http://localhost:{port}/one/ HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 1\r\n\r\nx")
    };
    let mut client = rig.connect().await;
    // Lost on a fresh connection: 502, and the client's connection stays open.
    client.send(post(origin.port)).await;
    let head = client.head().await;
    assert_eq!(status(&head), 502, "{head}");
    assert_eq!(status(&rig.ask(get(origin.port, "one/")).await), 200);
    // Lost on a used one: sent again in a slot of its own.
    assert_eq!(status(&rig.ask(get(origin.port, "one/")).await), 200);
    // Nobody is there.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for _ in 0..2 {
        assert_eq!(status(&rig.ask(get(nobody, "one/")).await), 502);
    }
    assert_eq!(status(&rig.ask(get(origin.port, "one/")).await), 200);
}

#[tokio::test]
async fn an_upgraded_connection_counts_until_it_closes() {
    let mut origin = Gated::start().await;
    let rig = rig().await;
    let mut client = rig.connect().await;
    let port = origin.port;
    client
        .send(format!(
            "GET http://localhost:{port}/one/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        ))
        .await;
    let arrival = origin.arrival().await;
    arrival.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    assert_eq!(status(&client.head().await), 101);
    let _next = ask(&rig, port, "one/", 1).await;
    origin.nobody_comes().await;
    drop((client, arrival));
    origin.arrival().await;
}

#[tokio::test]
async fn a_full_line_refuses_at_once_and_says_so() {
    let mut origin = Gated::start().await;
    let rig = Rig::with_endpoints("defaults: { max_wait: 15s, max_queue: 1 }", LIMITS).await;
    let _under_way = ask(&rig, origin.port, "one/", 1).await;
    let arrival = origin.arrival().await;
    let (mut one, mut other) = (rig.connect().await, rig.connect().await);
    one.send(get(origin.port, "one/")).await;
    other.send(get(origin.port, "one/")).await;
    // Whichever comes second.
    let refused = tokio::select! {
        refused = one.rest() => refused,
        refused = other.rest() => refused,
    };
    assert_eq!(status(&refused), 429, "{refused}");
    assert!(refused.contains("urn:ota-pacer:problem:queue-full"), "{refused}");
    assert!(field(&refused, "proxy-status").is_some_and(|why| why.contains("`max_queue`")), "{refused}");
    assert!(field(&refused, "retry-after").is_some(), "{refused}");
    arrival.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    origin.arrival().await;
}

async fn ask(rig: &Rig, port: u16, path: &str, number: usize) -> Vec<Wire<TcpStream>> {
    let mut clients = Vec::new();
    for _ in 0..number {
        let mut client = rig.connect().await;
        client.send(get(port, path)).await;
        clients.push(client);
    }
    clients
}

/// An origin that says what the test tells it to, when it tells it to.
struct Gated {
    port: u16,
    arrivals: mpsc::UnboundedReceiver<mpsc::UnboundedSender<&'static str>>,
}

impl Gated {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, arrivals) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Wire::new(stream), tell.clone()));
            }
        });
        Self { port, arrivals }
    }

    /// The next request. What is sent to it goes back to its client; the connection ends once it is dropped.
    async fn arrival(&mut self) -> mpsc::UnboundedSender<&'static str> {
        within(self.arrivals.recv()).await.unwrap()
    }

    /// Nobody comes for a while; where it takes longer to come, the test only asks less.
    async fn nobody_comes(&mut self) {
        assert!(timeout(Duration::from_millis(300), self.arrivals.recv()).await.is_err(), "one more than may be");
    }
}

async fn serve(mut client: Wire<TcpStream>, tell: mpsc::UnboundedSender<mpsc::UnboundedSender<&'static str>>) {
    if client.try_head().await.is_none() {
        return;
    }
    let (answer, mut said) = mpsc::unbounded_channel::<&str>();
    if tell.send(answer).is_err() {
        return;
    }
    while let Some(bytes) = said.recv().await {
        client.send(bytes).await;
    }
}

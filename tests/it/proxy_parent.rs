//! Origins behind a parent proxy: what it is asked, with whose login, and what clients hear when it says no.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};

use super::{
    proxy_rig::{Origin, Rig, field, status, within},
    proxy_tunnel::tls_origin,
};
use crate::support::parent::{Manners, Parent};

/// `me@corp:open:sesame`
const LOGIN: &str = "Basic bWVAY29ycDpvcGVuOnNlc2FtZQ==";
const USERINFO: &str = "me%40corp:open%3Asesame@";

async fn rig(parent: &Parent, more: &str) -> Rig {
    Rig::with(&format!("annotate: false\nupstream: {{ proxy: 'http://{USERINFO}127.0.0.1:{}'{more} }}", parent.port))
        .await
}

fn get(url: &str) -> String {
    let host = url.split('/').nth(2).unwrap();
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn http_requests_are_forwarded_by_it() {
    let (origin, parent) = (Origin::start([]).await, Parent::start(Manners::Relay(Some(LOGIN))).await);
    let rig = rig(&parent, "").await;
    let mut client = rig.connect().await;
    for (path, sent) in [("/a?b=%20", "/a?b=%20"), ("", "/")] {
        let url = format!("http://ota.invalid:{}{path}", origin.port);
        client.send(format!("GET {url} HTTP/1.1\r\nhOsT: ota.invalid:{}\r\n\r\n", origin.port)).await;
        let head = client.head().await;
        assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"), "{head}");
        let head = parent.heads().pop().unwrap();
        let expected = format!(
            "GET http://ota.invalid:{0}{sent} HTTP/1.1\r\nhOsT: ota.invalid:{0}\r\nProxy-Authorization: {LOGIN}\r\nVia: 1.1 ota-pacer-",
            origin.port
        );
        assert!(head.starts_with(&expected), "{head}");
    }
    assert_eq!(parent.connections(), 1, "it is kept like any other connection");
}

#[tokio::test]
async fn tunnels_go_through_it() {
    let (origin, parent) = (Origin::start([]).await, Parent::start(Manners::Relay(Some(LOGIN))).await);
    let rig = rig(&parent, "").await;
    for host in ["ota.invalid", "[2001:db8::1]", "127.0.0.1"] {
        let authority = format!("{host}:{}", origin.port);
        let mut client = rig.connect().await;
        client.send(format!("CONNECT {authority} HTTP/1.1\r\nProxy-Authorization: Basic c2VjcmV0\r\n\r\n")).await;
        assert_eq!(client.head().await, "HTTP/1.1 200 OK\r\n\r\n");
        client.send(format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        assert_eq!(status(&client.head().await), 200);
        let head = parent.heads().pop().unwrap();
        let expected = format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: {LOGIN}\r\nVia: 1.1 ota-pacer-"
        );
        assert!(head.starts_with(&expected), "{head}");
        let seen = origin.seen().pop().unwrap();
        assert!(field(&seen, "proxy-authorization").is_none() && field(&seen, "via").is_none(), "{seen}");
    }
}

#[tokio::test]
async fn intercepted_requests_go_through_a_tunnel_of_it() {
    let (authority, root, server) = tls_origin().await;
    let parent = Parent::start(Manners::Relay(Some(LOGIN))).await;
    let rig = rig(&parent, &format!(", ca_file: '{}'", root.path().display())).await;
    let mut client = rig.connect().await;
    for _ in 0..2 {
        client.send(format!("GET https://{authority}/fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")).await;
        let head = client.head().await;
        assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"), "{head}");
    }
    let heads = within(server).await.unwrap();
    assert_eq!(heads, vec![format!("GET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"); 2]);
    assert_eq!(parent.heads().len(), 1, "{:?}", parent.heads());
    assert!(parent.heads()[0].starts_with(&format!("CONNECT {authority} HTTP/1.1\r\n")));
}

#[tokio::test]
async fn it_may_be_spoken_to_over_tls() {
    let origin = Origin::start([]).await;
    let (parent, root) = Parent::start_tls(Manners::Relay(Some(LOGIN))).await;
    let (port, root) = (parent.port, root.path().display());
    let settings = format!("upstream: {{ proxy: 'https://{USERINFO}localhost:{port}', ca_file: '{root}' }}");
    let rig = Rig::with(&settings).await;
    assert_eq!(status(&rig.ask(get(&format!("http://ota.invalid:{}/", origin.port))).await), 200);
    let mut client = rig.connect().await;
    client.send(format!("CONNECT ota.invalid:{} HTTP/1.1\r\n\r\n", origin.port)).await;
    assert_eq!(status(&client.head().await), 200);
    client.send("GET / HTTP/1.1\r\nHost: ota.invalid\r\n\r\n").await;
    assert_eq!(status(&client.head().await), 200);

    let strict = Rig::with(&format!("upstream: {{ proxy: 'https://localhost:{port}' }}")).await;
    let answer = strict.ask(get("https://ota.invalid/")).await;
    let why = field(&answer, "proxy-status").unwrap();
    assert!(
        status(&answer) == 502 && why.contains("tls_certificate_error") && why.contains("parent proxy"),
        "{answer}"
    );
}

#[tokio::test]
async fn what_no_proxy_names_is_reached_directly() {
    let (origin, parent) = (Origin::start([]).await, Parent::start(Manners::Relay(None)).await);
    let rig = rig(&parent, ", no_proxy: [localhost, 127.0.0.0/8]").await;
    for host in ["localhost", "127.0.0.1"] {
        let authority = format!("{host}:{}", origin.port);
        assert_eq!(status(&rig.ask(get(&format!("http://{authority}/fast/"))).await), 200);
        let mut client = rig.connect().await;
        client
            .send(format!("CONNECT {authority} HTTP/1.1\r\n\r\nGET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
            .await;
        assert_eq!(status(&client.head().await), 200);
        assert_eq!(status(&client.head().await), 200);
    }
    for seen in origin.seen() {
        assert!(field(&seen, "proxy-authorization").is_none() && field(&seen, "via").is_none(), "{seen}");
    }
    assert_eq!(parent.connections(), 0);
}

#[tokio::test]
async fn its_refusal_is_a_502_that_names_its_status() {
    for (code, wanted) in [(302, 502), (403, 502), (407, 502), (502, 502), (503, 502), (504, 504)] {
        let answer = format!("HTTP/1.1 {code} No\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno");
        let parent = Parent::start(Manners::Say(answer)).await;
        let rig = rig(&parent, "").await;
        for request in ["CONNECT ota.invalid:443 HTTP/1.1\r\n\r\n".to_owned(), get("https://ota.invalid/")] {
            let answer = rig.ask(&request).await;
            assert_eq!(status(&answer), wanted, "{answer}");
            let why = field(&answer, "proxy-status").unwrap();
            assert!(why.contains(&format!("; received-status={code};")) && why.contains("parent proxy"), "{answer}");
            assert!(field(&answer, "proxy-authenticate").is_none(), "{answer}");
            assert_eq!(answer.contains("put the user and the password"), code == 407, "{answer}");
            assert!(!answer.contains("sesame") && !answer.contains(&LOGIN[6..]), "no login is told: {answer}");
        }
    }
}

#[tokio::test]
async fn its_wish_for_a_login_is_not_passed_on() {
    let (origin, parent) = (Origin::start([]).await, Parent::start(Manners::Relay(Some("Basic b3RoZXI="))).await);
    let rig = rig(&parent, "").await;
    let answer = rig.ask(get(&format!("http://ota.invalid:{}/", origin.port))).await;
    let why = field(&answer, "proxy-status").unwrap();
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(
        why.contains("proxy_configuration_error; received-status=407") && why.contains("upstream.proxy"),
        "{answer}"
    );
    assert!(origin.seen().is_empty());
}

#[tokio::test]
async fn a_forwarded_request_gets_the_answer_as_it_comes() {
    let parent = Parent::start(Manners::Say("HTTP/1.1 403 Not Here\r\nContent-Length: 2\r\n\r\nno".to_owned())).await;
    let answer = rig(&parent, "").await.ask(get("http://ota.invalid/")).await;
    assert!(answer.starts_with("HTTP/1.1 403 Not Here\r\n") && answer.ends_with("no"), "{answer}");
}

#[tokio::test]
async fn one_that_stalls_costs_the_time_of_a_connection() {
    for said in ["", "HTTP/1.1 200 Connection esta"] {
        let parent = Parent::start(Manners::SayAndWait(said)).await;
        let rig = rig(&parent, ", connect_timeout: 300ms").await;
        let began = Instant::now();
        let answer = rig.ask("CONNECT ota.invalid:443 HTTP/1.1\r\n\r\n").await;
        assert_eq!(status(&answer), 504, "{answer}");
        assert!(field(&answer, "proxy-status").unwrap().contains("connection_timeout"), "{answer}");
        assert!(began.elapsed() >= Duration::from_millis(300));
        parent.has_closed(1).await;
    }
}

#[tokio::test]
async fn one_that_speaks_no_http_is_told_apart() {
    for (manners, reason) in [
        (Manners::Say("SSH-2.0-OpenSSH_9.2\r\n\r\n".to_owned()), "is no valid HTTP"),
        (Manners::Say("HTTP/1.1 200 OK\r\nbroken".to_owned()), "closed the connection"),
        (Manners::Say(String::new()), "closed the connection"),
        (Manners::SayForEver("HTTP/1.1 200 OK\r\nX: y\r\n"), "is no valid HTTP"),
        (Manners::SayForEver("HTTP/1.1 200 OK"), "is"),
    ] {
        let parent = Parent::start(manners).await;
        let answer = rig(&parent, "").await.ask("CONNECT ota.invalid:443 HTTP/1.1\r\n\r\n").await;
        assert_eq!(status(&answer), 502, "{answer}");
        let why = field(&answer, "proxy-status").unwrap();
        assert!(why.contains(reason) && why.contains("parent proxy"), "{why}");
        parent.has_closed(1).await;
    }
}

#[tokio::test]
async fn one_that_closes_its_tunnel_at_once_leaves_no_handshake_hanging() {
    let parent = Parent::start(Manners::Say("HTTP/1.1 200 OK\r\n\r\n".to_owned())).await;
    let answer = rig(&parent, "").await.ask(get("https://ota.invalid/")).await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(field(&answer, "proxy-status").unwrap().contains("tls_protocol_error"), "{answer}");
}

#[tokio::test]
async fn one_that_is_not_there_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let rig = Rig::with(&format!("upstream: {{ proxy: 'http://{USERINFO}127.0.0.1:{port}' }}")).await;
    for request in ["CONNECT ota.invalid:443 HTTP/1.1\r\n\r\n".to_owned(), get("http://ota.invalid/")] {
        let answer = rig.ask(request).await;
        let why = field(&answer, "proxy-status").unwrap();
        assert!(
            status(&answer) == 502 && why.contains("connection_refused") && why.contains("parent proxy"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn bytes_right_behind_its_200_belong_to_the_tunnel() {
    let parent = Parent::start(Manners::SayAndWait("HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello")).await;
    let rig = rig(&parent, "").await;
    let mut client = rig.connect().await;
    client.send("CONNECT ota.invalid:25 HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.head().await, "HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(client.exactly(5).await, "hello");
}

#[tokio::test]
async fn a_request_that_it_sends_back_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with(&format!("upstream: {{ proxy: 'http://127.0.0.1:{port}' }}")).await;
    let own = rig.address;
    tokio::spawn(async move {
        while let Ok((mut there, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut back = TcpStream::connect(own).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut there, &mut back).await;
            });
        }
    });
    let answer = rig.ask(get("http://ota.invalid/")).await;
    assert_eq!(status(&answer), 508, "{answer}");
    assert!(field(&answer, "proxy-status").unwrap().contains("proxy_loop_detected"), "{answer}");
    let answer = rig.ask("CONNECT ota.invalid:443 HTTP/1.1\r\n\r\n").await;
    assert!(status(&answer) == 502 && answer.contains("received-status=508"), "{answer}");
}

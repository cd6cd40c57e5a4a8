//! Origins that authenticate a connection and not a request: nobody else's request may ever go on it.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    time::sleep,
};

use super::proxy_rig::{Rig, Wire, field, status, within};

#[tokio::test]
async fn a_connection_is_its_users_for_good_and_nobody_elses() {
    for scheme in ["NTLM", "Negotiate", "kerberos"] {
        let (rig, origin) = (Rig::start().await, Login::start().await);
        let mut user = rig.connect().await;
        let own = origin.log_in(&mut user, scheme).await;
        for _ in 0..3 {
            // Long enough for a connection that is not bound to go to others.
            sleep(Duration::from_millis(200)).await;
            for _ in 0..3 {
                let stranger = rig.ask(origin.get("Connection: close\r\n")).await;
                assert_eq!(status(&stranger), 401, "a stranger is not taken for the user: {stranger}");
            }
            user.send(origin.get("")).await;
            assert_eq!(answer(&mut user).await, (200, format!("user of {own}")), "{scheme}");
        }
    }
}

#[tokio::test]
async fn it_closes_with_the_client() {
    let (rig, mut origin) = (Rig::with("upstream: { idle: 1h }").await, Login::start().await);
    let mut user = rig.connect().await;
    let own = origin.log_in(&mut user, "NTLM").await;
    drop(user);
    assert_eq!(within(origin.closed.recv()).await, Some(own));
}

#[tokio::test]
async fn it_outlives_the_idle_time_of_others() {
    let (rig, origin) = (Rig::with("upstream: { idle: 50ms }").await, Login::start().await);
    let mut user = rig.connect().await;
    let own = origin.log_in(&mut user, "NTLM").await;
    sleep(Duration::from_millis(500)).await;
    user.send(origin.get("")).await;
    assert_eq!(answer(&mut user).await, (200, format!("user of {own}")));
}

#[tokio::test]
async fn requests_to_others_leave_it_alone() {
    let (rig, origin, other) = (Rig::start().await, Login::start().await, Login::start().await);
    let mut user = rig.connect().await;
    let own = origin.log_in(&mut user, "NTLM").await;
    let others = other.log_in(&mut user, "Negotiate").await;
    for _ in 0..3 {
        user.send(origin.get("")).await;
        assert_eq!(answer(&mut user).await, (200, format!("user of {own}")));
        user.send(other.get("")).await;
        assert_eq!(answer(&mut user).await, (200, format!("user of {others}")));
        for login in [&origin, &other] {
            assert_eq!(status(&rig.ask(login.get("Connection: close\r\n")).await), 401);
        }
    }
}

#[tokio::test]
async fn a_throttled_request_is_sent_again_on_it() {
    let (rig, origin) = (Rig::start().await, Login::start().await);
    let mut user = rig.connect().await;
    let own = origin.log_in(&mut user, "NTLM").await;
    user.send(origin.get("X-Throttle: 1\r\n")).await;
    // On a path without limits, which is not paused.
    let stranger = origin.get("Connection: close\r\n").replace("/fast/", "/free");
    let head = tokio::select! {
        head = user.head() => head,
        () = async {
            loop {
                assert_eq!(status(&rig.ask(&stranger).await), 401);
            }
        } => unreachable!("it ends with the answer to the user"),
    };
    assert_eq!((status(&head), field(&head, "x-pacer-attempts")), (200, Some("2")), "{head}");
    assert_eq!(user.body(&head).await, format!("user of {own}"));
}

#[tokio::test]
async fn a_handshake_whose_connection_is_lost_is_not_finished_on_another() {
    let (rig, mut origin) = (Rig::start().await, Login::start().await);
    // Lost while nothing is under way, and with the request.
    for token in ["first, then close", "first"] {
        let mut user = rig.connect().await;
        user.send(origin.get(&format!("Authorization: NTLM {token}\r\n"))).await;
        assert_eq!(answer(&mut user).await.0, 401);
        if token != "first" {
            within(origin.closed.recv()).await;
        }
        let more = if token == "first" { "X-Drop: 1\r\n" } else { "" };
        let seen = *origin.logins.borrow();
        // Until the close has come to the proxy, the request itself meets it.
        user.send(origin.get(&format!("Authorization: NTLM second\r\n{more}"))).await;
        let head = user.head().await;
        assert_eq!((status(&head), field(&head, "connection")), (502, Some("close")), "{token}: {head}");
        assert_eq!(*origin.logins.borrow(), seen, "{token}: the origin has seen half a handshake");
    }
}

#[tokio::test]
async fn a_user_whose_connection_is_lost_is_asked_again() {
    let (rig, mut origin) = (Rig::start().await, Login::start().await);
    let mut user = rig.connect().await;
    origin.log_in(&mut user, "NTLM").await;
    user.send(origin.get("X-Close: 1\r\n")).await;
    assert_eq!(answer(&mut user).await.0, 200);
    within(origin.closed.recv()).await;
    user.send(origin.get("")).await;
    assert_eq!(answer(&mut user).await.0, 401);
    origin.log_in(&mut user, "NTLM").await;
}

async fn answer(client: &mut Wire<TcpStream>) -> (u16, String) {
    let head = client.head().await;
    let body = client.body(&head).await;
    (status(&head), body)
}

/// An origin where a login takes two requests on one connection, and holds for as long as that.
struct Login {
    port: u16,
    /// Second steps of a login, on whatever connection.
    logins: watch::Receiver<u32>,
    /// The numbers of connections that have closed.
    closed: mpsc::UnboundedReceiver<u32>,
}

impl Login {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (logins, seen) = watch::channel(0);
        let (close, closed) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for number in 1.. {
                let peer = Wire::new(listener.accept().await.unwrap().0);
                let (logins, close) = (logins.clone(), close.clone());
                tokio::spawn(async move {
                    serve(peer, number, logins).await;
                    let _ = close.send(number);
                });
            }
        });
        Self { port, logins: seen, closed }
    }

    fn get(&self, more: &str) -> String {
        let port = self.port;
        format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n{more}\r\n")
    }

    /// Returns the number of the connection.
    async fn log_in(&self, client: &mut Wire<TcpStream>, scheme: &str) -> u32 {
        for (credentials, wanted) in [
            ("", 401),
            (&*format!("Authorization: {scheme} first\r\n"), 401),
            (&*format!("Authorization: {scheme} second\r\n"), 200),
        ] {
            client.send(self.get(credentials)).await;
            let (status, body) = answer(client).await;
            assert_eq!(status, wanted, "{credentials}");
            if status == 200 {
                return body.strip_prefix("user of ").unwrap().parse().unwrap();
            }
        }
        unreachable!("the last is wanted to succeed")
    }
}

async fn serve(mut peer: Wire<TcpStream>, number: u32, logins: watch::Sender<u32>) {
    let (mut is_challenged, mut is_user, mut is_throttled) = (false, false, false);
    while let Some(head) = peer.try_head().await {
        let credentials = field(&head, "authorization").unwrap_or_default();
        let (scheme, token) = credentials.split_once(' ').unwrap_or(("NTLM", ""));
        if is_challenged && field(&head, "x-drop").is_some() {
            return;
        }
        if token == "second" {
            logins.send_modify(|logins| *logins += 1);
            is_user = is_challenged;
        }
        is_challenged = token.starts_with("first");
        let answer = match (is_user, is_challenged) {
            (true, _) if field(&head, "x-throttle").is_some() && !is_throttled => {
                is_throttled = true;
                "429 Slow Down\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            (true, _) => {
                let body = format!("user of {number}");
                format!("200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            (false, true) => format!("401 No\r\nWWW-Authenticate: {scheme} challenge\r\nContent-Length: 0\r\n\r\n"),
            (false, false) => format!("401 No\r\nWWW-Authenticate: {scheme}\r\nContent-Length: 0\r\n\r\n"),
        };
        peer.send(format!("HTTP/1.1 {answer}")).await;
        if token.ends_with("close") || field(&head, "x-close").is_some() {
            return;
        }
    }
}

//! Request targets as clients write them: which origin they name, what it is asked for, and what is said of the others.

use tokio::{io::AsyncReadExt, net::TcpListener};

use super::proxy_rig::{Origin, Rig, Wire, field, status, within};

/// Every answer that the proxy makes by itself says who made it and why.
fn assert_explained(answer: &str, wanted: u16) {
    assert_eq!(status(answer), wanted, "{answer}");
    assert!(field(answer, "proxy-status").unwrap().starts_with("ota-pacer; error=http_request_error; "), "{answer}");
    assert_eq!(field(answer, "content-type"), Some("application/problem+json"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&problem["status"], problem["detail"].is_string()), (&wanted.into(), true), "{problem}");
}

#[tokio::test]
async fn a_connect_goes_by_its_target_and_not_by_host() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    for host in ["", "Host: localhost\r\n", "Host: other.test:1\r\n"] {
        let mut client = rig.connect().await;
        client.send(format!("CONNECT localhost:{} HTTP/1.1\r\n{host}\r\n", origin.port)).await;
        assert_eq!(status(&client.head().await), 200, "{host}");
        client.send(format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", origin.port)).await;
        assert_eq!(status(&client.head().await), 200, "{host}");
    }
}

#[tokio::test]
async fn a_connect_without_a_host_and_a_port_opens_nothing() {
    let rig = Rig::start().await;
    for target in [
        "localhost",
        "localhost:",
        "localhost:x",
        "localhost:0",
        "localhost:65536",
        "localhost:443/path",
        "user@localhost:443",
        "[localhost]:443",
        "::1:443",
        "http://localhost:443",
        "/path",
        "*",
    ] {
        let answer = rig.ask(format!("CONNECT {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        assert_explained(&answer, 400);
        assert_eq!(field(&answer, "connection"), Some("close"), "{target}: {answer}");
    }
}

#[tokio::test]
async fn an_ipv6_address_in_brackets_is_reached() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(format!("CONNECT [0:0::1]:{port} HTTP/1.1\r\nHost: [::1]:{port}\r\n\r\nhello")).await;
    assert_eq!(status(&client.head().await), 200);
    let (mut stream, _) = within(listener.accept()).await.unwrap();
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
}

#[tokio::test]
async fn an_absolute_target_becomes_what_the_origin_is_asked_for() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let port = origin.port;
    for (line, host, wanted_line, wanted_host) in [
        ("GET HTTP://LOCALHOST:{port}/fast/A", "LOCALHOST:{port}", "GET /fast/A", "LOCALHOST:{port}"),
        ("GET http://localhost.:{port}/fast/", "localhost.:{port}", "GET /fast/", "localhost.:{port}"),
        ("GET http://localhost:{port}?q=/1", "localhost:{port}", "GET /?q=/1", "localhost:{port}"),
        ("GET http://user:pw@localhost:{port}/", "localhost:{port}", "GET /", "localhost:{port}"),
        ("GET http://localhost:{port}/%7e/../a//b;c?", "other.test", "GET /%7e/../a//b;c?", "localhost:{port}"),
        ("OPTIONS http://localhost:{port}", "localhost:{port}", "OPTIONS *", "localhost:{port}"),
        ("OPTIONS http://localhost:{port}/", "localhost:{port}", "OPTIONS /", "localhost:{port}"),
        ("OPTIONS http://localhost:{port}?q", "localhost:{port}", "OPTIONS /?q", "localhost:{port}"),
    ] {
        let [line, host, wanted_line, wanted_host] =
            [line, host, wanted_line, wanted_host].map(|text| text.replace("{port}", &port.to_string()));
        rig.ask(format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await;
        let wanted = format!("{wanted_line} HTTP/1.1\r\nHost: {wanted_host}\r\n\r\n");
        assert_eq!(origin.seen().last(), Some(&wanted), "{line}");
    }
}

#[tokio::test]
async fn an_options_without_a_path_is_told_from_the_next_on_its_connection() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    let url = format!("http://localhost:{}", origin.port);
    for (target, wanted) in [(url.clone(), "*"), (format!("{url}/"), "/"), (url, "*")] {
        // A byte at a time, as slow networks have it.
        for byte in format!("OPTIONS {target} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", origin.port).bytes() {
            client.send([byte]).await;
        }
        let head = client.head().await;
        client.body(&head).await;
        assert!(origin.seen().last().unwrap().starts_with(&format!("OPTIONS {wanted} HTTP/1.1\r\n")), "{target}");
    }
}

#[tokio::test]
async fn https_is_asked_for_in_clear_by_some_clients() {
    let (origin, root) = Origin::over_tls([]).await;
    let rig = Rig::with(&format!("upstream: {{ ca_file: '{}' }}", root.path().display())).await;
    let authority = format!("localhost:{}", origin.port);
    let answer = rig
        .ask(format!("GET https://{authority}/fast/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"))
        .await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-bucket")), (200, Some("ota/fast")), "{answer}");
    assert_eq!(origin.seen(), [format!("GET /fast/ HTTP/1.1\r\nHost: {authority}\r\n\r\n")]);
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_answered_with_the_reason() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let head = format!("GET http://localhost:{0}/fast/ HTTP/1.1\r\nHost: localhost:{0}\r\n", origin.port);
    let fields: String = (0..300).map(|n| format!("X-{n}: 1\r\n")).collect();
    for (request, wanted) in [
        ("\0\x01\x02\x03\r\n\r\n".to_owned(), 400),
        ("GET http://localhost/ HTTP/7.3\r\n\r\n".to_owned(), 400),
        (format!("{head}no colon\r\n\r\n"), 400),
        (format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400),
        (format!("{head}{fields}\r\n"), 431),
        (format!("GET http://localhost/{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)), 414),
    ] {
        assert_explained(&rig.ask(&request).await, wanted);
        // On a connection that has served a request, and in a tunnel.
        let mut client = rig.connect().await;
        client.send(format!("CONNECT localhost:{} HTTP/1.1\r\n\r\n", origin.port)).await;
        client.head().await;
        client.send(format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", origin.port)).await;
        let answer = client.head().await;
        client.body(&answer).await;
        client.send(&request).await;
        assert_explained(&client.rest().await, wanted);
    }
}

#[tokio::test]
async fn an_answer_of_the_origin_that_looks_like_a_refusal_passes() {
    let bare = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let origin = Origin::start([super::proxy_rig::Reply::Last(bare.to_owned())]).await;
    let rig = Rig::with("annotate: false").await;
    let port = origin.port;
    let request =
        format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    let answer = rig.ask(request).await;
    assert_eq!((status(&answer), field(&answer, "proxy-status")), (400, None), "{answer}");
    assert_eq!(field(&answer, "content-length"), Some("0"));
}

#[tokio::test]
async fn a_request_that_closes_its_side_has_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    client.send(format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")).await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    // As `nc` does at the end of its input: documented, in exchange for queues that hold nobody who is gone.
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    assert_eq!(origin.rest().await, "", "cancelled at the origin");
    assert_eq!(client.rest().await, "");
}

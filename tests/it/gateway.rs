//! The gateway: clients that can name no proxy name the origin in the path, and get what the proxy would have given them.

use std::{fs, net::SocketAddr};

use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpStream};

use super::proxy_rig::{Origin, Rig, Wire, answer, field, status, within};
use crate::support::{
    http,
    mock_ota::MockOta,
    process::Process,
    proxy::{Settings, ota_pacer},
};

/// Sends one request on a connection of its own and reads all that comes.
async fn ask(rig: &Rig, request: impl AsRef<[u8]>) -> String {
    let mut client = rig.connect_to_gateway().await;
    client.send(request).await;
    client.rest().await
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gateway.test:8081\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_request_reaches_its_origin_as_it_would_without_the_gateway() {
    let (origin, root) = Origin::over_tls([]).await;
    let rig = rig(&origin, &root, "annotate: false").await;
    let port = origin.port;
    for (path, asked) in [
        (format!("/https/localhost:{port}/fast/A%2f/../b?q=/1"), "/fast/A%2f/../b?q=/1"),
        (format!("/HTTPS/LOCALHOST.:{port}/fast/"), "/fast/"),
        (format!("/https/localhost:{port}"), "/"),
        (format!("/https/localhost:{port}?q"), "/?q"),
        ("/ota/fast/".to_owned(), "/fast/"),
    ] {
        let mut client = rig.connect_to_gateway().await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nX-wOrker: One\r\nhOST: 127.0.0.1:8081\r\nAuthorization: Basic dTpw\r\nProxy-Authorization: Basic c2VjcmV0\r\nCookie: a=1\r\nContent-Length: 3\r\nX-Pacer-Max-Wait: 5\r\n\r\nabc"
            ))
            .await;
        let head = client.head().await;
        assert_eq!((status(&head), client.body(&head).await.as_str()), (200, "ok"), "{path}: {head}");
        let wanted = format!(
            "POST {asked} HTTP/1.1\r\nX-wOrker: One\r\nhOST: localhost:{port}\r\nAuthorization: Basic dTpw\r\nCookie: a=1\r\nContent-Length: 3\r\n\r\nabc"
        );
        assert_eq!(origin.seen().last(), Some(&wanted), "{path}");
    }
}

#[tokio::test]
async fn requests_are_matched_and_paced_as_through_the_proxy() {
    let (origin, root) = Origin::over_tls([]).await;
    let rig = rig(&origin, &root, "defaults: { max_wait: 100ms }").await;
    let mut client = rig.connect_to_gateway().await;
    let mut answers = Vec::new();
    for path in ["/ota/stuck/".to_owned(), format!("/https/localhost:{}/stuck/", origin.port), "/ota/fast/".to_owned()]
    {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: g\r\n\r\n")).await;
        let head = client.head().await;
        client.body(&head).await;
        answers.push((status(&head), field(&head, "x-pacer-bucket").unwrap().to_owned()));
    }
    assert_eq!(answers, [(200, "ota/stuck".into()), (429, "ota/stuck".into()), (200, "ota/fast".into())]);
    assert_eq!(origin.seen().len(), 2, "on one connection of the client, and the refused one not at all");
}

#[tokio::test]
async fn what_a_client_says_of_its_request_holds_here_too() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let request = |more: &str| {
        format!("GET /http/localhost:{}/slow/ HTTP/1.1\r\nHost: g\r\nConnection: close\r\n{more}\r\n", origin.port)
    };
    assert_eq!(status(&ask(&rig, request("")).await), 200);
    let refused = ask(&rig, request("X-Pacer-Max-Wait: 0\r\n")).await;
    assert!(status(&refused) == 429 && refused.contains("`X-Pacer-Max-Wait`"), "{refused}");
    assert_eq!(status(&ask(&rig, request("X-Pacer-Priority: soon\r\n")).await), 400);
    assert_eq!(status(&ask(&rig, request("X-Pacer-Priority: batch\r\n")).await), 200);
    assert!(origin.seen().iter().all(|seen| field(seen, "x-pacer-priority").is_none()));
}

#[tokio::test]
async fn a_redirect_comes_back_to_the_gateway() {
    for (location, wanted) in [
        ("/fast/b?c", "http://gateway.test:8081/ota/fast/b?c"),
        ("b", "http://gateway.test:8081/ota/fast/b"),
        ("https://LOCALHOST:{port}/fast/b#c", "http://gateway.test:8081/ota/fast/b#c"),
        ("//localhost:{port}/b", "http://gateway.test:8081/ota/b"),
        ("https://sister.test/b", "http://gateway.test:8081/https/sister.test/b"),
        ("https://elsewhere.test/b", "https://elsewhere.test/b"),
    ] {
        let (origin, root) = Origin::over_tls([]).await;
        let location = location.replace("{port}", &origin.port.to_string());
        origin.next(answer(&format!(
            "HTTP/1.1 302 Found\r\nlocation: {location}\r\nContent-Location: /c\r\nContent-Length: 0\r\n\r\n"
        )));
        let answer = ask(&rig(&origin, &root, "").await, get("/ota/fast/a")).await;
        assert!(answer.contains(&format!("\r\nlocation: {wanted}\r\n")), "{location}: {answer}");
        assert_eq!(field(&answer, "content-location"), Some("http://gateway.test:8081/ota/c"));
    }
}

#[tokio::test]
async fn a_client_that_follows_a_redirect_arrives_where_the_origin_sent_it() {
    let redirect = answer("HTTP/1.1 307 Temporary Redirect\r\nLocation: /fast/there\r\nContent-Length: 0\r\n\r\n");
    let (origin, root) = Origin::over_tls([redirect]).await;
    let rig = rig(&origin, &root, "").await;
    let answer = ask(&rig, get(&format!("/https/localhost:{}/fast/here", origin.port))).await;
    let location = field(&answer, "location").unwrap().strip_prefix("http://gateway.test:8081").unwrap();
    let followed = ask(&rig, get(location)).await;
    assert_eq!(status(&followed), 200, "{followed}");
    assert!(origin.seen()[1].starts_with("GET /fast/there HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_redirect_outside_of_the_gateway_stays_as_it_is() {
    let origin = Origin::start([answer(
        "HTTP/1.1 302 Found\r\nLocation: /b\r\nSet-Cookie: a=1; Path=/\r\nContent-Length: 0\r\n\r\n",
    )])
    .await;
    let rig = Rig::start().await;
    let port = origin.port;
    let answer = rig
        .ask(format!(
            "GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    assert_eq!((field(&answer, "location"), field(&answer, "set-cookie")), (Some("/b"), Some("a=1; Path=/")));
}

#[tokio::test]
async fn a_cookie_goes_to_no_other_origin() {
    let cookie = "id=1; Domain=localhost; Path=/; Secure; HttpOnly";
    let (origin, root) =
        Origin::over_tls([answer(&format!("HTTP/1.1 200 OK\r\nSet-Cookie: {cookie}\r\nContent-Length: 0\r\n\r\n"))])
            .await;
    let rig = rig(&origin, &root, "").await;
    let prefix = format!("/https/localhost:{}", origin.port);
    let answer = ask(&rig, get(&format!("{prefix}/fast/"))).await;
    assert_eq!(field(&answer, "set-cookie"), Some(&*format!("id=1; HttpOnly; Path={prefix}")));
}

#[tokio::test]
async fn a_throttle_answer_and_its_retry_are_those_of_the_proxy() {
    let throttled = answer("HTTP/1.1 429 Slow Down\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n");
    let (origin, root) = Origin::over_tls([throttled]).await;
    let rig = rig(&origin, &root, "").await;
    let answer = ask(&rig, get("/ota/fast/")).await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-attempts")), (200, Some("2")), "{answer}");
}

#[tokio::test]
async fn paths_without_an_origin_are_told_the_form() {
    let rig = Rig::start().await;
    for (path, detail) in [
        ("/", "names no origin"),
        ("/https", "names no origin"),
        ("/https//localhost/", "names no origin"),
        ("/elsewhere/", "names no origin"),
        ("/https/user:pw@localhost/", "user information"),
        ("/https/user%40localhost/", "user information"),
        ("/https/localhost:0/", "port"),
        ("/https/[localhost]/", "brackets"),
        ("/https/a%00b/", "character"),
        ("/https/%ff/", "names no origin"),
    ] {
        let answer = ask(&rig, get(path)).await;
        assert_eq!(status(&answer), 400, "{path}: {answer}");
        assert!(
            field(&answer, "proxy-status").unwrap().starts_with("ota-pacer; error=http_request_error; "),
            "{answer}"
        );
        assert_eq!(field(&answer, "content-type"), Some("application/problem+json"));
        assert!(answer.contains(detail), "{path}: {answer}");
    }
    assert!(ask(&rig, get("/")).await.contains("`/https/HOST/path`"));
    for hosts in ["GET /ota/ HTTP/1.1\r\n\r\n", "GET /ota/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"] {
        assert_eq!(status(&ask(&rig, hosts).await), 400, "{hosts}");
    }
}

#[tokio::test]
async fn the_gateway_is_no_proxy_and_says_where_that_is() {
    let origin = Origin::start([]).await;
    let rig = Rig::start().await;
    let authority = format!("localhost:{}", origin.port);
    for request in [
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"),
        format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\nGET /ota/ HTTP/1.1\r\nHost: g\r\n\r\n"),
    ] {
        let answer = ask(&rig, &request).await;
        assert_eq!((status(&answer), field(&answer, "connection")), (400, Some("close")), "{answer}");
        assert!(answer.contains(&format!("the proxy listens on `{}`", rig.address)), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "what follows is not read as a request: {answer}");
    }
    let answer = rig.ask("GET /ota/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(status(&answer) == 400 && answer.contains("set `gateway`"), "{answer}");
    assert_eq!(origin.connections(), 0);
}

#[tokio::test]
async fn a_way_back_to_this_instance_is_refused_from_either_side() {
    let rig = Rig::start().await;
    let (proxy, gateway) = (rig.address.port(), rig.gateway.port());
    for port in [proxy, gateway] {
        for path in [
            format!("/http/127.0.0.1:{port}/"),
            format!("/http/0.0.0.0:{port}/http/[::ffff:127.0.0.1]:{port}/ota/"),
            format!("/http/localhost:{port}/http/localhost:{port}/"),
        ] {
            let answer = ask(&rig, get(&path)).await;
            assert_eq!(status(&answer), 403, "{path}: {answer}");
            assert!(field(&answer, "proxy-status").unwrap().contains("error=proxy_loop_detected"), "{answer}");
        }
        let target = format!("localhost:{port}");
        for request in [
            format!("GET http://{target}/ota/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n"),
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        ] {
            assert_eq!(status(&rig.ask(&request).await), 403, "{request}");
        }
    }
    // By the name that the client calls it, whatever that resolves to.
    let request = "GET /http/pacer.internal/x HTTP/1.1\r\nHost: pacer.internal:80\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&ask(&rig, request).await), 403);
}

#[tokio::test]
async fn hosts_of_no_channel_go_by_the_same_policy() {
    let origin = Origin::start([]).await;
    let path = format!("/http/127.0.0.1:{}/x", origin.port);
    let answer = ask(&Rig::start().await, get(&path)).await;
    assert_eq!((status(&answer), field(&answer, "x-pacer-bucket")), (200, None), "{answer}");
    let rig = Rig::with("unmatched: { host: refuse, path: refuse }").await;
    for path in [path, format!("/http/localhost:{}/other", origin.port)] {
        let answer = ask(&rig, get(&path)).await;
        assert!(status(&answer) == 403 && answer.contains("\"hint\":"), "{path}: {answer}");
    }
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn old_clients_are_served() {
    let origin =
        Origin::start([answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")]).await;
    let rig = Rig::start().await;
    let answer = ask(&rig, format!("GET /http/localhost:{}/fast/ HTTP/1.0\r\n\r\n", origin.port)).await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(origin.seen(), [format!("GET /fast/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", origin.port)]);
}

#[tokio::test]
async fn an_ipv6_origin_stands_in_brackets_escaped_or_not() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let mut heads = Vec::new();
        for _ in 0..2 {
            let mut client = Wire::new(listener.accept().await.unwrap().0);
            heads.push(client.head().await);
            client.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok").await;
        }
        heads
    });
    let rig = Rig::start().await;
    for host in ["[::1]", "%5B::1%5D"] {
        assert_eq!(status(&ask(&rig, get(&format!("/http/{host}:{port}/x"))).await), 200, "{host}");
    }
    for head in within(server).await.unwrap() {
        assert_eq!(field(&head, "host"), Some(&*format!("[::1]:{port}")));
    }
}

#[tokio::test]
async fn an_upgrade_passes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let mut client = Wire::new(listener.accept().await.unwrap().0);
        let head = client.head().await;
        client.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nfirst").await;
        let heard = client.exactly(4).await;
        client.send(heard.to_uppercase()).await;
        head
    });
    let rig = Rig::start().await;
    let mut client = rig.connect_to_gateway().await;
    client
        .send(format!(
            "GET /http/localhost:{port}/fast/ HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&client.head().await), 101);
    assert_eq!(client.exactly(5).await, "first");
    client.send("ping").await;
    assert_eq!(client.exactly(4).await, "PING");
    assert!(within(server).await.unwrap().starts_with("GET /fast/ "));
}

#[tokio::test]
async fn a_shutdown_finishes_what_came_through_the_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::start().await;
    let mut client = rig.connect_to_gateway().await;
    client.send(format!("GET /http/localhost:{port}/fast/ HTTP/1.1\r\nHost: g\r\n\r\n")).await;
    let mut origin = Wire::new(listener.accept().await.unwrap().0);
    origin.head().await;
    rig.shut_down();
    while TcpStream::connect(rig.gateway).await.is_ok() {
        tokio::task::yield_now().await;
    }
    origin.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let answer = client.rest().await;
    assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
    rig.stopped().await;
}

#[test]
fn an_operator_finds_the_gateway_in_check_env_and_the_log() {
    let ota = MockOta::start(&[]);
    let settings = Settings::for_ota(&ota).endpoint("any", "/**", "100/s", 100);
    let directory = tempfile::tempdir().unwrap();
    let yaml = |port: &str| format!("gateway: 127.0.0.1:{port}\n{}", settings.yaml(directory.path()));
    let file = directory.path().join("ota-pacer.yaml");
    fs::write(&file, yaml("8081")).unwrap();
    let run = |arguments: &[&str]| {
        let output = ota_pacer().args(arguments).arg("--config").arg(&file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // `listen` leaves its port open, so that the proxy's URL has to be named.
    let exports = run(&["env", "--proxy", "http://pacer.internal:8080"]);
    assert!(exports.contains("export OTA_PACER_GATEWAY='http://pacer.internal:8081'\n"), "{exports}");
    let summary = run(&["check"]);
    assert!(summary.contains("gateway  127.0.0.1:8081\n"), "{summary}");
    assert!(summary.contains("at the gateway `/booking_com/` is https://localhost/\n"), "{summary}");

    fs::write(&file, yaml("0")).unwrap();
    let mut process = Process::start("ota-pacer", ota_pacer().arg("serve").arg("--config").arg(&file));
    let log = process.stderr().clone();
    let address: SocketAddr = process.wait_for_line(&log, "`gateway listening`", |line| {
        line.split_once("gateway listening addr=").and_then(|(_, address)| address.trim().parse().ok())
    });
    let path = ota.https.replace("://", "/");
    let answer = http::exchange(address, &format!("GET /{path}/any HTTP/1.0\r\n\r\n"));
    assert!(answer.status == 200 && answer.head.contains("booking_com/any"), "{answer:?}");
}

/// A proxy whose channel `ota` is that origin, at the gateway too.
async fn rig(origin: &Origin, root: &NamedTempFile, more: &str) -> Rig {
    let channels = format!(
        "{more}
upstream: {{ ca_file: '{}' }}
channels:
  ota:
    hosts: [localhost, sister.test]
    gateway_origin: https://localhost:{}
    endpoints:
      fast: {{ match: {{ path: '/fast/**' }}, limits: [{{ rate: 1000/s, capacity: 1000 }}] }}
      stuck: {{ match: {{ path: '/stuck/**' }}, limits: [{{ rate: 1/h, capacity: 1 }}] }}
",
        root.path().display(),
        origin.port
    );
    Rig::configured(&channels, "").await
}

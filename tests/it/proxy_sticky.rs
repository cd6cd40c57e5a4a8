//! Which connections to an origin the requests of keep-alive clients go on.

use std::time::Duration;

use tokio::{
    net::{TcpListener, TcpStream},
    time::Instant,
};

use super::proxy_rig::{Rig, Wire, status, within};

#[tokio::test]
async fn clients_that_take_turns_keep_their_own_connections() {
    let (rig, port) = (Rig::start().await, numbered().await);
    let mut clients = [rig.connect().await, rig.connect().await];
    within(async {
        // Where the machine stops for too long, connections may change hands, and the test begins again.
        while !take_turns(&mut clients, port).await {}
    })
    .await;
}

/// Several rounds in quick succession; `false` if they were not.
async fn take_turns(clients: &mut [Wire<TcpStream>; 2], port: u16) -> bool {
    let mut own = [0; 2];
    let mut last = Instant::now();
    for round in 0..10 {
        let mut numbers = [0; 2];
        for (client, number) in clients.iter_mut().zip(&mut numbers) {
            client.send(get(port)).await;
            if round > 0 {
                *number = answer(client).await;
            }
        }
        if round == 0 {
            // Both at once, so that there are two.
            for (client, number) in clients.iter_mut().zip(&mut numbers) {
                *number = answer(client).await;
            }
            own = numbers;
        }
        if std::mem::replace(&mut last, Instant::now()).elapsed() > Duration::from_millis(40) {
            return false;
        }
        assert_eq!(numbers, own, "round {round}");
    }
    assert_ne!(own[0], own[1]);
    true
}

#[tokio::test]
async fn the_connection_of_an_idle_client_is_used_by_others() {
    let (rig, port) = (Rig::start().await, numbered().await);
    let mut idle = Vec::new();
    within(async {
        loop {
            let mut client = rig.connect().await;
            client.send(get(port)).await;
            let number = answer(&mut client).await;
            idle.push((client, number));
            if number < idle.len() as u32 {
                break;
            }
        }
    })
    .await;
    for (client, _) in &mut idle {
        client.send(get(port)).await;
        answer(client).await;
    }
}

#[tokio::test]
async fn clients_that_come_and_go_share_a_few_connections() {
    let (rig, port) = (Rig::start().await, numbered().await);
    let mut highest = 0;
    for number in 0..60 {
        let mut client = rig.connect().await;
        let close = if number % 2 == 0 { "Connection: close\r\n" } else { "" };
        client.send(get(port).replace("\r\n\r\n", &format!("\r\n{close}\r\n"))).await;
        highest = highest.max(answer(&mut client).await);
    }
    // One, but where a client comes before the proxy has seen another leave.
    assert!(highest <= 10, "{highest} connections for clients that came one after the other");
}

fn get(port: u16) -> String {
    format!("GET http://localhost:{port}/fast/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")
}

/// The number of the connection that answered.
async fn answer(client: &mut Wire<TcpStream>) -> u32 {
    let head = client.head().await;
    assert_eq!(status(&head), 200, "{head}");
    client.body(&head).await.parse().unwrap()
}

/// An origin whose connections answer with their number, from 1 on.
async fn numbered() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for number in 1_u32.. {
            let mut peer = Wire::new(listener.accept().await.unwrap().0);
            tokio::spawn(async move {
                while peer.try_head().await.is_some() {
                    let body = number.to_string();
                    peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
                }
            });
        }
    });
    port
}

//! The load: so many connections, each sending as soon as it has its answer.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use crate::{
    client::Client,
    contestant::{Contestant, Ota},
};

/// How clients use their connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Plain http on connections that stay.
    Http,
    /// https, which a proxy intercepts, on connections that stay.
    Intercepted,
    /// The same, each request on a connection of its own.
    NewConnections,
}

/// What one round at one contestant gave.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The proxy's own, per request; `None` without a proxy.
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) requests_per_second: f64,
    /// In seconds, in order.
    pub(crate) latencies: Vec<f64>,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Intercepted, Self::NewConnections];

    /// For the head of a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "plain http, keep-alive, 32 connections",
            Self::Intercepted => "intercepted https, keep-alive, 32 connections",
            Self::NewConnections => "intercepted https, a new connection for each request, 8 at once",
        }
    }

    fn connections(self) -> usize {
        match self {
            Self::Http | Self::Intercepted => 32,
            Self::NewConnections => 8,
        }
    }

    fn is_https(self) -> bool {
        self != Self::Http
    }
}

/// Loads one contestant for `length`. Connections that stay are made before that.
pub(crate) async fn run(contestant: &Contestant, ota: &Ota, mode: Mode, length: Duration) -> anyhow::Result<Sample> {
    let mut clients = Vec::new();
    for _ in 0..mode.connections() {
        let kept = match mode {
            Mode::NewConnections => None,
            Mode::Http | Mode::Intercepted => Some(Client::connect(contestant, ota, mode.is_https()).await?),
        };
        clients.push(kept);
    }
    let cpu = || contestant.proxy.map(|proxy| proxy.cpu_seconds()).transpose();
    let (before, start) = (cpu()?, Instant::now());
    let deadline = start + length;
    let mut tasks = JoinSet::new();
    for kept in clients {
        tasks.spawn(client(contestant.clone(), *ota, mode, kept, deadline));
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    let (after, took) = (cpu()?, start.elapsed().as_secs_f64());
    latencies.sort_by(f64::total_cmp);
    let requests = latencies.len().max(1) as f64;
    Ok(Sample {
        cpu_seconds: before.zip(after).map(|(before, after)| (after - before) / requests),
        requests_per_second: requests / took,
        latencies,
    })
}

async fn client(
    contestant: Contestant,
    ota: Ota,
    mode: Mode,
    mut kept: Option<Client>,
    deadline: Instant,
) -> anyhow::Result<Vec<f64>> {
    let mut latencies = Vec::new();
    while Instant::now() < deadline {
        let asked = Instant::now();
        match &mut kept {
            Some(client) => client.exchange().await?,
            None => Client::connect(&contestant, &ota, mode.is_https()).await?.exchange().await?,
        }
        latencies.push(asked.elapsed().as_secs_f64());
    }
    Ok(latencies)
}

/// Bytes of an answer.
pub(crate) const BODY: usize = 1024;

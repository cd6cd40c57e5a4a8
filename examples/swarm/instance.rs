//! One instance of the fleet: asks its limiter for a slot whenever the plan says, and reports when it got one.

use std::{
    io::{BufRead, Read, Write},
    process,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::Context;
use ota_pacer::{
    config::{
        self, Config,
        model::{Channel, Class, Endpoint, LimitKind},
    },
    limiter::{Lane, Limiter, Turn},
};
use serde::{Deserialize, Serialize};
use tokio::{runtime, time};

use crate::{clock, judge::Limit};

/// What an instance is told first, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// The text of its configuration.
    pub(crate) config: String,
    /// When its requests come, in microseconds from the start.
    pub(crate) arrivals: Vec<u64>,
}

/// What an instance is told once all are ready, as one line of JSON, in microseconds of the shared clock.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Course {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// What happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It asked for a slot.
    Came,
    /// It had a slot, and would have been sent.
    Went,
    /// It was refused one.
    Refused,
}

/// What an instance prints once it can begin.
pub(crate) const READY: &str = "ready";

impl Step {
    /// As in reports: `STEP REQUEST MICROSECONDS`.
    pub(crate) fn letter(self) -> char {
        match self {
            Self::Came => 'c',
            Self::Went => 'w',
            Self::Refused => 'r',
        }
    }

    /// The inverse of [`Step::letter`].
    pub(crate) fn of_letter(letter: &str) -> Option<Self> {
        [Self::Came, Self::Went, Self::Refused].into_iter().find(|step| letter == step.letter().to_string())
    }
}

/// The one limit of the configuration that the swarm makes.
pub(crate) fn limit(config: &str) -> anyhow::Result<Limit> {
    let (_, _, endpoint) = parse(config)?;
    match endpoint.limits.first().map(|limit| limit.kind) {
        Some(LimitKind::TokenBucket { rate, capacity, .. }) => {
            Ok(Limit { interval: rate.interval_micros(), capacity: f64::from(capacity.get()) })
        }
        _ => anyhow::bail!("the swarm paces by a token bucket"),
    }
}

/// Reads its orders from standard input, follows them, and reports on standard output. Ends with its parent.
pub(crate) fn run() -> anyhow::Result<()> {
    die_with_parent();
    let orders: Orders = serde_json::from_str(&line_of_stdin()?).context("orders")?;
    // As single-threaded as a proxy on a busy machine: what is measured is the limiter, not the machine's idle cores.
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(follow(orders))
}

async fn follow(orders: Orders) -> anyhow::Result<()> {
    let (config, channel, endpoint) = parse(&orders.config)?;
    let limiter = Limiter::open(&config).await?;
    let lane = limiter.lane(&channel, Some(&endpoint), |_| None).context("the endpoint is paced")?;
    println!("{READY}");
    let course: Course = serde_json::from_str(&tokio::task::spawn_blocking(line_of_stdin).await??).context("course")?;
    thread::spawn(end_with_stdin);
    let (reports, inbox) = mpsc::channel();
    let reporter = thread::spawn(move || report(&inbox));

    // The two clocks are the same one, read through different doors.
    let begin = time::Instant::now() + clock::until(course.start);
    for (request, arrival) in orders.arrivals.into_iter().enumerate() {
        time::sleep_until(begin + Duration::from_micros(arrival)).await;
        tokio::spawn(ask(lane.clone(), request, reports.clone()));
    }
    time::sleep(clock::until(course.end)).await;
    drop(reporter);
    process::exit(0);
}

async fn ask(lane: Lane, request: usize, reports: mpsc::Sender<(Step, usize, u64)>) {
    let turn = Turn { arrived: time::Instant::now(), class: Class::default(), max_wait: PATIENCE };
    // The reporter ends with the process.
    reports.send((Step::Came, request, clock::now())).ok();
    let step = match lane.slot(turn).await {
        Ok(_permit) => Step::Went,
        Err(_) => Step::Refused,
    };
    reports.send((step, request, clock::now())).ok();
}

/// Writes what has come since the last write in one go, so that a busy instance spends little on reporting.
fn report(inbox: &mpsc::Receiver<(Step, usize, u64)>) {
    let mut stdout = std::io::stdout().lock();
    while let Ok(first) = inbox.recv() {
        let batch: String = std::iter::once(first)
            .chain(inbox.try_iter())
            .map(|(step, request, at)| format!("{} {request} {at}\n", step.letter()))
            .collect();
        if stdout.write_all(batch.as_bytes()).and_then(|()| stdout.flush()).is_err() {
            return;
        }
    }
}

fn parse(text: &str) -> anyhow::Result<(Config, Arc<Channel>, Arc<Endpoint>)> {
    let config = config::parse("swarm", text, |_| None).map_err(|errors| anyhow::anyhow!("{errors}"))?;
    let channel = config.channels.first().cloned().context("the configuration has a channel")?;
    let endpoint = channel.endpoints.first().cloned().context("the channel has an endpoint")?;
    Ok((config, channel, endpoint))
}

fn line_of_stdin() -> anyhow::Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    anyhow::ensure!(!line.is_empty(), "the swarm has gone");
    Ok(line)
}

/// The parent holds the other end of standard input: whatever ends it ends this process.
fn end_with_stdin() {
    // An error means that nothing more can be read, which is the end too.
    std::io::stdin().lock().read_to_end(&mut Vec::new()).ok();
    process::exit(0);
}

/// Standard input tells a process that runs; this also ends one that is stopped.
pub(crate) fn die_with_parent() {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
}

/// Beyond any run: the swarm measures waiting, not refusing.
const PATIENCE: Duration = Duration::from_secs(3_600);

//! A fleet in miniature: many processes share one bucket through a real Redis, and every slot is held against the limit.
//!
//! ```text
//! swarm --instances 8 --rate 100/s --capacity 20 --load 1.3 --seconds 10
//! swarm --instances 8 --rate 20/s --capacity 40 --kill
//! ```
//!
//! Each instance is a process of its own with one `Limiter`, as in a proxy. Demand is open loop: requests come when the
//! seeded plan says, whether or not earlier ones have gone. What is printed is computed from the instants alone at which
//! requests came and were allowed to go, all read from the one monotonic clock of the machine.

mod args;
mod clock;
mod demand;
mod fleet;
mod ideal;
mod incident;
mod instance;
mod judge;
mod redis;
mod report;
mod sums;

use std::{thread, time::Duration};

use anyhow::Context;
use clap::Parser;

use crate::{
    args::{Args, Role},
    fleet::Fleet,
    incident::Incidents,
    judge::Run,
    redis::Redis,
};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.role {
        Some(Role::Instance) => instance::run(),
        Some(Role::Redis { port }) => redis::become_server(port),
        None => conduct(&args),
    }
}

/// Starts the fleet, lets the plan run its course, and prints what came of it.
fn conduct(args: &Args) -> anyhow::Result<()> {
    args.check()?;
    let redis = Redis::open(args.redis.as_deref())?;
    let config = args.config(&redis.url());
    let limit = instance::limit(&config)?;
    let plan = demand::plan(args, limit.rate());
    let mut fleet = Fleet::start(&config, &plan).context("the instances do not start")?;

    let calls_before = redis.calls()?;
    let start = clock::now() + clock::micros(LEAD_IN);
    let end = start + clock::micros(Duration::from_secs(args.seconds));
    fleet.begin(start, end)?;
    let incidents = Incidents::of(args, start, end).cause(&mut fleet, &redis)?;
    thread::sleep(clock::until(end) + LEAD_OUT);
    let log = fleet.finish();
    let calls = redis.calls()? - calls_before;

    let run = Run { log, incidents, calls, limit, instances: args.instances, end };
    let report = report::Report::new(args, &run);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// So that every instance knows the start before it comes.
const LEAD_IN: Duration = Duration::from_millis(200);
/// What an instance may take to end by itself.
const LEAD_OUT: Duration = Duration::from_millis(200);

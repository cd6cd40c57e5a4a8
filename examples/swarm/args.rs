//! What can be asked of a swarm.

use anyhow::ensure;
use clap::{Parser, Subcommand};

/// Runs a fleet of processes on one bucket and measures how well the limit is kept, used and shared.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    /// Processes, each with a limiter of its own
    #[arg(long, default_value_t = 8)]
    pub(crate) instances: usize,
    /// Refill of the bucket they share, as in a configuration: `20/s`, `90/min`
    #[arg(long, default_value = "100/s")]
    pub(crate) rate: String,
    /// What the bucket holds at most
    #[arg(long, default_value_t = 20)]
    pub(crate) capacity: u32,
    /// Demand as a multiple of the rate
    #[arg(long, default_value_t = 1.3)]
    pub(crate) load: f64,
    /// How long requests come
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Exponent of the demand's distribution over instances: the k-th gets a share of 1/k^ZIPF; 0 is even
    #[arg(long, default_value_t = 1.0)]
    pub(crate) zipf: f64,
    /// A quarter of the requests come in bursts of this many at once; 1 for none
    #[arg(long, default_value_t = 10)]
    pub(crate) burst: usize,
    /// Of the plan: the same seed, the same requests
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Address of a Redis, as `redis://HOST:PORT`; without it one is started, and stopped at the end
    #[arg(long)]
    pub(crate) redis: Option<String>,
    /// Kill (SIGKILL) the instance that holds the oldest waiting request, two fifths into the run
    #[arg(long)]
    pub(crate) kill: bool,
    /// Stop (SIGSTOP) the busiest instance for 5 seconds, from two fifths into the run
    #[arg(long)]
    pub(crate) stop: bool,
    /// Stop Redis for 3 seconds, from two fifths into the run
    #[arg(long, conflicts_with = "redis")]
    pub(crate) redis_stop: bool,
    /// Make Redis forget everything (FLUSHALL), two fifths into the run
    #[arg(long, conflicts_with = "redis")]
    pub(crate) flush: bool,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a process of the swarm is.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum Role {
    /// One instance of the fleet; started by the swarm
    #[command(hide = true)]
    Instance,
    /// The Redis of the swarm; started by it
    #[command(hide = true)]
    Redis {
        /// Where it listens
        port: u16,
    },
}

impl Args {
    /// Refuses what cannot be run or judged.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=256).contains(&self.instances), "`--instances` lies between 1 and 256");
        ensure!((1..=600).contains(&self.seconds), "`--seconds` lies between 1 and 600");
        ensure!(self.burst > 0, "`--burst` is at least 1");
        ensure!(self.load > 0.0 && self.load.is_finite(), "`--load` is above 0");
        ensure!((0.0..=10.0).contains(&self.zipf), "`--zipf` lies between 0 and 10");
        Ok(())
    }

    /// The configuration of every instance.
    pub(crate) fn config(&self, redis_url: &str) -> String {
        let Self { instances, rate, capacity, .. } = self;
        // A prefix of its own: what an earlier run left in a shared Redis must not count.
        let prefix = format!("swarm-{}", std::process::id());
        format!(
            "listen: 127.0.0.1:0\n\
             redis: {{ url: \"{redis_url}\", prefix: {prefix}, expected_instances: {instances} }}\n\
             channels:\n  swarm:\n    hosts: [swarm.test]\n    endpoints:\n      paced:\n        \
             match: {{ path: /paced }}\n        limits: [{{ rate: {rate}, capacity: {capacity} }}]\n"
        )
    }
}

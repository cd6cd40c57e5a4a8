//! The figures of a run, for eyes and for programs.

use std::fmt;

use serde::Serialize;

use crate::{
    args::Args,
    incident::Incident,
    judge::Run,
    sums::{Spread, jain, worst_excess},
};

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    instances: usize,
    /// Tokens per second.
    rate: f64,
    capacity: f64,
    load: f64,
    seconds: u64,
    seed: u64,
    /// Requests that came, that were allowed to go, that were refused, and that still waited at the end.
    came: usize,
    went: usize,
    refused: usize,
    waiting: usize,
    /// Tokens above `capacity + rate * t` in the worst window; negative where there was room.
    over_issue: f64,
    /// What went, of what the limit allowed, while somebody waited; absent without a backlog of at least a second.
    utilisation: Option<f64>,
    backlog_seconds: f64,
    /// Scripts that Redis ran, and for each request that went.
    calls: u64,
    calls_per_grant: f64,
    /// How much older the oldest request still waiting anywhere was than the one that went.
    overtaking: Spread,
    /// Absent where requests hardly wait.
    fairness: Option<Fairness>,
    /// By how much the n-th request to go went later than the n-th of a single line at one bucket.
    lateness: Spread,
    /// How long a token and a waiter were both there before a request went.
    idle_token: Spread,
    incidents: Vec<Aftermath>,
}

/// What instances' requests waited, relative to what the same requests would have waited in a single line.
#[derive(Debug, Serialize)]
struct Fairness {
    /// Jain's index: 1 is even.
    jain: f64,
    /// The longest of the instances' relative waits over the shortest.
    slowest_to_fastest: f64,
    /// Instances with enough requests to tell.
    measured: usize,
}

/// What came of something that went wrong.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
enum Aftermath {
    Killed {
        instance: usize,
        /// Within two seconds, or six refills, after it.
        longest_silence_seconds: f64,
        /// What the limit allowed in that time and nobody used.
        slots_lost: f64,
    },
    Stopped {
        instance: usize,
        /// What the instance sent in the first 50 ms after it ran again.
        sent_on_waking: usize,
        /// What it sent before the run ended.
        sent_after: usize,
    },
    RedisStopped {
        /// What was sent, of what the limit would have allowed.
        share: f64,
        /// From when it ran again until the end.
        share_after: f64,
    },
    Flushed {
        /// Tokens above the limit in the worst window of the second before and the five after it.
        over_issue: f64,
    },
}

impl Report {
    pub(crate) fn new(args: &Args, run: &Run) -> Self {
        let requests = run.requests();
        let sends = run.sends();
        let ideal = run.ideal(&requests);
        let course = run.course(&requests);
        let refused = requests.iter().filter(|request| request.refused).count();
        let gone = requests.iter().filter(|request| request.went.is_some() || request.left.is_some()).count();
        Self {
            instances: run.instances,
            rate: run.limit.rate(),
            capacity: run.limit.capacity,
            load: args.load,
            seconds: args.seconds,
            seed: args.seed,
            came: requests.len(),
            went: sends.len(),
            refused,
            waiting: requests.len() - gone,
            over_issue: worst_excess(&sends, run.limit.interval, run.limit.capacity),
            utilisation: (course.allowed > 0.0).then(|| course.used / course.allowed),
            backlog_seconds: course.backlog / 1e6,
            calls: run.calls,
            calls_per_grant: run.calls as f64 / sends.len().max(1) as f64,
            overtaking: Spread::of(course.overtaking),
            fairness: Fairness::of(run.waits(&requests, &ideal).into_values()),
            lateness: Spread::of(run.lateness(&ideal)),
            idle_token: Spread::of(course.idle),
            incidents: run.incidents.iter().map(|incident| Aftermath::of(*incident, run, &sends)).collect(),
        }
    }
}

impl Fairness {
    fn of(waits: impl Iterator<Item = (f64, f64, u32)>) -> Option<Self> {
        let relative: Vec<f64> = waits
            .filter(|(_, would, count)| *count >= ENOUGH && would / f64::from(*count) >= WORTH_MEASURING)
            .map(|(wait, would, _)| wait / would)
            .collect();
        let longest = relative.iter().copied().reduce(f64::max)?;
        let shortest = relative.iter().copied().reduce(f64::min)?;
        Some(Self { jain: jain(&relative), slowest_to_fastest: longest / shortest, measured: relative.len() })
    }
}

impl Aftermath {
    fn of(incident: Incident, run: &Run, sends: &[u64]) -> Self {
        let limit = run.limit;
        let within = |from: u64, to: u64| sends.iter().copied().filter(move |at| (from..to).contains(at));
        let share = |from: u64, to: u64| within(from, to).count() as f64 / ((to - from).max(1) as f64 / limit.interval);
        match incident {
            Incident::Killed { instance, at } => {
                let to = (at + (6.0 * limit.interval).max(2e6) as u64).min(run.end);
                let mut instants: Vec<u64> = within(at, to).collect();
                let lost = (to - at) as f64 / limit.interval - instants.len() as f64;
                instants.insert(0, at);
                instants.push(to);
                let silence = instants.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
                Self::Killed { instance, longest_silence_seconds: silence as f64 / 1e6, slots_lost: lost.max(0.0) }
            }
            Incident::Stopped { instance, to, .. } => {
                let its = |until: u64| {
                    let of_it = |event: &&crate::fleet::Event| {
                        event.instance == instance
                            && event.step == crate::instance::Step::Went
                            && (to..until).contains(&event.at)
                    };
                    run.log.iter().filter(of_it).count()
                };
                Self::Stopped { instance, sent_on_waking: its(to + WAKING), sent_after: its(run.end) }
            }
            Incident::RedisStopped { from, to } => {
                Self::RedisStopped { share: share(from, to), share_after: share(to, run.end) }
            }
            Incident::Flushed { at } => {
                let around: Vec<u64> = within(at - 1_000_000, at + 5_000_000).collect();
                Self::Flushed { over_issue: worst_excess(&around, limit.interval, limit.capacity) }
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, rate, capacity, load, seconds, seed, .. } = self;
        writeln!(
            f,
            "{instances} instances, {rate:.3}/s, capacity {capacity}, load {load}, {seconds} s, seed {seed}: \
             {} requests came, {} went, {} waited at the end, {} were refused\n",
            self.came, self.went, self.waiting, self.refused
        )?;
        let mut row = |name: &str, figure: String| writeln!(f, "{name:<16}{figure}");
        row("over-issue", format!("{:.2} tokens above {capacity} + {rate:.3}/s in the worst window", self.over_issue))?;
        row(
            "utilisation",
            self.utilisation.map_or("no backlog".to_owned(), |used| {
                format!("{used:.3} of the limit in {:.1} s of backlog", self.backlog_seconds)
            }),
        )?;
        row("calls a grant", format!("{:.2} ({} calls)", self.calls_per_grant, self.calls))?;
        row("overtaking", self.overtaking.to_string())?;
        row(
            "fairness",
            self.fairness.as_ref().map_or("hardly any waiting".to_owned(), |fairness| {
                let Fairness { jain, slowest_to_fastest, measured } = fairness;
                format!("Jain {jain:.4}, slowest / fastest {slowest_to_fastest:.3}, of {measured} instances")
            }),
        )?;
        row("lateness", format!("{} behind a single line", self.lateness))?;
        row("idle token", format!("{} before it was used", self.idle_token))?;
        for aftermath in &self.incidents {
            let (name, figure) = aftermath.row();
            row(name, figure)?;
        }
        Ok(())
    }
}

impl Aftermath {
    fn row(&self) -> (&'static str, String) {
        match self {
            Self::Killed { instance, longest_silence_seconds, slots_lost } => (
                "killed",
                format!(
                    "instance {instance}: {slots_lost:.1} slots lost, nobody sent for {longest_silence_seconds:.3} s"
                ),
            ),
            Self::Stopped { instance, sent_on_waking, sent_after } => (
                "stopped",
                format!("instance {instance}: sent {sent_on_waking} in 50 ms after waking, {sent_after} in all after"),
            ),
            Self::RedisStopped { share, share_after } => (
                "redis stopped",
                format!("{share:.2} of the limit was sent meanwhile, {share_after:.2} of it afterwards"),
            ),
            Self::Flushed { over_issue } => ("flushed", format!("{over_issue:.2} tokens above the limit around it")),
        }
    }
}

/// Requests of an instance that make a mean.
const ENOUGH: u32 = 5;
/// Mean wait in microseconds below which its ratio is noise.
const WORTH_MEASURING: f64 = 50_000.0;
/// Microseconds.
const WAKING: u64 = 50_000;

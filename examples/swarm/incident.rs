//! What goes wrong on purpose during a run.

use std::{thread, time::Duration};

use rustix::process::Signal;

use crate::{args::Args, clock, fleet::Fleet, redis::Redis};

/// Something that went wrong, in microseconds of the shared clock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Incident {
    /// The instance was killed.
    Killed { instance: usize, at: u64 },
    /// The instance stood still.
    Stopped { instance: usize, from: u64, to: u64 },
    /// Redis stood still.
    RedisStopped { from: u64, to: u64 },
    /// Redis forgot everything.
    Flushed { at: u64 },
}

impl Incident {
    /// Whether it befell this instance alone.
    pub(crate) fn strikes(self, victim: usize) -> bool {
        matches!(self, Self::Killed { instance, .. } | Self::Stopped { instance, .. } if instance == victim)
    }
}

/// What is to go wrong, all of it from the same instant on.
pub(crate) struct Incidents<'a> {
    args: &'a Args,
    at: u64,
    end: u64,
}

impl<'a> Incidents<'a> {
    /// Two fifths into the run: by then a backlog has grown, and there is time to see what becomes of it.
    pub(crate) fn of(args: &'a Args, start: u64, end: u64) -> Self {
        Self { args, at: start + (end - start) / 5 * 2, end }
    }

    /// Waits for the instant, does what is asked, and returns when everybody who can runs again.
    pub(crate) fn cause(self, fleet: &mut Fleet, redis: &Redis) -> anyhow::Result<Vec<Incident>> {
        let Args { kill, stop, redis_stop, flush, .. } = *self.args;
        let mut incidents = Vec::new();
        if !(kill || stop || redis_stop || flush) {
            return Ok(incidents);
        }
        thread::sleep(clock::until(self.at));
        if kill {
            let instance = fleet.holder_of_the_oldest();
            fleet.signal(instance, Signal::KILL)?;
            incidents.push(Incident::Killed { instance, at: clock::now() });
        }
        if flush {
            incidents.push(Incident::Flushed { at: clock::now() });
            redis.flush()?;
        }
        if stop {
            // Zipf's law makes the first the busiest; the last, should that one have been killed.
            let instance = if kill { self.args.instances - 1 } else { 0 };
            let from = clock::now();
            fleet.signal(instance, Signal::STOP)?;
            thread::sleep(STOPPED.min(clock::until(self.end)));
            incidents.push(Incident::Stopped { instance, from, to: clock::now() });
            fleet.signal(instance, Signal::CONT)?;
        }
        if redis_stop {
            let from = clock::now();
            redis.signal(Signal::STOP)?;
            thread::sleep(REDIS_STOPPED.min(clock::until(self.end)));
            redis.signal(Signal::CONT)?;
            incidents.push(Incident::RedisStopped { from, to: clock::now() });
        }
        Ok(incidents)
    }
}

const STOPPED: Duration = Duration::from_secs(5);
const REDIS_STOPPED: Duration = Duration::from_secs(3);

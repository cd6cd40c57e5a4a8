//! The processes of a swarm, and what they report.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    clock,
    demand::Plan,
    instance::{Course, Orders, READY, Step},
};

/// The running instances. All are gone once it is dropped.
pub(crate) struct Fleet {
    members: Vec<Member>,
    log: Arc<Mutex<Vec<Event>>>,
}

/// A line of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Microseconds of the shared clock.
    pub(crate) at: u64,
    pub(crate) instance: usize,
    /// Counts the requests of an instance.
    pub(crate) request: usize,
    pub(crate) step: Step,
}

struct Member {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Taken by the thread that reads it once the run begins.
    stdout: Option<BufReader<ChildStdout>>,
    reader: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts an instance for each part of the plan and waits until all have opened their limiter.
    pub(crate) fn start(config: &str, plan: &Plan) -> anyhow::Result<Self> {
        let mut fleet = Self { members: Vec::with_capacity(plan.len()), log: Arc::default() };
        let program = std::env::current_exe()?;
        for arrivals in plan {
            let mut child =
                Command::new(&program).arg("instance").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
            let orders = Orders { config: config.to_owned(), arrivals: arrivals.clone() };
            let told = stdin.as_mut().map(|stdin| writeln!(stdin, "{}", serde_json::json!(orders)));
            fleet.members.push(Member { child, stdin, stdout, reader: None });
            told.context("standard input is piped")??;
        }
        for member in &mut fleet.members {
            let mut line = String::new();
            member.stdout.as_mut().context("standard output is piped")?.read_line(&mut line)?;
            anyhow::ensure!(line.trim_end() == READY, "an instance ended before it was ready");
        }
        Ok(fleet)
    }

    /// Lets the plan run from `start` to `end`.
    pub(crate) fn begin(&mut self, start: u64, end: u64) -> anyhow::Result<()> {
        for (instance, member) in self.members.iter_mut().enumerate() {
            let stdout = member.stdout.take().context("a fleet begins once")?;
            let log = Arc::clone(&self.log);
            member.reader = Some(thread::spawn(move || collect(stdout, instance, &log)));
            let stdin = member.stdin.as_mut().context("standard input is piped")?;
            writeln!(stdin, "{}", serde_json::json!(Course { start, end }))?;
        }
        Ok(())
    }

    /// The instance that holds the oldest waiting request of the fleet, or the first.
    pub(crate) fn holder_of_the_oldest(&self) -> usize {
        let mut came = std::collections::HashMap::new();
        for event in self.log().iter() {
            match event.step {
                Step::Came => drop(came.insert((event.instance, event.request), event.at)),
                Step::Went | Step::Refused => drop(came.remove(&(event.instance, event.request))),
            }
        }
        came.into_iter().min_by_key(|(_, at)| *at).map_or(0, |((instance, _), _)| instance)
    }

    /// Sends a signal to one instance.
    pub(crate) fn signal(&self, instance: usize, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.members[instance].child), signal)?)
    }

    /// Waits for the instances to end, ends those that do not, and returns all they reported, in order of time.
    pub(crate) fn finish(mut self) -> Vec<Event> {
        let deadline = clock::now() + clock::micros(PATIENCE);
        for member in &mut self.members {
            while matches!(member.child.try_wait(), Ok(None)) && clock::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            member.end();
        }
        let mut log = std::mem::take(&mut *self.log());
        log.sort_by_key(|event| event.at);
        log
    }

    fn log(&self) -> MutexGuard<'_, Vec<Event>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::end);
    }
}

impl Member {
    /// Ends the process, stopped or not, and reads what it had said.
    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

fn collect(stdout: BufReader<ChildStdout>, instance: usize, log: &Mutex<Vec<Event>>) {
    // A killed instance may leave half a line, which says nothing.
    for event in stdout.lines().map_while(Result::ok).filter_map(|line| event(&line, instance)) {
        log.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

fn event(line: &str, instance: usize) -> Option<Event> {
    let mut words = line.split(' ');
    let step = Step::of_letter(words.next()?)?;
    let request = words.next()?.parse().ok()?;
    Some(Event { at: words.next()?.parse().ok()?, instance, request, step })
}

const PATIENCE: Duration = Duration::from_secs(5);

//! Child processes that end with the test, whose output shows where it fails.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::clock::wait_for;

/// A running child: killed on drop, its output printed where the test is failing.
pub(crate) struct Process {
    name: String,
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

/// How a child ended and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The lines of an output, as they come.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Process {
    /// Starts `command` with its output captured. Standard input is a pipe that closes with the test.
    #[track_caller]
    pub(crate) fn start(name: &str, command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{name} does not start: {error} ({command:?})"));
        let stdout = Lines::collect(child.stdout.take().expect("stdout is piped"));
        let stderr = Lines::collect(child.stderr.take().expect("stderr is piped"));
        Self { name: name.to_owned(), child, stdout, stderr }
    }

    pub(crate) fn stdout(&self) -> &Lines {
        &self.stdout
    }

    pub(crate) fn stderr(&self) -> &Lines {
        &self.stderr
    }

    /// Waits for a line of which `read` makes something; fails at once where the process ends before.
    #[track_caller]
    pub(crate) fn wait_for_line<T>(&mut self, lines: &Lines, what: &str, read: impl Fn(&str) -> Option<T>) -> T {
        wait_for(&format!("{} has not printed {what}", self.name), START_PATIENCE, || {
            let ended = self.child.try_wait().expect("a child can be waited for");
            let found = lines.find(&read);
            assert!(
                found.is_some() || ended.is_none(),
                "{} ended before it printed {what}:\n{}",
                self.name,
                self.said()
            );
            found
        })
    }

    /// Waits for the end; the test fails where it does not come within `patience`.
    #[track_caller]
    pub(crate) fn wait(mut self, patience: Duration) -> Ended {
        // As for a program at a terminal whose user has gone: nothing more comes in.
        drop(self.child.stdin.take());
        let status = wait_for(&format!("{} has not ended", self.name), patience, || {
            self.child.try_wait().expect("a child can be waited for")
        });
        let read = |lines: &Lines| {
            // The reading thread lets go of its end once it has seen the end of the output.
            wait_for("end of output", START_PATIENCE, || (Arc::strong_count(&lines.0) == 1).then_some(()));
            lines.text()
        };
        Ended { status, stdout: read(&self.stdout), stderr: read(&self.stderr) }
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Sends a signal by its name, such as `TERM`.
    #[track_caller]
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()), "{} cannot be sent {signal}", self.name);
    }

    /// Ends it at once (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    fn said(&self) -> String {
        format!("--- {} stdout\n{}--- {} stderr\n{}", self.name, self.stdout.text(), self.name, self.stderr.text())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("{}", self.said());
        }
    }
}

impl Lines {
    fn collect(output: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let sink = lines.clone();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
                sink.lock().push(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        });
        lines
    }

    /// The first thing that `read` makes of a line so far.
    pub(crate) fn find<T>(&self, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.lock().iter().find_map(|line| read(line))
    }

    /// All of it so far.
    pub(crate) fn text(&self) -> String {
        self.lock().iter().map(|line| format!("{line}\n")).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

/// Loose: a machine under load still starts a process within it.
const START_PATIENCE: Duration = Duration::from_secs(30);

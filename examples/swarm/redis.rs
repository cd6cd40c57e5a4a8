//! The Redis of a swarm: a child process on a port of its own, or one that runs already.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::instance::die_with_parent;

/// Where the buckets live. A server that was started here is gone once it is dropped.
pub(crate) struct Redis {
    address: String,
    child: Option<Child>,
}

impl Redis {
    /// The one at `url`, or a new one.
    pub(crate) fn open(url: Option<&str>) -> anyhow::Result<Self> {
        if let Some(url) = url {
            let address = url.strip_prefix("redis://").context("`--redis` is `redis://HOST:PORT`")?;
            let redis = Self { address: address.trim_end_matches('/').to_owned(), child: None };
            redis.command("PING").with_context(|| format!("`{url}` does not answer"))?;
            return Ok(redis);
        }
        // Another process could take the port before it is used, which one machine rarely sees.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["redis", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut redis = Self { address: format!("127.0.0.1:{port}"), child: Some(command.spawn()?) };
        let deadline = Instant::now() + PATIENCE;
        while redis.command("PING").is_err() {
            let ended = redis.child.as_mut().and_then(|child| child.try_wait().transpose()).is_some();
            if ended || Instant::now() > deadline {
                bail!("`redis-server` does not start\n\nhint: install it, or name one with `--redis`");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Forgets everything.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        self.command("FLUSHALL").map(drop)
    }

    /// Sends a signal to the server that was started here.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("only a Redis of the swarm's own is stopped")?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// How many scripts it has run since it started, for whichever client.
    pub(crate) fn calls(&self) -> anyhow::Result<u64> {
        let stats = self.command("INFO commandstats")?;
        let calls = |line: &str| -> Option<u64> {
            let (name, values) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let counted = ["eval", "evalsha", "fcall"].contains(&name);
            counted.then(|| values.strip_prefix("calls=")?.split(',').next()?.parse().ok()).flatten()
        };
        Ok(stats.lines().filter_map(calls).sum())
    }

    /// Sends one inline command and returns the answer: a bulk string whole, anything else as its line.
    fn command(&self, line: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        stream.read_line(&mut head)?;
        let head = head.trim_end();
        if head.is_empty() || head.starts_with('-') {
            bail!("`{line}` is answered with `{head}`");
        }
        let Some(length) = head.strip_prefix('$') else { return Ok(head.to_owned()) };
        let mut body = vec![0; length.parse()?];
        stream.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Turns this process into a Redis that keeps nothing on disk and does not outlive the swarm.
pub(crate) fn become_server(port: u16) -> anyhow::Result<()> {
    die_with_parent();
    let port = port.to_string();
    let arguments = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"];
    Err(Command::new("redis-server").args(arguments).exec()).context("`redis-server` does not start")
}

const PATIENCE: Duration = Duration::from_secs(10);

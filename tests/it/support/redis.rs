//! A real server as a child process: in memory only, on a port of its own. It is the system's `redis-server`, or another one
//! of its kind that `OTA_PACER_TEST_SERVER` names by its path.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use super::{clock::wait_for, process::Process};

/// A Redis that can be killed, brought back on the same port, and stopped for a while.
pub(crate) struct Redis {
    port: u16,
    arguments: Vec<String>,
    directory: TempDir,
    process: Process,
}

impl Redis {
    /// Starts an empty one.
    #[track_caller]
    pub(crate) fn start() -> Self {
        Self::start_with(free_port(), &[])
    }

    /// Starts one on `port` with further arguments.
    #[track_caller]
    pub(crate) fn start_with(port: u16, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let process = launch(port, &directory, &arguments);
        Self { port, arguments, directory, process }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its address for a user other than the default one.
    pub(crate) fn url_for(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How often it has executed a command, told by its name in lower case.
    #[track_caller]
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats = self.command("INFO commandstats");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Whether the last question of an instance's check at its start has been asked.
    #[track_caller]
    pub(crate) fn is_checked(&self) -> bool {
        // Up to Redis 6.2 subcommands are not told apart.
        self.calls("config|get") + self.calls("config") > 0
    }

    /// How often it has answered with an error, told by its first word.
    #[track_caller]
    pub(crate) fn errors(&self, word: &str) -> u64 {
        let stats = self.command("INFO errorstats");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{word}:count=")));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Like [`Redis::errors`], for what goes wrong in a script, which is any `ERR` up to Redis 6.2.
    #[track_caller]
    pub(crate) fn script_errors(&self, word: &str) -> u64 {
        self.errors(word) + self.errors("ERR")
    }

    /// How many connections listen for the pauses of the fleet.
    #[track_caller]
    pub(crate) fn listeners(&self) -> u64 {
        let answer = self.command("PUBSUB NUMSUB bkt:notices");
        answer.lines().find_map(|line| line.strip_prefix(':')?.parse().ok()).expect("a number of listeners")
    }

    /// Sends one inline command and returns what came back within a moment.
    #[track_caller]
    pub(crate) fn command(&self, line: &str) -> String {
        ask(self.port, line)
    }

    /// Ends it at once; what it held is lost.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts an empty one on the same port, after [`Redis::kill`].
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.process.kill();
        self.process = launch(self.port, &self.directory, &self.arguments);
    }

    /// Saves what it holds, ends it, and starts it on the same port, where it reads that again: with `--key-load-delay`, for
    /// so many microseconds a key, until `CONFIG SET key-load-delay 0`.
    #[track_caller]
    pub(crate) fn reload(&mut self) {
        let saved = self.command("SAVE");
        assert!(saved.starts_with("+OK"), "redis saves: {saved}");
        self.process.kill();
        self.process = spawn(self.port, &self.directory, &self.arguments);
        wait_for("redis is loading", PATIENCE, || answers(self.port, b"-LOADING").then_some(()));
    }

    /// Stops it answering while its connections stay open.
    #[track_caller]
    pub(crate) fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Lets it answer again, after [`Redis::pause`].
    #[track_caller]
    pub(crate) fn resume(&self) {
        self.process.signal("CONT");
    }
}

/// The server to test with.
pub(crate) fn program() -> PathBuf {
    std::env::var_os("OTA_PACER_TEST_SERVER").map_or_else(|| PathBuf::from("redis-server"), PathBuf::from)
}

/// Sends one inline command to the server on `port` and returns what came back within a moment.
#[track_caller]
pub(crate) fn ask(port: u16, line: &str) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).expect("redis accepts");
    stream.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).expect("a command is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("redis answers, then closes");
    answer
}

#[track_caller]
fn launch(port: u16, directory: &TempDir, further: &[String]) -> Process {
    let program = program();
    let found = Command::new(&program).arg("--version").output();
    assert!(found.is_ok(), "`{}` is not installed\n\nhint: apt-get install redis-server", program.display());
    let mut process = spawn(port, directory, further);
    wait_for("redis answers PING", PATIENCE, || {
        assert!(process.is_running(), "redis ended: {}", process.stdout().text());
        answers(port, b"+PONG\r\n").then_some(())
    });
    process
}

#[track_caller]
fn spawn(port: u16, directory: &TempDir, further: &[String]) -> Process {
    let port_text = port.to_string();
    let arguments = ["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"];
    let mut command = Command::new(program());
    command.args(arguments).arg("--dir").arg(directory.path()).args(further);
    Process::start("redis", &mut command)
}

/// Whether a PING is answered, with what begins so.
fn answers(port: u16, expected: &[u8]) -> bool {
    let ping = || {
        let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(answer == expected)
    };
    ping().unwrap_or(false)
}

/// A port nobody listens on. Another process could take it before it is used, which tests in one network rarely see.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the system has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

const PATIENCE: Duration = Duration::from_secs(30);

//! `ota-pacer run`: a command whose clients go through the proxy.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    net::SocketAddr,
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::timeout,
};

use super::config_file::ConfigFile;
use super::serve::runtime;
use crate::{
    app::{self, App, StartError},
    ca::{Authority, environment},
    config::Config,
};

/// Run a command whose clients go through the proxy: the one that listens already, else one of its own
#[derive(Debug, clap::Args)]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Runs the command to its end and takes its exit code; 128 and the number of the signal that killed it, and as
    /// shells do 127 where there is no such command and 126 where it cannot be executed.
    ///
    /// # Errors
    /// When there is no proxy to be had.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.config.with(|config| runtime()?.block_on(run(config, &self.command)))
    }
}

async fn run(config: Config, command: &[OsString]) -> anyhow::Result<ExitCode> {
    // Before anything is started: from here on a signal is for the command, and does not end the proxy under it.
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let (app, mut variables) = join_or_start(config).await?;
    environment::merge(&mut variables, |name| std::env::var(name).ok());

    let [program, arguments @ ..] = command else { bail!("no command given") };
    let code = match Command::new(program).args(arguments).envs(variables).spawn() {
        Ok(mut child) => exit_code(attend(&mut child, &mut signals).await.context("lost sight of the command")?),
        Err(error) => {
            eprintln!("error: cannot run `{}`: {error}", program.display());
            if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
        }
    };
    if let Some(app) = app {
        // The command is gone, and its requests with it. A signal now is impatience.
        tokio::select! {
            () = app.shutdown() => {}
            _ = signals.next() => {}
        }
    }
    Ok(ExitCode::from(code))
}

/// The proxy of the configuration: one that listens already, of whichever process, else one in this process.
pub(super) async fn join_or_start(config: Config) -> anyhow::Result<(Option<App>, Vec<(String, String)>)> {
    let (listen, gateway, ca) = (config.listen, config.gateway, config.ca.clone());
    let joined = || -> anyhow::Result<_> {
        let mut variables = environment::variables(&environment::proxy_url(listen), &Authority::open(&ca)?);
        variables
            .extend(gateway.filter(|gateway| gateway.port() != 0).map(|gateway| environment::gateway(gateway, None)));
        Ok((None, variables))
    };
    if is_ours(listen).await {
        return joined();
    }
    match app::start(config).await {
        Ok(app) => {
            let variables = app.environment().to_vec();
            Ok((Some(app), variables))
        }
        // Another one that was started at the same time may have been quicker.
        Err(StartError::Bind { key: "listen", .. }) if is_ours(listen).await => joined(),
        Err(error) => Err(error.into()),
    }
}

/// Whether an ota-pacer listens there. An open port alone would say nothing: it is asked for something that no proxy
/// can forward, and an ota-pacer signs its refusal.
async fn is_ours(listen: SocketAddr) -> bool {
    if listen.port() == 0 {
        return false;
    }
    let asked = timeout(PROBE, async {
        let mut stream = TcpStream::connect(environment::reachable(listen)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: ota-pacer\r\nConnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.take(PROBE_BYTES).read_to_end(&mut answer).await?;
        io::Result::Ok(answer)
    });
    matches!(asked.await, Ok(Ok(answer)) if is_signed(&answer))
}

/// RFC 9209: the first member names the proxy that made the answer.
fn is_signed(answer: &[u8]) -> bool {
    String::from_utf8_lossy(answer).lines().take_while(|line| !line.is_empty()).any(|line| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-status")
                && value.trim_start().split([';', ',', ' ']).next() == Some("ota-pacer")
        })
    })
}

/// Waits for the command, passing signals on to it.
async fn attend(child: &mut Child, signals: &mut Signals) -> io::Result<ExitStatus> {
    loop {
        let signal = tokio::select! {
            status = child.wait() => return status,
            signal = signals.next() => signal,
        };
        // A terminal sends its signals to everybody in the foreground: the command has had it, and two would mean
        // something else to many programs.
        if is_from_terminal(signal) {
            continue;
        }
        if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            // It may just have ended, which the next turn of the loop finds out.
            let _ = kill_process(pid, signal);
        }
    }
}

fn is_from_terminal(signal: Signal) -> bool {
    [Signal::INT, Signal::QUIT].contains(&signal)
        && (io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal())
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The signals that ask a program to end.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            quit: unix::signal(SignalKind::quit())?,
            hangup: unix::signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
}

const PROBE: Duration = Duration::from_secs(2);

const PROBE_BYTES: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_signed_in_its_head_is_ours() {
        assert!(is_signed(b"HTTP/1.1 400 Bad Request\r\nProxy-Status: ota-pacer; error=http_request_error\r\n\r\n"));
        assert!(is_signed(b"HTTP/1.1 400 Bad Request\r\nproxy-status:ota-pacer\r\n\r\n{}"));
        for other in [
            "HTTP/1.1 200 OK\r\nServer: nginx\r\n\r\nProxy-Status: ota-pacer",
            "HTTP/1.1 502 Bad Gateway\r\nProxy-Status: ota-pacer-lookalike; error=x\r\n\r\n",
            "",
        ] {
            assert!(!is_signed(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_command() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143);
    }
}

//! One client, started against the witness.

use std::{io, path::PathBuf, process::Stdio, time::Duration};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use super::{
    clients::Client,
    witness::{Stage, Witness},
};

/// What was found of one client.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) version: String,
    pub(super) health: Health,
    /// What helps, or what the client said.
    pub(super) advice: String,
}

/// How a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// It came through and got its answer.
    Well,
    /// It never came to the proxy.
    Bypasses,
    /// It came, and did not trust our certificate.
    Distrusts,
    /// It came, and failed for another reason.
    Fails,
    /// It lacks what it takes to ask.
    CannotAsk,
}

impl Health {
    /// A client without a library to ask with is no reason to worry.
    pub(super) fn is_well(self) -> bool {
        matches!(self, Self::Well | Self::CannotAsk)
    }
}

/// Where clients are examined.
pub(super) struct Ward<'a> {
    witness: &'a Witness,
    variables: &'a [(String, String)],
    url: &'a str,
    /// Whether the witness only passes on, and cannot see what the client makes of the certificate.
    is_relay: bool,
    directory: TempDir,
}

impl<'a> Ward<'a> {
    /// # Errors
    /// When there is no place for temporary files.
    pub(super) fn new(
        witness: &'a Witness,
        variables: &'a [(String, String)],
        url: &'a str,
        is_relay: bool,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
        Ok(Self { witness, variables, url, is_relay, directory })
    }

    /// `None` where it is not on this machine.
    pub(super) async fn examine(&self, client: &Client) -> Option<Finding> {
        let (program, version) = self.find(client).await?;
        let finding = |health, advice: &str| Finding { version: version.clone(), health, advice: advice.to_owned() };
        let arguments = match self.arguments(client) {
            Ok(arguments) => arguments,
            Err(error) => return Some(finding(Health::CannotAsk, &error.to_string())),
        };
        self.witness.take_stage();
        let ended = self.start(program, &arguments).await;
        let stage = self.witness.take_stage();
        let (is_success, code, said) = match ended {
            Ok(Some(ended)) => {
                (ended.status.success(), ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
            }
            Ok(None) => (false, None, format!("did not end within {} s", PATIENCE.as_secs())),
            Err(error) => (false, None, error.to_string()),
        };
        Some(match judge(stage, is_success, code, self.is_relay, &said) {
            Health::Well => finding(Health::Well, ""),
            Health::Bypasses => {
                finding(Health::Bypasses, &format!("{}{}", client.bypasses, exceptions(self.variables)))
            }
            Health::Distrusts => finding(Health::Distrusts, client.distrusts),
            health => finding(health, &format!("it said: {}", telling_line(&said))),
        })
    }

    async fn find(&self, client: &Client) -> Option<(&'static str, String)> {
        for program in client.programs {
            let arguments: Vec<String> = client.version.iter().map(|word| (*word).to_owned()).collect();
            match self.start(program, &arguments).await {
                Ok(Some(ended)) if ended.status.success() => {
                    let text = [ended.stdout, ended.stderr].concat();
                    return Some((program, version_in(&String::from_utf8_lossy(&text))));
                }
                // Not there, or a stub that says how to install it.
                _ => {}
            }
        }
        None
    }

    fn arguments(&self, client: &Client) -> io::Result<Vec<String>> {
        let file: PathBuf = match client.source {
            Some((name, text)) => {
                let file = self.directory.path().join(name);
                std::fs::write(&file, text)?;
                file
            }
            None => PathBuf::new(),
        };
        let arguments = client.arguments.iter().map(|word| word.replace("{file}", &file.to_string_lossy()));
        Ok(arguments.chain([self.url.to_owned()]).collect())
    }

    /// Runs a program to its end, or to ours: `None` where it took too long. It is a process group, since some start
    /// others, which would outlive it.
    async fn start(&self, program: &str, arguments: &[String]) -> io::Result<Option<std::process::Output>> {
        let mut command = Command::new(program);
        command.args(arguments).envs(self.variables.iter().cloned()).env("DOTNET_CLI_TELEMETRY_OPTOUT", "1");
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        match timeout(PATIENCE, child.wait_with_output()).await {
            Ok(ended) => ended.map(Some),
            Err(_) => {
                if let Some(group) = group {
                    // It may just have ended.
                    let _ = kill_process_group(group, Signal::KILL);
                }
                Ok(None)
            }
        }
    }
}

fn judge(stage: Stage, is_success: bool, code: Option<i32>, is_relay: bool, said: &str) -> Health {
    match stage {
        _ if code == Some(CANNOT_ASK) => Health::CannotAsk,
        // The compiler that runs single files is not in every installation.
        Stage::Nowhere if said.contains("jdk.compiler") => Health::CannotAsk,
        Stage::Nowhere => Health::Bypasses,
        Stage::Trusted | Stage::Proxy if is_success => Health::Well,
        Stage::Proxy if !is_relay || speaks_of_certificates(said) => Health::Distrusts,
        Stage::Proxy | Stage::Trusted => Health::Fails,
    }
}

fn speaks_of_certificates(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["certificate", "certification path", "unable_to_verify"].iter().any(|words| said.contains(words))
}

/// Exceptions may well be why a client goes past the proxy.
fn exceptions(variables: &[(String, String)]) -> String {
    let list = variables.iter().find(|(name, _)| name == "no_proxy");
    list.map_or_else(String::new, |(_, hosts)| format!("; `NO_PROXY` is `{hosts}`"))
}

/// The line of a client's complaint that says most; the rest is where it was thrown.
fn telling_line(said: &str) -> String {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(JAVA_NOTICE));
    let first = lines.next().unwrap_or("nothing");
    first.chars().take(LONGEST_LINE).collect()
}

/// The first number with a point in it.
fn version_in(text: &str) -> String {
    let mut numbers = text.lines().filter(|line| !line.starts_with(JAVA_NOTICE)).flat_map(numbers);
    numbers.find(|word| word.contains('.')).unwrap_or("?").to_owned()
}

fn numbers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_ascii_digit() || c == '.')).map(|word| word.trim_matches('.'))
}

/// With which our own scripts end where a library is not there.
const CANNOT_ASK: i32 = 3;

/// Enough for a compiler on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every JVM says so, on whichever of its outputs comes first.
const JAVA_NOTICE: &str = "Picked up ";

const LONGEST_LINE: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_judged_by_how_far_it_came() {
        for (stage, is_success, code, is_relay, said, health) in [
            (Stage::Trusted, true, Some(0), false, "", Health::Well),
            (Stage::Proxy, true, Some(0), true, "", Health::Well),
            (Stage::Nowhere, true, Some(0), false, "", Health::Bypasses),
            (Stage::Nowhere, false, Some(6), false, "could not resolve", Health::Bypasses),
            (Stage::Nowhere, false, Some(3), false, "no curl extension", Health::CannotAsk),
            (Stage::Proxy, false, Some(60), false, "", Health::Distrusts),
            (Stage::Proxy, false, Some(60), true, "SSL certificate problem", Health::Distrusts),
            (Stage::Proxy, false, Some(22), true, "502", Health::Fails),
            (Stage::Trusted, false, None, false, "did not end", Health::Fails),
        ] {
            assert_eq!(judge(stage, is_success, code, is_relay, said), health, "{stage:?} {said}");
        }
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (text, version) in [
            ("curl 7.88.1 (x86_64-pc-linux-gnu)", "7.88.1"),
            ("v20.20.2", "20.20.2"),
            ("go version go1.19.8 linux/amd64", "1.19.8"),
            ("Picked up JAVA_TOOL_OPTIONS: -Dhttp.proxyHost=127.0.0.1\nopenjdk 17.0.15", "17.0.15"),
            ("openjdk version \"17.0.15\" 2025-04-15", "17.0.15"),
            ("ruby 3.1.2p20 (2022-04-12)", "3.1.2"),
            ("nothing", "?"),
        ] {
            assert_eq!(version_in(text), version);
        }
    }

    #[test]
    fn the_telling_line_is_no_notice_of_java() {
        assert_eq!(telling_line("Picked up JAVA_TOOL_OPTIONS: x\n\n  PKIX failed\n at y"), "PKIX failed");
        assert_eq!(telling_line(""), "nothing");
    }
}

//! The command line.

mod ca;
pub mod check;
mod config_file;
mod doctor;
mod env;
pub mod explain;
mod run;
pub mod schema;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::telemetry::{self, LogFormat};

/// Paces a whole fleet's outbound OTA traffic to one shared limit
#[derive(Debug, Parser)]
#[command(name = "ota-pacer", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Serve,
    /// How log lines look; `RUST_LOG` filters them
    #[arg(long, global = true, value_enum, default_value_t = Format::Text, env = "OTA_PACER_LOG_FORMAT")]
    log_format: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Explain(explain::Explain),
    Env(env::Env),
    Run(run::Run),
    Doctor(doctor::Doctor),
    Ca(ca::Ca),
    Schema(schema::Schema),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What was typed makes no sense; the message says what does.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct WrongUsage(anyhow::Error);

impl Cli {
    /// Does what was asked. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.
    ///
    /// # Errors
    /// When it cannot be done; the message says why.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::init_logging(match self.log_format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        });
        match self.command.unwrap_or(Command::Serve(self.serve)) {
            Command::Serve(serve) => serve.run(),
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Env(env) => env.run(),
            Command::Run(run) => run.run(),
            Command::Doctor(doctor) => doctor.run(),
            Command::Ca(ca) => ca.run(),
            Command::Schema(schema) => schema.run(),
        }
    }
}

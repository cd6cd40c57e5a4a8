//! The file that every command reads, and what happens where it has mistakes.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::config::{self, Config};

/// The option that names the configuration file.
#[derive(Debug, clap::Args)]
pub struct ConfigFile {
    /// The configuration file
    #[arg(long = "config", value_name = "FILE", env = "OTA_PACER_CONFIG", default_value = "config/ota-pacer.yaml")]
    path: PathBuf,
}

impl ConfigFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a command on the configuration, or shows its mistakes: see [`with`].
    pub(super) fn with(&self, command: impl FnOnce(Config) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        with(&self.path, command)
    }
}

/// Runs a command on the configuration at `path`; where that has mistakes, shows all of them instead, with exit code 2.
///
/// # Errors
/// Those of the command.
pub(super) fn with(path: &Path, command: impl FnOnce(Config) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match config::load(path) {
        Ok(config) => command(config),
        Err(errors) => {
            eprintln!("{errors}");
            Ok(ExitCode::from(2))
        }
    }
}

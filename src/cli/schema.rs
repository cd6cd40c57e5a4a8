//! `ota-pacer schema`: the JSON Schema of the configuration file.

use std::{io::Write, process::ExitCode};

use crate::config::schema;

/// Print the JSON Schema of the configuration file, for editors
#[derive(Debug, clap::Args)]
pub struct Schema {}

impl Schema {
    /// Prints it.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        std::io::stdout().write_all(schema::json().as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

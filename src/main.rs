//! The `ota-pacer` command.

use std::process::ExitCode;

use clap::Parser;
use ota_pacer::cli::{Cli, WrongUsage};

fn main() -> ExitCode {
    // The one provider of the process; libraries that bring another never meet it.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .expect("nothing ran before that could have installed one");
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

//! `ota-pacer serve`: run the proxy until told to stop.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::config_file::ConfigFile;
use super::env::sh_quoted;
use crate::{
    app::{self, App, Watch},
    config::Config,
};

/// Run the proxy; what happens when no command is given
#[derive(Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    config: ConfigFile,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once. Reloads its configuration on SIGHUP and
    /// when the file changes.
    ///
    /// # Errors
    /// When it cannot start.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let watch = Watch::new(self.config.path().to_owned());
        self.config.with(|config| runtime()?.block_on(serve(config, watch)))
    }
}

/// The runtime that every serving command uses.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

async fn serve(config: Config, watch: Watch) -> anyhow::Result<ExitCode> {
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let app = app::start(config).await?;
    info!("point workers here with: {}", exports(&app));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = app.reloader(watch).run(hangup) => {}
    }
    tokio::select! {
        () = app.shutdown() => {}
        _ = terminate.recv() => warn!("not drained: asked twice to stop"),
        _ = interrupt.recv() => warn!("not drained: asked twice to stop"),
    }
    Ok(ExitCode::SUCCESS)
}

/// One line to paste into a shell.
fn exports(app: &App) -> String {
    let assign = |(name, value): &(String, String)| format!(" {name}={}", sh_quoted(value));
    app.environment().iter().map(assign).fold("export".to_owned(), |line, assignment| line + &assignment)
}

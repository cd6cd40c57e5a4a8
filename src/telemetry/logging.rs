//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// Starts logging to standard error; `RUST_LOG` filters, `info` unless set. A second call changes nothing.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // An error means that somebody else already listens, which serves as well.
    let _installed = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}

/// The Redis client logs every attempt to reconnect; the limiter says the same once.
const DEFAULT_FILTER: &str = "info,fred=off";

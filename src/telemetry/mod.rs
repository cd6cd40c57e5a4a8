//! What an instance tells of itself: log lines and metrics.

mod logging;
mod recorder;

pub use logging::{LogFormat, init as init_logging};
pub use recorder::{InstallError, install as install_recorder};

//! ota-pacer: an HTTP forward proxy that paces a whole fleet's outbound OTA traffic to one shared limit.
//!
//! Layers, each importing only from those below it (`tests/it/layers.rs` checks it):
//!
//! | layer | modules |
//! |---|---|
//! | 5 | `cli` |
//! | 4 | `app` |
//! | 3 | `proxy`, `admin` |
//! | 2 | `route`, `limiter`, `ca`, `upstream` |
//! | 1 | `config`, `feedback` |
//! | 0 | `telemetry` |

pub mod admin;
pub mod app;
pub mod ca;
pub mod cli;
pub mod config;
pub mod feedback;
pub mod limiter;
pub mod proxy;
pub mod route;
pub mod telemetry;
pub mod upstream;

//! The configuration of an instance: one YAML file, read whole, every mistake reported at once.

pub mod host;
pub mod model;
pub mod units;

pub use model::Config;

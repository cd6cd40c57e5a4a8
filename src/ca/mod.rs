//! The certificate authority: makes or loads it, mints leaves for intercepted hosts, and tells clients how to trust it.
//!
//! Only this module names `rcgen`.

mod authority;
mod bundle;
mod certificate;
pub mod environment;
mod error;
mod files;
mod leaves;
mod settings;
mod tickets;

pub use authority::Authority;
pub use error::{CaError, MintError};
pub use leaves::Leaves;

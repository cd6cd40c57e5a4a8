//! The certificate authority: makes or loads it, mints leaves for intercepted hosts, and tells clients how to trust it.
//!
//! Only this module names `rcgen`.

mod authority;
mod bundle;
mod certificate;
mod constraints;
mod der;
mod description;
mod directory;
pub mod environment;
mod error;
mod files;
mod jks;
mod key;
mod leaves;
mod pkcs12;
mod rotation;
mod settings;
mod tickets;
mod trust_store;

pub use authority::Authority;
pub use description::Description;
pub use error::{CaError, MintError};
pub use leaves::{Alpn, Leaves};
pub use rotation::{Rotation, drop_old, rotate};
pub use trust_store::{Format, export};

//! The command line.

pub mod check;
pub mod explain;
pub mod schema;

//! What a user notices, one module a behaviour.

mod certificates;
mod config;
mod upstream;

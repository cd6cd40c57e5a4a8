//! What a user notices, one module a behaviour.

mod config;

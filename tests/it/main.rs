//! Integration tests, one module a behaviour.

mod certificates;
mod upstream;

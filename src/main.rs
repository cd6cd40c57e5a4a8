//! The `ota-pacer` command.

fn main() {}

//! The programs of `examples/`, which tests run as processes.

use std::path::PathBuf;

/// Cargo puts examples beside the directory of the test binaries, and names only binaries in the environment.
#[track_caller]
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows where it is");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("tests are in `target/PROFILE/deps`");
    let program = profile.join("examples").join(name);
    assert!(program.exists(), "`{}` is missing\n\nhint: cargo build --example {name}", program.display());
    program
}

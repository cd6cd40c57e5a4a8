//! What keeps the proxy from starting is said clearly, with an exit code that scripts can tell apart.

use std::{fs, net::TcpListener, time::Duration};

use tempfile::TempDir;

use crate::support::{
    process::{Ended, Process},
    proxy::ota_pacer,
};

#[test]
fn a_cost_above_the_capacity_is_refused() {
    let ended = start(&config("", "cost: 5, limits: [{ rate: 20/s, capacity: 3 }]"));
    assert_refused(&ended, 2, &["ota-pacer.yaml:9", "cost", "capacity", "hint:"]);
}

#[test]
fn an_unknown_key_is_refused() {
    let ended = start(&config("lisen: 127.0.0.1:0", "limits: [{ rate: 20/s, capacity: 3 }]"));
    assert_refused(&ended, 2, &["ota-pacer.yaml:3", "lisen", "hint:"]);
}

#[test]
fn a_bad_unit_is_refused() {
    let ended = start(&config("", "limits: [{ rate: 20/fortnight, capacity: 3 }]"));
    assert_refused(&ended, 2, &["ota-pacer.yaml:9", "20/fortnight", "hint:"]);
}

#[test]
fn every_mistake_is_reported_at_once() {
    let ended = start(&config("lisen: 127.0.0.1:0", "cost: 5, limits: [{ rate: 20/s, capacity: 3 }, { rate: fast }]"));
    assert_refused(&ended, 2, &["lisen", "cost", "fast"]);
}

#[test]
fn a_missing_file_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let mut command = ota_pacer();
    command.arg("serve").arg("--config").arg(directory.path().join("absent.yaml"));
    let ended = Process::start("ota-pacer", &mut command).wait(PATIENCE);
    assert_refused(&ended, 2, &["absent.yaml"]);
}

#[test]
fn an_unreadable_ca_is_refused() {
    let directory = directory(&config("", "limits: [{ rate: 20/s, capacity: 3 }]"));
    let ca = directory.path().join("ca");
    fs::create_dir(&ca).expect("a directory is made");
    fs::write(ca.join("ca.pem"), "this is no certificate\n").expect("a file is written");
    fs::write(ca.join("ca.key"), "this is no key\n").expect("a file is written");
    assert_refused(&start_in(&directory), 1, &["ca/ca."]);
}

#[test]
fn a_ca_directory_that_is_none_is_refused() {
    let directory = directory(&config("", "limits: [{ rate: 20/s, capacity: 3 }]"));
    fs::write(directory.path().join("ca"), "a file\n").expect("a file is written");
    assert_refused(&start_in(&directory), 1, &["/ca`", "os error"]);
}

#[test]
fn a_taken_port_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("the system has a free port");
    let address = taken.local_addr().expect("a bound socket has an address").to_string();
    let text = config("", "limits: [{ rate: 20/s, capacity: 3 }]").replacen("127.0.0.1:0", &address, 1);
    assert_refused(&start(&text), 1, &[&address]);
}

/// Lines 1 and 2 are addresses, line 3 is `top`, line 9 the endpoint.
#[test]
fn what_makes_no_sense_on_the_command_line_is_wrong_usage() {
    let directory = directory(&config("", "limits: [{ rate: 20/s, capacity: 3 }]"));
    for (arguments, said) in [
        (&["explain", "GET", "/no/host"][..], "the address needs its scheme"),
        (&["env", "--proxy", "nonsense"][..], "is no URL of the form"),
        (&["serve", "--nonsense"][..], "unexpected argument"),
    ] {
        let mut command = ota_pacer();
        command.args(arguments).env("OTA_PACER_CONFIG", directory.path().join("ota-pacer.yaml"));
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains(said), "{arguments:?}: {told}");
    }
}

fn config(top: &str, endpoint: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{top}\nchannels:\n  booking_com:\n    hosts: [localhost]\n    \
         credential: {{ basic_user: true }}\n    endpoints:\n      availability: {{ match: {{ path: /a }}, {endpoint} }}\n"
    )
}

fn directory(config: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let file = directory.path().join("ota-pacer.yaml");
    let ca = format!("ca: {{ dir: \"{}\" }}\n", directory.path().join("ca").display());
    fs::write(file, format!("{config}{ca}")).expect("a config is written");
    directory
}

#[track_caller]
fn start(config: &str) -> Ended {
    start_in(&directory(config))
}

#[track_caller]
fn start_in(directory: &TempDir) -> Ended {
    let mut command = ota_pacer();
    command.arg("serve").arg("--config").arg(directory.path().join("ota-pacer.yaml"));
    Process::start("ota-pacer", &mut command).wait(PATIENCE)
}

#[track_caller]
fn assert_refused(ended: &Ended, code: i32, said: &[&str]) {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    for text in said {
        assert!(ended.stderr.contains(text), "`{text}` is not in what it says:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    if code == 1 {
        let last = ended.stderr.trim_end().rsplit("\n\n").next().unwrap_or_default();
        assert!(last.starts_with("hint: ") && !last.contains("os error"), "the hint comes last:\n{}", ended.stderr);
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

//! What the command answers while it has no commands: help, version, and an honest refusal.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn leasehold(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn help_goes_to_stdout_and_says_what_is_missing() {
    for flag in ["--help", "-h", "help"] {
        let output = leasehold(&[flag]);
        assert_eq!(output.status.code(), Some(0), "{flag}");
        assert!(stdout(&output).contains("Usage: leasehold"), "{}", stdout(&output));
        assert!(stdout(&output).contains("not there yet"), "{}", stdout(&output));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn version_is_the_packages() {
    for flag in ["--version", "-V"] {
        let output = leasehold(&[flag]);
        assert_eq!(output.status.code(), Some(0), "{flag}");
        assert_eq!(stdout(&output), concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn a_command_is_refused_as_unavailable_and_not_run() {
    for args in [&["run", "nightly", "--", "echo", "ran"][..], &["doctor"], &["run", "--help"]] {
        let output = leasehold(args);
        assert_eq!(output.status.code(), Some(69), "{args:?}");
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(stderr(&output).contains("only the library so far"), "{}", stderr(&output));
        assert!(stderr(&output).contains(args[0]), "{}", stderr(&output));
    }
}

#[test]
fn wrong_usage_is_told_apart_from_unavailable() {
    for args in [&[][..], &["--frobnicate"], &["-x", "run"], &["--version", "please"]] {
        let output = leasehold(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert_eq!(stdout(&output), "", "{args:?}");
        assert!(stderr(&output).contains("leasehold --help"), "{}", stderr(&output));
    }
}

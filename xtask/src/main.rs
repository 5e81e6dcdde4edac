//! `cargo xtask`: the tasks of this repository.

mod args;
mod cargo;
mod deny;
mod features;
mod install;
mod package;
mod report;
mod steps;
mod test_program;
mod test_runner;

use std::process::ExitCode;

use crate::args::{Asked, USAGE};

/// The error is a sentence for people.
type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    // Lossy, because a filter that is not UTF-8 matches no test.
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let asked = match args::parse(&args) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match asked {
        Asked::Help => {
            println!("{USAGE}");
            Ok(())
        }
        Asked::Test { only } => steps::test(only),
        Asked::Soak { filter } => steps::soak(filter.as_deref()),
        Asked::Bench { filter } => steps::bench(filter.as_deref()),
        Asked::Deny => deny::check(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("\n{why}");
            ExitCode::FAILURE
        }
    }
}

//! The `leasehold` command. So far it can say what it is, and that its commands are still to come.

use std::io::{self, Write};
use std::process::ExitCode;

const HELP: &str = "\
Locks held on a lease: for processes on one machine or on many.

Usage: leasehold [--help | --version]

This build has only the library so far (the crate `leasehold`).
Commands such as `leasehold run NAME -- COMMAND` are not there yet.
";

/// `EX_USAGE` of sysexits.h: the command line makes no sense.
const EX_USAGE: u8 = 64;
/// `EX_UNAVAILABLE` of sysexits.h: it makes sense, and cannot be served.
/// Not 0 and not 1, so that no script takes it for "the lock was held" or for its own command's failure.
const EX_UNAVAILABLE: u8 = 69;

fn main() -> ExitCode {
    // Lossy is good enough: an argument is compared or shown, never used as a path.
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["--help" | "-h" | "help"] => print(HELP),
        ["--version" | "-V"] => print(concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n")),
        [] => usage("no command was given"),
        ["--help" | "-h" | "--version" | "-V", extra, ..] => {
            usage(&format!("`{extra}` is one argument too many"))
        }
        [option, ..] if option.starts_with('-') => usage(&format!("there is no option `{option}`")),
        [command, ..] => unavailable(command),
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone (`leasehold --help | true`), and nobody is left to tell.
        Err(_) => ExitCode::FAILURE,
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("leasehold: {why}; `leasehold --help` shows what there is.");
    ExitCode::from(EX_USAGE)
}

fn unavailable(command: &str) -> ExitCode {
    eprintln!(
        "leasehold: `{command}` was not run: this build has only the library so far. \
         Commands such as `leasehold run NAME -- COMMAND` are not there yet."
    );
    ExitCode::from(EX_UNAVAILABLE)
}

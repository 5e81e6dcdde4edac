//! The `leasehold` command: arguments → settings → command, and one way out.

mod args;
mod commands;
mod config;
mod duration;
mod exit;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Parser;
use leasehold::{Error, Locks, Name, Options};

use args::{Args, Command};
use commands::{detached, evict, look, manual};
use exit::Failure;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are answers; everything else is a command line that makes no sense.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Completions(args) => return manual::completions(args),
        Command::Man(args) => return manual::man(args),
        _ => {}
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    runtime.block_on(async {
        let locks = connect(args).await?;
        let output = args.global.output;
        let done = match &args.command {
            Command::Ls(args) => look::ls(&locks, args, output).await,
            Command::Inspect(args) => look::inspect(&locks, args, output).await,
            Command::Evict(args) => evict::evict(&locks, args, output).await,
            Command::Lock(asked) => detached::lock(&locks, asked, output, args.global.quiet).await,
            Command::Extend(args) => detached::extend(&locks, args, output).await,
            Command::Unlock(args) => detached::unlock(&locks, args, output).await,
            Command::Completions(_) | Command::Man(_) => Ok(0),
        };
        locks.close().await;
        done
    })
}

async fn connect(args: &Args) -> Result<Locks, Failure> {
    let chosen = config::store(args.global.store.as_deref())?;
    if args.global.verbose > 0 {
        let scheme = chosen.url.split(':').next().unwrap_or("");
        eprintln!("leasehold: the store is `{scheme}:…`, by {}", chosen.by);
    }
    Options::default().connect(&chosen.url).await.map_err(|error| match error {
        // It was not typed here, but stands in a file or in the environment.
        Error::Invalid { .. } if chosen.by != "--store" => {
            Failure::configuration(format!("{}: {error}", chosen.by))
        }
        error => error.into(),
    })
}

/// A name from the command line.
fn name(given: &OsStr) -> Result<Name, Failure> {
    Ok(Name::from_bytes(given.as_bytes())?)
}

fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// A reader that has gone (`leasehold ls | head -1`) is no failure of ours to explain.
fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let written = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { code: exit::INTERNAL, message: String::new() },
        _ => Failure::internal(format!("standard output: {error}")),
    })
}

//! The `leasehold` command: arguments, store, one command, exit code.

mod ancestors;
mod args;
mod commands;
mod config;
mod duration;
mod exit;
mod input;
mod log;
mod output;
mod password;
mod progress;
mod run_record;
mod signals;
mod store;
mod timestamp;
mod user;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ColorChoice, CommandFactory, FromArgMatches};
use leasehold::{Name, Options};

use args::{Args, Command, Global};
use commands::{completions, doctor, evict, exec, inspect, latch, lock, rate};
use config::Defaults;
use exit::Failure;
use output::Answer;
use store::ChosenStore;

/// The time limit for the client's releases after a command has done its work.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The time limit for the runtime's threads. One that resolves a host name may be stuck.
const SHUTDOWN_MAX: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|first| first == exec::HIDDEN) {
        return exec::exec(args);
    }
    let parsed = Args::command().color(color()).try_get_matches();
    let args = match parsed.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            // Help and version are answers; everything else is a usage error.
            if !error.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if option("--output").is_some_and(|format| format == "json") {
                let text = error.to_string();
                let text = text.split("\n\nFor more information").next().unwrap_or_default();
                Failure::usage(text.trim().trim_start_matches("error: ")).print_json();
            }
            return ExitCode::from(exit::USAGE);
        }
    };
    log::init(&args.global);
    // The panic hook has printed the message of a panic.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(&args)));
    match result.unwrap_or(Ok(exit::INTERNAL)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(args.global.output),
    }
}

/// The value of `--color`, for messages of the parser.
fn color() -> ColorChoice {
    match option("--color").as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

/// The value of an option on an unparsed command line.
fn option(name: &str) -> Option<String> {
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let after = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let joined = words.iter().find_map(|word| word.to_str()?.strip_prefix(name)?.strip_prefix('='));
    joined.or_else(|| after?.to_str()).map(str::to_owned)
}

fn run(args: &Args) -> Result<u8, Failure> {
    let Args { global, command } = args;
    match command {
        Command::Run(args) => return commands::run::run(global, args),
        Command::Elect(args) => return commands::run::elect(global, args),
        Command::Completions { shell } => return completions::completions(*shell),
        Command::Man { directory } => return completions::man(directory.as_deref()),
        Command::Ls(args) => inspect::check(args)?,
        _ => {}
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let result = runtime.block_on(run_async(global, command));
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    match command {
        Command::Rate(args) => result.and_then(|_| rate::follow(args)),
        _ => result,
    }
}

async fn run_async(global: &Global, command: &Command) -> Result<u8, Failure> {
    let output = global.output;
    if let Command::Doctor = command {
        let store = ChosenStore::new(global, Options::default())?;
        return doctor::doctor(&store.examine().await?).print(output);
    }
    let defaults = match command {
        Command::Lock(_) => config::defaults(global.store.as_deref())?,
        _ => Defaults::default(),
    };
    let store = ChosenStore::new(global, Options::default())?;
    // A command that only reads does not create a store.
    let locks = match command {
        Command::Ls(_) | Command::Inspect { .. } => store.connect_existing().await?,
        _ => Some(store.connect().await?),
    };
    let result = match (command, &locks) {
        (Command::Ls(args), locks) => inspect::ls(locks.clone(), args, global).await,
        (Command::Inspect { name }, locks) => inspect::inspect(locks.as_ref(), name).await,
        (Command::Evict(args), Some(locks)) => evict::evict(locks, args, output).await,
        (Command::Adopt(args), Some(locks)) => evict::adopt(locks, args).await,
        (Command::Lock(args), Some(locks)) => lock::lock(locks, args, defaults, output).await,
        (Command::Latch(args), Some(locks)) => latch::latch(locks, args).await,
        (Command::Rate(args), Some(locks)) => rate::rate(locks, args).await,
        (Command::Extend(args), Some(locks)) => lock::extend(locks, args, output).await,
        (Command::Unlock(args), Some(locks)) => lock::unlock(locks, args).await,
        _ => Ok(Answer::default()),
    };
    let result = result.and_then(|answer| answer.print(output));
    if let Some(locks) = locks {
        // An unreachable store delays no command: a lock that is left ends with its TTL.
        locks.close_within(CLOSE_MAX).await;
    }
    result
}

fn name(given: &OsStr) -> Result<Name, Failure> {
    Ok(Name::from_bytes(given.as_bytes())?)
}

//! The `leasehold` command: arguments → settings → command, and one way out.

mod args;
mod commands;
mod config;
mod duration;
mod exit;
mod password;
mod signals;
mod voice;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};
use leasehold::doctor::Report;
use leasehold::{Error, Locks, Name, Options};

use args::{Args, Command, Global};
use commands::{detached, doctor, evict, exec, latch, look, manual, rate};
use config::Chosen;
use exit::Failure;
use voice::Voice;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|first| first == exec::HIDDEN) {
        return exec::exec(args);
    }
    let parsed = Args::command().color(color()).try_get_matches();
    let args = match parsed.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => args,
        Err(error) => {
            // Help and version are answers; everything else is a command line that makes no sense.
            let code = if error.use_stderr() { exit::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let voice = Voice::new(args.global.quiet, args.global.verbose, args.global.color);
    voice.open_log();
    // Whatever panicked has said so.
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| run(&args, voice)));
    match done.unwrap_or(Ok(exit::INTERNAL)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(voice, args.global.output),
    }
}

/// What `--color` says, for what is said before the arguments are understood.
fn color() -> ColorChoice {
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let after = words.iter().position(|word| word == "--color").and_then(|at| words.get(at + 1));
    let joined = words.iter().find_map(|word| word.to_str()?.strip_prefix("--color="));
    match joined.or_else(|| after?.to_str()) {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

fn run(args: &Args, voice: Voice) -> Result<u8, Failure> {
    match &args.command {
        Command::Run(asked) => return commands::run::run(&args.global, asked, voice),
        Command::Elect(asked) => return commands::run::elect(&args.global, asked, voice),
        Command::Completions(args) => return manual::completions(args),
        Command::Man(args) => return manual::man(args),
        _ => {}
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let done = runtime.block_on(async {
        if let Command::Doctor = args.command {
            let report = examine(&args.global, voice)?.await?;
            return doctor::doctor(&report, args.global.output);
        }
        let locks = connect(&args.global, voice, Options::default())?.await?;
        let output = args.global.output;
        let done = match &args.command {
            Command::Ls(args) => look::ls(&locks, args, output).await,
            Command::Inspect(args) => look::inspect(&locks, args, output).await,
            Command::Evict(args) => evict::evict(&locks, args, output).await,
            Command::Adopt(args) => evict::adopt(&locks, args, output).await,
            Command::Lock(args) => detached::lock(&locks, args, output, voice).await,
            Command::Latch(asked) => latch::latch(&locks, asked, output).await,
            Command::Rate(asked) => rate::rate(&locks, asked, output, voice).await,
            Command::Extend(args) => detached::extend(&locks, args, output).await,
            Command::Unlock(args) => detached::unlock(&locks, args, output).await,
            Command::Run(_)
            | Command::Elect(_)
            | Command::Doctor
            | Command::Completions(_)
            | Command::Man(_) => Ok(0),
        };
        locks.close().await;
        done
    });
    drop(runtime);
    match &args.command {
        Command::Rate(asked) => done.map(|_| rate::follow(asked)),
        _ => done,
    }
}

/// Finds out which store, at once, and then connects to it.
fn connect(
    global: &Global,
    voice: Voice,
    options: Options,
) -> Result<impl Future<Output = Result<Locks, Failure>> + Send + 'static, Failure> {
    let (chosen, options) = chosen(global, voice, options)?;
    Ok(async move { options.connect(&chosen.url).await.map_err(|error| failure(error, &chosen)) })
}

/// The same for looking at it.
fn examine(
    global: &Global,
    voice: Voice,
) -> Result<impl Future<Output = Result<Report, Failure>> + Send + 'static, Failure> {
    let (chosen, options) = chosen(global, voice, Options::default())?;
    Ok(async move { options.examine(&chosen.url).await.map_err(|error| failure(error, &chosen)) })
}

/// Which store, and the password for it.
fn chosen(global: &Global, voice: Voice, mut options: Options) -> Result<(Chosen, Options), Failure> {
    let chosen = config::store(global.store.as_deref())?;
    let scheme = chosen.url.split(':').next().unwrap_or("");
    voice.detail(format_args!("the store is `{scheme}:…`, by {}", chosen.by));
    if scheme.eq_ignore_ascii_case("memory") {
        let why =
            "a `memory:` store is this process's own, so that nobody else would meet its locks; use `file:`";
        return Err(match chosen.by.as_str() {
            "--store" => Failure::usage(why),
            by => Failure::configuration(format!("{by}: {why}")),
        });
    }
    if scheme.eq_ignore_ascii_case("file") {
        // What is set for other stores does no harm here; what was typed was meant.
        if let Some(path) = &global.password_file {
            return Err(Failure::usage(format!(
                "--password-file {}: a store of this kind (`{scheme}:`) has no password",
                path.display()
            )));
        }
        return Ok((chosen, options));
    }
    if chosen.by == "--store" && password::is_in(&chosen.url) {
        voice.warn(format_args!(
            "every user of this machine can read the password in --store; use --password-file, or {}",
            password::PASSWORD
        ));
    }
    if let Some(password) = password::password(global.password_file.as_deref(), voice)? {
        options = options.password(password);
    }
    if let Some(warning) = options.warning(&chosen.url) {
        voice.warn(warning);
    }
    Ok((chosen, options))
}

/// Why a store cannot be used, by who named it.
fn failure(error: Error, chosen: &Chosen) -> Failure {
    match error {
        // It was not typed here, but stands in a file or in the environment.
        Error::Invalid { .. } if chosen.by != "--store" => {
            Failure::configuration(format!("{}: {error}", chosen.by))
        }
        // Nothing was asked for, and nothing says where that is.
        Error::Refused { .. } if chosen.by == "default" && !config::has_home() => {
            Failure::configuration(error.to_string())
        }
        error => error.into(),
    }
}

/// A name from the command line.
fn name(given: &OsStr) -> Result<Name, Failure> {
    Ok(Name::from_bytes(given.as_bytes())?)
}

fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// The same with colours, where they can be seen.
fn print_styled(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout();
    written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    written(io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()))
}

/// A reader that has gone (`leasehold ls | head -1`) is no failure of ours to explain.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::internal(""),
        _ => Failure::internal(format!("standard output: {error}")),
    })
}

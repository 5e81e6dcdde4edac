//! The `leasehold` command: arguments → settings → command, and one way out.

mod ancestors;
mod args;
mod commands;
mod config;
mod duration;
mod exit;
mod input;
mod output;
mod password;
mod progress;
mod run_record;
mod signals;
mod store_wait;
mod timestamp;
mod user;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ColorChoice, CommandFactory, FromArgMatches};
use leasehold::doctor::Report;
use leasehold::{Error, Locks, Name, Options};

use args::{Args, Command, Global};
use commands::{completions, doctor, evict, exec, inspect, latch, lock, rate};
use config::{Chosen, Defaults};
use exit::Failure;
use output::Logger;

/// How long a command that has done its work waits for the store to have everything back.
const CLOSE_MAX: Duration = Duration::from_secs(1);

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
            // Help and version are answers; everything else is a command line that makes no sense.
            if !error.use_stderr() {
                return ExitCode::SUCCESS;
            }
            if option("--output").is_some_and(|format| format == "json") {
                let said = error.to_string();
                let said = said.split("\n\nFor more information").next().unwrap_or_default();
                Failure::usage(said.trim().trim_start_matches("error: ")).print_json();
            }
            return ExitCode::from(exit::USAGE);
        }
    };
    let Global { quiet, verbose, color, log_format, .. } = args.global;
    let voice = Logger::new(quiet, verbose, color, log_format);
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
    match option("--color").as_deref() {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
}

/// The value of an option on a command line that is not understood yet, or cannot be.
fn option(name: &str) -> Option<String> {
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let after = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let joined = words.iter().find_map(|word| word.to_str()?.strip_prefix(name)?.strip_prefix('='));
    joined.or_else(|| after?.to_str()).map(str::to_owned)
}

fn run(args: &Args, voice: Logger) -> Result<u8, Failure> {
    match &args.command {
        Command::Run(asked) => return commands::run::run(&args.global, asked, voice),
        Command::Elect(asked) => return commands::run::elect(&args.global, asked, voice),
        Command::Completions(args) => return completions::completions(args),
        Command::Man(args) => return completions::man(args),
        Command::Ls(args) => inspect::check(args)?,
        _ => {}
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::internal)?;
    let done = runtime.block_on(async {
        if let Command::Doctor = args.command {
            let report = examine(&args.global, voice)?.await?;
            return doctor::doctor(&report, args.global.output);
        }
        let defaults = match &args.command {
            Command::Lock(_) => config::defaults(args.global.store.as_deref(), voice)?,
            _ => Defaults::default(),
        };
        // A command that only looks does not make a store.
        let locks = match &args.command {
            Command::Ls(_) | Command::Inspect(_) => existing(&args.global, voice).await?,
            _ => Some(connect(&args.global, voice, Options::default())?.await?),
        };
        let (global, output) = (&args.global, args.global.output);
        let done = match (&args.command, &locks) {
            (Command::Ls(args), locks) => inspect::ls(locks.clone(), args, global, voice).await,
            (Command::Inspect(args), locks) => inspect::inspect(locks.as_ref(), args, output).await,
            (Command::Evict(args), Some(locks)) => evict::evict(locks, args, output).await,
            (Command::Adopt(args), Some(locks)) => evict::adopt(locks, args, output).await,
            (Command::Lock(args), Some(locks)) => lock::lock(locks, args, defaults, output, voice).await,
            (Command::Latch(asked), Some(locks)) => latch::latch(locks, asked, output, voice).await,
            (Command::Rate(asked), Some(locks)) => rate::rate(locks, asked, output, voice).await,
            (Command::Extend(args), Some(locks)) => lock::extend(locks, args, output).await,
            (Command::Unlock(args), Some(locks)) => lock::unlock(locks, args, output).await,
            _ => Ok(0),
        };
        if let Some(locks) = locks {
            // A store that does not answer delays no command: what is left ends with its TTL.
            locks.close_within(CLOSE_MAX).await;
        }
        done
    });
    // A thread that resolves the host name of a node may be stuck: the command does not wait for it.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    match &args.command {
        Command::Rate(asked) => done.map(|_| rate::follow(asked)),
        _ => done,
    }
}

/// Finds out which store, at once, and then connects to it.
fn connect(
    global: &Global,
    voice: Logger,
    options: Options,
) -> Result<impl Future<Output = Result<Locks, Failure>> + Send + 'static, Failure> {
    let (chosen, options) = chosen(global, voice, options)?;
    let wait = global.store_wait;
    Ok(async move {
        let open = || options.clone().connect(&chosen.url);
        store_wait::opened(wait, voice, open)
            .await
            .map_err(|(error, more)| failure(error, &chosen).and(&more))
    })
}

/// Connects to the store if it exists. `None` for a store that nobody has used yet.
async fn existing(global: &Global, voice: Logger) -> Result<Option<Locks>, Failure> {
    let (chosen, options) = chosen(global, voice, Options::default())?;
    let open = || options.clone().connect_existing(&chosen.url);
    store_wait::opened(global.store_wait, voice, open)
        .await
        .map_err(|(error, more)| failure(error, &chosen).and(&more))
}

/// The same for looking at it.
fn examine(
    global: &Global,
    voice: Logger,
) -> Result<impl Future<Output = Result<Report, Failure>> + Send + 'static, Failure> {
    let (chosen, options) = chosen(global, voice, Options::default())?;
    let wait = global.store_wait;
    Ok(async move {
        let open = || options.clone().examine(&chosen.url);
        store_wait::opened(wait, voice, open)
            .await
            .map_err(|(error, more)| failure(error, &chosen).and(&more))
    })
}

/// Which store, and the password for it.
fn chosen(global: &Global, voice: Logger, mut options: Options) -> Result<(Chosen, Options), Failure> {
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
        // What was typed is meant for this directory. A setting is for many commands, each with its own working directory.
        match options.warning(&chosen.url) {
            Some(warning) if chosen.by == "--store" => voice.warn(warning),
            Some(warning) => return Err(Failure::configuration(format!("{}: {warning}", chosen.by))),
            None => {}
        }
        return Ok((chosen, options));
    }
    if chosen.by == "--store" && password::is_in(&chosen.url) {
        voice.warn(format_args!(
            "every user of this machine can read the password in --store; use --password-file, or {}",
            password::PASSWORD
        ));
    }
    let asked = password::password(global.password_file.as_deref(), voice)?;
    let password = match &chosen.password_file {
        Some(path) if asked.is_none() => password::password(Some(path), voice)
            .map_err(|failure| Failure::configuration(format!("{}: {}", chosen.by, failure.message)))?,
        _ => asked,
    };
    if let Some(password) = password {
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
        error if password_was_removed(&error) => {
            let mut failure = Failure::from(error);
            failure.message += &format!(
                "; a command that `leasehold` runs does not inherit passwords: give this one the password with --password-file, \
                 or name the file in {} for both",
                password::PASSWORD_FILE
            );
            failure
        }
        error => error.into(),
    }
}

/// Whether the store asks for a password inside a command that another `leasehold` runs.
fn password_was_removed(error: &Error) -> bool {
    std::env::var_os("LEASEHOLD_NAME").is_some() && error.to_string().contains("it wants a password")
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

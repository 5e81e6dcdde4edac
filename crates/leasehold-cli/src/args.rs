//! The command line. Its texts are the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};

use leasehold::Permits;

use crate::commands::exec;
use crate::exit::{Failure, NOT_ACQUIRED};
use crate::{duration, signals};

/// Locks held on a lease: for processes on one machine or on many.
///
/// With nothing configured the locks are those of this machine: every process of this user shares them, in
/// $XDG_STATE_HOME/leasehold or ~/.local/state/leasehold.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = false
)]
#[command(
    after_help = "Exit codes: 64 usage, 69 store unreachable, 75 not acquired, 78 configuration, 79 lease lost, 125 internal; \
                  `run` has some more. `leasehold help run` explains the main job.\n\n\
                  Durations (DUR): 500ms, 30s, 5m, 1h30m, 1d, 1w, at most 366d; a bare number is seconds."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands.
#[derive(Debug, Arguments)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Where the locks are, such as `file:/var/lib/locks` or `rediss://host/`
    ///
    /// Without it: LEASEHOLD_STORE, then `store` in ./leasehold.toml, in $XDG_CONFIG_HOME/leasehold/config.toml, in
    /// /etc/leasehold/config.toml, and then the embedded store `file:`, which is this user's own. Several users share
    /// `file:PATH?shared=group` (or `all`).
    #[arg(long, global = true, value_name = "URL", display_order = 100)]
    pub(crate) store: Option<String>,
    /// If the store cannot be reached at the start, keep trying for DUR [default: do not wait]
    ///
    /// This comes before --wait. A store that refuses (a wrong password, a URL that makes no
    /// sense) is not waited for.
    #[arg(long, global = true, value_name = "DUR", value_parser = duration::parse, display_order = 100)]
    pub(crate) store_wait: Option<Duration>,
    /// How to answer: for people, or as JSON on standard output
    #[arg(long, global = true, display_order = 100, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) messages: Messages,
    /// When to use colours; NO_COLOR is heeded too
    #[arg(long, global = true, display_order = 100, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: clap::ColorChoice,
    /// Read the password for the store from the first line of this file, so that it need not stand in the URL
    ///
    /// Without it: from the file that LEASEHOLD_PASSWORD_FILE names, then LEASEHOLD_PASSWORD, then `password_file` beside the `store` of a
    /// configuration file. A user who has a name is named in the URL, as in `redis://alice@host/`.
    #[arg(long, global = true, display_order = 100, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, Arguments)]
pub(crate) struct Messages {
    /// Say more on standard error; twice for even more
    #[arg(short, long, global = true, display_order = 100, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Write only errors to standard error: no warnings, and no lines about waiting
    #[arg(short, long, global = true, display_order = 100)]
    pub(crate) quiet: bool,
    /// How messages on standard error are written: as they are, with the time (UTC) before each, or as one JSON object a
    /// line (`time`, `level`, `message`)
    #[arg(long, global = true, display_order = 100, value_name = "FORMAT", default_value = "plain")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Plain,
    Timestamps,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    ///
    /// Waits for NAME, runs COMMAND, and lets go when COMMAND and everything it started have ended. The exit code is
    /// COMMAND's own. The lock is renewed meanwhile; should it be lost all the same, COMMAND and everything it started
    /// are stopped before anybody else can have it, and the exit code is 79.
    ///
    /// COMMAND finds LEASEHOLD_NAME, LEASEHOLD_FENCE, LEASEHOLD_OWNER and LEASEHOLD_TTL_MS in its environment.
    Run(Run),
    /// Keep a command running on one machine, and on another when that one dies
    ///
    /// Campaigns for NAME, and runs COMMAND while it leads. Started on several machines, COMMAND runs on one of them; should that
    /// one die, or be cut off from the store, COMMAND is stopped there and started on the next. When COMMAND ends by
    /// itself, this one resigns and campaigns again after a pause, from 1 s up to 30 s where it ends again and again. INT, TERM,
    /// HUP and QUIT go to COMMAND, and end the campaign.
    ///
    /// COMMAND finds LEASEHOLD_NAME, LEASEHOLD_FENCE (the term), LEASEHOLD_OWNER and LEASEHOLD_TTL_MS in its environment.
    Elect(Elect),
    /// List the names that are held or waited for
    #[command(alias = "list")]
    Ls(Ls),
    /// Show who holds a name and who waits for it; exit 75 if it is held
    Inspect {
        /// The name
        name: OsString,
    },
    /// Take a name from whoever holds it
    Evict(Evict),
    /// Give an end to a lock that another library left without one
    ///
    /// On a server, a library that takes a lock in one step and sets its expiry in another may die in between: that lock is
    /// held until somebody sees to it. What ends by itself is left as it is.
    Adopt(Adopt),
    /// Take a lock that outlives this command, and print its token
    ///
    /// For scripts that cannot be wrapped. Nobody renews the lock: it ends with its TTL unless it is extended. Whoever has
    /// the token can extend and unlock, so keep it where only its user can read it.
    Lock(Lock),
    /// Have a lock taken with `lock` last longer
    ///
    /// It then lasts at least TTL from now. A lock that lasts longer already is not shortened.
    Extend(Extend),
    /// Let go of a lock taken with `lock`
    Unlock(DetachedLock),
    /// Count down a latch, or wait until all have
    ///
    /// A latch is closed until COUNT have counted down, and open from then on: workers tell that they are ready, or done, and
    /// whoever needs all of them waits. It is forgotten a day after somebody counted down last.
    #[command(subcommand)]
    Latch(Latch),
    /// Run a command only so often, whoever asks for it and wherever
    ///
    /// Waits until NAME lets it through, and becomes COMMAND; without one, exits with 0. At most MAX get through in any PERIOD,
    /// of all who use the same store, counted by the store's clock. Nothing is held meanwhile, and nothing has to be given back.
    Rate(Rate),
    /// See whether the store is fit for locks, and what to do where it is not
    ///
    /// One line for each thing that was looked at: good, caution or bad, what was seen, and what to do about it. Nothing is
    /// changed but for one lock of a random name, which is taken and given back some times.
    ///
    /// Exit codes: 0 all is good, 1 something wants care or could not be seen, 2 something is bad, 69 the store cannot be
    /// reached or used at all.
    Doctor,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command into a directory
    Man {
        /// Write a page for each command into this directory
        #[arg(value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Arguments)]
pub(crate) struct Ls {
    /// Only names that start with this
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) limit: usize,
    /// Repeat the list every DUR (default 2s) until Ctrl-C
    ///
    /// At a terminal the screen is redrawn. Elsewhere each list follows the one before, with the time above it; with --output
    /// json each is one line. A store that does not answer for a while is reported, and asked again.
    #[arg(long, value_name = "DUR", value_parser = watch_interval, num_args = 0..=1, require_equals = true)]
    pub(crate) watch: Option<Option<Duration>>,
}

#[derive(Debug, Arguments)]
pub(crate) struct Evict {
    /// The name
    pub(crate) name: OsString,
    /// Evict this holder only: its fence, or its label, as `inspect` shows them
    ///
    /// If it does not hold NAME, nothing is evicted and the exit code is 79. A label that several holders have is refused.
    #[arg(long, value_name = "FENCE|LABEL")]
    pub(crate) holder: Option<String>,
    /// Wait until the work of each evicted holder has ended, or its lease has run out, and say which
    #[arg(long)]
    pub(crate) wait_gone: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Arguments)]
pub(crate) struct Adopt {
    /// The name
    pub(crate) name: OsString,
    /// In which time it is to end; whoever holds it may be at work that long
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Latch {
    /// Count down by one, and say how many are missing
    Down {
        #[command(flatten)]
        of: LatchOf,
        /// Count under this name: once, however often it is said
        #[arg(long = "as", value_name = "ID")]
        id: Option<String>,
    },
    /// Wait until it is open; exit 75 if it is not in time
    Wait {
        #[command(flatten)]
        of: LatchOf,
        /// Do not wait: fail at once if it is closed
        #[arg(short, long, conflicts_with = "wait")]
        nonblock: bool,
        /// Wait at most so long (a bare number is seconds)
        #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
        wait: Option<Duration>,
    },
    /// Say how many are missing
    Show {
        #[command(flatten)]
        of: LatchOf,
    },
    /// Close it again, and forget who has counted
    Reset {
        /// The name
        name: OsString,
    },
}

#[derive(Debug, Arguments)]
pub(crate) struct LatchOf {
    /// The name
    pub(crate) name: OsString,
    /// How many have to count down; the same for all who use it
    pub(crate) count: u32,
}

#[derive(Debug, Arguments)]
#[command(
    mut_arg("nonblock", |arg| arg.help("Do not wait: fail at once if it is not let through")),
    mut_arg("wait", |arg| arg.help("Wait at most so long (a bare number is seconds); if that cannot be enough, fail at once")),
    mut_arg("conflict_exit_code", |arg| arg.help("The exit code if it was not let through")),
    override_usage = "leasehold rate [OPTIONS] --per <DUR> --max <N> <NAME> [-- <COMMAND>...]\n       leasehold rate [OPTIONS] --per <DUR> --max <N> <NAME> -c <STRING>",
    after_help = "\
Exit codes: COMMAND's own; 0 if it was let through and there is no COMMAND; 64 usage, 69 store unreachable, 75 not let through, \
78 configuration, 125 internal, 126 COMMAND cannot be executed, 127 COMMAND not found.

Examples:
  leasehold rate mails --max 100 --per 1m -- ./send.sh     at most 100 in any minute
  leasehold rate -n alerts --max 1 --per 1h -- ./page-me   once an hour, else exit 75
  leasehold rate -n logins:alice --max 5 --per 15m         for scripts: 0 is yes, 75 is no
  leasehold rate api --max 9 --per 1s --algorithm gcra -- ./call   evenly"
)]
pub(crate) struct Rate {
    /// The name of the limit
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) program: Program,
    /// The period: from 10ms to 366d. Limits of other periods count apart
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Limit")]
    pub(crate) per: Duration,
    /// How much is let through in a period
    #[arg(long, value_name = "N", help_heading = "Limit")]
    pub(crate) max: u32,
    /// What is counted: all of the last period; windows one after the other, which let through up to twice as much around
    /// the end of one; or an even flow
    #[arg(long, value_name = "HOW", default_value = "sliding", help_heading = "Limit")]
    pub(crate) algorithm: Algorithm,
    /// How many an even flow lets through at once; that many come on top of MAX in a period, less one [default: 1]
    #[arg(long, value_name = "N", help_heading = "Limit")]
    pub(crate) burst: Option<u32>,
    /// How much this one counts
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Limit")]
    pub(crate) weight: u32,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// The command to run. `run` and `elect` require one.
#[derive(Debug, Clone, Arguments)]
pub(crate) struct Program {
    /// The command and its arguments; put `--` before it
    #[arg(trailing_var_arg = true, conflicts_with = "string")]
    command: Vec<OsString>,
    /// Run this through `$SHELL -c` (or `/bin/sh -c`)
    #[arg(short = 'c', value_name = "STRING")]
    string: Option<OsString>,
}

impl Program {
    /// The program and its arguments; `None` if the command line names none.
    pub(crate) fn parts(&self) -> Result<Option<(OsString, Vec<OsString>)>, Failure> {
        match (&self.string, self.command.split_first()) {
            (Some(string), _) => Ok(Some((exec::shell(), vec!["-c".into(), string.clone()]))),
            (None, Some((program, _))) if program.is_empty() => Err(Program::missing()),
            (None, Some((program, rest))) => Ok(Some((program.clone(), rest.to_vec()))),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn missing() -> Failure {
        Failure::usage("what is to be run? Write the command after `--`")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    Sliding,
    Fixed,
    Gcra,
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Arguments)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Waiting {
    /// Do not wait: fail at once if it is held
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most so long (a bare number is seconds; 0 means --nonblock)
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// The exit code if it was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = 75)]
    pub(crate) conflict_exit_code: u8,
}

impl Waiting {
    /// The longest wait: zero does not wait, and [`Duration::MAX`] has no limit.
    pub(crate) fn limit(&self) -> Duration {
        if self.nonblock { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) }
    }
}

#[derive(Debug, Clone, Arguments)]
#[command(
    mut_arg("command", |command| command.required_unless_present("string")),
    override_usage = "leasehold run [OPTIONS] <NAME> -- <COMMAND>...\n       leasehold run [OPTIONS] <NAME> -c <STRING>",
    after_help = "\
Exit codes: COMMAND's own, or 128 + N if signal N ended it; 64 usage, 69 store unreachable, \
74 COMMAND ran, but the store did not confirm --once-per or --at-least, 75 not acquired, \
78 configuration, 79 lease lost, 124 ran too long, 125 internal, 126 COMMAND cannot be executed, 127 COMMAND not found.

Examples:
  leasehold run nightly -- ./report.sh               wait for it
  leasehold run --skip nightly -- ./report.sh        somebody is at it: nothing to do, exit 0
  leasehold run -w 30 -E 1 deploy -- make deploy     wait 30 s, then exit 1
  leasehold run --permits 3 encode -- ffmpeg in out  at most three at a time
  leasehold run --once-per 23h nightly -- ./report   on one of many machines, once a day
  leasehold run db --also cache -- ./migrate         both, or wait for both
  leasehold run nightly -c 'dump | gzip > dump.gz'   through the shell"
)]
pub(crate) struct Run {
    /// The name to hold
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) program: Program,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Share it with others who share it
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits"], help_heading = "Kind of share")]
    pub(crate) shared: bool,
    /// Have it alone [default]
    #[arg(short = 'x', long, conflicts_with = "permits", help_heading = "Kind of share")]
    pub(crate) exclusive: bool,
    /// Be one of at most N, or take TAKE of N permits
    #[arg(long, value_name = "N[/TAKE]", value_parser = permits, help_heading = "Kind of share")]
    pub(crate) permits: Option<Permits>,
    /// Hold this name too, all or none; can be given several times
    ///
    /// In whatever order names are given, those who want some of the same never wait for each other in a circle. LEASEHOLD_NAME
    /// is NAME alone; the fence is one for all.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["shared", "permits"], help_heading = "Kind of share")]
    pub(crate) also: Vec<OsString>,
    /// How long the lock outlives this process, should it die [default: `ttl` of the configuration, or 30s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) limits: RunLimits,
    #[command(flatten, next_help_heading = "Loss and time limits")]
    pub(crate) ending: Ending,
    /// Who holds it, for people [default: `owner` of the configuration, or host:pid (user: command)]
    #[arg(long, value_name = "LABEL", help_heading = "Holding")]
    pub(crate) owner: Option<String>,
    /// Let go when COMMAND itself has ended, whatever it leaves behind in the background
    ///
    /// Nor does anything that COMMAND started keep the lock if leasehold itself is killed.
    #[arg(short = 'o', long, help_heading = "Holding")]
    pub(crate) close: bool,
}

/// When `run` skips the command, how long it keeps the lock, and when it ends the command. The default is
/// that of `elect`.
#[derive(Debug, Clone, Default, Arguments)]
pub(crate) struct RunLimits {
    /// If it is held, do nothing and succeed; unless --wait is given, at once
    #[arg(long, conflicts_with = "conflict_exit_code", help_heading = "Waiting")]
    pub(crate) skip: bool,
    /// Keep the lock for at least DUR, even if COMMAND ends earlier: for cron jobs on machines whose clocks differ
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) at_least: Option<Duration>,
    /// Run it at most once in this time, on whichever machine comes first; elsewhere do nothing and succeed
    ///
    /// The name stays taken for DUR from the time COMMAND started. Choose less than the time between two starts, such as
    /// 23h for a daily job: clocks and starts differ. A run counts if COMMAND ends by itself, with any exit code, or exceeds
    /// --max-runtime. It does not count if it is interrupted (see --count-interrupted), if its lease is lost, or if
    /// leasehold or its machine dies.
    #[arg(
        long,
        value_name = "DUR",
        value_parser = duration::parse,
        conflicts_with_all = ["at_least", "skip", "nonblock", "wait", "conflict_exit_code", "shared", "permits"],
        help_heading = "Holding"
    )]
    pub(crate) once_per: Option<Duration>,
    /// With --once-per: count a run also if it was interrupted
    ///
    /// A run is interrupted if INT, TERM, HUP or QUIT reaches leasehold before the run has ended, whatever the exit code of
    /// COMMAND, or if INT, TERM, HUP, QUIT or KILL ends COMMAND.
    #[arg(long, requires = "once_per", help_heading = "Holding")]
    pub(crate) count_interrupted: bool,
    /// End COMMAND after so long, with exit code 124
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = "Loss and time limits")]
    pub(crate) max_runtime: Option<Duration>,
    /// If the lease is lost, or about to be: end COMMAND and all it started; send it one signal; or let it run on
    #[arg(long, value_name = "HOW", default_value = "kill", help_heading = "Loss and time limits")]
    pub(crate) on_lost: OnLost,
}

impl RunLimits {
    /// Whether a lock that is held by another is no failure.
    pub(crate) fn skips(&self) -> bool {
        self.skip || self.once_per.is_some()
    }
}

#[derive(Debug, Arguments)]
#[command(
    mut_arg("command", |command| command.required_unless_present("string")),
    mut_arg("on_lost_exec", |hook| hook.long_help(None)),
    override_usage = "leasehold elect [OPTIONS] <NAME> -- <COMMAND>...\n       leasehold elect [OPTIONS] <NAME> -c <STRING>",
    after_help = "\
Exit codes: where a signal or --once ends it, COMMAND's own, or 128 + N if signal N ended that; 64 usage, \
69 store unreachable at the start, 78 configuration, 79 lease lost and COMMAND could not be ended, 125 internal, \
126 COMMAND cannot be executed, 127 COMMAND not found.

Examples:
  leasehold elect scheduler -- ./scheduler           on every machine: one of them runs it
  leasehold inspect scheduler                        who leads, and in which term"
)]
pub(crate) struct Elect {
    /// The name to lead
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) program: Program,
    /// When COMMAND ends by itself, end with its exit code; do not campaign again
    #[arg(long)]
    pub(crate) once: bool,
    /// The longest time until a dead leader is replaced (on the file store: at once) [default: `ttl` of the configuration,
    /// or 15s]
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,
    /// Who campaigns and leads, for people [default: `owner` of the configuration, or host:pid (user: command)]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,
    #[command(flatten)]
    pub(crate) ending: Ending,
}

impl Elect {
    /// The run of each term: it holds one name exclusively, and waits for it without a limit.
    pub(crate) fn run(&self) -> Run {
        Run {
            name: self.name.clone(),
            program: self.program.clone(),
            waiting: Waiting { nonblock: false, wait: None, conflict_exit_code: NOT_ACQUIRED },
            shared: false,
            exclusive: true,
            permits: None,
            also: Vec::new(),
            ttl: self.ttl,
            limits: RunLimits::default(),
            ending: self.ending.clone(),
            owner: self.owner.clone(),
            close: false,
        }
    }
}

/// How `run` and `elect` end the command, and what they do if the lease is lost.
#[derive(Debug, Clone, Arguments)]
pub(crate) struct Ending {
    /// The signal that asks COMMAND to end
    #[arg(long, value_name = "SIG", default_value = "TERM", value_parser = signals::parse)]
    pub(crate) signal: rustix::process::Signal,
    /// How long after that signal whatever still runs is killed [default: 5s, or a quarter of the TTL if that is less]
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Start this program if the lease is lost; LEASEHOLD_LOSS tells it why
    ///
    /// It must be there and executable when leasehold starts. It is started without arguments and without a shell, and also finds LEASEHOLD_NAME, LEASEHOLD_FENCE and
    /// LEASEHOLD_OWNER in its environment.
    #[arg(long, value_name = "CMD")]
    pub(crate) on_lost_exec: Option<OsString>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    #[default]
    Kill,
    Signal,
    Continue,
}

fn watch_interval(text: &str) -> Result<Duration, String> {
    let every = duration::parse(text)?;
    let is_long = every >= Duration::from_millis(100);
    is_long.then_some(every).ok_or_else(|| "at least 100ms".to_owned())
}

/// `N` or `N/TAKE`.
fn permits(text: &str) -> Result<Permits, String> {
    let help = "write how many there are, and after a slash how many to take, such as 3 or 3/2";
    let (limit, take) = text.split_once('/').unwrap_or((text, "1"));
    let number = |text: &str| text.parse::<u32>().map_err(|_| help.to_owned());
    let (take, limit) = (number(take)?, number(limit)?);
    Permits::new(take, limit).map_err(|_| match take > limit && limit > 0 {
        true => format!("{take} cannot be taken of {limit}"),
        false => help.to_owned(),
    })
}

#[derive(Debug, Arguments)]
pub(crate) struct Lock {
    /// The name
    pub(crate) name: OsString,
    /// How long it is held unless it is extended
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Who holds it, for people [default: `owner` of the configuration, or host:pid (user: command) of the process
    /// that calls this]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,
}

/// A lock taken with `lock`. Its token is not an argument: every user can read a command line.
#[derive(Debug, Arguments)]
pub(crate) struct DetachedLock {
    /// The name
    pub(crate) name: OsString,
    /// Read the token, or what `lock --output json` printed, from this file; `-` is standard input
    ///
    /// Without it: from LEASEHOLD_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Arguments)]
pub(crate) struct Extend {
    /// How long from now it is to be held at least
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) lock: DetachedLock,
}

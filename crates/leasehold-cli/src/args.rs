//! The command line: what can be asked for, and how. Its texts are the manual.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};

use crate::duration;

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
    after_help = "Exit codes: 64 usage, 69 store unreachable, 75 not acquired, 78 configuration, 79 lease lost, 125 internal."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands.
#[derive(Debug, Arguments)]
pub(crate) struct Global {
    /// Where the locks are, such as `file:/var/lib/locks`
    ///
    /// Without it: LEASEHOLD_STORE, then `store` in ./leasehold.toml, in $XDG_CONFIG_HOME/leasehold/config.toml, in
    /// /etc/leasehold/config.toml, and then the embedded store `file:`.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// How to answer: for people, or as JSON on standard output
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Output,
    /// Say more on standard error; twice for even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
    /// Say nothing on standard error but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the names that are held or waited for
    #[command(alias = "list")]
    Ls(Ls),
    /// Show who holds a name and who waits for it; exit 75 if it is held
    Inspect(Inspect),
    /// Take a name from whoever holds it
    Evict(Evict),
    /// Take a lock that outlives this command, and print its token
    ///
    /// For scripts that cannot be wrapped. Nobody renews the lock: it ends with its TTL unless it is extended. Whoever has
    /// the token can extend and unlock, so keep it where only its user can read it.
    Lock(Lock),
    /// Have a lock taken with `lock` last longer
    Extend(Extend),
    /// Let go of a lock taken with `lock`
    Unlock(Unlock),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page, or write one for each command into a directory
    Man(Man),
}

#[derive(Debug, Arguments)]
pub(crate) struct Ls {
    /// Only names that start with this
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(crate) limit: usize,
}

#[derive(Debug, Arguments)]
pub(crate) struct Inspect {
    /// The name
    pub(crate) name: OsString,
}

#[derive(Debug, Arguments)]
pub(crate) struct Evict {
    /// The name
    pub(crate) name: OsString,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// How long to wait for a lock.
#[derive(Debug, Arguments)]
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

#[derive(Debug, Arguments)]
pub(crate) struct Lock {
    /// The name
    pub(crate) name: OsString,
    /// How long it is held unless it is extended
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Who holds it, for people [default: host:user]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,
}

/// Where the token of a lock comes from: never from the command line, which everybody can read.
#[derive(Debug, Arguments)]
pub(crate) struct FromToken {
    /// Read the token, or what `lock --output json` printed, from this file; `-` is standard input
    ///
    /// Without it: from LEASEHOLD_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Arguments)]
pub(crate) struct Extend {
    /// The name
    pub(crate) name: OsString,
    /// How long from now it is to be held
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) token: FromToken,
}

#[derive(Debug, Arguments)]
pub(crate) struct Unlock {
    /// The name
    pub(crate) name: OsString,
    #[command(flatten)]
    pub(crate) token: FromToken,
}

#[derive(Debug, Arguments)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Arguments)]
pub(crate) struct Man {
    /// Write a page for each command into this directory
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: Option<PathBuf>,
}

//! `__exec`: the step between `run` and its command. It asks the kernel to kill this process when
//! leasehold dies by any cause, and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::args::{LogFormat, Messages};
use crate::{config, exit, log};

/// The first argument that selects this step, hidden from the help.
pub(crate) const HIDDEN: &str = "__exec";

/// The start of this step's command line: the parent's pid, the format of messages, the program.
pub(crate) fn command(program: &OsStr) -> Command {
    // The running binary, even if an upgrade has replaced it on disk.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("leasehold").arg(HIDDEN).arg(std::process::id().to_string());
    command.args(log::settings().log_format.to_possible_value().map(|it| it.get_name().to_owned()));
    command.arg(program);
    command
}

pub(crate) fn exec(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|pid| pid.to_str()?.parse().ok());
    let parent = parent.filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let format = args.next().and_then(|format| LogFormat::from_str(format.to_str()?, false).ok());
    log::set(Messages { log_format: format.unwrap_or_default(), ..Messages::default() });
    let (Some(parent), Some(program)) = (parent, args.next()) else {
        log::error(format_args!("`{HIDDEN}` is for leasehold itself; use `leasehold run NAME -- COMMAND`"));
        return ExitCode::from(exit::USAGE);
    };
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before this call.
    if tied.is_err() || getppid() != Some(parent) {
        return ExitCode::from(exit::INTERNAL);
    }
    ExitCode::from(replaced_by(Command::new(&program).args(args)))
}

/// Replaces this process by the command. On failure logs why, and returns the exit code.
pub(crate) fn replaced_by(command: &mut Command) -> u8 {
    let error = command.exec();
    let program = command.get_program();
    let has_spaces = program.to_string_lossy().contains(char::is_whitespace);
    let (code, advice) = match error.kind() {
        io::ErrorKind::NotFound if has_spaces => (exit::NOT_FOUND, "to run a line of shell, use -c"),
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "is it spelled right, and in the PATH?"),
        io::ErrorKind::PermissionDenied => (exit::NOT_EXECUTABLE, "it has to be a file that you may execute"),
        _ => (exit::NOT_EXECUTABLE, "it has to be a program for this machine"),
    };
    log::error(format_args!("cannot run `{}`: {error}; {advice}", program.display()));
    code
}

/// Removes secrets from the environment. LEASEHOLD_STORE keeps its address without the password: a
/// `leasehold` in the command uses the same store, or fails.
pub(crate) fn without_secrets(command: &mut Command) {
    command.env_remove("LEASEHOLD_TOKEN").env_remove(crate::password::PASSWORD);
    if let Some(url) = std::env::var_os(config::STORE).filter(|url| !url.is_empty()) {
        let kept = url.to_str().and_then(crate::password::removed_from);
        command.env(config::STORE, kept.as_deref().unwrap_or(config::WITHHELD));
    }
}

pub(crate) fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

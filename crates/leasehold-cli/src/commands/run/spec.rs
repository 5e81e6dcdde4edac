//! The checked command line of `run` and `elect`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::{Capabilities, Error, Fence, Name, Names, Owner, Share, Ttl};
use rustix::fs::{Access, access};
use serde_json::json;

use crate::args::{Global, OnLost, Output, Program, Run};
use crate::commands::exec;
use crate::duration::short;
use crate::exit::Failure;
use crate::output::print;
use crate::user::label_of_run;
use crate::{ancestors, config, log, name};

/// The time before the end of the lease by which all processes are dead.
pub(super) const MARGIN: Duration = Duration::from_millis(500);

/// The default of `--kill-after`.
const KILL_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct RunSpec {
    pub(super) run: Run,
    /// The NAME of the command line; one of `names`.
    name: Name,
    pub(super) names: Names,
    pub(super) share: Share,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// Zero does not wait; [`Duration::MAX`] has no limit.
    pub(super) wait: Duration,
    pub(super) kill_after: Duration,
    output: Output,
    program: OsString,
    args: Vec<OsString>,
}

impl RunSpec {
    /// Checks the command line. `ttl` is the default after the command line and the configuration.
    pub(super) fn new(run: Run, ttl: Duration, global: &Global) -> Result<Self, Failure> {
        let defaults = config::defaults(global.store.as_deref())?;
        let Run { limits, ending, waiting, .. } = &run;
        if limits.max_runtime.is_some_and(|max| max.is_zero()) {
            return Err(Failure::usage("--max-runtime 0 would leave no time; leave it out for no limit"));
        }
        limits.once_per.map(Ttl::new).transpose()?;
        let ttl = run.ttl.or(defaults.ttl).unwrap_or(ttl);
        let owner = run.owner.as_ref().map(Owner::new).transpose()?.or(defaults.owner);
        let kill_after = ending.kill_after.unwrap_or(KILL_AFTER.min(ttl / 4));
        let least = 2 * kill_after + 2 * MARGIN;
        if limits.on_lost == OnLost::Kill && ttl < least {
            return Err(Failure::usage(match ending.kill_after {
                Some(_) => format!(
                    "a --ttl of {} is too short for a --kill-after of {}: to renew in time, and to end everything in time \
                     if that fails, takes at least {}",
                    short(ttl),
                    short(kill_after),
                    short(least)
                ),
                None => format!(
                    "a --ttl of {} is too short to end the command in time should it be lost; use 2s or more, or say \
                     what else to do with --on-lost signal or --on-lost continue",
                    short(ttl)
                ),
            }));
        }
        let (program, args) = run.program.parts()?.ok_or_else(Program::missing)?;
        if let Some(hook) = &ending.on_lost_exec {
            check_hook(hook)?;
        }
        let name = name(&run.name)?;
        let also = run.also.iter().map(|also| crate::name(also)).collect::<Result<Vec<_>, _>>()?;
        let does_not_wait = limits.skips() && waiting.wait.is_none();
        Ok(RunSpec {
            names: Names::new(std::iter::once(name.clone()).chain(also))?,
            name,
            share: match run.permits {
                Some(permits) => Share::Permits(permits),
                None if run.shared => Share::Shared,
                None => Share::Exclusive,
            },
            owner: owner.unwrap_or_else(|| label_of_run(&program)),
            ttl,
            wait: if does_not_wait { Duration::ZERO } else { waiting.limit() },
            kill_after,
            output: global.output,
            program,
            args,
            run,
        })
    }

    /// Refuses a time for which the store could not keep the lock after the command has run.
    pub(super) fn check_store(&self, store: &Capabilities) -> Result<(), Failure> {
        if self.at_least() <= store.max_ttl.as_duration() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} {} is too long: this {} store keeps a lock for at most {}; use a shorter time or another store, or raise `?max_ttl=` \
             (ms) in the URL of every client",
            self.keep_option(),
            short(self.at_least()),
            store.store,
            short(store.max_ttl.as_duration())
        )))
    }

    pub(super) fn is_once(&self) -> bool {
        self.run.limits.once_per.is_some()
    }

    /// The time for which the lock is kept, from the start of the run.
    pub(super) fn at_least(&self) -> Duration {
        self.run.limits.once_per.or(self.run.limits.at_least).unwrap_or_default()
    }

    pub(super) fn keep_option(&self) -> &'static str {
        if self.is_once() { "--once-per" } else { "--at-least" }
    }

    pub(super) fn command(&self, fence: Fence) -> Command {
        let mut command = exec::command(&self.program);
        command.args(&self.args);
        self.set_environment(&mut command, fence);
        command.env("LEASEHOLD_TTL_MS", self.ttl.as_millis().to_string());
        command
    }

    pub(super) fn hook_command(&self, fence: Fence, loss: &str) -> Option<Command> {
        let mut command = Command::new(self.run.ending.on_lost_exec.as_ref()?);
        self.set_environment(&mut command, fence);
        // Standard output belongs to the command.
        command.env("LEASEHOLD_LOSS", loss).stdin(Stdio::null()).stdout(Stdio::from(std::io::stderr()));
        Some(command)
    }

    fn set_environment(&self, command: &mut Command, fence: Fence) {
        command
            .env("LEASEHOLD_NAME", self.name.as_str())
            .env("LEASEHOLD_FENCE", fence.to_string())
            .env("LEASEHOLD_OWNER", self.owner.as_str())
            .env(ancestors::HELD, ancestors::extended(&self.names, self.share));
        exec::without_secrets(command);
    }

    /// The command for messages, without its arguments, which may be secret.
    pub(super) fn shown_command(&self) -> String {
        self.program.display().to_string().chars().flat_map(char::escape_debug).collect()
    }

    /// Returns the exit code of a run whose lock is held by another client.
    pub(super) fn not_acquired(&self, error: &Error) -> Result<u8, Failure> {
        if !self.run.limits.skips() {
            return Err(Failure::busy(self.run.waiting.conflict_exit_code, error));
        }
        let holder = match error {
            Error::Busy { busy, .. } => busy.holder.as_ref(),
            _ => None,
        };
        if self.output == Output::Json {
            let holder = holder.map(Owner::as_str);
            let object = json!({ "name": self.name.as_str(), "skipped": true, "holder": holder });
            print(format!("{object}\n"))?;
        }
        if self.is_once() {
            let by = holder.map(|owner| format!(" by {owner}")).unwrap_or_default();
            log::info(format_args!("{} was run{by} already, or is being run: nothing to do", self.names));
        }
        Ok(0)
    }
}

/// Refuses a program of `--on-lost-exec` that cannot be started, before the lease is at stake.
fn check_hook(hook: &OsStr) -> Result<(), Failure> {
    let usable = |path: &Path| match path.metadata() {
        Err(error) => Err(error.to_string()),
        Ok(about) if !about.is_file() => Err("it is not a file".to_owned()),
        Ok(_) => access(path, Access::EXEC_OK).map_err(|error| std::io::Error::from(error).to_string()),
    };
    let found = if hook.is_empty() {
        Err("name a program".to_owned())
    } else if hook.as_bytes().contains(&b'/') {
        usable(Path::new(hook))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&path).any(|folder| usable(&folder.join(hook)).is_ok());
        if is_there { Ok(()) } else { Err("it is not in the PATH".to_owned()) }
    };
    found.map_err(|why| {
        Failure::usage(format!("cannot run `{}`, the program of --on-lost-exec: {why}", hook.display()))
    })
}

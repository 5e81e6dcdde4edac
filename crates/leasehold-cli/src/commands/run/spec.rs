//! What `run` is to do: the command line, checked as a whole before anything is asked of a store.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::{Capabilities, Error, Fence, Name, Names, Owner, Permits, Ttl};
use rustix::fs::{Access, access};
use rustix::process::Signal;
use serde_json::json;

use crate::ancestors::{self, Way};
use crate::args::{OnLost, Output, Run};
use crate::commands::exec;
use crate::config::Defaults;
use crate::duration::short;
use crate::exit::Failure;
use crate::output::LogThread;
use crate::user::label_of_run;
use crate::{name, print};

/// Everything is gone so long before the lease ends.
pub(super) const MARGIN: Duration = Duration::from_millis(500);

/// How long whatever was asked to end has for it.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// Refuses a program of --on-lost-exec that could not be started: when the lease is lost it is too late to find out.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Exclusive,
    Shared,
    Permits(Permits),
}

#[derive(Debug)]
pub(super) struct RunSpec {
    /// What the command is told; one of `names`.
    name: Name,
    pub(super) names: Names,
    pub(super) kind: Kind,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// `None` is for ever.
    pub(super) wait: Option<Duration>,
    pub(super) conflict: u8,
    pub(super) skip: bool,
    pub(super) at_least: Duration,
    /// What `at_least` is for: at most one run in that time.
    pub(super) once: bool,
    /// Whether an interrupted run counts as the one of its period.
    pub(super) count_interrupted: bool,
    pub(super) max_runtime: Option<Duration>,
    pub(super) on_lost: OnLost,
    pub(super) signal: Signal,
    pub(super) kill_after: Duration,
    pub(super) hook: Option<OsString>,
    pub(super) close: bool,
    /// A run that is skipped prints an object.
    output: Output,
    program: OsString,
    args: Vec<OsString>,
}

impl RunSpec {
    /// `ttl` is what holds where neither the command line nor the configuration says one.
    pub(super) fn new(args: &Run, defaults: Defaults, ttl: Duration) -> Result<Self, Failure> {
        let ttl = args.ttl.or(defaults.ttl).unwrap_or(ttl);
        let kill_after = args.kill_after.unwrap_or(KILL_AFTER.min(ttl / 4));
        let least = 2 * kill_after + 2 * MARGIN;
        if args.on_lost == OnLost::Kill && ttl < least {
            return Err(Failure::usage(match args.kill_after {
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
        let zero = |option: &str| {
            Err(Failure::usage(format!("--{option} 0 would leave no time; leave it out for no limit")))
        };
        if args.max_runtime.is_some_and(|max| max.is_zero()) {
            return zero("max-runtime");
        }
        if let Some(period) = args.once_per {
            Ttl::new(period)?;
        }
        let (program, rest) = match (&args.string, args.command.split_first()) {
            (Some(string), _) => (exec::shell(), vec!["-c".into(), string.clone()]),
            (None, Some((program, rest))) if !program.is_empty() => (program.clone(), rest.to_vec()),
            _ => return Err(Failure::usage("what is to be run? Write the command after `--`")),
        };
        let owner = args.owner.as_ref().map(Owner::new).transpose()?.or(defaults.owner);
        let owner = owner.unwrap_or_else(|| label_of_run(&program));
        if let Some(hook) = &args.on_lost_exec {
            check_hook(hook)?;
        }
        let all = std::iter::once(&args.name).chain(&args.also).map(|given| name(given));
        let all: Vec<Name> = all.collect::<Result<_, _>>()?;
        let skip = args.skip || args.once_per.is_some();
        let does_not_wait = args.waiting.nonblock || (skip && args.waiting.wait.is_none());
        Ok(RunSpec {
            name: name(&args.name)?,
            names: Names::new(all)?,
            kind: match args.permits {
                Some(permits) => Kind::Permits(permits),
                None if args.shared => Kind::Shared,
                None => Kind::Exclusive,
            },
            owner,
            ttl,
            wait: if does_not_wait { Some(Duration::ZERO) } else { args.waiting.wait },
            conflict: if skip { 0 } else { args.waiting.conflict_exit_code },
            skip,
            at_least: args.once_per.or(args.at_least).unwrap_or(Duration::ZERO),
            once: args.once_per.is_some(),
            count_interrupted: args.count_interrupted,
            max_runtime: args.max_runtime,
            on_lost: args.on_lost,
            signal: args.signal,
            kill_after,
            hook: args.on_lost_exec.clone(),
            close: args.close,
            output: Output::Text,
            program,
            args: rest,
        })
    }

    /// Refuses what the store could not record after the command has run.
    pub(super) fn check_store(&self, store: &Capabilities) -> Result<(), Failure> {
        if self.at_least <= store.max_ttl.as_duration() {
            return Ok(());
        }
        let option = if self.once { "--once-per" } else { "--at-least" };
        Err(Failure::usage(format!(
            "{option} {} is too long: this {} store keeps a lock for at most {}; use a shorter time or another store, or raise `?max_ttl=` \
             (ms) in the URL of every client",
            short(self.at_least),
            store.store,
            short(store.max_ttl.as_duration())
        )))
    }

    pub(super) fn with_output(self, output: Output) -> Self {
        RunSpec { output, ..self }
    }

    /// The command, with what it may know, and without what it may not.
    pub(super) fn command(&self, fence: Fence) -> Command {
        let mut command = exec::command(&self.program);
        command.args(&self.args);
        self.tell(&mut command, fence);
        command.env("LEASEHOLD_TTL_MS", self.ttl.as_millis().to_string());
        command
    }

    /// The program that is told of a loss.
    pub(super) fn hook_command(&self, fence: Fence, loss: &str) -> Option<Command> {
        let mut command = Command::new(self.hook.as_ref()?);
        self.tell(&mut command, fence);
        // Standard output is the command's alone.
        command.env("LEASEHOLD_LOSS", loss).stdin(Stdio::null()).stdout(Stdio::from(std::io::stderr()));
        Some(command)
    }

    fn tell(&self, command: &mut Command, fence: Fence) {
        command
            .env("LEASEHOLD_NAME", self.name.as_str())
            .env("LEASEHOLD_FENCE", fence.to_string())
            .env("LEASEHOLD_OWNER", self.owner.as_str())
            .env(ancestors::HELD, ancestors::extended(&self.names, self.way()));
        exec::without_secrets(command);
    }

    fn way(&self) -> Way {
        match self.kind {
            Kind::Exclusive => Way::Alone,
            Kind::Shared => Way::Shared,
            Kind::Permits(_) => Way::Permits,
        }
    }

    /// A warning, where an ancestor of this process holds a name that this one waits for.
    pub(super) fn waits_for_itself(&self) -> Option<String> {
        let name = ancestors::in_the_way(&self.names, self.way())?;
        let waits = self.wait != Some(Duration::ZERO);
        waits.then(|| ancestors::warning(&name))
    }

    /// The command, for people: without its arguments, which may be nobody else's business.
    pub(super) fn shown(&self) -> String {
        self.program.display().to_string().chars().flat_map(char::escape_debug).collect()
    }

    /// Not acquired is as good as done where that was asked for.
    pub(super) fn not_acquired(&self, why: &Error, speaker: &LogThread) -> Result<u8, Failure> {
        match self.skip {
            true => {
                if self.output == Output::Json {
                    let holder = match why {
                        Error::Busy { busy, .. } => busy.holder.as_ref().map(Owner::as_str),
                        _ => None,
                    };
                    let told = json!({ "name": self.name.as_str(), "skipped": true, "holder": holder });
                    print(&format!("{told}\n"))?;
                }
                if let (true, Error::Busy { busy, .. }) = (self.once, why) {
                    let by = busy.holder.as_ref().map(|owner| format!(" by {owner}")).unwrap_or_default();
                    let names = &self.names;
                    speaker.tell(format!("{names} was run{by} already, or is being run: nothing to do"));
                }
                Ok(0)
            }
            false => Err(Failure::busy(self.conflict, why)),
        }
    }
}

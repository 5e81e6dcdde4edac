//! `run`: holds a lock while a command runs. No descendant of the command outlives the lock.
//!
//! Two threads share the work, so that neither blocks the other: the runtime's thread renews the
//! lease, the main thread handles signals and the command (`runtime_bridge`, `event_loop`). The
//! command starts through `__exec`, in the terminal's foreground group or a group of its own
//! (`job`). `processes` finds its descendants. `supervise` decides when to end it. `elect` repeats
//! the run.

mod acquire;
mod elect;
mod event_loop;
mod job;
mod processes;
mod runtime_bridge;
mod spec;
mod supervise;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Deadline, Error, Event, Lease, Locks, Options};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::args::{Elect, Global, Run};
use crate::duration::short;
use crate::exit::{Failure, INTERNAL, LOST, NOT_RECORDED, TOO_LONG, without_advice};
use crate::progress::Progress;
use crate::run_record::RunRecord;
use crate::store::ChosenStore;
use crate::{ancestors, log};
use event_loop::CaughtSignal;
use job::{Ended, Job};
use runtime_bridge::{Outcome, RuntimeBridge};
use spec::RunSpec;
use supervise::{Supervisor, Verdict};

/// The time limit for the confirmation of a release. Without one, the lock ends with its TTL.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// The time limit for a request whose result changes nothing.
const CLEANUP_MAX: Duration = Duration::from_secs(1);

const RUN_TTL: Duration = Duration::from_secs(30);
const ELECT_TTL: Duration = Duration::from_secs(15);

pub(crate) fn run(global: &Global, args: &Run) -> Result<u8, Failure> {
    let spec = RunSpec::new(args.clone(), RUN_TTL, global)?;
    Session::with(global, spec, Session::run)
}

pub(crate) fn elect(global: &Global, args: &Elect) -> Result<u8, Failure> {
    let spec = RunSpec::new(args.run(), ELECT_TTL, global)?;
    Session::with(global, spec, |session| session.elect(args.once))
}

/// A connected client, and the state that its runs share.
struct Session {
    bridge: RuntimeBridge,
    locks: Locks,
    spec: Arc<RunSpec>,
    /// The cause of the last failed renewal.
    renewal_error: Arc<Mutex<Option<String>>>,
}

struct RunEnd {
    code: u8,
    verdict: Verdict,
    ran: Duration,
}

impl RunEnd {
    fn without_command(code: u8, verdict: Verdict) -> Self {
        RunEnd { code, verdict, ran: Duration::ZERO }
    }

    /// Returns the signal of a key (Ctrl-C) that ended the run. The shell that waits for this
    /// process ends its script only if this process dies of the same signal.
    fn dies_of(&self) -> Option<Signal> {
        let signal = self.verdict.keyboard_signal?;
        let is_fatal = self.verdict.interrupted_by == Some(signal)
            || self.verdict.ended == Some(Ended::Signal(signal.as_raw()));
        (is_fatal && !matches!(self.code, LOST | TOO_LONG | NOT_RECORDED)).then_some(signal)
    }

    /// Returns the exit code, or dies of the signal.
    fn exit(self) -> u8 {
        if let Some(signal) = self.dies_of() {
            let no_core = Rlimit { current: Some(0), maximum: Some(0) };
            let _ = setrlimit(Resource::Core, no_core);
            let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
        }
        self.code
    }
}

impl From<CaughtSignal> for RunEnd {
    fn from(caught: CaughtSignal) -> Self {
        let verdict = Verdict {
            keyboard_signal: caught.is_from_keyboard().then_some(caught.signal),
            is_end_requested: true,
            interrupted_by: Some(caught.signal),
            ..Verdict::default()
        };
        RunEnd::without_command(Ended::Signal(caught.signal.as_raw()).code(), verdict)
    }
}

impl Session {
    /// Connects, does the work, and closes the connection.
    fn with(
        global: &Global,
        spec: RunSpec,
        work: impl FnOnce(&mut Session) -> Result<RunEnd, Failure>,
    ) -> Result<u8, Failure> {
        let renewal_error = Arc::new(Mutex::new(None));
        let last_error = renewal_error.clone();
        let options = Options::default().on_event(move |event| {
            log_renewal(&last_error, event);
            std::future::ready(())
        });
        let store = ChosenStore::new(global, options)?;
        log::start_thread().map_err(Failure::internal)?;
        let mut bridge = RuntimeBridge::open()?;
        let locks = match bridge.run_until_signal(async move { store.connect().await })? {
            Outcome::Answer(locks) => locks?,
            Outcome::Signal(caught) => return Ok(RunEnd::from(caught).exit()),
        };
        let mut session = Session { bridge, locks, spec: Arc::new(spec), renewal_error };
        let end = work(&mut session);
        let Session { mut bridge, locks, .. } = session;
        // After a failure the store has already used up its time.
        let at_most = if end.is_ok() { CLEANUP_MAX } else { CLEANUP_MAX / 4 };
        let closed = match &end {
            // Closing would release the lease.
            Ok(end) if end.verdict.leaves_lease() => Ok(None),
            _ => bridge.run_for(async move { locks.close_within(at_most).await }, at_most),
        };
        log::flush();
        bridge.close();
        closed.and(end).map(RunEnd::exit)
    }

    fn run(&mut self) -> Result<RunEnd, Failure> {
        let Session { bridge, locks, spec, .. } = self;
        spec.check_store(&locks.capabilities())?;
        if let Some(warning) = ancestors::warning(&spec.names, spec.share, spec.wait) {
            log::warn(warning);
        }
        let asked_at = bridge.now();
        let acquiring = acquire::acquire(locks.clone(), spec.clone(), bridge.clock.clone());
        let lease = match bridge.run_until_signal(acquiring)? {
            Outcome::Answer(Ok(lease)) => lease,
            Outcome::Answer(Err(error @ Error::Busy { .. })) => {
                let code = spec.not_acquired(&error)?;
                return Ok(RunEnd::without_command(code, Verdict::default()));
            }
            Outcome::Answer(Err(error)) => return Err(error.into()),
            Outcome::Signal(caught) => {
                Progress::new().clear();
                return Ok(caught.into());
            }
        };
        let acquired_at = bridge.now();
        let waited = short(acquired_at.since(asked_at));
        log::debug(format_args!("{} acquired after {waited}, fence {}", spec.names, lease.fence()));
        let lifeline = if spec.run.close { None } else { locks.lifeline()? };
        // A signal before the start of the command ends the run without it.
        if let Some(caught) = bridge.wait_events(Some(Duration::ZERO))?.into_iter().find(|it| it.is_fatal()) {
            return Ok(caught.into());
        }
        let record = spec.is_once().then(|| RunRecord::started(&spec.owner, lease.fence(), spec.at_least()));
        if let Some(record) = record.clone() {
            let saving = record.save(locks.clone(), spec.names.clone());
            let (clock, until) = (bridge.clock.clone(), bridge.now().plus(CLEANUP_MAX));
            let saving = async move { clock.until(until, saving).await };
            // Not `run_for`, which discards the signals that arrive meanwhile.
            if let Outcome::Signal(caught) = bridge.run_until_signal(saving)? {
                return Ok(caught.into());
            }
        }
        let job =
            Job::start(spec.command(lease.fence()), lifeline, bridge.clock.clone()).map_err(|error| {
                Failure::internal(format!("cannot start a process: {error}; {} is given back", spec.names))
            })?;
        let proof = lease.proof();
        // Its end wakes the main thread.
        drop(bridge.spawn(async move { proof.lost().await }));
        let verdict = Supervisor::new(self, job, lease.proof()).run()?;
        let ran = self.bridge.now().since(acquired_at);
        let code = self.conclude(lease, &verdict, acquired_at)?;
        if let Some(record) = record {
            let saving = record.ended(code).save(self.locks.clone(), self.spec.names.clone());
            self.bridge.run_for(saving, CLEANUP_MAX)?;
        }
        Ok(RunEnd { code, verdict, ran })
    }

    /// Releases the lock, or keeps it for `--at-least`; returns the exit code.
    fn conclude(&mut self, lease: Lease, verdict: &Verdict, acquired_at: Deadline) -> Result<u8, Failure> {
        let Session { bridge, spec, .. } = self;
        let names = &spec.names;
        if verdict.is_lost {
            match lease.is_valid() {
                // The survivors keep the rest of the lease.
                _ if verdict.has_survivors => std::mem::forget(lease),
                true => drop(bridge.run_for(lease.release(), CLEANUP_MAX)?),
                // The drop confirms the end to the operator who evicted the holder.
                false => drop(lease),
            }
            log::error(after_loss(spec, verdict.ended));
            return Ok(LOST);
        }
        let interrupted = verdict.interrupted_by.map(|signal| Ended::Signal(signal.as_raw()));
        let code = match verdict.is_too_long {
            true => TOO_LONG,
            false => interrupted.or(verdict.ended).map_or(INTERNAL, Ended::code),
        };
        let counts = !spec.is_once() || spec.run.limits.count_interrupted || !verdict.is_interrupted();
        if !counts {
            log::info(format_args!("{names} was interrupted: this run does not count for --once-per"));
        }
        let keep_until = acquired_at.plus(if counts { spec.at_least() } else { Duration::ZERO });
        let keep_for = keep_until.since(bridge.now());
        let is_kept = !keep_for.is_zero();
        let answer = match is_kept {
            false => bridge.run_for(lease.release(), RELEASE_MAX)?,
            true => {
                // The library retries until the lease ends, and once more.
                let at_most = lease.remaining() + RELEASE_MAX + CLEANUP_MAX;
                bridge.run_for(lease.keep_for(keep_for), at_most)?
            }
        };
        match answer {
            Some(Ok(())) if is_kept => log::debug(format_args!(
                "{names} is kept for another {}, as {} says",
                short(keep_for),
                spec.keep_option()
            )),
            Some(Ok(())) => {
                let held = short(bridge.now().since(acquired_at));
                log::debug(format_args!("{names} given back after {held}"));
            }
            Some(Err(Error::Lost { reason, .. })) => {
                log::error(format_args!("the lease on {names} was lost: {reason}"));
                log::error(after_loss(spec, verdict.ended));
                return Ok(LOST);
            }
            answer if is_kept => {
                let why = match answer {
                    Some(Err(Error::Unknown { why, .. })) => why,
                    Some(Err(error)) => error.to_string(),
                    _ => "no answer in time".to_owned(),
                };
                log::error(not_recorded(spec, verdict.ended, &why));
                return Ok(NOT_RECORDED);
            }
            // Without an answer this is only a warning: the command was protected to its end.
            Some(Err(error)) => log::warn(error),
            None => log::warn(format_args!(
                "the store has not said that it took {names} back; it is free when its TTL of {} is over",
                short(spec.ttl)
            )),
        }
        Ok(code)
    }
}

/// Logs the first failure of a renewal and its recovery, and stores the cause of the last one.
fn log_renewal(renewal_error: &Mutex<Option<String>>, event: Event) {
    match event {
        Event::RenewalFailed { names, why, tries, remaining, .. } => {
            if tries == 1 {
                let (why, left) = (without_advice(&why), short(remaining));
                log::warn(format_args!(
                    "the lease on {names} could not be renewed ({why}); trying again until it ends in {left}"
                ));
            }
            *renewal_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        }
        Event::RenewalRecovered { names, .. } => {
            log::info(format_args!("the lease on {names} is renewed again"));
        }
        _ => {}
    }
}

fn not_recorded(spec: &RunSpec, ended: Option<Ended>, why: &str) -> String {
    let names = &spec.names;
    let what = match spec.is_once() {
        true => format!("this run of {names} is recorded"),
        false => format!("{names} stays taken"),
    };
    format!(
        "{}, but the store has not confirmed that {what} ({why}): another run may begin before {} is over. See \
         `leasehold inspect {}`",
        end_of_command(spec, ended),
        spec.keep_option(),
        names.first()
    )
}

fn after_loss(spec: &RunSpec, ended: Option<Ended>) -> String {
    format!(
        "{}, without its lock: see what it left half done, or what others did beside it, before you run it again",
        end_of_command(spec, ended)
    )
}

/// Describes the end of the command, as the start of a sentence.
fn end_of_command(spec: &RunSpec, ended: Option<Ended>) -> String {
    let command = spec.shown_command();
    match ended {
        Some(Ended::Exit(code)) => format!("`{command}` ended with exit code {code}"),
        Some(Ended::Signal(signal)) => {
            let name =
                Signal::from_named_raw(signal).map_or_else(|| signal.to_string(), crate::signals::name);
            format!("`{command}` was ended by {name}")
        }
        None => format!("`{command}` was not seen to end"),
    }
}

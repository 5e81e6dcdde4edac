//! `run`: holds a lock while a command runs, and lets go of nothing that still runs unprotected.
//!
//! Two threads share the work, so that neither can keep the other from it: the runtime's has the lease, the main one has
//! the command (`office`, `ears`). The command starts through `__exec`, stays in the terminal's foreground group or gets a
//! group of its own (`job`), and everything that descends from it is found and ended where need be (`processes`). When and
//! why is decided in `watch`. `elect` is the same again and again (`campaign`).

mod acquire;
mod elect;
mod event_loop;
mod job;
mod processes;
mod runtime_bridge;
mod spec;
mod supervise;

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Event, Lease, Locks, Loss, Options};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::args::{Elect, Global, Run};
use crate::config;
use crate::duration::short;
use crate::exit::{Failure, LOST, NOT_RECORDED, TOO_LONG};
use crate::output::{LogThread, Logger};
use crate::progress::Progress;
use crate::run_record::RunRecord;
use event_loop::CaughtSignal;
use job::{Ended, Job};
use runtime_bridge::{Outcome, RuntimeBridge};
use spec::RunSpec;
use supervise::{Supervisor, Trouble, Verdict};

/// How long a store may take to answer that the lock is given back. Its TTL does it in any case.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// The same where nothing hangs on it any more.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

const RUN_TTL: Duration = Duration::from_secs(30);
const ELECT_TTL: Duration = Duration::from_secs(15);

pub(crate) fn run(global: &Global, args: &Run, voice: Logger) -> Result<u8, Failure> {
    let defaults = config::defaults(global.store.as_deref(), voice)?;
    start(global, RunSpec::new(args, defaults, RUN_TTL)?.with_output(global.output), voice, hold)
}

pub(crate) fn elect(global: &Global, args: &Elect, voice: Logger) -> Result<u8, Failure> {
    let defaults = config::defaults(global.store.as_deref(), voice)?;
    let plan = RunSpec::new(&args.term(), defaults, ELECT_TTL)?;
    start(global, plan, voice, |office, locks, plan, trouble, speaker, voice| {
        elect::elect(office, locks, plan, trouble, speaker, voice, args.once)
    })
}

/// Connects, does the work, and lets go of the connection.
fn start(
    global: &Global,
    plan: RunSpec,
    voice: Logger,
    work: impl FnOnce(
        &mut RuntimeBridge,
        &Locks,
        &Arc<RunSpec>,
        Trouble,
        &LogThread,
        Logger,
    ) -> Result<Done, Failure>,
) -> Result<u8, Failure> {
    let plan = Arc::new(plan);
    let trouble = Trouble::default();
    let heard = trouble.clone();
    let speaker = LogThread::new(voice).map_err(Failure::internal)?;
    let lines = speaker.lines();
    let options = Options::default().on_event(move |event| {
        match &event {
            Event::RenewalFailed { names, why, tries: 1, remaining, .. } => {
                // The advice behind it is for a command that has failed.
                let (why, left) = (why.split("; ").next().unwrap_or_default(), short(*remaining));
                lines.warn(format!(
                    "the lease on {names} could not be renewed ({why}); trying again until it ends in {left}"
                ));
            }
            Event::RenewalRecovered { names, .. } => {
                lines.tell(format!("the lease on {names} is renewed again"))
            }
            _ => {}
        }
        if let Event::RenewalFailed { why, .. } = event {
            *heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(why);
        }
        std::future::ready(())
    });
    let connecting = crate::connect(global, voice, options)?;
    let mut office = RuntimeBridge::open()?;
    let locks = match office.ask(connecting)? {
        Outcome::Answer(locks) => locks?,
        Outcome::Signal(caught) => return Ok(Done::from(caught).end()),
    };
    let done = work(&mut office, &locks, &plan, trouble, &speaker, voice);
    let closing = locks.clone();
    drop(locks);
    // What hangs has had its time: its TTL ends what it holds.
    let patience = if done.is_ok() { FAREWELL_MAX } else { FAREWELL_MAX / 4 };
    let closed = match &done {
        // Closing would give back what is not to be given back.
        Ok(Done { leaves_it: true, .. }) => Ok(None),
        _ => office.finish(async move { closing.close_within(patience).await }, patience),
    };
    speaker.finish();
    office.close();
    closed.and(done).map(Done::end)
}

/// How it all ends.
struct Done {
    code: u8,
    /// Ctrl-C at the terminal: a shell that waits for us goes on with its script unless we die of it too.
    dies_of: Option<Signal>,
    /// Something that could not be ended runs on: the lock is left to its TTL.
    leaves_it: bool,
    /// A signal said that we should end.
    is_told: bool,
    /// How long the command ran.
    ran: Duration,
}

impl Done {
    fn with(code: u8) -> Self {
        Done { code, dies_of: None, leaves_it: false, is_told: false, ran: Duration::ZERO }
    }

    fn end(self) -> u8 {
        if let Some(signal) = self.dies_of {
            let no_core = Rlimit { current: Some(0), maximum: Some(0) };
            let _ = setrlimit(Resource::Core, no_core);
            let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
        }
        self.code
    }
}

impl From<CaughtSignal> for Done {
    fn from(caught: CaughtSignal) -> Self {
        let code = Ended::Signal(caught.signal.as_raw()).code();
        Done { dies_of: caught.is_pressed().then_some(caught.signal), is_told: true, ..Done::with(code) }
    }
}

fn hold(
    office: &mut RuntimeBridge,
    locks: &Locks,
    plan: &Arc<RunSpec>,
    trouble: Trouble,
    speaker: &LogThread,
    voice: Logger,
) -> Result<Done, Failure> {
    plan.check_store(&locks.capabilities())?;
    if let Some(warning) = plan.waits_for_itself() {
        speaker.warn(warning);
    }
    let asked = office.now();
    let progress = Progress::new(voice);
    let (its_locks, its_plan, its_clock) = (locks.clone(), plan.clone(), office.clock().clone());
    let acquiring = async move { acquire::acquire(its_locks, &its_plan, its_clock, progress).await };
    let lease = match office.ask(acquiring)? {
        Outcome::Answer(Ok(lease)) => lease,
        Outcome::Answer(Err(error @ Error::Busy { .. })) => {
            return plan.not_acquired(&error, speaker).map(Done::with);
        }
        Outcome::Answer(Err(error)) => return Err(error.into()),
        Outcome::Signal(caught) => {
            progress.clear();
            return Ok(caught.into());
        }
    };
    let since = office.now();
    let waited = short(since.since(asked));
    speaker.detail(format!("{} acquired after {waited}, fence {}", plan.names, lease.fence()));
    let lifeline = if plan.close { None } else { locks.lifeline()? };
    // Whoever does not want it any more need not have it started.
    if let Some(caught) = office.listen(Some(Duration::ZERO))?.into_iter().find(|caught| caught.ends()) {
        return Ok(caught.into());
    }
    let record = plan.once.then(|| RunRecord::started(&plan.owner, lease.fence(), plan.at_least));
    if let Some(record) = record.clone() {
        let saving = record.save(locks.clone(), plan.names.clone());
        let (clock, until) = (office.clock().clone(), office.now().plus(FAREWELL_MAX));
        let saving = async move {
            tokio::select! {
                () = saving => {}
                () = clock.sleep_until(until) => {}
            }
        };
        // Not `finish`, which drops the signals that come meanwhile.
        if let Outcome::Signal(caught) = office.ask(saving)? {
            return Ok(caught.into());
        }
    }
    let job = Job::start(plan.command(lease.fence()), lifeline, office.clock().clone()).map_err(|error| {
        Failure::internal(format!("cannot start a process: {error}; {} is given back", plan.names))
    })?;
    let (proof, bell) = (lease.proof(), office.bell());
    office.spawn(async move {
        proof.lost().await;
        bell.ring();
    });
    let verdict = Supervisor::new(office, plan, speaker, job, lease.proof(), trouble).run()?;
    let ran = office.now().since(since);
    let code = conclude(office, plan, speaker, lease, &verdict, since)?;
    if let Some(record) = record {
        office.finish(record.ended(code).save(locks.clone(), plan.names.clone()), FAREWELL_MAX)?;
    }
    let was_pressed = |signal: &Signal| {
        verdict.interrupted_by == Some(*signal) || verdict.ended == Some(Ended::Signal(signal.as_raw()))
    };
    let dies_of =
        verdict.pressed.filter(was_pressed).filter(|_| !matches!(code, LOST | TOO_LONG | NOT_RECORDED));
    let leaves_it = verdict.is_lost && verdict.has_survivors;
    Ok(Done { code, dies_of, leaves_it, is_told: verdict.is_told, ran })
}

/// Gives the lock back, and says what came of it all.
fn conclude(
    office: &mut RuntimeBridge,
    plan: &RunSpec,
    speaker: &LogThread,
    lease: Lease,
    verdict: &Verdict,
    since: leasehold::Deadline,
) -> Result<u8, Failure> {
    if verdict.is_lost {
        match lease.is_valid() {
            // What survives is to have it to the last moment.
            _ if verdict.has_survivors => std::mem::forget(lease),
            true => drop(office.finish(lease.release(), FAREWELL_MAX)?),
            // This confirms to an operator who evicted it that everything has ended.
            false => drop(lease),
        }
        speaker.error(after_a_loss(plan, verdict.ended));
        return Ok(LOST);
    }
    let code = match verdict.is_too_long {
        true => TOO_LONG,
        false => {
            let interrupted = verdict.interrupted_by.map(|signal| Ended::Signal(signal.as_raw()));
            interrupted.or(verdict.ended).map_or(crate::exit::INTERNAL, Ended::code)
        }
    };
    let counts = !plan.once || plan.count_interrupted || !verdict.is_interrupted();
    if !counts {
        speaker.tell(format!("{} was interrupted: this run does not count for --once-per", plan.names));
    }
    let kept = since.plus(if counts { plan.at_least } else { Duration::ZERO }).since(office.now());
    if kept.is_zero() {
        return release(office, plan, speaker, lease, verdict, since, code);
    }
    // The library asks the store until the lease ends, and once more.
    let patience = lease.remaining() + RELEASE_MAX + FAREWELL_MAX;
    let why = match office.finish_unless_signalled(lease.keep_for(kept), patience, RELEASE_MAX)? {
        Some(Ok(())) => {
            let option = if plan.once { "--once-per" } else { "--at-least" };
            speaker.detail(format!("{} is kept for another {}, as {option} says", plan.names, short(kept)));
            return Ok(code);
        }
        Some(Err(Error::Lost { reason, .. })) => return Ok(lost_at_the_end(plan, speaker, verdict, reason)),
        Some(Err(Error::Unknown { why, .. })) => why,
        Some(Err(error)) => error.to_string(),
        None => "no answer in time".to_owned(),
    };
    speaker.error(not_recorded(plan, verdict.ended, &why));
    Ok(NOT_RECORDED)
}

/// Gives the lock back. A release without an answer is only a warning: the command was protected to its end.
fn release(
    office: &mut RuntimeBridge,
    plan: &RunSpec,
    speaker: &LogThread,
    lease: Lease,
    verdict: &Verdict,
    since: leasehold::Deadline,
    code: u8,
) -> Result<u8, Failure> {
    match office.finish(lease.release(), RELEASE_MAX)? {
        Some(Ok(())) => {
            speaker.detail(format!("{} given back after {}", plan.names, short(office.now().since(since))));
        }
        Some(Err(Error::Lost { reason, .. })) => return Ok(lost_at_the_end(plan, speaker, verdict, reason)),
        Some(Err(error)) => speaker.warn(error.to_string()),
        None => speaker.warn(format!(
            "the store has not said that it took {} back; it is free when its TTL of {} is over",
            plan.names,
            short(plan.ttl)
        )),
    }
    Ok(code)
}

fn lost_at_the_end(plan: &RunSpec, speaker: &LogThread, verdict: &Verdict, reason: Loss) -> u8 {
    speaker.error(format!("the lease on {} was lost: {reason}", plan.names));
    speaker.error(after_a_loss(plan, verdict.ended));
    LOST
}

fn not_recorded(plan: &RunSpec, ended: Option<Ended>, why: &str) -> String {
    let (names, how) = (&plan.names, how_it_ended(plan, ended));
    let (what, option) = match plan.once {
        true => (format!("this run of {names} is recorded"), "--once-per"),
        false => (format!("{names} stays taken"), "--at-least"),
    };
    format!(
        "{how}, but the store has not confirmed that {what} ({why}): another run may begin before {option} is over. See \
         `leasehold inspect {}`",
        names.first()
    )
}

/// The command's end, as the start of a sentence.
fn how_it_ended(plan: &RunSpec, ended: Option<Ended>) -> String {
    let command = plan.shown();
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

fn after_a_loss(plan: &RunSpec, ended: Option<Ended>) -> String {
    format!(
        "{}, without its lock: see what it left half done, or what others did beside it, before you run it again",
        how_it_ended(plan, ended)
    )
}

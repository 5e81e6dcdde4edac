//! The supervisor of a command, a loop: forwards signals, and ends the command before its lease.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use leasehold::{Deadline, Loss, Proof};
use rustix::process::Signal;

use super::Session;
use super::event_loop::CaughtSignal;
use super::job::{Ended, Job};
use super::processes::{self, Process};
use super::runtime_bridge::{stop_process, stop_process_group};
use super::spec::{MARGIN, RunSpec};
use crate::args::OnLost;
use crate::duration::short;
use crate::exit::{Failure, without_advice};
use crate::{log, signals};

/// The interval of checks for processes whose end sends no signal to this process.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

const KILL_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The time after which killed processes that still run are reported.
const KILL_MAX: Duration = Duration::from_secs(2);

/// The extra margin per process of the machine: the kernel's time to end one on a busy machine.
/// (5,000 took 0.5 s, unoptimized, beside five others.)
const MARGIN_PER_PROCESS: Duration = Duration::from_micros(200);

/// The extra margin as a multiple of the time of one scan of all processes: to kill them takes
/// about as long, and several turns of a processor that the command keeps busy.
const MARGIN_PER_SCAN: u32 = 4;

/// The time after which a command that was asked to stop (TSTP) is stopped.
const STOP_MAX: Duration = Duration::from_millis(200);

/// The time limit of the hook once all other processes have ended.
const HOOK_MAX: Duration = Duration::from_secs(10);

pub(super) struct Supervisor<'a> {
    session: &'a mut Session,
    spec: Arc<RunSpec>,
    job: Job,
    proof: Proof,
    verdict: Verdict,
    started: Deadline,
    /// The latest end of the lease that was seen while it was valid.
    deadline: Deadline,
    stage: Stage,
    /// The time before the deadline at which all processes are killed.
    margin: Duration,
    /// Only processes that cannot be ended are left.
    only_survivors: bool,
    has_logged_survivors: bool,
    has_logged_lingering: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// The command was asked to end.
    Ending {
        kill_at: Deadline,
    },
    Killing {
        since: Deadline,
    },
}

#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) ended: Option<Ended>,
    pub(super) is_lost: bool,
    pub(super) is_too_long: bool,
    /// A process that cannot be ended still runs.
    pub(super) has_survivors: bool,
    /// The signal of a key at the terminal, which the command received too.
    pub(super) keyboard_signal: Option<Signal>,
    /// A signal asked leasehold to end.
    pub(super) is_end_requested: bool,
    /// The signal that ended the wait for processes that the command left behind.
    pub(super) interrupted_by: Option<Signal>,
}

impl Verdict {
    /// Returns whether a signal interrupted the run: one to leasehold, which the command may have
    /// handled, or one that ended the command. A crash or a time-out is no interruption.
    pub(super) fn is_interrupted(&self) -> bool {
        const INTERRUPTS: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::KILL];
        let was_killed = INTERRUPTS.iter().any(|it| self.ended == Some(Ended::Signal(it.as_raw())));
        self.is_end_requested || (was_killed && !self.is_too_long)
    }

    /// Returns whether the lease is left to its TTL for survivors.
    pub(super) fn leaves_lease(&self) -> bool {
        self.is_lost && self.has_survivors
    }

    /// Records a signal. Every signal that arrives is recorded.
    fn record(&mut self, caught: CaughtSignal) {
        if caught.is_from_keyboard() {
            self.keyboard_signal = Some(caught.signal);
        }
        self.is_end_requested |= caught.requests_end();
    }
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(session: &'a mut Session, job: Job, proof: Proof) -> Self {
        let started = session.bridge.now();
        Supervisor {
            deadline: started.plus(proof.remaining()),
            spec: session.spec.clone(),
            session,
            job,
            proof,
            verdict: Verdict::default(),
            started,
            stage: Stage::Running,
            margin: MARGIN,
            only_survivors: false,
            has_logged_survivors: false,
            has_logged_lingering: false,
        }
    }

    /// Returns when the command and, unless `--close` is given, its descendants have ended. On an
    /// error the drop kills the job, so that none of it runs unsupervised.
    pub(super) fn run(mut self) -> Result<Verdict, Failure> {
        self.session.bridge.events.watched = self.job.end();
        for caught in self.session.bridge.wait_events(Some(Duration::ZERO))? {
            match caught.is_forwarded() {
                true => {
                    self.verdict.record(caught);
                    self.job.forward_early(caught);
                }
                // A TSTP stops this process too, and not the command alone.
                false => self.handle(caught)?,
            }
        }
        loop {
            // It reads the terminal from the background, or Ctrl-Z stopped it.
            if self.job.reap() && self.job.has_terminal() && !self.continue_in_foreground() {
                self.stop(true)?;
            }
            if self.is_over() {
                break;
            }
            let now = self.session.bridge.now();
            self.check(now);
            let at_most = self.next_check(now);
            for caught in self.session.bridge.wait_events(at_most)? {
                self.handle(caught)?;
            }
        }
        self.job.is_settled = true;
        self.wait_for_hook()?;
        self.verdict.ended = self.job.ended;
        self.verdict.has_survivors = self.only_survivors && !self.job.is_gone();
        Ok(self.verdict)
    }

    fn is_over(&mut self) -> bool {
        if self.job.is_gone() {
            return true;
        }
        if self.stage != Stage::Running {
            // While the lock is held, this waits for a process that cannot be ended.
            return self.verdict.is_lost && self.only_survivors;
        }
        if self.job.ended.is_none() {
            return false;
        }
        if !self.spec.run.close && !std::mem::replace(&mut self.has_logged_lingering, true) {
            log::info(format_args!(
                "`{}` has ended, but something it started still runs: {}. {} is held until that ends too; --close lets \
                 go at once",
                self.spec.shown_command(),
                list(&self.job.living()),
                self.spec.names
            ));
        }
        self.spec.run.close
    }

    /// Checks the lease, `--max-runtime` and the time to kill, and acts on them.
    fn check(&mut self, now: Deadline) {
        let remaining = self.proof.remaining();
        if !remaining.is_zero() {
            self.deadline = now.plus(remaining);
        }
        if !self.verdict.is_lost {
            // Renewals have failed, or more would remain.
            if self.spec.run.limits.on_lost == OnLost::Kill && remaining <= self.spec.ttl / 2 {
                self.set_margin();
            }
            let ends_soon = self.spec.run.limits.on_lost == OnLost::Kill
                && remaining <= self.spec.kill_after + self.margin;
            match self.proof.loss() {
                Some(loss) => self.lost(Some(loss), now),
                None if ends_soon => self.lost(None, now),
                None => {}
            }
        }
        let runs_out = self.spec.run.limits.max_runtime.is_some_and(|max| now.since(self.started) >= max);
        if runs_out && self.stage == Stage::Running {
            self.too_long(now);
        }
        match self.stage {
            Stage::Ending { kill_at } if now >= kill_at => self.kill(now),
            Stage::Killing { .. } => self.kill(now),
            _ => {}
        }
    }

    fn set_margin(&mut self) {
        let start = self.session.bridge.now();
        drop(self.job.living());
        let scan = self.session.bridge.now().since(start);
        let each = MARGIN_PER_PROCESS * u32::try_from(processes::count()).unwrap_or(u32::MAX);
        self.margin = MARGIN + each + scan * MARGIN_PER_SCAN;
    }

    fn next_check(&self, now: Deadline) -> Option<Duration> {
        let remaining = self.proof.remaining();
        let lease = match (self.verdict.is_lost, self.spec.run.limits.on_lost) {
            (true, _) => None,
            // The number of processes, and so the margin, may grow.
            (false, OnLost::Kill) if remaining <= self.spec.ttl / 2 => {
                Some(remaining.saturating_sub(self.spec.kill_after + self.margin).min(CHECK_INTERVAL))
            }
            (false, OnLost::Kill) => Some(remaining - self.spec.ttl / 2),
            (false, OnLost::Signal | OnLost::Continue) => Some(remaining),
        };
        let stage = match self.stage {
            Stage::Killing { .. } if self.only_survivors => Some(CHECK_INTERVAL),
            Stage::Killing { .. } => Some(KILL_CHECK_INTERVAL),
            Stage::Ending { kill_at } => Some(kill_at.since(now)),
            Stage::Running => self.spec.run.limits.max_runtime.map(|max| self.started.plus(max).since(now)),
        };
        // The end of an orphan may send no signal.
        let orphans = self.job.ended.map(|_| CHECK_INTERVAL);
        let unreaped = self.job.has_more_to_reap.then_some(Duration::ZERO);
        [lease, stage, orphans, unreaped].into_iter().flatten().min()
    }

    /// Acts on a loss, then logs it. `None`: the lease is about to end.
    fn lost(&mut self, loss: Option<Loss>, now: Deadline) {
        self.verdict.is_lost = true;
        let pid = self.job.pid.as_raw_nonzero();
        match self.spec.run.limits.on_lost {
            OnLost::Kill => self.ask_to_end(now),
            OnLost::Signal if self.job.ended.is_some() => {
                self.job.signal_all(self.spec.run.ending.signal, Deadline::FAR);
            }
            OnLost::Signal => self.job.signal(self.spec.run.ending.signal),
            OnLost::Continue => {}
        }
        let word = loss.unwrap_or(Loss::Unreachable).as_str();
        let hook = self.spec.hook_command(self.proof.fence(), word).map(|hook| self.job.start_hook(hook));
        let what = match loss {
            Some(loss) => format!("was lost: {loss}"),
            None => {
                let error = self.session.renewal_error.lock().unwrap_or_else(PoisonError::into_inner);
                let why = error.as_deref().map_or("no answer in time", without_advice);
                format!("could not be renewed ({why}) and ends in {}", short(self.proof.remaining()))
            }
        };
        let command = self.spec.shown_command();
        let then = match self.spec.run.limits.on_lost {
            OnLost::Kill => format!("Ending `{command}` (pid {pid}) and everything it started"),
            OnLost::Signal => format!(
                "`{command}` (pid {pid}) was sent {}; until it ends, it runs without the lock",
                signals::name(self.spec.run.ending.signal)
            ),
            OnLost::Continue => format!(
                "`{command}` (pid {pid}) runs on without the lock, as --on-lost continue says: somebody else may be at \
                 work beside it"
            ),
        };
        log::error(format_args!("the lease on {} {what}. {then}", self.spec.names));
        if let (Some(Err(error)), Some(program)) = (hook, &self.spec.run.ending.on_lost_exec) {
            log::error(format_args!(
                "cannot run `{}`, the program of --on-lost-exec: {error}; nobody was told but you",
                program.display()
            ));
        }
    }

    fn too_long(&mut self, now: Deadline) {
        self.verdict.is_too_long = true;
        self.ask_to_end(now);
        log::error(format_args!(
            "`{}` (pid {}) ran for longer than its --max-runtime of {}. Ending it and everything it started",
            self.spec.shown_command(),
            self.job.pid.as_raw_nonzero(),
            short(self.spec.run.limits.max_runtime.unwrap_or_default())
        ));
    }

    /// Asks the job to end; kills it after `--kill-after`, or sooner if the lease ends.
    fn ask_to_end(&mut self, now: Deadline) {
        let grace = now.plus(self.spec.kill_after);
        self.set_margin();
        // The command runs without the lock already, so the end of the lease does not matter.
        let runs_without_lock = self.verdict.is_lost && self.verdict.is_too_long;
        let kill_at = if runs_without_lock { grace } else { grace.min(self.deadline.minus(self.margin)) };
        match self.stage {
            // The command ran too long, and now the lease is in danger too.
            Stage::Ending { kill_at: earlier } => {
                self.stage = Stage::Ending { kill_at: earlier.min(kill_at) }
            }
            Stage::Killing { .. } => {}
            Stage::Running if kill_at <= now => self.kill(now),
            Stage::Running => {
                self.stage = Stage::Ending { kill_at };
                self.job.signal_all(self.spec.run.ending.signal, kill_at);
            }
        }
    }

    /// Kills all processes once; the next check handles the rest.
    fn kill(&mut self, now: Deadline) {
        let since = match self.stage {
            Stage::Killing { since } => since,
            _ => now,
        };
        self.stage = Stage::Killing { since };
        let unreached = self.job.kill();
        // A process that this user may not kill, or that hangs in the kernel.
        let is_late = now > since.plus(KILL_MAX);
        let living = if is_late || !unreached.is_empty() { self.job.living() } else { Vec::new() };
        self.only_survivors = is_late || (!unreached.is_empty() && unreached.len() == living.len());
        if self.only_survivors
            && !self.job.is_gone()
            && !std::mem::replace(&mut self.has_logged_survivors, true)
        {
            let then = match self.verdict.is_lost {
                true => format!(
                    "It runs on without {}: end it yourself before somebody takes that",
                    self.spec.names
                ),
                false => format!("{} is held until it ends", self.spec.names),
            };
            log::error(format_args!("could not be ended: {}. {then}", list(&living)));
        }
    }

    fn handle(&mut self, caught: CaughtSignal) -> Result<(), Failure> {
        self.verdict.record(caught);
        match caught.signal {
            Signal::TSTP => return self.stop(false),
            // This process was stopped by a signal that it cannot catch.
            Signal::CONT => _ = self.continue_in_foreground(),
            _ if !caught.is_forwarded() => {}
            signal if self.job.ended.is_some() => {
                self.job.signal_all(signal, Deadline::FAR);
                if matches!(signal, Signal::INT | Signal::QUIT) {
                    self.end_left_behind(signal);
                }
            }
            _ => self.job.forward(caught),
        }
        Ok(())
    }

    /// Continues a job that may now use the terminal. Returns whether it may.
    fn continue_in_foreground(&mut self) -> bool {
        let is_foreground = self.job.take_terminal();
        if is_foreground {
            self.job.signal_all(Signal::CONT, Deadline::FAR);
        }
        is_foreground
    }

    /// Ends the processes that an ended command left behind. The signal alone may not: a shell
    /// without job control starts background processes that ignore INT and QUIT. The second signal
    /// kills at once.
    fn end_left_behind(&mut self, signal: Signal) {
        self.verdict.interrupted_by = Some(signal);
        let now = self.session.bridge.now();
        if self.stage != Stage::Running {
            return self.kill(now);
        }
        self.ask_to_end(now);
        log::info(format_args!(
            "Ending what `{}` left running; again to kill it at once",
            self.spec.shown_command()
        ));
    }

    /// Stops the job before this process, which renews the lease: Ctrl-Z, or the command has
    /// stopped.
    fn stop(&mut self, has_stopped: bool) -> Result<(), Failure> {
        if !has_stopped {
            self.ask_to_stop()?;
        }
        self.job.signal_all(Signal::STOP, Deadline::FAR);
        let stopped = match has_stopped {
            true => stop_process_group(),
            false => stop_process(),
        };
        stopped.map_err(Failure::internal)?;
        self.forward_signals(Duration::ZERO)?;
        // Without a lease, the next check ends the job. (In a foreground group the shell has
        // continued the job with this process, so it runs for a moment.)
        if self.proof.is_valid() {
            self.job.take_terminal();
            self.job.signal_all(Signal::CONT, Deadline::FAR);
        }
        Ok(())
    }

    /// Gives the command time to restore the terminal before it is stopped.
    fn ask_to_stop(&mut self) -> Result<(), Failure> {
        self.job.signal_group(Signal::TSTP);
        let until = self.session.bridge.now().plus(STOP_MAX);
        loop {
            let left = until.since(self.session.bridge.now());
            if self.job.reap() || self.job.ended.is_some() || left.is_zero() {
                return Ok(());
            }
            self.forward_signals(left)?;
        }
    }

    /// Forwards the signals of one wait. A TSTP is not handled again while the job stops.
    fn forward_signals(&mut self, at_most: Duration) -> Result<(), Failure> {
        for caught in self.session.bridge.wait_events(Some(at_most))? {
            self.verdict.record(caught);
            if caught.is_forwarded() {
                self.job.forward(caught);
            }
        }
        Ok(())
    }

    fn wait_for_hook(&mut self) -> Result<(), Failure> {
        let until = self.session.bridge.now().plus(HOOK_MAX);
        loop {
            self.job.reap();
            if self.job.hook.is_none() {
                return Ok(());
            }
            let left = until.since(self.session.bridge.now());
            if left.is_zero() {
                log::info("the program of --on-lost-exec still runs; it is left to itself");
                return Ok(());
            }
            if self.session.bridge.wait_events(Some(left))?.iter().any(|caught| caught.is_fatal()) {
                return Ok(());
            }
        }
    }
}

fn list(processes: &[Process]) -> String {
    const SHOWN_MAX: usize = 5;
    let mut shown: Vec<String> = processes.iter().take(SHOWN_MAX).map(Process::to_string).collect();
    if processes.len() > SHOWN_MAX {
        shown.push(format!("{} more", processes.len() - SHOWN_MAX));
    }
    match shown.is_empty() {
        true => "a process that cannot be seen from here".to_owned(),
        false => shown.join(", "),
    }
}

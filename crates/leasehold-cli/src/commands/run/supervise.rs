//! Watches over the command while it runs: what comes to us goes on to it, and if the lease is lost, or about to be, it
//! is ended in time. One loop, on the main thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Deadline, Loss, Proof};
use rustix::process::Signal;

use super::event_loop::CaughtSignal;
use super::job::{Ended, Job};
use super::processes::{self, Process};
use super::runtime_bridge::{RuntimeBridge, stop_our_group, stop_ourselves};
use super::spec::{MARGIN, RunSpec};
use crate::args::OnLost;
use crate::duration::short;
use crate::exit::Failure;
use crate::output::LogThread;
use crate::signals;

/// How often those are looked at who may end without our hearing of it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often what is being killed is looked at.
const KILLED_EVERY: Duration = Duration::from_millis(5);

/// How long the kernel may take to end what was killed, before that is worth a word.
const DIES_WITHIN: Duration = Duration::from_secs(2);

/// How much earlier everything is killed for each process of the machine, so that all are dead in time: what the kernel takes to
/// end one on a busy machine. (5,000 took 0.5 s, unoptimized, beside five others.)
const MARGIN_PER_PROCESS: Duration = Duration::from_micros(200);

/// And how much earlier for the time that a look at all processes took: to kill them takes about as long, and several turns of a
/// processor that is busy with what the command starts.
const MARGIN_PER_LOOK: u32 = 4;

/// How long a command that was asked to stop has before it is stopped.
const STOPS_WITHIN: Duration = Duration::from_millis(200);

/// How long a hook may run on when everything else is over.
const HOOK_MAX: Duration = Duration::from_secs(10);

/// Why the last renewals failed, as the client tells it.
pub(super) type Trouble = Arc<Mutex<Option<String>>>;

pub(super) struct Supervisor<'a> {
    pub(super) office: &'a mut RuntimeBridge,
    pub(super) plan: &'a RunSpec,
    pub(super) speaker: &'a LogThread,
    pub(super) job: Job,
    pub(super) proof: Proof,
    pub(super) trouble: Trouble,
    started: Deadline,
    /// Until when the lease lasts at least, as far as was seen while it did.
    deadline: Deadline,
    is_lost: bool,
    is_too_long: bool,
    /// What was pressed at the terminal, for the command and for us.
    pressed: Option<Signal>,
    /// Somebody wants the command, and us, to end.
    is_told: bool,
    /// What ended the wait for processes that the command left behind.
    interrupted_by: Option<Signal>,
    stage: Stage,
    /// How long before the lease's deadline everything is killed. It grows with the number of processes.
    margin: Duration,
    /// Only those are left who cannot be ended.
    only_survivors: bool,
    survivors_are_told: bool,
    lingering_is_told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// It was asked to end.
    Asked {
        kill_at: Deadline,
    },
    Killing {
        since: Deadline,
    },
}

/// How it went.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) ended: Option<Ended>,
    pub(super) is_lost: bool,
    pub(super) is_too_long: bool,
    /// Something of it runs on, and nobody can help that.
    pub(super) has_survivors: bool,
    pub(super) pressed: Option<Signal>,
    /// Somebody told us to end, and so the command was.
    pub(super) is_told: bool,
    /// The signal that ended the wait for processes that the command left behind.
    pub(super) interrupted_by: Option<Signal>,
}

impl Verdict {
    /// Whether the command was kept from coming to its own end: by a signal to us, which it may have handled, or by one to
    /// itself. A command that leasehold ended, because it ran too long, was not interrupted, and neither was one that
    /// crashed.
    pub(super) fn is_interrupted(&self) -> bool {
        const INTERRUPTS: [Signal; 5] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::KILL];
        let was_killed = INTERRUPTS.iter().any(|it| self.ended == Some(Ended::Signal(it.as_raw())));
        self.is_told || (was_killed && !self.is_too_long)
    }
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        office: &'a mut RuntimeBridge,
        plan: &'a RunSpec,
        speaker: &'a LogThread,
        job: Job,
        proof: Proof,
        trouble: Trouble,
    ) -> Self {
        let started = office.now();
        Supervisor {
            deadline: started.plus(proof.remaining()),
            office,
            plan,
            speaker,
            job,
            proof,
            trouble,
            started,
            is_lost: false,
            is_too_long: false,
            pressed: None,
            is_told: false,
            interrupted_by: None,
            stage: Stage::Running,
            margin: MARGIN,
            only_survivors: false,
            survivors_are_told: false,
            lingering_is_told: false,
        }
    }

    /// Ends when the command has, and, unless that was asked for, everything it started. Where it fails, nobody minds the
    /// command any more, so nothing of it survives.
    pub(super) fn run(mut self) -> Result<Verdict, Failure> {
        self.office.ears.watch(self.job.end());
        for caught in self.office.listen(Some(Duration::ZERO))? {
            self.note(caught);
            self.job.forward_early(caught);
        }
        loop {
            if self.job.reap() && self.job.has_terminal() {
                self.stopped_at_the_terminal()?;
            }
            if self.is_over() {
                break;
            }
            let now = self.office.now();
            self.look(now);
            let at_most = self.next_look(now);
            for caught in self.office.listen(at_most)? {
                self.hear(caught)?;
            }
        }
        self.job.settle();
        self.wait_for_hook()?;
        Ok(Verdict {
            ended: self.job.ended(),
            is_lost: self.is_lost,
            is_too_long: self.is_too_long,
            has_survivors: self.only_survivors && !self.job.is_gone(),
            pressed: self.pressed,
            is_told: self.is_told,
            interrupted_by: self.interrupted_by,
        })
    }

    fn is_over(&mut self) -> bool {
        if self.job.is_gone() {
            return true;
        }
        if self.stage != Stage::Running {
            // Whoever cannot be ended is waited for, as long as there is a lock to hold meanwhile.
            return self.is_lost && self.only_survivors;
        }
        if self.job.ended().is_none() {
            return false;
        }
        if !self.plan.close && !std::mem::replace(&mut self.lingering_is_told, true) {
            self.speaker.tell(format!(
                "`{}` has ended, but something it started still runs: {}. {} is held until that ends too; --close lets \
                 go at once",
                self.plan.shown(),
                list(&self.job.living()),
                self.plan.names
            ));
        }
        self.plan.close
    }

    /// Whether the lease still lasts, the command may still run, and what was asked of it has been done.
    fn look(&mut self, now: Deadline) {
        let remaining = self.proof.remaining();
        if !remaining.is_zero() {
            self.deadline = now.plus(remaining);
        }
        if !self.is_lost {
            // Renewals have failed, or it would be more.
            if self.plan.on_lost == OnLost::Kill && remaining <= self.plan.ttl / 2 {
                self.set_margin();
            }
            let ends_soon =
                self.plan.on_lost == OnLost::Kill && remaining <= self.plan.kill_after + self.margin;
            match self.proof.loss() {
                Some(loss) => self.lost(Some(loss), now),
                None if ends_soon => self.lost(None, now),
                None => {}
            }
        }
        let runs_out = self.plan.max_runtime.is_some_and(|max| now.since(self.started) >= max);
        if runs_out && self.stage == Stage::Running {
            self.too_long(now);
        }
        match self.stage {
            Stage::Asked { kill_at } if now >= kill_at => self.kill(now),
            Stage::Killing { .. } => self.kill(now),
            _ => {}
        }
    }

    fn set_margin(&mut self) {
        let start = self.office.now();
        drop(self.job.living());
        let look = self.office.now().since(start);
        let each = MARGIN_PER_PROCESS * u32::try_from(processes::count()).unwrap_or(u32::MAX);
        self.margin = MARGIN + each + look * MARGIN_PER_LOOK;
    }

    fn next_look(&self, now: Deadline) -> Option<Duration> {
        let remaining = self.proof.remaining();
        let lease = match (self.is_lost, self.plan.on_lost) {
            (true, _) => None,
            // There may be more processes by then.
            (false, OnLost::Kill) if remaining <= self.plan.ttl / 2 => {
                Some(remaining.saturating_sub(self.plan.kill_after + self.margin).min(LOOK_EVERY))
            }
            (false, OnLost::Kill) => Some(remaining - self.plan.ttl / 2),
            (false, OnLost::Signal | OnLost::Continue) => Some(remaining),
        };
        let stage = match self.stage {
            Stage::Killing { .. } if self.only_survivors => Some(LOOK_EVERY),
            Stage::Killing { .. } => Some(KILLED_EVERY),
            Stage::Asked { kill_at } => Some(kill_at.since(now)),
            Stage::Running => self.plan.max_runtime.map(|max| self.started.plus(max).since(now)),
        };
        // Of orphans we may not hear.
        let orphans = self.job.ended().map(|_| LOOK_EVERY);
        let unreaped = self.job.has_more_to_reap().then_some(Duration::ZERO);
        [lease, stage, orphans, unreaped].into_iter().flatten().min()
    }

    /// Acts first and speaks then.
    fn lost(&mut self, loss: Option<Loss>, now: Deadline) {
        self.is_lost = true;
        let pid = self.job.pid();
        match self.plan.on_lost {
            OnLost::Kill => self.ask_to_end(now),
            OnLost::Signal if self.job.ended().is_some() => {
                self.job.signal_all(self.plan.signal, Deadline::FAR);
            }
            OnLost::Signal => self.job.signal(self.plan.signal),
            OnLost::Continue => {}
        }
        let word = loss.unwrap_or(Loss::Unreachable).as_str();
        let hook = self.plan.hook_command(self.proof.fence(), word).map(|hook| self.job.start_hook(hook));
        let what = match loss {
            Some(loss) => format!("was lost: {loss}"),
            None => {
                let trouble = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                // What to do about it is another matter now.
                let why =
                    trouble.as_deref().and_then(|why| why.split("; ").next()).unwrap_or("no answer in time");
                format!("could not be renewed ({why}) and ends in {}", short(self.proof.remaining()))
            }
        };
        let command = self.plan.shown();
        let then = match self.plan.on_lost {
            OnLost::Kill => format!("Ending `{command}` (pid {pid}) and everything it started"),
            OnLost::Signal => format!(
                "`{command}` (pid {pid}) was sent {}; until it ends, it runs without the lock",
                signals::name(self.plan.signal)
            ),
            OnLost::Continue => format!(
                "`{command}` (pid {pid}) runs on without the lock, as --on-lost continue says: somebody else may be at \
                 work beside it"
            ),
        };
        self.speaker.error(format!("the lease on {} {what}. {then}", self.plan.names));
        if let (Some(Err(error)), Some(program)) = (hook, &self.plan.hook) {
            self.speaker.error(format!(
                "cannot run `{}`, the program of --on-lost-exec: {error}; nobody was told but you",
                program.display()
            ));
        }
    }

    fn too_long(&mut self, now: Deadline) {
        self.is_too_long = true;
        self.ask_to_end(now);
        self.speaker.error(format!(
            "`{}` (pid {}) ran for longer than its --max-runtime of {}. Ending it and everything it started",
            self.plan.shown(),
            self.job.pid(),
            short(self.plan.max_runtime.unwrap_or_default())
        ));
    }

    /// With as much grace as was asked for and the lease allows.
    fn ask_to_end(&mut self, now: Deadline) {
        let grace = now.plus(self.plan.kill_after);
        self.set_margin();
        // A deadline that was given up before is of no concern.
        let runs_on_without = self.is_lost && self.is_too_long;
        let kill_at = if runs_on_without { grace } else { grace.min(self.deadline.minus(self.margin)) };
        match self.stage {
            // Ran too long, and now the lease is in danger too.
            Stage::Asked { kill_at: earlier } => self.stage = Stage::Asked { kill_at: earlier.min(kill_at) },
            Stage::Killing { .. } => {}
            Stage::Running if kill_at <= now => self.kill(now),
            Stage::Running => {
                self.stage = Stage::Asked { kill_at };
                self.job.signal_all(self.plan.signal, kill_at);
            }
        }
    }

    /// Once; whoever is left is met at the next look.
    fn kill(&mut self, now: Deadline) {
        let since = match self.stage {
            Stage::Killing { since } => since,
            _ => now,
        };
        self.stage = Stage::Killing { since };
        let unreached = self.job.kill();
        // Somebody who is not ours to kill, or whom the kernel does not let go.
        let is_late = now > since.plus(DIES_WITHIN);
        let living = if is_late || !unreached.is_empty() { self.job.living() } else { Vec::new() };
        self.only_survivors = is_late || (!unreached.is_empty() && unreached.len() == living.len());
        if self.only_survivors
            && !self.job.is_gone()
            && !std::mem::replace(&mut self.survivors_are_told, true)
        {
            let then = match self.is_lost {
                true => format!(
                    "It runs on without {}: end it yourself before somebody takes that",
                    self.plan.names
                ),
                false => format!("{} is held until it ends", self.plan.names),
            };
            self.speaker.error(format!("could not be ended: {}. {then}", list(&living)));
        }
    }

    /// Records for the verdict that this signal came. Every caught signal is recorded, wherever it is caught.
    fn note(&mut self, caught: CaughtSignal) {
        if caught.is_pressed() {
            self.pressed = Some(caught.signal);
        }
        self.is_told |= caught.means_the_end();
    }

    fn hear(&mut self, caught: CaughtSignal) -> Result<(), Failure> {
        self.note(caught);
        match caught.signal {
            Signal::TSTP => self.stop(false),
            // Somebody stopped us in a way we could not see.
            Signal::CONT if self.job.take_terminal() => {
                self.job.signal_all(Signal::CONT, Deadline::FAR);
                Ok(())
            }
            _ if !caught.is_forwarded() => Ok(()),
            signal if self.job.ended().is_some() => {
                self.job.signal_all(signal, Deadline::FAR);
                if matches!(signal, Signal::INT | Signal::QUIT) {
                    self.end_the_rest(signal);
                }
                Ok(())
            }
            _ => {
                self.job.forward(caught);
                Ok(())
            }
        }
    }

    /// Ends what an ended command left behind. The signal alone may not: a shell without job control starts background
    /// processes that ignore INT and QUIT. The second time, without any grace.
    fn end_the_rest(&mut self, signal: Signal) {
        self.interrupted_by = Some(signal);
        let now = self.office.now();
        if self.stage != Stage::Running {
            return self.kill(now);
        }
        self.ask_to_end(now);
        self.speaker
            .tell(format!("Ending what `{}` left running; again to kill it at once", self.plan.shown()));
    }

    /// Ctrl-Z: nothing of the job runs while nobody renews its lease.
    fn stop(&mut self, has_stopped: bool) -> Result<(), Failure> {
        if !has_stopped {
            self.ask_to_stop()?;
        }
        self.job.signal_all(Signal::STOP, Deadline::FAR);
        let stopped = match has_stopped {
            true => stop_our_group(),
            false => stop_ourselves(),
        };
        stopped.map_err(Failure::internal)?;
        // Whatever stopped us has been obeyed.
        for caught in self.office.listen(Some(Duration::ZERO))? {
            self.note(caught);
            if caught.is_forwarded() {
                self.job.forward(caught);
            }
        }
        // The next look ends what has lost its lease meanwhile. (In a foreground group the shell has continued it together
        // with us, so that it runs for a moment.)
        if self.proof.is_valid() {
            self.job.take_terminal();
            self.job.signal_all(Signal::CONT, Deadline::FAR);
        }
        Ok(())
    }

    /// It may want to put the terminal in order first.
    fn ask_to_stop(&mut self) -> Result<(), Failure> {
        self.job.ask_to_stop();
        let until = self.office.now().plus(STOPS_WITHIN);
        loop {
            let left = until.since(self.office.now());
            if self.job.reap() || self.job.ended().is_some() || left.is_zero() {
                return Ok(());
            }
            for caught in self.office.listen(Some(left))? {
                self.note(caught);
                if caught.is_forwarded() {
                    self.job.forward(caught);
                }
            }
        }
    }

    /// The command wants the terminal, or to be stopped, or its user wants that.
    fn stopped_at_the_terminal(&mut self) -> Result<(), Failure> {
        match self.job.take_terminal() {
            true => {
                self.job.signal_all(Signal::CONT, Deadline::FAR);
                Ok(())
            }
            false => self.stop(true),
        }
    }

    fn wait_for_hook(&mut self) -> Result<(), Failure> {
        let until = self.office.now().plus(HOOK_MAX);
        loop {
            self.job.reap();
            let left = until.since(self.office.now());
            match self.job.hook_runs() {
                false => return Ok(()),
                true if left.is_zero() => {
                    self.speaker
                        .tell("the program of --on-lost-exec still runs; it is left to itself".to_owned());
                    return Ok(());
                }
                true => {
                    if self.office.listen(Some(left))?.iter().any(|caught| caught.ends()) {
                        return Ok(());
                    }
                }
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

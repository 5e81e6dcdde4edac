//! The command as a process, and everything that it starts.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use leasehold::{Clock, Deadline};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, getsid, kill_current_process_group,
    kill_process, kill_process_group, pidfd_open, wait,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::event_loop::CaughtSignal;
use super::processes::{Family, Process};

/// How long one call reaps at most: a command may start processes faster than they are reaped.
const REAP_MAX: Duration = Duration::from_millis(10);

/// After how many reaped processes the clock is read.
const REAP_BATCH: usize = 64;

/// How long one scan of all processes may take.
const SCAN_MAX: Duration = Duration::from_millis(250);

/// How long children are killed as they appear, before and after the scan of all processes.
const SWEEP_MAX: Duration = Duration::from_millis(10);

/// The pause after a sweep that found nothing new: killed processes need the processor to die.
const SWEEP_PAUSE: Duration = Duration::from_micros(200);

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Exit(u8),
    Signal(i32),
}

impl Ended {
    fn from_status(status: WaitStatus) -> Option<Self> {
        let exit = status.exit_status().map(|code| Ended::Exit(code as u8));
        exit.or_else(|| status.terminating_signal().map(Ended::Signal))
    }

    /// The exit code by the rule of shells.
    pub(super) fn code(self) -> u8 {
        match self {
            Ended::Exit(code) => code,
            Ended::Signal(signal) => 128_u8.saturating_add(signal as u8),
        }
    }
}

#[derive(Debug)]
pub(super) struct Job {
    pid: Pid,
    /// The command's own process group, if it has one.
    group: Option<Pid>,
    family: Family,
    terminal: Option<File>,
    reaper: Reaper,
    /// Killed children that are not reaped yet.
    killed: HashSet<Pid>,
    /// The running program of `--on-lost-exec`, which is not part of the job.
    hook: Option<Pid>,
    /// The job has ended, or what is left of it may run on; otherwise the drop kills it.
    is_settled: bool,
}

impl Job {
    /// Must be called on the main thread: the command dies with the thread that started it.
    ///
    /// A command in the foreground group stays in it: in its own group it could neither read the
    /// terminal nor receive its Ctrl-C. Elsewhere it gets its own group, which can be signalled as
    /// a whole.
    pub(super) fn start(mut command: Command, lifeline: Option<OwnedFd>, clock: Clock) -> io::Result<Self> {
        let terminal = File::open("/dev/tty").ok();
        let is_foreground = terminal.as_ref().is_some_and(|tty| tcgetpgrp(tty) == Ok(getpgrp()));
        if !is_foreground {
            command.process_group(0);
        }
        let family = Family::found()?;
        if let Some(lifeline) = &lifeline {
            fcntl_setfd(lifeline, FdFlags::empty())?;
        }
        let child = command.spawn()?;
        drop(lifeline);
        let pid = Pid::from_child(&child);
        let group = (!is_foreground).then_some(pid);
        let reaper = Reaper::new(pid, clock);
        Ok(Job {
            pid,
            group,
            family,
            terminal,
            reaper,
            killed: HashSet::new(),
            hook: None,
            is_settled: false,
        })
    }

    /// Starts a program that is not part of the job.
    pub(super) fn start_hook(&mut self, mut command: Command) -> io::Result<()> {
        let pid = Pid::from_child(&command.process_group(0).spawn()?);
        self.family.leave_out(pid);
        self.hook = Some(pid);
        self.reaper.is_alone = false;
        Ok(())
    }

    /// Lets what is left of the job run on when this is dropped.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// A descriptor that becomes readable when the command ends, for parents that ignore SIGCHLD.
    pub(super) fn end(&self) -> Option<OwnedFd> {
        pidfd_open(self.pid, PidfdFlags::empty()).ok()
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.reaper.ended
    }

    pub(super) fn hook_runs(&self) -> bool {
        self.hook.is_some()
    }

    /// Whether the last `reap` reached its limit, so that more may have ended.
    pub(super) fn has_more_to_reap(&self) -> bool {
        self.reaper.has_more
    }

    /// Reaps processes that have ended or stopped, up to a limit. Returns whether the command
    /// itself stopped at the terminal.
    pub(super) fn reap(&mut self) -> bool {
        self.reaper.reap();
        let reaped = std::mem::take(&mut self.reaper.reaped);
        self.forget(reaped);
        std::mem::take(&mut self.reaper.has_stopped)
    }

    /// Forgets reaped processes: the kernel may reuse their pids from now on.
    fn forget(&mut self, reaped: HashSet<Pid>) {
        for pid in reaped {
            self.hook.take_if(|hook| *hook == pid);
            self.killed.remove(&pid);
            self.family.forget(pid);
        }
    }

    /// The processes of the job that still run, as far as `/proc` shows them.
    pub(super) fn living(&mut self) -> Vec<Process> {
        self.scan().unwrap_or_default()
    }

    /// Scans all processes. It reaps meanwhile, so that a command which forks and exits does not
    /// prolong the scan, and fails after [`SCAN_MAX`].
    fn scan(&mut self) -> io::Result<Vec<Process>> {
        if self.reaper.is_alone {
            return Ok(Vec::new());
        }
        let until = self.reaper.clock.now().plus(SCAN_MAX);
        let mut reaped = HashSet::new();
        let living = self.family.living(&mut reaped, &mut |reaped| {
            self.reaper.reap();
            reaped.extend(self.reaper.reaped.drain());
            self.reaper.clock.now() < until
        });
        self.forget(reaped);
        living
    }

    /// Whether nothing of the job is left.
    pub(super) fn is_gone(&mut self) -> bool {
        self.reap();
        if self.ended().is_none() || self.reaper.is_alone {
            return self.ended().is_some();
        }
        if !self.family.has_strangers() {
            return false;
        }
        // With strangers among the children, `wait` does not tell. The second scan finds a process
        // that the first one missed because its parent died meanwhile.
        let mut finds_none = || self.scan().is_ok_and(|living| living.is_empty());
        finds_none() && finds_none()
    }

    /// Forwards a signal that arrived while the command started: the terminal may have sent it to
    /// the group before the command was in it.
    pub(super) fn forward_early(&mut self, caught: CaughtSignal) {
        self.forward(CaughtSignal { from_kernel: self.is_hung_up(caught), ..caught });
    }

    /// Whether the terminal hung up, which the kernel signals only to the leader of the session.
    fn is_hung_up(&self, caught: CaughtSignal) -> bool {
        caught.signal == Signal::HUP && caught.from_kernel && getsid(None) == Ok(getpid())
    }

    /// Forwards a signal to the command, unless the terminal has sent it to the whole group.
    pub(super) fn forward(&mut self, caught: CaughtSignal) {
        match (self.group, caught.signal) {
            // These end a process that does not expect them, so only the command gets them.
            (_, Signal::USR1 | Signal::USR2) | (Some(_), Signal::WINCH) => self.signal(caught.signal),
            (Some(_), signal) => self.signal_group(signal),
            (None, Signal::HUP) if self.is_hung_up(caught) => {
                let _ = kill_current_process_group(Signal::HUP);
            }
            (None, _) if caught.from_kernel => {}
            (None, signal) => self.signal(signal),
        }
    }

    /// Signals the group as a whole, so that processes that start meanwhile receive it too.
    fn signal_group(&mut self, signal: Signal) {
        let Some(group) = self.group else { return };
        // The kernel may have reused the number of an empty group.
        if self.ended().is_none() || self.living().iter().any(|process| process.group == self.group) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Signals the command alone.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended().is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Signals the command and everything it started, one process after the other until this
    /// deadline.
    pub(super) fn signal_all(&mut self, signal: Signal, until: Deadline) {
        if self.reaper.is_alone {
            return;
        }
        self.signal_group(signal);
        let mut others = self.living();
        // Once only: a process that is stopped again right after its CONT must stay stopped.
        others.retain(|process| self.group.is_none() || self.group != process.group);
        self.signal_each(&others, signal, until);
        // A stopped process handles a signal only once it continues.
        if !matches!(signal, Signal::STOP | Signal::CONT) {
            self.signal_group(Signal::CONT);
            self.signal_each(&others, Signal::CONT, until);
        }
    }

    fn signal_each(&self, processes: &[Process], signal: Signal, until: Deadline) {
        for process in processes.iter().take_while(|_| self.reaper.clock.now() < until) {
            let _ = process.signal(signal);
        }
    }

    /// Kills everything without waiting for the deaths. Returns the processes that could not be
    /// killed.
    ///
    /// The command and its group come first: they need no scan, which takes milliseconds, and the
    /// command cannot start others meanwhile. Children are killed next, as they appear, and then
    /// whatever else descends from the command.
    pub(super) fn kill(&mut self) -> Vec<Process> {
        self.signal(Signal::KILL);
        self.signal_group(Signal::KILL);
        self.kill_children();
        if self.reaper.is_alone {
            return Vec::new();
        }
        // The scan finds descendants that are not children. It has no limit; children are killed
        // meanwhile.
        let mut reaped = HashSet::new();
        let mut next_sweep = self.reaper.clock.now();
        let living = self.family.living(&mut reaped, &mut |reaped| {
            self.reaper.reap();
            reaped.extend(self.reaper.reaped.drain());
            // A sweep of many children takes long; the scan gets most of the time.
            let start = self.reaper.clock.now();
            if !self.reaper.has_more && start >= next_sweep {
                self.family.kill_children(&mut self.killed);
                let end = self.reaper.clock.now();
                next_sweep = end.plus(4 * end.since(start));
            }
            true
        });
        self.forget(reaped);
        let mut unreached = living.unwrap_or_default();
        unreached.retain(|process| process.signal(Signal::KILL).is_err());
        self.kill_children();
        unreached
    }

    fn kill_children(&mut self) {
        let until = self.reaper.clock.now().plus(SWEEP_MAX);
        loop {
            self.reap();
            if self.reaper.is_alone || self.reaper.clock.now() >= until {
                return;
            }
            if self.family.kill_children(&mut self.killed) == 0 {
                std::thread::sleep(SWEEP_PAUSE);
            }
        }
    }

    /// Sends TSTP, so that the command can restore the terminal. If it shares this process's group,
    /// the terminal has sent it already.
    pub(super) fn ask_to_stop(&mut self) {
        self.signal_group(Signal::TSTP);
    }

    /// Whether there may be a shell that has to learn of stops.
    pub(super) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// After `fg`: makes the command's own group the foreground group. Returns whether it did.
    pub(super) fn take_terminal(&self) -> bool {
        match (self.group, &self.terminal) {
            (Some(group), Some(terminal)) if tcgetpgrp(terminal) == Ok(getpgrp()) => {
                tcsetpgrp(terminal, group).is_ok()
            }
            _ => false,
        }
    }
}

/// Reaps children.
#[derive(Debug)]
struct Reaper {
    command: Pid,
    clock: Clock,
    ended: Option<Ended>,
    /// The command stopped at the terminal.
    has_stopped: bool,
    /// No child is left at all.
    is_alone: bool,
    /// The last call reached its limit: more may have ended.
    has_more: bool,
    /// Reaped processes that [`Job::forget`] has not handled yet.
    reaped: HashSet<Pid>,
}

impl Reaper {
    fn new(command: Pid, clock: Clock) -> Self {
        let reaped = HashSet::new();
        Reaper { command, clock, ended: None, has_stopped: false, is_alone: false, has_more: false, reaped }
    }

    fn reap(&mut self) {
        let until = self.clock.now().plus(REAP_MAX);
        self.has_more = true;
        while self.has_more && self.clock.now() < until {
            for _ in 0..REAP_BATCH {
                match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                    Ok(Some((pid, status))) => self.note(pid, status),
                    Err(Errno::INTR) => {}
                    end => {
                        self.has_more = false;
                        self.is_alone = end.is_err();
                        break;
                    }
                }
            }
        }
    }

    fn note(&mut self, pid: Pid, status: WaitStatus) {
        let Some(ended) = Ended::from_status(status) else {
            self.has_stopped |= pid == self.command && is_job_control(status.stopping_signal());
            return;
        };
        if pid == self.command {
            self.ended = Some(ended);
        }
        self.reaped.insert(pid);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.is_settled {
            self.kill();
        }
    }
}

fn is_job_control(signal: Option<i32>) -> bool {
    [Signal::TSTP, Signal::TTIN, Signal::TTOU].into_iter().any(|known| signal == Some(known.as_raw()))
}

//! The command as a process, with all its descendants.

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
use super::processes::{self, Descendants, Process};

/// The time limit of one reap: a command may start processes faster than they are reaped.
const REAP_MAX: Duration = Duration::from_millis(10);

/// The number of reaped processes after which the clock is read.
const REAP_BATCH: usize = 64;

const SCAN_MAX: Duration = Duration::from_millis(250);

/// The time limit of the sweeps before and after the scan, which kill children as they appear.
const SWEEP_MAX: Duration = Duration::from_millis(250);

/// After this many sweeps in a row without a new child, each sweep is followed by a pause, in which
/// killed processes get the processor to die. Processes that fork and exit run ahead meanwhile.
const SWEEPS_WITHOUT_PAUSE: u32 = 50;

/// After this many sweeps in a row without a new child, no further child is expected.
const SWEEPS_WITHOUT_CHILD: u32 = 60;

const SWEEP_PAUSE: Duration = Duration::from_micros(200);

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
    pub(super) pid: Pid,
    /// The command's own process group, if it has one.
    group: Option<Pid>,
    descendants: Descendants,
    terminal: Option<File>,
    clock: Clock,
    pub(super) ended: Option<Ended>,
    has_stopped: bool,
    /// No child is left at all.
    is_alone: bool,
    /// The last `reap` reached its limit: more processes may have ended.
    pub(super) has_more_to_reap: bool,
    /// Reaped processes for [`forget_reaped`](Job::forget_reaped).
    reaped: HashSet<Pid>,
    /// Killed children that are not reaped yet.
    killed: HashSet<Pid>,
    /// The running program of `--on-lost-exec`, which is not part of the job.
    pub(super) hook: Option<Pid>,
    /// The job has ended, or its rest may run on. Otherwise the drop kills it.
    pub(super) is_settled: bool,
}

impl Job {
    /// Starts the command, on the main thread: the command dies with its starting thread.
    ///
    /// A command in the foreground group stays there: in its own group it could neither read the
    /// terminal nor receive its Ctrl-C. Elsewhere it gets its own group, signalled as a whole.
    pub(super) fn start(mut command: Command, lifeline: Option<OwnedFd>, clock: Clock) -> io::Result<Self> {
        let terminal = File::open("/dev/tty").ok();
        let is_foreground = terminal.as_ref().is_some_and(|tty| tcgetpgrp(tty) == Ok(getpgrp()));
        if !is_foreground {
            command.process_group(0);
        }
        let descendants = Descendants::adopt()?;
        if let Some(lifeline) = &lifeline {
            fcntl_setfd(lifeline, FdFlags::empty())?;
        }
        let pid = Pid::from_child(&command.spawn()?);
        drop(lifeline);
        Ok(Job {
            pid,
            group: (!is_foreground).then_some(pid),
            descendants,
            terminal,
            clock,
            ended: None,
            has_stopped: false,
            is_alone: false,
            has_more_to_reap: false,
            reaped: HashSet::new(),
            killed: HashSet::new(),
            hook: None,
            is_settled: false,
        })
    }

    pub(super) fn start_hook(&mut self, mut command: Command) -> io::Result<()> {
        let pid = Pid::from_child(&command.process_group(0).spawn()?);
        self.descendants.exclude(pid);
        self.hook = Some(pid);
        self.is_alone = false;
        Ok(())
    }

    /// A descriptor that becomes readable when the command ends, for parents that ignore SIGCHLD.
    pub(super) fn end(&self) -> Option<OwnedFd> {
        pidfd_open(self.pid, PidfdFlags::empty()).ok()
    }

    /// Reaps processes, up to a limit. Returns whether the command stopped at the terminal.
    pub(super) fn reap(&mut self) -> bool {
        self.reap_children();
        self.forget_reaped();
        std::mem::take(&mut self.has_stopped)
    }

    fn reap_children(&mut self) {
        let until = self.clock.now().plus(REAP_MAX);
        self.has_more_to_reap = true;
        while self.has_more_to_reap && self.clock.now() < until {
            for _ in 0..REAP_BATCH {
                match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                    Ok(Some((pid, status))) => self.note(pid, status),
                    Err(Errno::INTR) => {}
                    end => {
                        self.has_more_to_reap = false;
                        self.is_alone = end.is_err();
                        break;
                    }
                }
            }
        }
    }

    fn note(&mut self, pid: Pid, status: WaitStatus) {
        let Some(ended) = Ended::from_status(status) else {
            self.has_stopped |= pid == self.pid && is_job_control(status.stopping_signal());
            return;
        };
        if pid == self.pid {
            self.ended = Some(ended);
        }
        self.reaped.insert(pid);
    }

    /// Forgets reaped processes: the kernel may now reuse their pids.
    fn forget_reaped(&mut self) {
        for pid in self.reaped.drain() {
            self.hook.take_if(|hook| *hook == pid);
            self.killed.remove(&pid);
            self.descendants.forget(pid);
        }
    }

    /// The processes of the job that still run, as far as `/proc` shows them.
    pub(super) fn living(&mut self) -> Vec<Process> {
        self.scan_briefly().unwrap_or_default()
    }

    /// Scans all processes; fails after [`SCAN_MAX`].
    fn scan_briefly(&mut self) -> io::Result<Vec<Process>> {
        if self.is_alone {
            return Ok(Vec::new());
        }
        let until = self.clock.now().plus(SCAN_MAX);
        self.scan(|job| job.clock.now() < until)
    }

    /// Scans while `goes_on`, and reaps, so that processes that fork and exit do not prolong it.
    fn scan(&mut self, mut goes_on: impl FnMut(&mut Self) -> bool) -> io::Result<Vec<Process>> {
        let all = processes::all(&mut || {
            self.reap_children();
            goes_on(self)
        });
        let living = all.map(|all| self.descendants.living(&all, &self.reaped));
        self.forget_reaped();
        living
    }

    /// Returns whether no process of the job is left.
    pub(super) fn is_gone(&mut self) -> bool {
        self.reap();
        if self.ended.is_none() || self.is_alone {
            return self.ended.is_some();
        }
        if !self.descendants.has_excluded() {
            return false;
        }
        // With excluded children, `wait` does not tell. The second scan finds a process that the
        // first one missed because its parent died meanwhile.
        let mut finds_none = || self.scan_briefly().is_ok_and(|living| living.is_empty());
        finds_none() && finds_none()
    }

    /// Forwards a signal that arrived before the command was in the terminal's group.
    pub(super) fn forward_early(&mut self, caught: CaughtSignal) {
        self.forward(CaughtSignal { from_kernel: self.is_hung_up(caught), ..caught });
    }

    /// Returns whether the terminal hung up, which the kernel signals only to the session's leader.
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

    /// Signals the command's own group, so that processes that start meanwhile receive it too. In a
    /// shared group, the terminal signals the command itself.
    pub(super) fn signal_group(&mut self, signal: Signal) {
        let Some(group) = self.group else { return };
        // The kernel may have reused the number of an empty group.
        if self.ended.is_none() || self.living().iter().any(|process| process.group == self.group) {
            let _ = kill_process_group(group, signal);
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Signals the command and its descendants, one after the other until this deadline.
    pub(super) fn signal_all(&mut self, signal: Signal, until: Deadline) {
        if self.is_alone {
            return;
        }
        self.signal_group(signal);
        let mut others = self.living();
        // Once only: a process that stops again right after its CONT must stay stopped.
        others.retain(|process| self.group.is_none() || self.group != process.group);
        self.signal_each(&others, signal, until);
        // A stopped process handles a signal only once it continues.
        if !matches!(signal, Signal::STOP | Signal::CONT) {
            self.signal_group(Signal::CONT);
            self.signal_each(&others, Signal::CONT, until);
        }
    }

    fn signal_each(&self, processes: &[Process], signal: Signal, until: Deadline) {
        for process in processes.iter().take_while(|_| self.clock.now() < until) {
            let _ = process.signal(signal);
        }
    }

    /// Kills all processes without waiting for their end. Returns those that could not be killed.
    ///
    /// The command and its group come first: they need no scan, which takes milliseconds, and the
    /// command can start no others meanwhile. Its children follow, then all other descendants.
    pub(super) fn kill(&mut self) -> Vec<Process> {
        self.signal(Signal::KILL);
        self.signal_group(Signal::KILL);
        self.kill_children();
        if self.is_alone {
            return Vec::new();
        }
        // The scan finds the other descendants. It has no limit: children are killed meanwhile.
        let mut next_sweep = self.clock.now();
        let living = self.scan(|job| {
            // A sweep of many children takes long; the scan gets most of the time.
            let start = job.clock.now();
            if !job.has_more_to_reap && start >= next_sweep {
                job.descendants.kill_children(&mut job.killed);
                let end = job.clock.now();
                next_sweep = end.plus(4 * end.since(start));
            }
            true
        });
        let mut unreached = living.unwrap_or_default();
        unreached.retain(|process| process.signal(Signal::KILL).is_err());
        self.kill_children();
        unreached
    }

    /// Kills children until no new one appears.
    ///
    /// It counts sweeps and not time: on a busy machine, most of the time belongs to processes that
    /// fork and exit, and a sweep is what overtakes them.
    fn kill_children(&mut self) {
        let until = self.clock.now().plus(SWEEP_MAX);
        let mut without_child = 0;
        loop {
            self.reap();
            if self.is_alone || without_child == SWEEPS_WITHOUT_CHILD || self.clock.now() >= until {
                return;
            }
            match self.descendants.kill_children(&mut self.killed) {
                0 => without_child += 1,
                _ => without_child = 0,
            }
            if without_child > SWEEPS_WITHOUT_PAUSE {
                std::thread::sleep(SWEEP_PAUSE);
            }
        }
    }

    /// Returns whether a shell may have to learn of stops.
    pub(super) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Makes the command's own group the foreground group after `fg`. Returns whether it did.
    pub(super) fn take_terminal(&self) -> bool {
        match (self.group, &self.terminal) {
            (Some(group), Some(terminal)) if tcgetpgrp(terminal) == Ok(getpgrp()) => {
                tcsetpgrp(terminal, group).is_ok()
            }
            _ => false,
        }
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

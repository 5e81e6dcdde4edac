//! The command as a process, and everything it starts.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgrp, getpid, getsid, kill_current_process_group,
    kill_process, kill_process_group, pidfd_open, wait,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::ears::Caught;
use super::processes::{Family, Process};

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

    /// As shells say it.
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
    /// Its own process group, where it has one.
    group: Option<Pid>,
    family: Family,
    terminal: Option<File>,
    ended: Option<Ended>,
    /// No child is left at all.
    is_alone: bool,
    /// A program that was started for ourselves, and still runs.
    hook: Option<Pid>,
    /// Somebody has seen to its end, or does not mind what is left.
    is_settled: bool,
}

impl Job {
    /// Must be called on the main thread: the command dies with the thread that started it.
    ///
    /// In a foreground group the command stays in it: in a group of its own it could neither read the terminal nor hear its
    /// Ctrl-C. Elsewhere it gets its own, which can be signalled as a whole.
    pub(super) fn start(mut command: Command, lifeline: Option<OwnedFd>) -> io::Result<Self> {
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
        Ok(Job { pid, group, family, terminal, ended: None, is_alone: false, hook: None, is_settled: false })
    }

    /// Starts a program that is not part of the job.
    pub(super) fn start_hook(&mut self, mut command: Command) -> io::Result<()> {
        let pid = Pid::from_child(&command.process_group(0).spawn()?);
        self.family.leave_out(pid);
        self.hook = Some(pid);
        self.is_alone = false;
        Ok(())
    }

    /// Until this is said, nothing of it survives the one who minds it.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }

    /// Tells when the command ends, whether or not we hear of the deaths of children.
    pub(super) fn end(&self) -> Option<OwnedFd> {
        pidfd_open(self.pid, PidfdFlags::empty()).ok()
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    pub(super) fn hook_runs(&self) -> bool {
        self.hook.is_some()
    }

    /// Takes note of everybody who has ended or stopped; says whether the command itself stopped at the terminal.
    pub(super) fn reap(&mut self) -> bool {
        let mut has_stopped = false;
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => match Ended::from_status(status) {
                    Some(ended) => self.note(pid, ended),
                    None => has_stopped |= pid == self.pid && is_job_control(status.stopping_signal()),
                },
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.is_alone = true;
                    break;
                }
            }
        }
        has_stopped
    }

    fn note(&mut self, pid: Pid, ended: Ended) {
        if pid == self.pid {
            self.ended = Some(ended);
        }
        if self.hook == Some(pid) {
            self.hook = None;
        }
        self.family.forget(pid);
    }

    /// Everything of the job that still runs, as far as it can be seen.
    pub(super) fn living(&self) -> Vec<Process> {
        if self.is_alone { Vec::new() } else { self.family.living().unwrap_or_default() }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_gone(&mut self) -> bool {
        self.reap();
        // The kernel knows best. Where there are strangers its answer is no help; then a look has to do, and a second one for
        // whoever was missed because its parent died under the first.
        let sees_nobody = |family: &Family| family.living().is_ok_and(|living| living.is_empty());
        let looks_gone = || sees_nobody(&self.family) && sees_nobody(&self.family);
        self.ended.is_some() && (self.is_alone || (self.family.has_strangers() && looks_gone()))
    }

    /// What came while it was being started: the terminal may have sent it to all of us before the command was one of us.
    pub(super) fn forward_early(&self, caught: Caught) {
        match self.is_hung_up(caught) {
            true => self.forward(caught),
            false => self.forward(Caught { from_kernel: false, ..caught }),
        }
    }

    /// A terminal that goes away tells only the one who leads its session; the others hear of it when that one dies.
    fn is_hung_up(&self, caught: Caught) -> bool {
        caught.signal == Signal::HUP && caught.from_kernel && getsid(None) == Ok(getpid())
    }

    /// What came to us goes on to the command, unless the terminal has sent it to all of us.
    pub(super) fn forward(&self, caught: Caught) {
        match (self.group, caught.signal) {
            // These mean something to the one they are sent to, and the end to others.
            (_, Signal::USR1 | Signal::USR2) | (Some(_), Signal::WINCH) => self.signal(caught.signal),
            (Some(_), signal) => self.signal_group(signal),
            (None, Signal::HUP) if self.is_hung_up(caught) => {
                let _ = kill_current_process_group(Signal::HUP);
            }
            (None, _) if caught.from_kernel => {}
            (None, signal) => self.signal(signal),
        }
    }

    /// As one, so that what is being started meanwhile gets it too.
    fn signal_group(&self, signal: Signal) {
        let Some(group) = self.group else { return };
        // The number of a group that is empty may be another's by now.
        if self.ended.is_none() || self.living().iter().any(|process| process.group == self.group) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// To the command alone.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// To everything the command started, and to itself. Says who could not be reached.
    pub(super) fn signal_all(&self, signal: Signal) -> Vec<Process> {
        if self.is_alone {
            return Vec::new();
        }
        self.signal_group(signal);
        if self.group.is_none() && signal == Signal::KILL {
            // Even if there is no descriptor left to look for others with.
            self.signal(signal);
        }
        // Twice is too often: who is continued, and stopped by somebody at once, must not be continued again.
        let in_group =
            |process: &Process| signal != Signal::KILL && self.group.is_some() && self.group == process.group;
        let unreached = self.family.signal(signal, |process| !in_group(process));
        // What is stopped hears nothing else.
        if !matches!(signal, Signal::KILL | Signal::STOP | Signal::CONT) {
            self.signal_all(Signal::CONT);
        }
        unreached
    }

    /// Kills everything, and waits for nobody. Says who could not be reached.
    pub(super) fn kill(&mut self) -> Vec<Process> {
        const TRIES: u32 = 50;
        let unreached = self.signal_all(Signal::KILL);
        for _ in 0..TRIES {
            self.reap();
            if self.is_alone {
                return Vec::new();
            }
            self.family.kill_children();
        }
        unreached
    }

    /// A polite request: the command may want to put the terminal in order first. Where it shares our group, the terminal
    /// has asked it already.
    pub(super) fn ask_to_stop(&self) {
        self.signal_group(Signal::TSTP);
    }

    /// Whether there may be a shell that has to be told of stops.
    pub(super) fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// After `fg`: a command with a group of its own may read the terminal now. Says whether that is so.
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

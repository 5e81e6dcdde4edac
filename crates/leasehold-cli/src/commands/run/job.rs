//! The command as a process, and everything it starts.

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

/// How long ended processes are reaped before anything else is looked at: a command may start them faster than they are
/// reaped.
const REAP_FOR: Duration = Duration::from_millis(10);

/// After how many of them the clock is read.
const REAPED_AT_ONCE: usize = 64;

/// How long one look at all processes may take. It takes long on a machine that is busy with what the command
/// starts.
const LOOK_FOR: Duration = Duration::from_millis(250);

/// How long children are killed as they appear, before and after all processes are looked at.
const SWEEP_FOR: Duration = Duration::from_millis(10);

/// The pause after a sweep that found nothing new: what was killed needs the processor to die.
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
    reaper: Reaper,
    /// Children that were killed and are not reaped yet.
    killed: HashSet<Pid>,
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
        Ok(Job {
            pid,
            group,
            family,
            terminal,
            reaper: Reaper::new(pid, clock),
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
        self.reaper.ended
    }

    pub(super) fn hook_runs(&self) -> bool {
        self.hook.is_some()
    }

    /// Whether more may have ended than the last `reap` took note of.
    pub(super) fn has_more_to_reap(&self) -> bool {
        self.reaper.has_more
    }

    /// Takes note of those who have ended or stopped, up to a limit; says whether the command itself stopped at the terminal.
    pub(super) fn reap(&mut self) -> bool {
        self.reaper.reap();
        let reaped = std::mem::take(&mut self.reaper.reaped);
        self.take_note(reaped);
        std::mem::take(&mut self.reaper.has_stopped)
    }

    /// Forgets those who were reaped: their numbers may be others' from now on.
    fn take_note(&mut self, reaped: HashSet<Pid>) {
        for pid in reaped {
            self.hook.take_if(|hook| *hook == pid);
            self.killed.remove(&pid);
            self.family.forget(pid);
        }
    }

    /// Everything of the job that still runs, as far as it can be seen.
    pub(super) fn living(&mut self) -> Vec<Process> {
        self.look().unwrap_or_default()
    }

    /// Looks at all processes. It reaps meanwhile, so that a command which forks and exits does not make the look longer and
    /// longer, and gives up where it takes too long.
    fn look(&mut self) -> io::Result<Vec<Process>> {
        if self.reaper.is_alone {
            return Ok(Vec::new());
        }
        let until = self.reaper.clock.now().plus(LOOK_FOR);
        let mut reaped = HashSet::new();
        let living = self.family.living(&mut reaped, &mut |reaped| {
            self.reaper.reap();
            reaped.extend(self.reaper.reaped.drain());
            self.reaper.clock.now() < until
        });
        self.take_note(reaped);
        living
    }

    /// Whether nothing of it is left.
    pub(super) fn is_gone(&mut self) -> bool {
        self.reap();
        if self.ended().is_none() || self.reaper.is_alone {
            return self.ended().is_some();
        }
        if !self.family.has_strangers() {
            return false;
        }
        // Where there are strangers the kernel's answer is no help; then a look has to do, and a second one for whoever was
        // missed because its parent died under the first.
        let mut sees_nobody = || self.look().is_ok_and(|living| living.is_empty());
        sees_nobody() && sees_nobody()
    }

    /// What came while it was being started: the terminal may have sent it to all of us before the command was one of us.
    pub(super) fn forward_early(&mut self, caught: CaughtSignal) {
        match self.is_hung_up(caught) {
            true => self.forward(caught),
            false => self.forward(CaughtSignal { from_kernel: false, ..caught }),
        }
    }

    /// A terminal that goes away tells only the one who leads its session; the others hear of it when that one dies.
    fn is_hung_up(&self, caught: CaughtSignal) -> bool {
        caught.signal == Signal::HUP && caught.from_kernel && getsid(None) == Ok(getpid())
    }

    /// What came to us goes on to the command, unless the terminal has sent it to all of us.
    pub(super) fn forward(&mut self, caught: CaughtSignal) {
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
    fn signal_group(&mut self, signal: Signal) {
        let Some(group) = self.group else { return };
        // The number of a group that is empty may be another's by now.
        if self.ended().is_none() || self.living().iter().any(|process| process.group == self.group) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// To the command alone.
    pub(super) fn signal(&self, signal: Signal) {
        if self.ended().is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// To everything the command started, and to itself, one process after the other until this deadline.
    pub(super) fn signal_all(&mut self, signal: Signal, until: Deadline) {
        if self.reaper.is_alone {
            return;
        }
        self.signal_group(signal);
        let mut others = self.living();
        // Twice is too often: who is continued, and stopped by somebody at once, must not be continued again.
        others.retain(|process| self.group.is_none() || self.group != process.group);
        self.signal_each(&others, signal, until);
        // What is stopped hears nothing else.
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

    /// Kills everything, and does not wait for it to die. Says who could not be reached.
    ///
    /// The processes that are known come first: no look at all processes, which takes milliseconds, is needed for them, and
    /// the command cannot start others meanwhile. Children are killed next, as they appear, and then whatever else descends
    /// from the command.
    pub(super) fn kill(&mut self) -> Vec<Process> {
        self.signal(Signal::KILL);
        self.signal_group(Signal::KILL);
        self.kill_children();
        if self.reaper.is_alone {
            return Vec::new();
        }
        // Who is not a child: this takes as long as it takes, and children are killed meanwhile.
        let mut reaped = HashSet::new();
        let mut next_sweep = self.reaper.clock.now();
        let living = self.family.living(&mut reaped, &mut |reaped| {
            self.reaper.reap();
            reaped.extend(self.reaper.reaped.drain());
            // Where there are many children, a sweep takes long, and most of the time is for the look.
            let start = self.reaper.clock.now();
            if !self.reaper.has_more && start >= next_sweep {
                self.family.kill_children(&mut self.killed);
                let end = self.reaper.clock.now();
                next_sweep = end.plus(4 * end.since(start));
            }
            true
        });
        self.take_note(reaped);
        let mut unreached = living.unwrap_or_default();
        unreached.retain(|process| process.signal(Signal::KILL).is_err());
        self.kill_children();
        unreached
    }

    fn kill_children(&mut self) {
        let until = self.reaper.clock.now().plus(SWEEP_FOR);
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

    /// A polite request: the command may want to put the terminal in order first. Where it shares our group, the terminal
    /// has asked it already.
    pub(super) fn ask_to_stop(&mut self) {
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

/// Takes the ends of children from the kernel.
#[derive(Debug)]
struct Reaper {
    command: Pid,
    clock: Clock,
    ended: Option<Ended>,
    /// The command stopped at the terminal.
    has_stopped: bool,
    /// No child is left at all.
    is_alone: bool,
    /// It came to its limit: more may have ended.
    has_more: bool,
    /// Who was reaped and has not been taken note of.
    reaped: HashSet<Pid>,
}

impl Reaper {
    fn new(command: Pid, clock: Clock) -> Self {
        Reaper {
            command,
            clock,
            ended: None,
            has_stopped: false,
            is_alone: false,
            has_more: false,
            reaped: HashSet::new(),
        }
    }

    fn reap(&mut self) {
        let until = self.clock.now().plus(REAP_FOR);
        self.has_more = true;
        while self.has_more && self.clock.now() < until {
            for _ in 0..REAPED_AT_ONCE {
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

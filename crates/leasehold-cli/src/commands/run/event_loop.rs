//! What the main thread of `run` listens to: signals, a bell that tasks ring, and an alarm that goes on counting while
//! the machine sleeps. It never waits for the runtime, so that a store that hangs cannot keep it from ending a command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::Signal;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

/// Those that a command gets to see, as if leasehold were not there.
const FORWARDED: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub(super) struct CaughtSignal {
    pub(super) signal: Signal,
    /// By the terminal: then it went to the whole foreground group.
    pub(super) from_kernel: bool,
}

impl CaughtSignal {
    pub(super) fn is_forwarded(self) -> bool {
        FORWARDED.contains(&self.signal)
    }

    /// Whether somebody at the terminal wants everything in the foreground to end, what started us included.
    pub(super) fn is_pressed(self) -> bool {
        self.from_kernel && matches!(self.signal, Signal::INT | Signal::QUIT)
    }

    /// Whether whoever sent it wants us to end, and has not just a word for the command.
    pub(super) fn means_the_end(self) -> bool {
        matches!(self.signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)
    }

    /// Whether it ends a process that does not say otherwise.
    pub(super) fn ends(self) -> bool {
        self.is_forwarded() && self.signal != Signal::WINCH
    }
}

#[derive(Debug)]
pub(super) struct EventLoop {
    signals: SignalDelivery<UnixStream, WithOrigin>,
    bell: Waker,
    alarm: OwnedFd,
    /// Readable once something has happened that is waited for.
    watched: Option<OwnedFd>,
}

/// Wakes the main thread.
#[derive(Debug, Clone)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl EventLoop {
    pub(super) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let ignored = ignored();
        // A file that may not grow is then an error, and no death.
        let caught = FORWARDED.into_iter().chain([Signal::TSTP, Signal::CONT, Signal::XFSZ]);
        // What this process was started to ignore (`nohup`), it goes on ignoring, and so does the command.
        let caught = caught.filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        let caught = caught.chain([Signal::CHILD]).map(Signal::as_raw);
        let signals = SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let alarm = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(EventLoop { signals, bell: Waker(Arc::new(bell)), alarm, watched: None })
    }

    /// Wakes up once when this can be read.
    pub(super) fn watch(&mut self, fd: Option<OwnedFd>) {
        self.watched = fd;
    }

    pub(super) fn bell(&self) -> Waker {
        self.bell.clone()
    }

    /// Waits for a signal, the bell, or until this time is over, and says which signals came.
    pub(super) fn listen(&mut self, at_most: Option<Duration>) -> io::Result<Vec<CaughtSignal>> {
        self.set_alarm(at_most)?;
        let wanted = PollFlags::IN;
        let fds = [self.signals.get_read().as_fd(), self.bell.0.as_fd(), self.alarm.as_fd()];
        let fds = fds.into_iter().chain(self.watched.as_ref().map(OwnedFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, wanted)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds.get(3).is_some_and(|watched| !watched.revents().is_empty()) {
            self.watched = None;
        }
        for quieted in [&self.bell.0, &self.alarm] {
            let _ = rustix::io::read(quieted, &mut [0; 8]);
        }
        let us = std::process::id();
        let caught = self.signals.pending().filter_map(|origin| {
            // What we send to our group is for the others.
            if origin.process.is_some_and(|sender| sender.pid.unsigned_abs() == us) {
                return None;
            }
            let signal = Signal::from_named_raw(origin.signal)?;
            Some(CaughtSignal { signal, from_kernel: matches!(origin.cause, Cause::Kernel) })
        });
        Ok(caught.collect())
    }

    fn set_alarm(&self, at_most: Option<Duration>) -> io::Result<()> {
        // Zero would disarm it.
        let at_most = at_most.map(|duration| duration.max(Duration::from_nanos(1)));
        let it_value = Timespec::try_from(at_most.unwrap_or(Duration::ZERO)).map_err(io::Error::other)?;
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        Ok(())
    }
}

/// The signals this process ignores, as a set of bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

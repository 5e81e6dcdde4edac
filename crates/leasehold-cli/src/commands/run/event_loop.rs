//! The event loop of `run`'s main thread: signals, wake-ups from tasks, and a timer that also
//! counts while the machine is suspended. It never waits for the runtime, so a store that hangs
//! cannot delay the end of a command.

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

/// The signals that go on to the command.
const FORWARDED: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

#[derive(Debug, Clone, Copy)]
pub(super) struct CaughtSignal {
    pub(super) signal: Signal,
    /// Set if the terminal sent it, to the whole foreground group.
    pub(super) from_kernel: bool,
}

impl CaughtSignal {
    pub(super) fn is_forwarded(self) -> bool {
        FORWARDED.contains(&self.signal)
    }

    /// Returns whether Ctrl-C or Ctrl-\ sent it, also to the caller of this process.
    pub(super) fn is_from_keyboard(self) -> bool {
        self.from_kernel && matches!(self.signal, Signal::INT | Signal::QUIT)
    }

    /// Returns whether it asks leasehold to end. USR1 and USR2 are for the command only.
    pub(super) fn requests_end(self) -> bool {
        matches!(self.signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)
    }

    /// Returns whether it ends a process that does not handle it.
    pub(super) fn is_fatal(self) -> bool {
        self.is_forwarded() && self.signal != Signal::WINCH
    }
}

#[derive(Debug)]
pub(super) struct EventLoop {
    signals: SignalDelivery<UnixStream, WithOrigin>,
    waker: Arc<OwnedFd>,
    timer: OwnedFd,
    /// Ends the wait once, when it becomes readable.
    pub(super) watched: Option<OwnedFd>,
}

/// Wakes the main thread on drop, also by a panic.
#[derive(Debug)]
pub(super) struct WakeOnDrop(Arc<OwnedFd>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl EventLoop {
    pub(super) fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let ignored = ignored();
        // With XFSZ caught, a write beyond the limit of file sizes only fails.
        let caught = FORWARDED.into_iter().chain([Signal::TSTP, Signal::CONT, Signal::XFSZ]);
        // A signal that is ignored at the start (`nohup`) stays ignored, also in the command.
        let caught = caught.filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
        let caught = caught.chain([Signal::CHILD]).map(Signal::as_raw);
        let signals = SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(EventLoop { signals, waker: Arc::new(waker), timer, watched: None })
    }

    pub(super) fn wake_on_drop(&self) -> WakeOnDrop {
        WakeOnDrop(self.waker.clone())
    }

    /// Waits for signals, a wake-up or the watched descriptor; returns the signals.
    pub(super) fn wait(&mut self, at_most: Option<Duration>) -> io::Result<Vec<CaughtSignal>> {
        self.set_timer(at_most)?;
        let wanted = PollFlags::IN;
        let fds = [self.signals.get_read().as_fd(), self.waker.as_fd(), self.timer.as_fd()];
        let fds = fds.into_iter().chain(self.watched.as_ref().map(OwnedFd::as_fd));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, wanted)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds.get(3).is_some_and(|watched| !watched.revents().is_empty()) {
            self.watched = None;
        }
        for fd in [&*self.waker, &self.timer] {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        let own_pid = std::process::id();
        let caught = self.signals.pending().filter_map(|origin| {
            // This process also receives the signals that it sends to its own group.
            if origin.process.is_some_and(|sender| sender.pid.unsigned_abs() == own_pid) {
                return None;
            }
            let signal = Signal::from_named_raw(origin.signal)?;
            Some(CaughtSignal { signal, from_kernel: matches!(origin.cause, Cause::Kernel) })
        });
        Ok(caught.collect())
    }

    fn set_timer(&self, at_most: Option<Duration>) -> io::Result<()> {
        // Zero would disarm the timer.
        let at_most = at_most.map(|duration| duration.max(Duration::from_nanos(1)));
        let it_value = Timespec::try_from(at_most.unwrap_or(Duration::ZERO)).map_err(io::Error::other)?;
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        Ok(())
    }
}

/// The signals that this process ignores, as a set of bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

//! The clock: the only file that reads time or sleeps.
//!
//! Leases count on a monotonic clock that goes on while the machine sleeps (`CLOCK_BOOTTIME`): a
//! laptop that was closed for an hour wakes up knowing that its leases are lost. tokio's timers
//! follow `CLOCK_MONOTONIC`, which stops meanwhile and would fire late; hence a timerfd. Outside
//! Linux, tokio's clock is used, and time asleep is not counted.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(all(target_os = "linux", not(shuttle)))]
use crate::error::Error;
use crate::error::Result;
use crate::sync::{Arc, Mutex, lock};
#[cfg(any(feature = "testing", shuttle))]
use crate::sync::{AtomicU64, Ordering};

/// A point in time on a [`Clock`]. A lease is not valid at or past its deadline.
///
/// Invariants:
/// - only comparable with deadlines of the same clock;
/// - arithmetic saturates: the far future stays the far future.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline {
    ns: u64,
}

impl Deadline {
    /// A deadline that never comes.
    pub const FAR: Deadline = Deadline { ns: u64::MAX };

    pub(crate) fn from_ns(ns: u64) -> Self {
        Deadline { ns }
    }

    pub(crate) fn as_ns(self) -> u64 {
        self.ns
    }

    /// Returns the deadline that is later by `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Deadline { ns: self.ns.saturating_add(saturating_ns(duration)) }
    }

    /// Returns the deadline that is earlier by `duration`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Deadline { ns: self.ns.saturating_sub(saturating_ns(duration)) }
    }

    /// Returns the time from `earlier` to this deadline; zero if this is not later.
    pub fn since(self, earlier: Deadline) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Deadline::FAR => write!(f, "Deadline(far)"),
            Deadline { ns } => write!(f, "Deadline({}.{:09} s)", ns / 1_000_000_000, ns % 1_000_000_000),
        }
    }
}

fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that reads time and sleeps. Clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Shared>);

struct Shared {
    kind: Kind,
    /// The timers of all sleeps that tokio does not wake.
    #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
    timers: Mutex<Timers>,
}

enum Kind {
    #[cfg(all(target_os = "linux", not(shuttle)))]
    Boottime(boottime::Boottime),
    Tokio {
        origin: tokio::time::Instant,
    },
    #[cfg(any(feature = "testing", shuttle))]
    Manual {
        now_ns: AtomicU64,
    },
}

impl Clock {
    /// Returns the machine's clock, which goes on while the machine sleeps.
    ///
    /// Its timer belongs to the current runtime: when that ends, no sleep is woken.
    ///
    /// # Errors
    /// Outside a tokio runtime, or if the kernel gives no timer.
    #[cfg(all(target_os = "linux", not(shuttle)))]
    pub fn system() -> Result<Self> {
        crate::sync::require_runtime()?;
        let (boottime, timer) = boottime::Boottime::new().map_err(|error| Error::System {
            what: "timer on CLOCK_BOOTTIME",
            why: format!("{error}; it takes a runtime with `enable_all`, and a descriptor (see ulimit -n)"),
        })?;
        let clock = Clock::of(Kind::Boottime(boottime));
        boottime::drive(&clock, timer);
        Ok(clock)
    }

    /// Returns the machine's clock as tokio reads it: on this platform time asleep is not counted.
    #[cfg(any(not(target_os = "linux"), shuttle))]
    pub fn system() -> Result<Self> {
        Ok(Clock::tokio())
    }

    /// Returns tokio's clock, which stops and leaps in tests with paused time.
    pub fn tokio() -> Self {
        Clock::of(Kind::Tokio { origin: tokio::time::Instant::now() })
    }

    /// Returns a clock moved by hand; see [`advance`](Clock::advance).
    #[cfg(any(feature = "testing", shuttle))]
    pub fn manual() -> Self {
        Clock::of(Kind::Manual { now_ns: AtomicU64::new(1_000_000_000) })
    }

    fn of(kind: Kind) -> Self {
        Clock(Arc::new(Shared {
            kind,
            #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
            timers: Mutex::default(),
        }))
    }

    /// Returns the current time.
    pub fn now(&self) -> Deadline {
        match &self.0.kind {
            #[cfg(all(target_os = "linux", not(shuttle)))]
            Kind::Boottime(_) => boottime::now(),
            // Starts at one second, so that "a little before now" exists on a young clock.
            Kind::Tokio { origin } => {
                Deadline { ns: 1_000_000_000 }.plus(tokio::time::Instant::now() - *origin)
            }
            #[cfg(any(feature = "testing", shuttle))]
            Kind::Manual { now_ns } => Deadline::from_ns(now_ns.load(Ordering::SeqCst)),
        }
    }

    /// Returns the wall clock in µs since 1970. It can be set back: use it only as a source of
    /// numbers that other means keep from falling.
    #[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
    pub(crate) fn wall_us() -> u64 {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(since_1970.unwrap_or_default().as_micros()).unwrap_or(0)
    }

    /// Blocks this thread. Not for a thread of the runtime.
    #[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
    pub(crate) fn rest(duration: Duration) {
        std::thread::sleep(duration);
    }

    /// Sleeps until the deadline; returns at once if it has passed.
    ///
    /// # Cancel safety
    /// Dropping the future forgets the timer; nothing else happens.
    pub fn sleep_until(&self, deadline: Deadline) -> Sleep {
        match &self.0.kind {
            _ if deadline == Deadline::FAR => Sleep(Inner::Forever),
            Kind::Tokio { origin } => {
                // tokio's timers end at about two years; no sleep takes that long.
                const FAR: Duration = Duration::from_secs(400 * 24 * 3_600);
                let now = tokio::time::Instant::now();
                let wake = *origin + deadline.since(Deadline { ns: 1_000_000_000 }).min(now - *origin + FAR);
                Sleep(Inner::Tokio(Box::pin(tokio::time::sleep_until(wake))))
            }
            #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
            _ => Sleep(Inner::Timer { clock: self.clone(), deadline, id: None }),
        }
    }

    /// Returns the future's output, or `None` if the deadline passes first.
    ///
    /// The future is polled before the timer, so the output wins when both are ready. Pass a future
    /// that has to survive the deadline by reference (`&mut`).
    ///
    /// # Cancel safety
    /// As cancel-safe as `future`, which is dropped too if it was passed by value.
    pub async fn until<F: Future>(&self, deadline: Deadline, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.sleep_until(deadline) => None,
        }
    }

    /// Wakes the sleeps that are due, and sets the alarm for the next.
    #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
    fn fire(&self) {
        let due = {
            let mut timers = lock(&self.0.timers);
            let due = timers.take_due(self.now());
            timers.alarm = timers.next().unwrap_or(Deadline::FAR);
            self.set_alarm(timers.alarm);
            due
        };
        due.into_iter().for_each(Waker::wake);
    }

    #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
    fn set_alarm(&self, at: Deadline) {
        match (&self.0.kind, at) {
            (_, Deadline::FAR) => {}
            #[cfg(all(target_os = "linux", not(shuttle)))]
            (Kind::Boottime(boottime), at) => boottime.set_alarm(at),
            _ => {}
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock(now: {:?})", self.now())
    }
}

/// The future of [`Clock::sleep_until`].
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep(Inner);

enum Inner {
    Forever,
    Tokio(Pin<Box<tokio::time::Sleep>>),
    #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
    Timer {
        clock: Clock,
        deadline: Deadline,
        id: Option<u64>,
    },
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Inner::Forever => Poll::Pending,
            Inner::Tokio(sleep) => sleep.as_mut().poll(cx),
            #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
            Inner::Timer { clock, deadline, id } => {
                // Dropped after the lock: a waker may be the last reference to its task.
                let _old;
                let mut timers = lock(&clock.0.timers);
                if clock.now() >= *deadline {
                    return Poll::Ready(());
                }
                _old = timers.set(*deadline, id, cx.waker());
                if *deadline < timers.alarm {
                    timers.alarm = *deadline;
                    clock.set_alarm(*deadline);
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        #[cfg(any(all(target_os = "linux", not(shuttle)), feature = "testing", shuttle))]
        if let Inner::Timer { clock, deadline, id: Some(id) } = &self.0 {
            // The alarm stays as it is: one idle wake-up is cheaper than a system call per sleep.
            let forgotten = lock(&clock.0.timers).forget(*deadline, *id);
            drop(forgotten);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}

struct Timers {
    wakers: BTreeMap<(Deadline, u64), Waker>,
    ids: u64,
    /// The time of the alarm: that of the first waker, or earlier if its sleep was dropped. Most
    /// sleeps are dropped long before their end, so the next finds the alarm early enough.
    alarm: Deadline,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { wakers: BTreeMap::new(), ids: 0, alarm: Deadline::FAR }
    }
}

impl Timers {
    fn set(&mut self, deadline: Deadline, id: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| {
            self.ids += 1;
            self.ids
        });
        self.wakers.insert((deadline, id), waker.clone())
    }

    fn forget(&mut self, deadline: Deadline, id: u64) -> Option<Waker> {
        self.wakers.remove(&(deadline, id))
    }

    fn next(&self) -> Option<Deadline> {
        self.wakers.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    fn take_due(&mut self, now: Deadline) -> Vec<Waker> {
        let later = self.wakers.split_off(&(now.plus(Duration::from_nanos(1)), 0));
        std::mem::replace(&mut self.wakers, later).into_values().collect()
    }
}

/// The machine's clock, and one timerfd on it.
#[cfg(all(target_os = "linux", not(shuttle)))]
mod boottime {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;
    use tokio::task::AbortHandle;

    use super::{Clock, Deadline, Kind};
    use crate::sync::{Arc, Mutex, lock};

    pub(super) struct Boottime {
        timer: Arc<AsyncFd<OwnedFd>>,
        driver: Mutex<Option<AbortHandle>>,
    }

    pub(super) fn now() -> Deadline {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
        Deadline { ns: tv_sec as u64 * 1_000_000_000 + tv_nsec as u64 }
    }

    impl Boottime {
        pub(super) fn new() -> io::Result<(Self, Arc<AsyncFd<OwnedFd>>)> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
            // Deprecated because some types could change their descriptor. An `OwnedFd` cannot, and
            // the replacement is an unsafe function, which this crate does not use.
            #[expect(deprecated)]
            let register = || AsyncFd::new(timer);
            // Only this panic tells that a runtime has I/O disabled.
            let registered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(register));
            let timer =
                registered.unwrap_or_else(|_| Err(io::Error::other("the runtime has I/O disabled")))?;
            let timer = Arc::new(timer);
            Ok((Boottime { timer: timer.clone(), driver: Mutex::new(None) }, timer))
        }

        pub(super) fn set_alarm(&self, deadline: Deadline) {
            let spec =
                |ns: u64| Timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
            // 2^62 ns is 146 years of uptime, and a time that the kernel accepts.
            let at = Itimerspec { it_interval: spec(0), it_value: spec(deadline.as_ns().clamp(1, 1 << 62)) };
            let set = timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::ABSTIME, &at);
            debug_assert!(set.is_ok(), "a timer of ours takes any time: {set:?}");
        }
    }

    impl Drop for Boottime {
        fn drop(&mut self) {
            if let Some(driver) = lock(&self.driver).take() {
                driver.abort();
            }
        }
    }

    /// Starts the task that waits for the timer. It ends with the clock.
    pub(super) fn drive(clock: &Clock, timer: Arc<AsyncFd<OwnedFd>>) {
        let weak = Arc::downgrade(&clock.0);
        let driver = tokio::spawn(async move {
            while let Ok(mut ready) = timer.readable().await {
                let mut expirations = [0u8; 8];
                // A read that finds nothing means a stale readiness, which is cleared as well.
                let _ = rustix::io::read(timer.get_ref(), &mut expirations);
                ready.clear_ready();
                let Some(clock) = weak.upgrade() else { return };
                Clock(clock).fire();
            }
        });
        if let Kind::Boottime(boottime) = &clock.0.kind {
            *lock(&boottime.driver) = Some(driver.abort_handle());
        }
    }
}

#[cfg(any(feature = "testing", shuttle))]
impl Clock {
    /// Moves a manual clock forward and wakes the sleeps that are due.
    ///
    /// # Panics
    /// On a clock that is not manual.
    pub fn advance(&self, duration: Duration) {
        self.sleep_through(duration);
        self.fire();
    }

    /// Moves a manual clock forward without waking sleeps before the next
    /// [`advance`](Clock::advance), as a suspended machine does.
    ///
    /// # Panics
    /// On a clock that is not manual.
    pub fn sleep_through(&self, duration: Duration) {
        self.manual_ns().fetch_add(saturating_ns(duration), Ordering::SeqCst);
    }

    /// Sets a manual clock back, for tests of code that must tolerate it.
    ///
    /// # Panics
    /// On a clock that is not manual, and before its origin.
    pub fn set_back(&self, duration: Duration) {
        let back = saturating_ns(duration);
        let set =
            self.manual_ns().fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| now.checked_sub(back));
        assert!(set.is_ok(), "a clock begins somewhere");
    }

    /// Moves a manual clock to its next timer and wakes what is due. Returns false without a timer.
    pub fn advance_to_next(&self) -> bool {
        let now_ns = self.manual_ns();
        let Some(next) = lock(&self.0.timers).next() else { return false };
        now_ns.fetch_max(next.as_ns(), Ordering::SeqCst);
        self.fire();
        true
    }

    fn manual_ns(&self) -> &AtomicU64 {
        let Kind::Manual { now_ns } = &self.0.kind else { panic!("only a manual clock is moved by hand") };
        now_ns
    }
}

//! Messages while a command waits: a line that is rewritten at a terminal, elsewhere one a minute.

use std::convert::Infallible;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use leasehold::{Clock, Locks, Names, Owner, Status};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::args::LogFormat;
use crate::duration::short;
use crate::log::{self, write_would_stop_process};

/// A lock that is acquired sooner needs no line.
const FIRST: Duration = Duration::from_millis(250);
const TERMINAL_EVERY: Duration = Duration::from_secs(1);
const LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Progress {
    /// `--quiet`.
    Silent,
    Terminal,
    Log,
}

impl Progress {
    pub(crate) fn new() -> Self {
        match std::io::stderr().is_terminal() && log::settings().log_format == LogFormat::Plain {
            _ if log::settings().quiet => Progress::Silent,
            true => Progress::Terminal,
            false => Progress::Log,
        }
    }

    /// Waits for `work`, and meanwhile shows the text of `describe`, which gets the time so far.
    ///
    /// # Cancel safety
    /// If dropped, it drops `work`, and clears its line at a terminal.
    pub(crate) async fn during<T, D: Future<Output = String>>(
        self,
        clock: &Clock,
        work: impl Future<Output = T>,
        describe: impl Fn(Duration) -> D,
    ) -> T {
        let every = match self {
            Progress::Silent => return work.await,
            Progress::Terminal => TERMINAL_EVERY,
            Progress::Log => LOG_EVERY,
        };
        let mut clear = None;
        let put = |text: &str| {
            clear.get_or_insert_with(|| ClearOnDrop(self));
            self.put(text);
        };
        tokio::select! {
            biased;
            done = work => done,
            never = report(clock, FIRST, every, describe, put) => match never {},
        }
    }

    fn put(self, text: &str) {
        // A stopped reader (or Ctrl-S) must not delay the wait for the lock.
        if !can_be_written() {
            return;
        }
        match self {
            Progress::Silent => {}
            Progress::Log => log::info(text),
            Progress::Terminal => {
                let size = rustix::termios::tcgetwinsize(std::io::stderr());
                let columns = size.map_or(0, |size| usize::from(size.ws_col));
                // Some terminals report zero.
                let columns = if columns == 0 { 80 } else { columns };
                // A second line would stay.
                let text: String = text.chars().take(columns - 1).collect();
                let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
            }
        }
    }

    pub(crate) fn clear(self) {
        if matches!(self, Progress::Terminal) && can_be_written() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

async fn report<D: Future<Output = String>>(
    clock: &Clock,
    first: Duration,
    every: Duration,
    describe: impl Fn(Duration) -> D,
    mut put: impl FnMut(&str),
) -> Infallible {
    let start = clock.now();
    let mut next = start.plus(first);
    loop {
        clock.sleep_until(next).await;
        put(&describe(clock.now().since(start)).await);
        next = clock.now().plus(every);
    }
}

fn can_be_written() -> bool {
    if write_would_stop_process() {
        return false;
    }
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

struct ClearOnDrop(Progress);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Describes the wait of `owner` for these names, and their holders.
pub(crate) async fn held_names(locks: &Locks, names: &Names, owner: &Owner, waited: Duration) -> String {
    text(names, owner, first_held(locks, names).await.as_ref(), waited)
}

/// Finds the first of several names that is held.
async fn first_held(locks: &Locks, names: &Names) -> Option<Status> {
    let mut seen = None;
    for name in names {
        let status = locks.inspect(name.clone()).await.ok().flatten();
        if status.as_ref().is_some_and(|status| !status.holders.is_empty()) {
            return status;
        }
        seen = seen.or(status);
    }
    seen
}

fn text(names: &Names, owner: &Owner, status: Option<&Status>, waited: Duration) -> String {
    let shown = names.into_iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let waited = so_far(waited);
    let Some(status) = status else { return format!("waiting for {shown}{waited}") };
    let holders = match status.holders.as_slice() {
        [] => "nobody holds it now".to_owned(),
        [one] if one.is_endless() => format!("held by {}; `leasehold adopt` gives it one", one.owner),
        [one] => {
            let held_for = one.held_for.filter(|held_for| held_for.as_secs() > 0);
            let held_for = held_for.map_or_else(String::new, |it| format!(" for {}, and", short(it)));
            format!("held by {}{held_for} for another {} unless renewed", one.owner, short(one.remaining))
        }
        [one, rest @ ..] => format!("held by {} and {} more", one.owner, rest.len()),
    };
    let ahead = match status.waiters.iter().position(|waiter| waiter.owner == *owner).unwrap_or(0) {
        0 => String::new(),
        n => format!(", {n} ahead in line"),
    };
    // Several names need the name, too.
    let holders = match names.only() {
        Some(_) => holders,
        None => format!("{} {holders}", status.name),
    };
    format!("waiting for {shown}: {holders}{ahead}{waited}")
}

/// Shows ` (12 s so far)`; nothing in the first second.
pub(crate) fn so_far(waited: Duration) -> String {
    match waited.as_secs() {
        0 => String::new(),
        seconds => format!(" ({} so far)", short(Duration::from_secs(seconds))),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::{poll_fn, ready};
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_line_comes_first_soon_and_then_at_each_interval() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let seen = RefCell::new(Vec::new());
        runtime.block_on(async {
            let clock = Clock::system().expect("a clock");
            let (first, every) = (Duration::from_millis(5), Duration::from_millis(20));
            let describe = |waited: Duration| ready(waited.as_millis().to_string());
            let put = |text: &str| seen.borrow_mut().push(text.to_owned());
            tokio::select! {
                never = report(&clock, first, every, describe, put) => match never {},
                () = poll_fn(|cx| match seen.borrow().len() {
                    0..3 => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    _ => Poll::Ready(()),
                }) => {}
            }
        });
        let ms: Vec<u128> = seen.borrow().iter().map(|text| text.parse().expect(text)).collect();
        assert!(ms[0] >= 5 && ms[1] >= ms[0] + 20 && ms[2] >= ms[1] + 20, "{ms:?}");
    }
}

//! Waiting for the lock, and, for somebody who looks on at a terminal, a line that says who has it.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use leasehold::{Clock, Lease, Locks, Status};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::plan::{Kind, Plan};
use crate::duration::short;
use crate::voice::Voice;

/// What is had at once needs no line.
const FIRST_LINE: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(1);

/// # Cancel safety
/// Dropped anywhere, it leaves nothing behind but, at a terminal, its line: see [`Line::clear`].
pub(super) async fn acquire(locks: Locks, plan: &Plan, clock: Clock, line: Line) -> leasehold::Result<Lease> {
    let lock = lock(&locks, plan);
    tokio::select! {
        biased;
        taken = lock => taken,
        never = line.show(&locks, plan, &clock) => match never {},
    }
}

async fn lock(locks: &Locks, plan: &Plan) -> leasehold::Result<Lease> {
    let Plan { names, owner, ttl, wait, .. } = plan;
    let owner = owner.as_str();
    let Some(name) = names.only().cloned() else {
        let all = locks.all(names.into_iter().cloned()).ttl(*ttl).owner(owner);
        return match *wait {
            None => all.lock().await,
            Some(wait) => all.wait(wait).lock().await,
        };
    };
    match (plan.kind, *wait) {
        (Kind::Exclusive, None) => locks.mutex(name).ttl(*ttl).owner(owner).lock().await,
        (Kind::Exclusive, Some(wait)) => locks.mutex(name).ttl(*ttl).owner(owner).wait(wait).lock().await,
        (Kind::Shared, None) => locks.rwlock(name).ttl(*ttl).owner(owner).read().await,
        (Kind::Shared, Some(wait)) => locks.rwlock(name).ttl(*ttl).owner(owner).wait(wait).read().await,
        (Kind::Permits(permits), wait) => {
            let semaphore = locks.semaphore(name, permits.limit()).ttl(*ttl).owner(owner);
            match wait {
                None => semaphore.acquire_many(permits.take()).await,
                Some(wait) => semaphore.wait(wait).acquire_many(permits.take()).await,
            }
        }
    }
}

/// The line, where there is somebody to see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    is_shown: bool,
}

impl Line {
    pub(super) fn new(voice: Voice) -> Self {
        Line { is_shown: !voice.is_quiet() && std::io::stderr().is_terminal() }
    }

    async fn show(self, locks: &Locks, plan: &Plan, clock: &Clock) -> std::convert::Infallible {
        let _clear = ClearOnDrop(self);
        let start = clock.now();
        let mut next = start.plus(FIRST_LINE);
        loop {
            clock.sleep_until(next).await;
            if self.is_shown {
                let status = in_the_way(locks, plan).await;
                let waited = clock.now().since(start);
                self.put(&text(plan, status.as_ref(), waited));
            }
            next = clock.now().plus(LINE_EVERY);
        }
    }

    /// One line, whatever is in it: a second one would stay.
    fn put(self, text: &str) {
        if !can_be_written() {
            return;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stderr());
        let columns = size.map_or(0, |size| usize::from(size.ws_col));
        // Some do not say.
        let columns = if columns == 0 { 80 } else { columns };
        let text: String = text.chars().take(columns - 1).collect();
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }

    pub(super) fn clear(self) {
        if self.is_shown && can_be_written() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Whoever has stopped the terminal (Ctrl-S) does not want us to wait for that.
fn can_be_written() -> bool {
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

struct ClearOnDrop(Line);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Of several names, the first that somebody holds.
async fn in_the_way(locks: &Locks, plan: &Plan) -> Option<Status> {
    let mut seen = None;
    for name in &plan.names {
        let status = locks.inspect(name.clone()).await.ok().flatten();
        if status.as_ref().is_some_and(|status| !status.holders.is_empty()) {
            return status;
        }
        seen = seen.or(status);
    }
    seen
}

fn text(plan: &Plan, status: Option<&Status>, waited: Duration) -> String {
    let name = plan.names.into_iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let waited = match waited.as_secs() {
        0 => String::new(),
        seconds => format!(" ({} so far)", short(Duration::from_secs(seconds))),
    };
    let Some(status) = status else { return format!("waiting for {name}{waited}") };
    let holders = match status.holders.as_slice() {
        [] => "nobody holds it now".to_owned(),
        [one] => format!("held by {} for another {} unless renewed", one.owner, short(one.remaining)),
        [one, rest @ ..] => format!("held by {} and {} more", one.owner, rest.len()),
    };
    let ahead = status.waiters.iter().position(|waiter| waiter.owner == plan.owner).unwrap_or(0);
    let ahead = match ahead {
        0 => String::new(),
        n => format!(", {n} ahead in line"),
    };
    // Of several, which one it is.
    let holders = match plan.names.only() {
        Some(_) => holders,
        None => format!("{} {holders}", status.name),
    };
    format!("waiting for {name}: {holders}{ahead}{waited}")
}

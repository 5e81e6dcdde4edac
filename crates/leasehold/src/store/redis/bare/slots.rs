//! A limit on how many requests do something at a time, in order of arrival, which futures that are not polled cannot use up.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Deadline};
use crate::sync::{Mutex, lock};

/// How long the next in the queue may take to notice that a slot is free, before those behind it may have it.
const GRACE: Duration = Duration::from_millis(50);

/// At most `max` requests at a time, the first to come first. A request that shows no progress for a whole time-out does not count
/// any more, and one that does not take a free slot in its turn is passed: their futures are kept and not polled, and must not
/// block the others.
#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    clock: Clock,
    timeout: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Until when each counts, unless it shows progress.
    used: BTreeMap<u64, Deadline>,
    /// By order of arrival: until when those behind it wait for it, from when there was a slot for it.
    queue: BTreeMap<u64, Option<Deadline>>,
}

/// A slot in use, or a place in the queue for one; freed when it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    slots: &'a Slots,
    number: u64,
}

impl Slots {
    pub(super) fn new(max: usize, clock: Clock, timeout: Duration) -> Self {
        Slots { max, clock, timeout, state: Mutex::default(), changed: Notify::new() }
    }

    /// Waits for a slot as long as a request may take.
    pub(super) async fn take(&self) -> Option<Slot<'_>> {
        let until = self.clock.now().plus(self.timeout);
        let slot = {
            let mut state = lock(&self.state);
            state.last += 1;
            let number = state.last;
            state.queue.insert(number, None);
            Slot { slots: self, number }
        };
        loop {
            // Listens first and looks then, or a change in between would go unheard.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.clock.now();
            let Err(look_again) = slot.enter(now) else { return Some(slot) };
            if now >= until {
                return None;
            }
            self.clock.until(look_again.min(until), changed).await;
        }
    }
}

impl Slot<'_> {
    /// Moves from the queue to a slot if it is its turn; or says when it may be, if nothing else changes.
    fn enter(&self, now: Deadline) -> Result<(), Deadline> {
        let mut state = lock(&self.slots.state);
        let counted = || state.used.values().copied().filter(|until| *until > now);
        let mut free = self.slots.max.saturating_sub(counted().count());
        let mut look_again = counted().min().unwrap_or(Deadline::FAR);
        for (number, passed_at) in &mut state.queue {
            if free == 0 {
                break;
            } else if *number == self.number {
                state.queue.remove(&self.number);
                state.used.insert(self.number, now.plus(self.slots.timeout));
                return Ok(());
            }
            let passed_at = *passed_at.get_or_insert(now.plus(GRACE));
            if passed_at > now {
                look_again = look_again.min(passed_at);
                free -= 1;
            }
        }
        Err(look_again)
    }

    /// Shows that it is still polled.
    pub(super) fn show(&self) {
        let until = self.slots.clock.now().plus(self.slots.timeout);
        lock(&self.slots.state).used.insert(self.number, until);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.slots.state);
            state.used.remove(&self.number);
            state.queue.remove(&self.number);
        }
        // All of them, since any one may be a future that is not polled.
        self.slots.changed.notify_waiters();
    }
}

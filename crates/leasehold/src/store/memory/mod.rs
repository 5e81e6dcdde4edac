//! `memory:`, the reference store: every promise in its plainest form.
//!
//! One mutex guards the tables of *holders* and *waiters*. A claim *joins* the queue. Each call
//! then *admits* the first waiters that fit. Other stores do the same on a server.

mod cells;
mod expiring;
mod state;

#[cfg(unix)]
use std::os::fd::OwnedFd;

use async_trait::async_trait;

use super::{Capabilities, Notice, NoticeReceiver, Notices, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Holder, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::{Mutex, lock};
use crate::token::Token;
use crate::ttl::Ttl;
use cells::Cells;
use state::State;

/// A store in this process's memory. Clients over clones of one `Arc<Memory>` exclude each other.
#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    state: Mutex<State>,
    cells: Cells,
    notices: Notices,
}

impl Memory {
    /// Creates an empty store on this clock.
    pub fn new(clock: Clock) -> Self {
        Memory {
            cells: Cells::new(clock.clone()),
            clock,
            state: Mutex::default(),
            notices: Notices::default(),
        }
    }

    /// Raises the last fence to `last`, as after that many grants.
    #[cfg(any(feature = "testing", shuttle))]
    pub fn preset_last_fence(&self, last: u64) {
        let mut state = lock(&self.state);
        state.last_fence = state.last_fence.max(last).min(Fence::MAX);
    }

    /// Evicts all holders of a name, or the one with this fence.
    fn take_away(&self, name: &Name, only: Option<Fence>) -> Result<Evicted> {
        let holders = self.with_state(|state, now| -> Result<Vec<Holder>> {
            let tokens = state.names.get(name).map(|place| place.holders.clone()).unwrap_or_default();
            let is_meant = |token: &Token| {
                only.is_none_or(|only| state.holdings.get(token).is_some_and(|holding| holding.fence == only))
            };
            let tokens: Vec<Token> = tokens.into_iter().filter(is_meant).collect();
            if only.is_none() || !tokens.is_empty() {
                state.next_fences(1)?;
            }
            let (mut holders, mut freed) = (Vec::new(), Vec::new());
            for token in tokens {
                let holder = state.holdings.get(&token).map(|holding| holding.shown(now));
                // A lease over several names cannot go on without one, so it loses all of them.
                if let Some(holding) = state.let_go(&token) {
                    holders.extend(holder);
                    freed.push(holding.ticket.names);
                }
            }
            // Not before all have gone: a barging waiter would take what the head of the queue needs.
            freed.iter().for_each(|names| state.admit(names, now));
            Ok(holders)
        })?;
        if !holders.is_empty() {
            self.notices.send(Notice::Evicted { name: name.clone() });
        }
        Ok(Evicted { holders })
    }

    /// Runs `work` on the state without expired holders. Wakes admitted waiters after the lock is
    /// released, because a waker is foreign code.
    fn with_state<T>(&self, work: impl FnOnce(&mut State, Deadline) -> T) -> T {
        let mut state = lock(&self.state);
        // Read under the lock, so that time does not go back between two calls.
        let now = self.clock.now();
        state.expire(now);
        let outcome = work(&mut state, now);
        let to_wake = std::mem::take(&mut state.to_wake);
        drop(state);
        to_wake.iter().for_each(|waiter| waiter.notify_one());
        outcome
    }
}

#[async_trait]
impl Store for Memory {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let token = &claim.ticket.token;
        loop {
            let answer = self.with_state(|state, now| {
                state.join(claim, now);
                if let Some(grant) = state.rearm(token, claim.ttl, now) {
                    return Ok(Ok(Acquired::Granted(grant)));
                }
                if let Err(limit) = state.fences_left(claim.fences.max(1)) {
                    state.leave(&claim.ticket, now);
                    return Ok(Err(limit));
                }
                if claim.wait.is_over(now) {
                    state.leave(&claim.ticket, now);
                    return Ok(Ok(Acquired::Busy(state.busy(&claim.ticket.names, now))));
                }
                Err(state.wake_up(token, claim, now))
            });
            match answer {
                Ok(answer) => return answer,
                Err((waiter, look_again)) => {
                    self.clock.until(claim.wait.cap(look_again), waiter.notified()).await;
                }
            }
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        self.with_state(|state, now| {
            let mut renew = |(ticket, ttl): &(Ticket, Ttl)| {
                let proves = |fence| ticket.fence.is_none_or(|proven| proven == fence);
                let held = state.holding(ticket).is_some_and(|holding| proves(holding.fence));
                let grant = held.then(|| state.rearm(&ticket.token, *ttl, now)).flatten();
                Ok(state.renewed(ticket, grant))
            };
            due.iter().map(&mut renew).collect()
        })
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.with_state(|state, now| {
            let held = state.holding(ticket).is_some();
            match held.then(|| state.let_go(&ticket.token)).flatten() {
                Some(holding) => {
                    state.admit(&holding.ticket.names, now);
                    Ok(Released::Released)
                }
                None => {
                    state.leave(ticket, now);
                    Ok(Released::NotHeld)
                }
            }
        })
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        self.with_state(|state, now| {
            let grant = state.detach(ticket, ttl, now);
            Ok(state.renewed(ticket, grant))
        })
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        self.with_state(|state, now| state.convert(ticket, to, now))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        Ok(self.with_state(|state, now| state.names.contains_key(name).then(|| state.status(name, now))))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        Ok(self.with_state(|state, now| {
            let in_use = state.names.keys().filter(|name| name.as_str().starts_with(prefix));
            in_use.take(limit).map(|name| state.status(name, now)).collect()
        }))
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.take_away(name, None)
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        self.take_away(name, Some(fence))
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        Some(self.notices.subscribe())
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.notices.send_ended(names, fence);
        Ok(())
    }

    async fn adopt(&self, _: &Name, _: Ttl) -> Result<Adopted> {
        Err(Error::Unsupported { store: "memory", what: "adopt", why: "every lock of it ends by itself" })
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        Some(&self.cells)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all("memory")
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

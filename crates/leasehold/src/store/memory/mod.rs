//! `memory:`, the reference store: every promise in its plainest form.
//!
//! One mutex around two tables: who *holds* and who *waits*. A claim is *joined* to the line, then whoever
//! stands first and fits is *admitted*, whoever called. Other stores do the same on a server.

mod cells;
mod limits;
mod state;

use std::ops::{Deref, DerefMut};
#[cfg(unix)]
use std::os::fd::OwnedFd;

use async_trait::async_trait;

use super::{Capabilities, Notice, NoticeReceiver, Notices, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::{Mutex, MutexGuard, lock};
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
    /// An empty store on this clock.
    pub fn new(clock: Clock) -> Self {
        Memory {
            cells: Cells::new(clock.clone()),
            clock,
            state: Mutex::default(),
            notices: Notices::default(),
        }
    }

    /// Raises the last fence given, as if that many grants had been made.
    #[cfg(any(feature = "testing", shuttle))]
    pub fn preset_last_fence(&self, last: u64) {
        let mut state = lock(&self.state);
        state.last_fence = state.last_fence.max(last).min(Fence::MAX);
    }

    /// Takes a name from its holders, or from the one with this fence.
    fn take_away(&self, name: &Name, only: Option<Fence>) -> Result<Evicted> {
        let mut holders = Vec::new();
        {
            let (mut state, now) = self.state();
            let tokens = state.names.get(name).map(|place| place.holders.clone()).unwrap_or_default();
            let is_meant = |token: &Token| {
                only.is_none_or(|only| state.holdings.get(token).is_some_and(|holding| holding.fence == only))
            };
            let tokens: Vec<Token> = tokens.into_iter().filter(is_meant).collect();
            if only.is_none() || !tokens.is_empty() {
                state.next_fences(1)?;
            }
            for token in tokens {
                let holder = state.holdings.get(&token).map(|holding| holding.shown(now));
                // All of a claim or none: a lease over several names cannot go on without one of them.
                if let Some(holding) = state.let_go(&token) {
                    holders.extend(holder);
                    state.admit(&holding.ticket.names, now);
                }
            }
        }
        if !holders.is_empty() {
            self.notices.send(Notice::Evicted { name: name.clone() });
        }
        Ok(Evicted { holders })
    }

    /// The state, with everything that ended by now taken out.
    fn state(&self) -> (Locked<'_>, Deadline) {
        let mut state = Locked { state: Some(lock(&self.state)) };
        // Read under the lock, so that time does not go back between two calls.
        let now = self.clock.now();
        state.expire(now);
        (state, now)
    }
}

#[async_trait]
impl Store for Memory {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let token = &claim.ticket.token;
        loop {
            let (bell, look_again) = {
                let (mut state, now) = self.state();
                state.join(claim, now);
                if let Some(grant) = state.rearm(token, claim.ttl, now) {
                    return Ok(Acquired::Granted(grant));
                }
                if let Err(limit) = state.fences_left(claim.fences.max(1)) {
                    state.leave(token, now);
                    return Err(limit);
                }
                if claim.wait.is_over(now) {
                    state.leave(token, now);
                    return Ok(Acquired::Busy(state.busy(&claim.ticket.names, now)));
                }
                state.bell(token, claim, now)
            };
            self.clock.until(claim.wait.cap(look_again), bell.notified()).await;
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let (mut state, now) = self.state();
        due.iter()
            .map(|(ticket, ttl)| {
                let proves = |fence| ticket.fence.is_none_or(|proven| proven == fence);
                let held = state.holding(ticket).is_some_and(|holding| proves(holding.fence));
                match held.then(|| state.rearm(&ticket.token, *ttl, now)).flatten() {
                    Some(grant) => Ok(Renewed::Until(grant.valid_until)),
                    None => Ok(Renewed::Lost(state.why_gone(&ticket.names))),
                }
            })
            .collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        let (mut state, now) = self.state();
        let held = state.holding(ticket).is_some();
        match held.then(|| state.let_go(&ticket.token)).flatten() {
            Some(holding) => {
                state.admit(&holding.ticket.names, now);
                Ok(Released::Released)
            }
            None => {
                state.leave(&ticket.token, now);
                Ok(Released::NotHeld)
            }
        }
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let (mut state, now) = self.state();
        match state.detach(ticket, ttl, now) {
            Some(grant) => Ok(Renewed::Until(grant.valid_until)),
            None => Ok(Renewed::Lost(state.why_gone(&ticket.names))),
        }
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        let (mut state, now) = self.state();
        let Some(holding) = state.holding(ticket) else { return Ok(Converted::NotHeld) };
        if holding.ticket.share == to {
            return Ok(Converted::Converted(holding.grant()));
        }
        if ticket.fence.is_some_and(|proven| proven != holding.fence) {
            return Ok(Converted::NotHeld);
        }
        let names = holding.ticket.names.clone();
        if !names.into_iter().all(|name| state.fits(name, to, Some(&ticket.token))) {
            return Ok(Converted::Refused);
        }
        let fence = state.next_fences(1)?;
        let Some(holding) = state.holdings.get_mut(&ticket.token) else { return Ok(Converted::NotHeld) };
        let from = std::mem::replace(&mut holding.ticket.share, to);
        (holding.fence, holding.fences, holding.since) = (fence, 1, now);
        let grant = holding.grant();
        for name in &names {
            if let Some(place) = state.names.get_mut(name) {
                place.held.remove(from);
                place.held.add(to);
            }
        }
        state.admit(&names, now);
        Ok(Converted::Converted(grant))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        let (state, now) = self.state();
        Ok(state.names.contains_key(name).then(|| state.status(name, now)))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let (state, now) = self.state();
        let in_use = state.names.keys().filter(|name| name.as_str().starts_with(prefix));
        Ok(in_use.take(limit).map(|name| state.status(name, now)).collect())
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
        Capabilities {
            fenced: true,
            fence_blocks: true,
            fair: true,
            shared: true,
            permits: true,
            several_names: true,
            conversions: true,
            pushed: true,
            cells: true,
            ..Capabilities::none("memory")
        }
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// The state under its lock. The bells of those who were admitted ring when it is open again: a waker is foreign code.
struct Locked<'a> {
    state: Option<MutexGuard<'a, State>>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().unwrap_or_else(|| unreachable!("locked until dropped"))
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().unwrap_or_else(|| unreachable!("locked until dropped"))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let bells = std::mem::take(&mut self.to_ring);
        self.state = None;
        bells.iter().for_each(|bell| bell.notify_one());
    }
}

//! The tables of holders and waiters, and every change to them, without locks, tasks or clocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::{Busy, Claim, Converted, Grant, Holder, Names, Renewed, Share, Status, Ticket, Waiter};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::sharing::Occupancy;
use crate::sync::Arc;
use crate::token::Token;
use crate::ttl::Ttl;

/// Invariants:
/// - a token holds or waits, never both;
/// - a holding, or a waiting entry, is listed at each of its names;
/// - a name with neither holders nor waiters is not kept;
/// - `last_fence` is at least every fence ever given.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) names: BTreeMap<Name, NameState>,
    pub(super) holdings: HashMap<Token, Holding>,
    pub(super) line: BTreeMap<u64, Entry>,
    pub(super) arrivals: HashMap<Token, u64>,
    pub(super) expiries: BTreeSet<(Deadline, Token)>,
    pub(super) last_arrival: u64,
    pub(super) last_fence: u64,
    pub(super) to_wake: Vec<Arc<Notify>>,
}

#[derive(Debug, Default)]
pub(super) struct NameState {
    pub(super) holders: BTreeSet<Token>,
    pub(super) held: Occupancy,
    /// The queue, by arrival number.
    pub(super) line: BTreeSet<u64>,
    /// The number of waiters that may pass. At 0, the first that does not fit ends the search.
    pub(super) barging: usize,
}

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) ticket: Ticket,
    pub(super) fence: Fence,
    pub(super) fences: u16,
    pub(super) expires: Deadline,
    pub(super) drift: Duration,
    /// Only the first detach sets the end. No holding of this store ends with its client anyway.
    pub(super) detached: bool,
    /// The time of the grant or of the last conversion.
    pub(super) since: Deadline,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    /// The waiter counts as gone after this. It shows itself every third of its TTL.
    pub(super) shows_until: Deadline,
    pub(super) waiter: Arc<Notify>,
    /// The time of arrival.
    pub(super) since: Deadline,
}

impl Holding {
    pub(super) fn shown(&self, now: Deadline) -> Holder {
        Holder {
            owner: self.ticket.token.owner(),
            share: self.ticket.share,
            fence: Some(self.fence),
            remaining: self.expires.since(now),
            nodes: None,
            held_for: Some(now.since(self.since)),
        }
    }

    /// Counts from the grant, not from the request: the store has its clients' clock.
    pub(super) fn grant(&self) -> Grant {
        Grant { fence: self.fence, fences: self.fences, valid_until: self.expires.minus(self.drift) }
    }
}

impl State {
    /// Queues a new claim, and marks a waiting one as alive. Then admits it if it is next. A holder
    /// is left alone. Every change that frees a name admits its waiters at once, so no other waiter
    /// can be next, unless one ahead of this claim is gone.
    pub(super) fn join(&mut self, claim: &Claim, now: Deadline) {
        let Ticket { token, names, share, .. } = &claim.ticket;
        if self.holdings.contains_key(token) {
            return;
        }
        let shows_until = now.plus(claim.ttl.as_duration());
        let arrival = match self.arrivals.get(token) {
            Some(arrival) => *arrival,
            None if self.is_free_for(names, *share) => {
                if let Ok(fence) = self.next_fences(claim.fences.max(1)) {
                    self.hold(claim.clone(), fence, now);
                }
                return;
            }
            None => self.line_up(claim, shows_until),
        };
        if let Some(entry) = self.line.get_mut(&arrival) {
            entry.shows_until = shows_until;
        }
        let absent: Vec<u64> =
            names.into_iter().filter_map(|name| self.absent_before(name, arrival, now)).collect();
        if !absent.is_empty() {
            for gone in absent {
                if let Some(entry) = self.step_out(gone) {
                    self.admit(&entry.claim.ticket.names, now);
                }
            }
            self.admit(names, now);
        } else if self.may_enter(arrival) && self.enter(arrival, now) && *share != Share::Exclusive {
            // The waiter behind it may be first now, and fit beside it.
            self.admit(names, now);
        }
    }

    /// Returns whether there is room and no claim waits: most claims never see a queue.
    pub(super) fn is_free_for(&self, names: &Names, share: Share) -> bool {
        names.into_iter().all(|name| match self.names.get(name) {
            Some(place) => place.line.is_empty() && place.held.admits(share),
            None => true,
        })
    }

    pub(super) fn line_up(&mut self, claim: &Claim, shows_until: Deadline) -> u64 {
        self.last_arrival += 1;
        let arrival = self.last_arrival;
        let Ticket { token, names, share, .. } = &claim.ticket;
        for name in names {
            let place = self.names.entry(name.clone()).or_default();
            place.line.insert(arrival);
            place.barging += usize::from(share.may_pass());
        }
        self.arrivals.insert(token.clone(), arrival);
        let since = shows_until.minus(claim.ttl.as_duration());
        let entry = Entry { claim: claim.clone(), shows_until, waiter: Arc::default(), since };
        self.line.insert(arrival, entry);
        arrival
    }

    /// Returns the waiter directly ahead, if it has not shown itself in time.
    pub(super) fn absent_before(&self, name: &Name, arrival: u64, now: Deadline) -> Option<u64> {
        let ahead = self.ahead(name, arrival)?;
        self.line.get(&ahead).is_some_and(|entry| entry.shows_until <= now).then_some(ahead)
    }

    pub(super) fn ahead(&self, name: &Name, arrival: u64) -> Option<u64> {
        self.names.get(name)?.line.range(..arrival).next_back().copied()
    }

    /// Makes a waiter a holder, unless no fence is left.
    pub(super) fn enter(&mut self, arrival: u64, now: Deadline) -> bool {
        let Some(fences) = self.line.get(&arrival).map(|entry| entry.claim.fences.max(1)) else {
            return false;
        };
        // At the fence limit no waiter is admitted. `acquire` reports it.
        let Ok(fence) = self.next_fences(fences) else { return false };
        if let Some(Entry { claim, waiter, .. }) = self.step_out(arrival) {
            self.hold(claim, fence, now);
            self.to_wake.push(waiter);
        }
        true
    }

    /// Admits the waiters at these names that are next, and at every name that this frees.
    pub(super) fn admit(&mut self, names: &Names, now: Deadline) {
        let mut todo: Vec<Name> = names.into_iter().cloned().collect();
        while let Some(name) = todo.pop() {
            let mut passed = 0;
            while let Some(arrival) = self.next_in_line(&name, passed) {
                passed = arrival;
                let Some(entry) = self.line.get(&arrival) else { break };
                let (share, absent) = (entry.claim.ticket.share, entry.shows_until <= now);
                let several =
                    entry.claim.ticket.names.only().is_none().then(|| entry.claim.ticket.names.clone());
                if absent {
                    self.step_out(arrival);
                } else if !self.may_enter(arrival) {
                    match self.names.get(&name) {
                        Some(place) if place.barging > 0 => continue,
                        _ => break,
                    }
                } else if !self.enter(arrival, now) {
                    break;
                }
                // Waiters behind it at its other names may be next there.
                todo.extend(several.iter().flatten().filter(|other| **other != name).cloned());
                if share == Share::Exclusive && !absent {
                    break;
                }
            }
            self.tidy(&name);
        }
    }

    pub(super) fn next_in_line(&self, name: &Name, after: u64) -> Option<u64> {
        self.names.get(name)?.line.range(after + 1..).next().copied()
    }

    /// Returns whether a waiter is first at each name (or may pass) and fits beside the holders.
    pub(super) fn may_enter(&self, arrival: u64) -> bool {
        let Some(Entry { claim: Claim { ticket, .. }, .. }) = self.line.get(&arrival) else { return false };
        ticket.names.into_iter().all(|name| {
            let first = self.names.get(name).is_some_and(|place| place.line.first() == Some(&arrival));
            (first || ticket.share.may_pass()) && self.fits(name, ticket.share, None)
        })
    }

    /// Returns whether this share fits beside the holders of a name, without `except`.
    pub(super) fn fits(&self, name: &Name, share: Share, except: Option<&Token>) -> bool {
        let Some(place) = self.names.get(name) else { return true };
        let mut held = place.held;
        if let Some(holding) = except.and_then(|token| self.holdings.get(token)) {
            held.remove(holding.ticket.share);
        }
        held.admits(share)
    }

    pub(super) fn hold(&mut self, claim: Claim, fence: Fence, now: Deadline) {
        let Claim { ticket, ttl, fences, detached, .. } = claim;
        for name in &ticket.names {
            let place = self.names.entry(name.clone()).or_default();
            place.holders.insert(ticket.token.clone());
            place.held.add(ticket.share);
        }
        let expires = now.plus(ttl.as_duration());
        self.expiries.insert((expires, ticket.token.clone()));
        let token = ticket.token.clone();
        let (fences, drift) = (fences.max(1), ttl.drift());
        self.holdings.insert(token, Holding { ticket, fence, fences, expires, drift, detached, since: now });
    }

    /// Returns the holding of the ticket's token, if it has exactly the ticket's names.
    pub(super) fn holding(&self, ticket: &Ticket) -> Option<&Holding> {
        self.holdings.get(&ticket.token).filter(|holding| holding.ticket.names == ticket.names)
    }

    /// Moves a holder's expiry forward, never back.
    pub(super) fn rearm(&mut self, token: &Token, ttl: Ttl, now: Deadline) -> Option<Grant> {
        let holding = self.holdings.get_mut(token)?;
        let expires = now.plus(ttl.as_duration());
        if expires > holding.expires {
            self.expiries.remove(&(holding.expires, token.clone()));
            self.expiries.insert((expires, token.clone()));
            (holding.expires, holding.drift) = (expires, ttl.drift());
        }
        Some(holding.grant())
    }

    /// Sets the end of a holding. A holding that is detached already keeps it, or ends later.
    pub(super) fn detach(&mut self, ticket: &Ticket, ttl: Ttl, now: Deadline) -> Option<Grant> {
        let holding = self.holding(ticket).filter(|holding| holding.grant().has(ticket.fence))?;
        if holding.detached {
            return self.rearm(&ticket.token, ttl, now);
        }
        let before = holding.expires;
        let expires = now.plus(ttl.as_duration());
        self.expiries.remove(&(before, ticket.token.clone()));
        self.expiries.insert((expires, ticket.token.clone()));
        let holding = self.holdings.get_mut(&ticket.token)?;
        (holding.expires, holding.drift, holding.detached) = (expires, ttl.drift(), true);
        if let Some(fence) = ticket.fence {
            (holding.fence, holding.fences) = (fence, 1);
        }
        let grant = holding.grant();
        if expires < before {
            self.look_again(&ticket.names);
        }
        Some(grant)
    }

    pub(super) fn convert(&mut self, ticket: &Ticket, to: Share, now: Deadline) -> Result<Converted> {
        let Some(holding) = self.holding(ticket) else { return Ok(Converted::NotHeld) };
        if holding.ticket.share == to {
            return Ok(Converted::Converted(holding.grant()));
        }
        if ticket.fence.is_some_and(|proven| proven != holding.fence) {
            return Ok(Converted::NotHeld);
        }
        if !ticket.names.into_iter().all(|name| self.fits(name, to, Some(&ticket.token))) {
            return Ok(Converted::Refused);
        }
        let fence = self.next_fences(1)?;
        let Some(holding) = self.holdings.get_mut(&ticket.token) else { return Ok(Converted::NotHeld) };
        let from = std::mem::replace(&mut holding.ticket.share, to);
        (holding.fence, holding.fences, holding.since) = (fence, 1, now);
        let grant = holding.grant();
        for name in &ticket.names {
            if let Some(place) = self.names.get_mut(name) {
                place.held.remove(from);
                place.held.add(to);
            }
        }
        self.admit(&ticket.names, now);
        Ok(Converted::Converted(grant))
    }

    /// Wakes the waiters that sleep until a holder expires.
    fn look_again(&mut self, names: &Names) {
        for place in names.into_iter().filter_map(|name| self.names.get(name)) {
            let first = place.line.first();
            let line = place.line.iter().filter_map(|arrival| Some((arrival, self.line.get(arrival)?)));
            let watching = line
                .filter(|(arrival, entry)| Some(*arrival) == first || entry.claim.ticket.share.may_pass());
            self.to_wake.extend(watching.map(|(_, entry)| entry.waiter.clone()));
        }
    }

    /// Removes a holding. The caller then admits waiters.
    pub(super) fn let_go(&mut self, token: &Token) -> Option<Holding> {
        let holding = self.holdings.remove(token)?;
        self.expiries.remove(&(holding.expires, token.clone()));
        for name in &holding.ticket.names {
            if let Some(place) = self.names.get_mut(name) {
                place.holders.remove(token);
                place.held.remove(holding.ticket.share);
            }
        }
        Some(holding)
    }

    /// Withdraws a waiter, and admits those behind it. A token that is shown at other names than
    /// those it claimed waits for nothing there.
    pub(super) fn leave(&mut self, ticket: &Ticket, now: Deadline) {
        let Some(arrival) = self.arrivals.get(&ticket.token).copied() else { return };
        let is_there = self.line.get(&arrival).is_some_and(|entry| entry.claim.ticket.names == ticket.names);
        if is_there && self.step_out(arrival).is_some() {
            self.admit(&ticket.names, now);
        }
    }

    pub(super) fn step_out(&mut self, arrival: u64) -> Option<Entry> {
        let entry = self.line.remove(&arrival)?;
        self.arrivals.remove(&entry.claim.ticket.token);
        for name in &entry.claim.ticket.names {
            let Some(place) = self.names.get_mut(name) else { continue };
            let was_first = place.line.first() == Some(&arrival);
            place.line.remove(&arrival);
            place.barging -= usize::from(entry.claim.ticket.share.may_pass());
            // The first waiter watches the expiry of the holders.
            if let Some(first) = place.line.first().filter(|_| was_first).and_then(|it| self.line.get(it)) {
                self.to_wake.push(first.waiter.clone());
            }
        }
        Some(entry)
    }

    /// Returns a waiter's wake-up, and when it checks by itself: every third of its TTL, to stay
    /// alive; when the waiter ahead has to show itself; and, if it is first, when a holder expires.
    pub(super) fn wake_up(&self, token: &Token, claim: &Claim, now: Deadline) -> (Arc<Notify>, Deadline) {
        let Some(arrival) = self.arrivals.get(token) else { return (Arc::default(), now) };
        let waiter = self.line.get(arrival).map(|entry| entry.waiter.clone()).unwrap_or_default();
        let mut look_again = now.plus(claim.ttl.third());
        for name in &claim.ticket.names {
            if let Some(ahead) = self.ahead(name, *arrival).and_then(|ahead| self.line.get(&ahead)) {
                look_again = look_again.min(ahead.shows_until);
                if !claim.ticket.share.may_pass() {
                    continue;
                }
            }
            let holders = self.names.get(name).into_iter().flat_map(|place| &place.holders);
            let expiry = holders.filter_map(|holder| Some(self.holdings.get(holder)?.expires)).min();
            look_again = look_again.min(expiry.unwrap_or(look_again));
        }
        (waiter, look_again)
    }

    /// Removes expired holders, and admits the waiters that are next.
    pub(super) fn expire(&mut self, now: Deadline) {
        while let Some((expires, token)) = self.expiries.first().cloned()
            && expires <= now
        {
            if let Some(holding) = self.let_go(&token) {
                self.admit(&holding.ticket.names, now);
            }
        }
    }

    /// Returns the first of `count` new fences.
    pub(super) fn next_fences(&mut self, count: u16) -> Result<Fence> {
        self.fences_left(count)?;
        let first = Fence::new(self.last_fence + 1)?;
        self.last_fence += u64::from(count);
        Ok(first)
    }

    pub(super) fn fences_left(&self, count: u16) -> Result<()> {
        if Fence::MAX - self.last_fence >= u64::from(count) {
            return Ok(());
        }
        Err(Error::Refused { store: "memory", why: "the fence is at its limit of 2^63 - 1".into() })
    }

    pub(super) fn renewed(&self, ticket: &Ticket, grant: Option<Grant>) -> Renewed {
        let taken = |name: &Name| self.names.get(name).is_some_and(|place| !place.holders.is_empty());
        match grant {
            Some(grant) => Renewed::Until(grant.valid_until),
            None if ticket.names.into_iter().any(taken) => Renewed::Lost(Loss::Taken),
            None => Renewed::Lost(Loss::Deleted),
        }
    }

    pub(super) fn busy(&self, names: &Names, now: Deadline) -> Busy {
        let mut places = names.into_iter().filter_map(|name| self.names.get(name)).peekable();
        let waiters = places.peek().map_or(0, |place| place.line.len());
        let holders = places.flat_map(|place| &place.holders).filter_map(|token| self.holdings.get(token));
        let holding = holders.min_by_key(|holding| holding.fence);
        Busy {
            holder: holding.map(|holding| holding.ticket.token.owner()),
            remaining: holding.map(|holding| holding.expires.since(now)),
            waiters,
        }
    }

    pub(super) fn status(&self, name: &Name, now: Deadline) -> Status {
        let place = self.names.get(name);
        let mut holders: Vec<&Holding> = place
            .into_iter()
            .flat_map(|place| &place.holders)
            .filter_map(|token| self.holdings.get(token))
            .collect();
        holders.sort_by_key(|holding| holding.fence);
        let waiters = place.into_iter().flat_map(|place| &place.line);
        Status {
            name: name.clone(),
            holders: holders.into_iter().map(|holding| holding.shown(now)).collect(),
            waiters: waiters
                .filter_map(|arrival| self.line.get(arrival))
                .map(|entry| Waiter {
                    owner: entry.claim.ticket.token.owner(),
                    share: entry.claim.ticket.share,
                    waiting_for: Some(now.since(entry.since)),
                })
                .collect(),
        }
    }

    pub(super) fn tidy(&mut self, name: &Name) {
        if self.names.get(name).is_some_and(|place| place.holders.is_empty() && place.line.is_empty()) {
            self.names.remove(name);
        }
    }
}

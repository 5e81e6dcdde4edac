//! The rules: which claims are granted, and which waiters are notified.
//!
//! Claims are granted as in the memory store. A claim joins the queue at each of its names. Every
//! operation then grants each waiter, of any process, that is first at all of its names and fits
//! beside the holders.
//!
//! A waiter watches the process of the waiter ahead of it; the first waiter watches the processes
//! of the holders. A waiter is notified when its claim is granted, when the waiter ahead of it
//! leaves without a grant, and when it becomes first behind holders that it did not watch before.

use std::collections::BTreeSet;

use super::queries::NameSummary;
use super::updates::out_of_numbers;
use super::{Txn, TxnResult};
use crate::claim::{Busy, Claim, Converted, Evicted, Grant, Names, Released, Renewed, Share, Ticket};
use crate::clock::Deadline;
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::file::liveness::ClientId;
use crate::store::file::rows::{HolderRow, WaiterRow, WaiterUpdate};
use crate::store::sharing::Occupancy;
use crate::token::Token;
use crate::ttl::Ttl;

/// The most grants of one transaction. The next one continues, so that other operations wait less.
const GRANTED_MAX: usize = 128;

#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    Granted(Grant),
    /// The claim left nothing in the store. Another try may succeed if one of `blockers` is dead.
    Busy {
        busy: Busy,
        blockers: BTreeSet<ClientId>,
    },
    /// The claim is queued. It checks again at `recheck_at`, or when a client in `watch` dies. A
    /// grant belongs to this wait if its fence is above `arrival`: both are from one series.
    Waiting {
        arrival: u64,
        recheck_at: Deadline,
        watch: BTreeSet<ClientId>,
    },
}

impl Txn<'_> {
    /// Grants or queues a claim. A waiting claim is marked as alive, and a held one is renewed.
    pub(crate) fn acquire(&mut self, claim: &Claim) -> TxnResult<AcquireOutcome> {
        let Ticket { names, token, share, .. } = &claim.ticket;
        let (mut is_free, mut is_held) = (true, false);
        for name in names {
            let summary = self.refresh(name)?;
            is_held |= summary.held != Occupancy::default();
            is_free &= summary.queue_is_empty && summary.held.admits(*share);
        }
        if (is_held || !is_free)
            && let Some(grant) = self.grant_again(names, token, claim.ttl)?
        {
            return Ok(AcquireOutcome::Granted(grant));
        }
        if is_free {
            let waiter = WaiterRow::of(claim, 0, self.now, self.me);
            let grant = self.insert_holder(&waiter, names, false)?;
            return grant.map(AcquireOutcome::Granted).ok_or_else(out_of_numbers);
        }
        let over = claim.wait.is_over(self.now);
        let arrival = match self.arrival(token)? {
            Some(arrival) => {
                self.extend_wait(token, claim.ttl)?;
                arrival
            }
            // A claim that does not wait writes no row, and does not overtake waiters.
            None if over && !share.may_pass() => return self.busy(names),
            None => self.enqueue(claim)?,
        };
        self.grant_if_first(names, arrival, *share)?;
        if let Some(grant) = self.grant_again(names, token, claim.ttl)? {
            return Ok(AcquireOutcome::Granted(grant));
        }
        self.check_numbers_left(claim.fences.max(1))?;
        if over {
            self.withdraw(&claim.ticket)?;
            return self.busy(names);
        }
        self.waiting(claim, arrival)
    }

    pub(crate) fn release(&mut self, ticket: &Ticket) -> TxnResult<Released> {
        if self.delete_own(ticket)? {
            self.grant_waiters(ticket.names.as_slice().to_vec())?;
            return Ok(Released::Released);
        }
        self.withdraw(ticket)?;
        for name in &ticket.names {
            self.refresh(name)?;
        }
        Ok(Released::NotHeld)
    }

    pub(crate) fn renew(&mut self, ticket: &Ticket, ttl: Ttl) -> TxnResult<Renewed> {
        let own = self.own(&ticket.names, &ticket.token)?;
        match own.filter(|holder| ticket.fence.is_none_or(|fence| fence == holder.fence)) {
            Some(holder) => Ok(Renewed::Until(self.extend_lease(&ticket.names, holder, ttl)?.valid_until)),
            None => Ok(Renewed::Lost(self.loss(&ticket.names)?)),
        }
    }

    pub(crate) fn detach(&mut self, ticket: &Ticket, ttl: Ttl) -> TxnResult<Renewed> {
        let Ticket { names, token, fence, .. } = ticket;
        let grant = match self.own(names, token)?.filter(|holder| holder.grant().has(*fence)) {
            // The first detach sets the expiry. A later one only moves it forward.
            Some(holder) if holder.detached => self.extend_lease(names, holder, ttl)?,
            Some(holder) => self.detach_holder(names, holder, *fence, ttl)?,
            None => return Ok(Renewed::Lost(self.loss(names)?)),
        };
        Ok(Renewed::Until(grant.valid_until))
    }

    pub(crate) fn convert(&mut self, ticket: &Ticket, to: Share) -> TxnResult<Converted> {
        let Ticket { names, token, .. } = ticket;
        let Some(holder) = self.own(names, token)? else { return Ok(Converted::NotHeld) };
        if holder.share == to {
            return Ok(Converted::Converted(holder.grant()));
        }
        if ticket.fence.is_some_and(|fence| fence != holder.fence) {
            return Ok(Converted::NotHeld);
        }
        for name in names {
            let mut others = self.refresh(name)?.held;
            others.remove(holder.share);
            if !others.admits(to) {
                return Ok(Converted::Refused);
            }
        }
        let fence = self.allocate_numbers(1)?.ok_or_else(out_of_numbers)?;
        self.change_share(names, token, to, fence)?;
        self.grant_waiters(names.as_slice().to_vec())?;
        Ok(Converted::Converted(Grant { fence, fences: 1, ..holder.grant() }))
    }

    pub(crate) fn evict(&mut self, name: &Name, only: Option<Fence>) -> TxnResult<Evicted> {
        self.refresh(name)?;
        let mut rows = self.holders(name)?;
        rows.retain(|holder| only.is_none_or(|only| holder.fence == only));
        if only.is_some() && rows.is_empty() {
            return Ok(Evicted { holders: Vec::new() });
        }
        self.allocate_numbers(1)?.ok_or_else(out_of_numbers)?;
        let mut holders = Vec::new();
        let mut freed = vec![name.clone()];
        for row in rows {
            holders.push(self.holder_status(&row)?);
            // A lease over several names cannot go on without one of them, so it loses all of them.
            freed.extend(self.remove_holder(name, &row)?);
            self.notifications.evicted.push((row.client, name.clone()));
        }
        self.grant_waiters(freed)?;
        Ok(Evicted { holders })
    }

    /// Removes expired holders and waiters of a name, and grants the waiters that are next.
    pub(super) fn refresh(&mut self, name: &Name) -> TxnResult<NameSummary> {
        let summary = self.summary(name)?;
        if summary.first_expiry > self.now && !summary.first_waiter_expired {
            return Ok(summary);
        }
        let mut freed = vec![name.clone()];
        let now = self.now;
        for holder in self.holders(name)?.iter().filter(|holder| holder.expires <= now) {
            freed.extend(self.remove_holder(name, holder)?);
        }
        self.grant_waiters(freed)?;
        self.summary(name)
    }

    /// Grants the waiters at these names that are next, and at every name that this frees.
    pub(crate) fn grant_waiters(&mut self, mut todo: Vec<Name>) -> TxnResult<()> {
        while let Some(name) = todo.pop() {
            let (mut last, mut watch_changed, mut is_blocked) = (0, false, false);
            while let Some(waiter) = match is_blocked {
                true => self.next_barging(&name, last)?,
                false => self.next_waiter(&name, last)?,
            } {
                if self.granted >= GRANTED_MAX {
                    // The waiter is notified as well, in case this process dies before that.
                    self.notify(&name, &waiter)?;
                    self.notifications.unfinished.push(name.clone());
                    break;
                }
                last = waiter.arrival;
                let names = match waiter.several {
                    true => self.waiting_names(&waiter.token)?,
                    false => vec![name.clone()],
                };
                let is_expired = waiter.shows_until <= self.now;
                if is_expired {
                    self.remove_waiter(waiter.arrival, &names, true)?;
                } else if !self.may_be_granted(&waiter, &names)? {
                    // Behind a blocked waiter only barging claims may be granted.
                    is_blocked = true;
                    continue;
                } else if !self.grant(&waiter, &names)? {
                    break;
                } else {
                    watch_changed |= waiter.share != Share::Exclusive || waiter.several;
                }
                // Waiters behind it at its other names may be next there.
                todo.extend(names.into_iter().filter(|other| *other != name));
                if waiter.share == Share::Exclusive && !is_expired {
                    break;
                }
            }
            // A waiter behind a single new holder watches it already. Behind several, the first
            // waiter has to find out which processes to watch.
            if watch_changed && let Some(first) = self.next_waiter(&name, 0)? {
                self.notify(&name, &first)?;
            }
        }
        Ok(())
    }

    /// Grants this waiter's claim if it is next. Removes an expired waiter ahead of it first.
    fn grant_if_first(&mut self, names: &Names, arrival: i64, share: Share) -> TxnResult<()> {
        let mut todo = Vec::new();
        for name in names {
            match self.waiter_ahead(name, arrival)? {
                Some(ahead) if ahead.shows_until <= self.now => {
                    let freed = self.waiting_names(&ahead.token)?;
                    self.remove_waiter(ahead.arrival, &freed, true)?;
                    todo.extend(freed);
                }
                Some(_) if !share.may_pass() => {}
                _ => todo.push(name.clone()),
            }
        }
        self.grant_waiters(todo)
    }

    /// Returns whether a waiter is first at each name (or may barge) and fits beside the holders.
    fn may_be_granted(&self, waiter: &WaiterRow, names: &[Name]) -> TxnResult<bool> {
        for name in names {
            if !waiter.share.may_pass() && self.waiter_ahead(name, waiter.arrival)?.is_some() {
                return Ok(false);
            }
            if !self.held(name)?.admits(waiter.share) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a waiter a holder. Returns `false`, and changes nothing, if there is no fence left.
    fn grant(&mut self, waiter: &WaiterRow, names: &[Name]) -> TxnResult<bool> {
        let claimed = Names::new(names.iter().cloned())?;
        let Some(grant) = self.insert_holder(waiter, &claimed, true)? else { return Ok(false) };
        // A waiter that it overtook may now have another one ahead of it.
        self.remove_waiter(waiter.arrival, names, waiter.share.may_pass() || waiter.several)?;
        self.granted += 1;
        match waiter.client == self.me {
            true => {
                let update = WaiterUpdate { token: waiter.token.clone(), grant: Some(grant) };
                self.notifications.waiters.push(update);
            }
            false => drop(self.notifications.pokes.insert(waiter.client)),
        }
        Ok(true)
    }

    /// Renews the claim if this token holds it already.
    fn grant_again(&mut self, names: &Names, token: &Token, ttl: Ttl) -> TxnResult<Option<Grant>> {
        let Some(holder) = self.own(names, token)? else { return Ok(None) };
        let grant = self.extend_lease(names, holder, ttl)?;
        // The caller gets the grant as its answer and needs no notification.
        let is_other = |update: &WaiterUpdate| update.grant.is_none() || update.token != token.expose();
        self.notifications.waiters.retain(is_other);
        Ok(Some(grant))
    }

    /// Removes a claim from the queue, and grants the waiters behind it that are next. A token that is
    /// shown at other names than those it claimed waits for nothing there.
    fn withdraw(&mut self, ticket: &Ticket) -> TxnResult<()> {
        let Some(arrival) = self.arrival(&ticket.token)? else { return Ok(()) };
        let names = self.waiting_names(ticket.token.expose())?;
        let shown = ticket.names.as_slice();
        if names.len() != shown.len() || !names.iter().all(|name| shown.contains(name)) {
            return Ok(());
        }
        self.remove_waiter(arrival, &names, true)?;
        self.grant_waiters(names)
    }

    fn busy(&self, names: &Names) -> TxnResult<AcquireOutcome> {
        let waiters = self.count_waiters(names.first())?;
        let mut blockers = BTreeSet::new();
        let mut first: Option<HolderRow> = None;
        for name in names {
            for holder in self.holders(name)? {
                blockers.extend(holder.ends_with_client());
                if first.as_ref().is_none_or(|first| holder.fence < first.fence) {
                    first = Some(holder);
                }
            }
            blockers.extend(self.next_waiter(name, 0)?.map(|waiter| waiter.client));
        }
        let holder = first.as_ref().map(|holder| Token::parse(&holder.token)).transpose()?;
        let busy = Busy {
            holder: holder.map(|token| token.owner()),
            remaining: first.map(|holder| holder.expires.since(self.now)),
            waiters,
        };
        Ok(AcquireOutcome::Busy { busy, blockers })
    }

    /// The waiter checks again, without a notification, after a third of its TTL, to show that it
    /// is alive; when the waiter ahead of it expires, or may have been granted the lock and let it
    /// expire; and, if it is first, when a holder expires.
    fn waiting(&self, claim: &Claim, arrival: i64) -> TxnResult<AcquireOutcome> {
        let mut recheck_at = claim.wait.cap(self.now.plus(claim.ttl.third()));
        let mut watch = BTreeSet::new();
        for name in &claim.ticket.names {
            if let Some(ahead) = self.waiter_ahead(name, arrival)? {
                watch.insert(ahead.client);
                let granted_and_expired = self.now.plus(ahead.ttl.as_duration() / 2);
                recheck_at = recheck_at.min(ahead.shows_until).min(granted_and_expired);
                if !claim.ticket.share.may_pass() {
                    continue;
                }
            }
            for holder in self.holders(name)? {
                watch.extend(holder.ends_with_client());
                recheck_at = recheck_at.min(holder.expires);
            }
        }
        watch.remove(&self.me);
        Ok(AcquireOutcome::Waiting { arrival: u64::try_from(arrival).unwrap_or(0), recheck_at, watch })
    }

    fn loss(&mut self, names: &Names) -> TxnResult<Loss> {
        for name in names {
            if self.refresh(name)?.held != Occupancy::default() {
                return Ok(Loss::Taken);
            }
        }
        Ok(Loss::Deleted)
    }
}

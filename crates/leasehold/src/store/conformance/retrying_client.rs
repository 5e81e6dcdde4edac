//! A client of the examined store, which repeats each call until it has an answer.
//!
//! It repeats a call with the same token, as the contract allows, so that the cases also hold
//! behind a bad network. After each claim it waits until no late duplicate can arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::claim::{
    Acquired, Claim, Converted, Evicted, Grant, Names, Permits, Released, Renewed, Share, Status, Ticket,
    Wait,
};
use crate::clock::Deadline;
use crate::error::Result;
use crate::name::Name;
use crate::store::{Capabilities, Store};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

#[derive(Clone)]
pub(super) struct RetryingClient {
    pub(super) store: Arc<dyn Store>,
    pub(super) ttl: Ttl,
    prefix: String,
}

/// With one call in seven unanswered, this many in a row do not happen.
const TRIES_MAX: usize = 100;

pub(super) fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl RetryingClient {
    pub(super) fn new(store: Arc<dyn Store>, ttl: Duration, prefix: String) -> Self {
        RetryingClient { store, ttl: ok(Ttl::new(ttl)), prefix }
    }

    pub(super) fn name(&self, short: &str) -> Name {
        ok(Name::new(format!("{}{short}", self.prefix)))
    }

    pub(super) fn permits(take: u32, limit: u32) -> Share {
        Share::Permits(ok(Permits::new(take, limit)))
    }

    pub(super) fn barging(take: u32, limit: u32) -> Share {
        Share::Permits(ok(Permits::new(take, limit)).barging())
    }

    pub(super) fn ticket(&self, shorts: &[&str], share: Share) -> Ticket {
        let names = ok(Names::new(shorts.iter().map(|short| self.name(short))));
        let token = ok(Token::fresh(&ok(Owner::new("conformance"))));
        Ticket { names, token, share, fence: None }
    }

    pub(super) fn exclusive(&self, short: &str) -> Ticket {
        self.ticket(&[short], Share::Exclusive)
    }

    pub(super) fn now(&self) -> Deadline {
        self.store.clock().now()
    }

    pub(super) fn after(&self, duration: Duration) -> Deadline {
        self.now().plus(duration)
    }

    pub(super) async fn sleep(&self, duration: Duration) {
        self.store.clock().sleep_until(self.after(duration)).await;
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    pub(super) fn late_window(&self) -> Duration {
        self.capabilities().late_window
    }

    /// Waits until no late duplicate can arrive.
    pub(super) async fn quiet(&self) {
        let late_window = self.late_window();
        if !late_window.is_zero() {
            self.sleep(late_window + Duration::from_millis(1)).await;
        }
    }

    pub(super) async fn insist<T, W>(&self, mut call: impl FnMut() -> W) -> T
    where
        W: Future<Output = Result<T>>,
    {
        for _ in 0..TRIES_MAX {
            match call().await {
                Err(error) if error.is_outcome_unknown() => continue,
                answer => return ok(answer),
            }
        }
        panic!("no answer to {TRIES_MAX} calls");
    }

    pub(super) async fn acquire(&self, claim: &Claim) -> Acquired {
        self.insist(|| self.store.acquire(claim)).await
    }

    pub(super) fn claim(&self, ticket: &Ticket, wait: Wait) -> Claim {
        Claim { ticket: ticket.clone(), ttl: self.ttl, wait, fences: 1, detached: false }
    }

    /// Acquires the claim, waits for it if needed, and stores the fence in the ticket.
    pub(super) async fn take(&self, ticket: &mut Ticket) -> Grant {
        let wait = Wait::Until(self.after(self.ttl.as_duration() * 4));
        match self.acquire(&self.claim(ticket, wait)).await {
            Acquired::Granted(grant) => {
                ticket.fence = Some(grant.fence);
                self.quiet().await;
                grant
            }
            Acquired::Busy(busy) => panic!("{} is not to be had: {busy:?}", ticket.names),
        }
    }

    pub(super) async fn hold(&self, shorts: &[&str], share: Share) -> Ticket {
        let mut ticket = self.ticket(shorts, share);
        self.take(&mut ticket).await;
        ticket
    }

    /// Returns whether a name is still refused at the latest time to ask before the deadline.
    pub(super) async fn is_refused_until(&self, deadline: Deadline, short: &str) -> bool {
        let margin = self.ttl.drift() + self.late_window() * 2;
        self.store.clock().sleep_until(deadline.minus(margin)).await;
        self.is_refused(&self.exclusive(short)).await || self.now() > deadline
    }

    /// Returns whether the claim is refused now. Releases a granted claim.
    pub(super) async fn is_refused(&self, ticket: &Ticket) -> bool {
        let answer = self.acquire(&self.claim(ticket, Wait::Never)).await;
        self.quiet().await;
        match answer {
            Acquired::Busy(_) => true,
            Acquired::Granted(_) => {
                self.release(ticket).await;
                false
            }
        }
    }

    /// Returns `false` if the ticket certainly held nothing. "Not held" after a release without an
    /// answer counts as released.
    pub(super) async fn release(&self, ticket: &Ticket) -> bool {
        let mut calls = 0;
        let released = self.insist(|| {
            calls += 1;
            self.store.release(ticket)
        });
        released.await == Released::Released || calls > 1
    }

    /// Returns whether the ticket holds nothing, by a release that changes nothing.
    pub(super) async fn holds_nothing(&self, ticket: &Ticket) -> bool {
        self.insist(|| self.store.release(ticket)).await == Released::NotHeld
    }

    pub(super) async fn renew(&self, ticket: &Ticket) -> Renewed {
        let due = [(ticket.clone(), self.ttl)];
        let renew = || async {
            let mut answers = self.store.renew(&due).await;
            assert_eq!(answers.len(), 1, "as many answers as tickets");
            answers.remove(0)
        };
        self.insist(renew).await
    }

    pub(super) async fn detach(&self, ticket: &Ticket, ttl: Duration) -> Renewed {
        let ttl = ok(Ttl::new(ttl));
        let detached = self.insist(|| self.store.detach(ticket, ttl)).await;
        self.quiet().await;
        detached
    }

    pub(super) async fn convert(&self, ticket: &mut Ticket, to: Share) -> Converted {
        let converted = self.insist(|| self.store.convert(ticket, to)).await;
        if let Converted::Converted(grant) = converted {
            (ticket.fence, ticket.share) = (Some(grant.fence), to);
        }
        self.quiet().await;
        converted
    }

    pub(super) async fn inspect(&self, short: &str) -> Option<Status> {
        let name = self.name(short);
        self.insist(|| self.store.inspect(&name)).await
    }

    pub(super) async fn list(&self, prefix: &str) -> Vec<Status> {
        self.insist(|| self.store.list(prefix, 100)).await
    }

    pub(super) async fn evict(&self, short: &str) -> Evicted {
        let name = self.name(short);
        self.insist(|| self.store.evict(&name)).await
    }

    /// Waits for the claim in a task. Returns when it stands in the queue, if the store has one.
    pub(super) async fn queue(&self, mut ticket: Ticket) -> JoinHandle<(Ticket, Grant)> {
        let short = ticket.names.first().as_str()[self.prefix.len()..].to_owned();
        let before = self.waiters(&short).await;
        let client = self.clone();
        let waiting = tokio::spawn(async move {
            let grant = client.take(&mut ticket).await;
            (ticket, grant)
        });
        let patience = self.after(self.ttl.as_duration() * 2);
        while self.capabilities().fair && self.waiters(&short).await <= before {
            assert!(self.now() < patience, "the waiter for {short} did not join the line");
            self.sleep(Duration::from_millis(1)).await;
        }
        waiting
    }

    pub(super) async fn waiters(&self, short: &str) -> usize {
        self.inspect(short).await.map_or(0, |status| status.waiters.len())
    }

    pub(super) async fn got(&self, waiting: JoinHandle<(Ticket, Grant)>) -> (Ticket, Grant) {
        match waiting.await {
            Ok(got) => got,
            Err(error) => panic!("a waiter failed: {error}"),
        }
    }
}

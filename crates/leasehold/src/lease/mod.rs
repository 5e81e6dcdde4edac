//! `Lease`, a lock that a user holds, and `Proof`, a handle that watches it.

pub(crate) mod convert;
pub(crate) mod detached;
pub(crate) mod state;

use std::fmt;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use self::detached::Detached;
use self::state::LeaseState;
use crate::acquire::Request;
use crate::claim::{Grant, Names, Released, Share, Ticket};
use crate::clock::{Clock, Deadline};
use crate::debug::debug_parts;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::locks::Client;
use crate::loss::Then;
use crate::name::Name;
use crate::sync::{Arc, notified_until};
use crate::ttl::Ttl;

/// The time that a release waits for its answer before the cleanup task takes over.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// A handle that observes a lease: it has the fence and the state of the lease, and cannot end it.
/// Clones are cheap, for other tasks to watch the lease. Like a lease, it keeps its client alive.
#[derive(Clone)]
pub struct Proof {
    state: Arc<LeaseState>,
    fence: Fence,
    since: Deadline,
}

impl Proof {
    /// Returns the fence of this lease: send it to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Returns the name held; of several, the first.
    pub fn name(&self) -> &Name {
        self.names().first()
    }

    /// Returns all names held.
    pub fn names(&self) -> &Names {
        self.state.names()
    }

    /// Returns the time that the lease lasts without a further renewal; zero once it is over.
    pub fn remaining(&self) -> Duration {
        let now = self.state.client.clock().now();
        match self.loss_at(now) {
            None => self.state.remaining(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// Returns whether the lease lasts. Once false, it stays false.
    ///
    /// It only reads the clock, so it is cheap, and right even if the store hangs or the process
    /// was paused. Against a pause *after* the check use the [`fence`](Proof::fence).
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns why the lease is over, if it is.
    pub fn loss(&self) -> Option<Loss> {
        self.loss_at(self.state.client.clock().now())
    }

    fn check_held(&self, now: Deadline) -> Result<()> {
        self.loss_at(now).map_or(Ok(()), |reason| Err(Error::lost(self.names(), reason)))
    }

    fn loss_at(&self, now: Deadline) -> Option<Loss> {
        match self.state.has_in_hand(self.fence) {
            true => self.state.loss_at(now),
            // Its holder has released it; a later loss is another holder's.
            false => Some(Loss::Released),
        }
    }

    /// Waits for the end of the lease and returns the reason, which may be [`Loss::Released`].
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> Loss {
        let state = &self.state;
        loop {
            let ended = notified_until(&state.ended, || self.loss());
            if let Some(loss) = state.clock().until(state.valid_until(), ended).await {
                return loss;
            }
        }
    }

    /// Runs the work while the lease lasts; `None` if the lease ends first and cancels the work.
    pub(crate) async fn run<W: Future>(&self, work: impl FnOnce(Proof) -> W) -> Option<W::Output> {
        let work = std::pin::pin!(work(self.clone()));
        // Loss first: work that ends after its lease was not protected.
        tokio::select! {
            biased;
            _ = self.lost() => None,
            output = work => Some(output),
        }
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof")
            .field("names", self.names())
            .field("fence", &self.fence())
            .field("in_hand", &self.state.has_in_hand(self.fence))
            .finish_non_exhaustive()
    }
}

/// A lock held on a lease: renewed in the background, lost with a reason, released once.
///
/// Dropping it, also in a panic, releases it in the background without blocking.
/// [`release`](Lease::release) waits for the answer and reports a loss; prefer it if a roll-back is
/// possible.
///
/// It derefs to a [`Proof`]; a clone of that is no second right to the lock.
///
/// A leaked lease (`std::mem::forget`) is renewed until its `max_hold`, until the client is
/// [closed](crate::Locks::close), or until the runtime ends.
#[must_use = "the lock is let go as soon as the lease is dropped"]
pub struct Lease {
    proof: Proof,
    /// The number of unused fences in the grant's block.
    spare_fences: u16,
    /// True if dropping this lease ends the grant: not after the grant was passed on.
    ///
    /// A grant has one owner. Before a user has the lease, dropping it withdraws the claim.
    is_owner: bool,
}

impl Lease {
    /// Takes over a grant, which is renewed from now on. No user has the lease yet.
    pub(crate) fn granted(
        client: &Arc<Client>,
        request: &Arc<Request>,
        ticket: Ticket,
        grant: Grant,
    ) -> Self {
        let now = client.clock().now();
        let hold_end = request.max_hold.map_or(Deadline::FAR, |max_hold| now.plus(max_hold));
        let state = LeaseState::new(client, request.clone(), ticket, grant, now, hold_end);
        let spare_fences = grant.fences.saturating_sub(1);
        Lease { proof: Proof { state, fence: grant.fence, since: now }, spare_fences, is_owner: true }
    }

    /// Gives the lease to a user.
    pub(crate) fn hand_over(mut self, now: Deadline) -> Self {
        self.proof.since = now;
        self.proof.state.take_in_hand(self.proof.fence);
        self
    }

    /// Returns the fence for the next lease under the same grant, if one is left.
    pub(crate) fn next_fence(&self) -> Option<Fence> {
        if self.spare_fences > 0 { self.proof.fence.plus(1).ok() } else { None }
    }

    /// Returns the next lease under the same grant, which it owns from now on.
    pub(crate) fn next_lease(&mut self, fence: Fence) -> Lease {
        self.is_owner = false;
        let spare_fences = self.spare_fences.saturating_sub(1);
        Lease { proof: Proof { fence, ..self.proof.clone() }, spare_fences, is_owner: true }
    }

    /// Returns whether another task of this client had a lease under the same grant before.
    pub(crate) fn is_passed(&self) -> bool {
        self.proof.fence != self.proof.state.fence
    }

    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.proof.state
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.proof.state.client
    }

    pub(crate) fn share(&self) -> Share {
        self.proof.state.ticket.share
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.proof.state.client.clock()
    }

    /// Returns a proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.proof.clone()
    }

    /// Renews the lease for this TTL, now and later, up to `max_hold`. Never shortens what is left.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is too late; [`Error::Unknown`] without an answer: it lasts as before.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the lease lasts at least as long as before.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        self.client().check_ttl("TTL", ttl)?;
        self.proof.state.extend(ttl).await
    }

    /// Releases the lease, and returns an error if the lock was not held to the end. The store
    /// decides that or, if the lease goes to another task of this client, the last renewal.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease had ended before: other holders may have changed what it
    /// protected, so roll back. [`Error::Unknown`] if the store gave no answer: the lease was valid
    /// when this was called, and is given back in the background.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the lock is given back in the background.
    pub async fn release(mut self) -> Result<()> {
        let now = self.clock().now();
        self.check_held(now)?;
        if self.pass_on(now) {
            return Ok(());
        }
        // Boxed: most leases under contention are passed on, and do not need it.
        Box::pin(self.give_back(now)).await
    }

    /// Gives the claim back to the store. The user released it at `now`.
    async fn give_back(self, now: Deadline) -> Result<()> {
        let mut report = Report { proof: &self.proof, now, is_due: true };
        let Proof { state, fence, .. } = &self.proof;
        let client = &state.client;
        let _in_use = client.closing.in_use();
        if !state.end(Loss::Released, Then::Release) {
            report.is_due = false;
            return Err(state.lost_before());
        }
        let vacate = Vacate(state);
        let mut owed = client.cleanup.owe(state.withdrawal(true));
        let mut call = pin!(client.store.release(&state.ticket));
        let first = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        // The next local task may ask now: its request follows this one.
        drop(vacate);
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                owed.list();
                let enough = state.clock().now().plus(state.ttl().third().min(PATIENCE_MAX));
                let answer = state.clock().until(enough, call).await;
                answer.unwrap_or_else(|| Err(client.no_answer()))
            }
        };
        let unknown = |why: &dyn fmt::Display| Err(Error::unknown(state.names(), "release", why));
        match answer {
            Ok(Released::Released) => {
                owed.settle();
                Ok(())
            }
            Ok(Released::NotHeld) => {
                owed.settle();
                client.cleanup.confirm_end(state.names().clone(), state.fence);
                if client.closing.is_closed() {
                    // Closing the client releases the claim too, and may have done so first.
                    return unknown(&"the client was closed meanwhile");
                }
                if state.clock().now() >= state.valid_until() {
                    // The lease was valid when released, and may have expired on the way.
                    return unknown(&"it was answered after the deadline");
                }
                report.is_due = false;
                state.report_loss(Loss::Deleted, *fence);
                Err(Error::lost(state.names(), Loss::Deleted))
            }
            Err(error) => unknown(&error),
        }
    }

    /// Makes the lock outlive this client and its process: for this TTL from now, by the store's
    /// clock, unless it is [extended](Detached::extend). No other holder comes in between. A TTL
    /// below the time left shortens it, unless a renewal on its way to the store restores the
    /// lease's own TTL.
    ///
    /// From this call on the lease is over: it is not renewed, and its proofs report
    /// [`Loss::Released`]. The result has its fence.
    ///
    /// # Errors
    /// After any error the lock is not held any more, and the rest of it is given back.
    /// [`Error::Lost`] if the lease had ended before; [`Error::Unknown`] if no answer came within 5
    /// s; [`Error::Refused`] if the store refuses; [`Error::Invalid`] for an invalid TTL, or with a
    /// `max_hold`, which no client would enforce; [`Error::Closed`] if the client was closed.
    ///
    /// # Cancel safety
    /// Dropped before its end, the lock is given back in the background. A returned lease stays
    /// until it is released or its TTL is over.
    pub async fn detach(self, ttl: Duration) -> Result<Detached> {
        let ttl = Ttl::new(ttl)?;
        self.client().check_ttl("TTL", ttl)?;
        Detached::refuse_max_hold(self.proof.state.max_hold())?;
        let client = self.client().clone();
        let _in_use = client.closing.in_use();
        // Boxed: few leases need it.
        Box::pin(self.into_detached()?.settle(ttl)).await
    }

    /// Ends the lease and keeps the name taken for this time from now, also if this client and its
    /// process end before: for work that is done and must not be repeated before then. Zero is a
    /// [`release`](Lease::release). A `max_hold` has no effect: it limits the work, which is over.
    ///
    /// Unlike [`detach`](Lease::detach) it never gives the name back. It retries until the store
    /// answers or the lease's own deadline passes. Without an answer, the name stays taken for that
    /// time or, if the store never executed the request, until the lease's TTL is over.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease had ended before; [`Error::Unknown`] if the store did not
    /// confirm it in time; [`Error::Invalid`] for a longer time than the store keeps a name.
    ///
    /// # Cancel safety
    /// Dropped before it is polled, the lock is given back in the background. Dropped later, the
    /// name stays taken as without an answer.
    pub async fn keep_for(self, time: Duration) -> Result<()> {
        let until = self.clock().now().plus(time);
        self.keep_until(until).await
    }

    pub(crate) async fn keep_until(self, until: Deadline) -> Result<()> {
        let client = self.client().clone();
        let _in_use = client.closing.in_use();
        let left = until.since(client.clock().now());
        if left.is_zero() {
            return self.release().await;
        }
        client.check_ttl("TTL", Ttl::new(left.max(Ttl::MIN.as_duration()))?)?;
        // Boxed: few leases need it.
        Box::pin(self.into_detached()?.keep_until(until)).await
    }

    /// Ends the lease. The claim stays in the store, owned by the returned value.
    fn into_detached(self) -> Result<Detached> {
        self.end_and_keep()?;
        let Proof { state, fence, since } = &self.proof;
        Ok(Detached::of_lease(state, *fence, *since))
    }

    /// Ends the lease. The caller owns the claim from now on.
    fn end_and_keep(&self) -> Result<()> {
        self.check_held(self.clock().now())?;
        let state = &self.proof.state;
        state.let_go();
        if state.end(Loss::Released, Then::Keep) { Ok(()) } else { Err(state.lost_before()) }
    }

    /// Runs the work while the lease lasts, then releases it. A loss cancels the work at once
    /// (drops its future). A panic of the work releases the lock.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost during the work, or if the release finds it lost. A
    /// release without an answer is no error here: the work was protected to its end.
    ///
    /// # Cancel safety
    /// Dropped anywhere, the work is cancelled and the lock released.
    pub async fn run<T, F, W>(self, work: F) -> Result<T>
    where
        F: FnOnce(Proof) -> W,
        W: Future<Output = T>,
    {
        self.run_or_rollback(work, |_| std::future::ready(())).await
    }

    /// Like [`run`](Lease::run); if the lease is lost, runs `rollback` with the reason and the
    /// work's output (if it ended) before it returns the error.
    ///
    /// An `Err` of the work is an output, `Ok(Err(…))`, without a roll-back. The roll-back runs
    /// *without* the lock: it may only undo the work's own changes, or must carry the
    /// [`fence`](Setback::fence).
    ///
    /// # Cancel safety
    /// Dropped anywhere, the work is cancelled and the lock released; the roll-back is cancelled,
    /// or not started.
    pub async fn run_or_rollback<T, F, W, G, R>(self, work: F, rollback: G) -> Result<T>
    where
        F: FnOnce(Proof) -> W,
        W: Future<Output = T>,
        G: FnOnce(Setback<T>) -> R,
        R: Future<Output = ()>,
    {
        let output = self.proof.run(work).await;
        let names = self.names().clone();
        let fence = self.fence();
        let end = self.release().await;
        match (end, output) {
            (Ok(()) | Err(Error::Unknown { .. }), Some(output)) => Ok(output),
            (end, output) => {
                let reason = match end {
                    Err(Error::Lost { reason, .. }) => reason,
                    _ => Loss::Expired,
                };
                rollback(Setback { reason, fence, output }).await;
                Err(Error::lost(&names, reason))
            }
        }
    }

    /// Releases the lease, and passes the grant on. Returns false if the grant goes to the store.
    fn pass_on(&mut self, now: Deadline) -> bool {
        let state = self.proof.state.clone();
        state.let_go();
        let is_passed = state.client.queues.pass(self, now);
        if is_passed {
            self.report_released(now);
        }
        is_passed
    }

    fn report_released(&self, now: Deadline) {
        drop(Report { proof: &self.proof, now, is_due: true });
    }
}

/// Lets the next local task ask for the name, also if the release panics.
struct Vacate<'a>(&'a LeaseState);

impl Drop for Vacate<'_> {
    fn drop(&mut self) {
        self.0.client.queues.vacate(self.0);
    }
}

/// The event of a release, sent on drop: also by a caller that does not wait for the answer.
struct Report<'a> {
    proof: &'a Proof,
    now: Deadline,
    is_due: bool,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let Proof { state, fence, since } = self.proof;
        if self.is_due {
            state.client.events.released(state.names(), *fence, self.now.since(*since));
        }
    }
}

/// The input of a roll-back.
#[derive(Debug)]
pub struct Setback<T> {
    /// The reason of the loss.
    pub reason: Loss,
    /// The fence of the lost lease.
    pub fence: Fence,
    /// The work's output; `None` if it was cancelled.
    pub output: Option<T>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_owner {
            return;
        }
        let released_at = match self.proof.state.has_in_hand(self.proof.fence) {
            true => Some(self.clock().now()).filter(|now| self.proof.state.loss_at(*now).is_none()),
            // Its user has released it, or it was dropped on its way to one.
            false => None,
        };
        if released_at.is_some_and(|now| self.pass_on(now)) {
            return;
        }
        let state = &self.proof.state;
        if state.end(Loss::Released, Then::Withdraw) {
            released_at.into_iter().for_each(|now| self.report_released(now));
        } else if let Some(Loss::Deleted | Loss::Taken | Loss::Gone) = state.end_reason() {
            // The user has dropped a lease that was taken away: an operator may wait for that.
            state.client.cleanup.confirm_end(state.names().clone(), state.fence);
        }
    }
}

/// Derefs types with a lease in this field to its [`Proof`].
macro_rules! deref_to_proof {
    ($($lease:ident)*: $field:ident) => {
        $(impl ::std::ops::Deref for $lease {
            type Target = $crate::lease::Proof;

            fn deref(&self) -> &$crate::lease::Proof {
                &self.$field
            }
        })*
    };
}
pub(crate) use deref_to_proof;

deref_to_proof!(Lease: proof);
debug_parts!(Lease: names() fence());

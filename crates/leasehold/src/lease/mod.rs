//! `Lease`: a lock that a user holds. `Proof`: a handle that watches it.

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

/// How long a release waits for its answer before the cleanup task takes over.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// What a holder can show: the fence, and whether the lease still lasts. Cloning is cheap; a clone can be handed
/// to other tasks, which can watch the lease but not end it. Like a lease, it keeps its client alive.
#[derive(Clone)]
pub struct Proof {
    state: Arc<LeaseState>,
    fence: Fence,
    since: Deadline,
}

impl Proof {
    /// The fence of this lease: give it to the protected resource with every write.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The name that is held; of several, the first.
    pub fn name(&self) -> &Name {
        self.names().first()
    }

    /// All names that are held.
    pub fn names(&self) -> &Names {
        self.state.names()
    }

    /// How long the lease lasts without a further renewal; zero once it is over.
    pub fn remaining(&self) -> Duration {
        let now = self.state.client.clock().now();
        match self.loss_at(now) {
            None => self.state.remaining(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// Whether the lease lasts. Once false, false for ever.
    ///
    /// It looks at the clock and asks nobody, so it is cheap, and it is right even when the store hangs or
    /// the process has just been woken from a pause. What it cannot know is how long the process will be
    /// paused *after* the look; for that there is the [`fence`](Proof::fence).
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Why the lease is over, if it is.
    pub fn loss(&self) -> Option<Loss> {
        self.loss_at(self.state.client.clock().now())
    }

    fn check_held(&self, now: Deadline) -> Result<()> {
        self.loss_at(now).map_or(Ok(()), |reason| Err(Error::lost(self.names(), reason)))
    }

    fn loss_at(&self, now: Deadline) -> Option<Loss> {
        match self.state.has_in_hand(self.fence) {
            true => self.state.loss_at(now),
            // Its holder has let go; whatever came after that is another's.
            false => Some(Loss::Released),
        }
    }

    /// Ends when the lease does, and says why; [`Loss::Released`] where its holder let go.
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

    /// Runs the work while the lease lasts. If the lease ends first, the work is cancelled, and this returns `None`.
    pub(crate) async fn run<W: Future>(&self, work: impl FnOnce(Proof) -> W) -> Option<W::Output> {
        let work = std::pin::pin!(work(self.clone()));
        // Loss first: work that ends after its lease has ended was not protected.
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

/// A lock held on a lease: renewed in the background, lost with a reason, let go once.
///
/// Dropping it lets go in the background, at once and without blocking, also in a panic. [`release`](Lease::release)
/// waits for the answer and says whether the lock was held to the end; prefer it where a roll-back is possible.
///
/// It has everything a [`Proof`] has; a clone of it is a [`Proof`], and no second right to the lock.
///
/// A lease that is leaked (`std::mem::forget`) goes on being renewed until its `max_hold`, until the client is
/// [closed](crate::Locks::close), or until the runtime ends: nothing in the language tells it from one in use.
#[must_use = "the lock is let go as soon as the lease is dropped"]
pub struct Lease {
    proof: Proof,
    /// How many fences of the grant's block are unused.
    spare_fences: u16,
    /// Whether dropping this lease ends the grant: not once the grant was passed on.
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

    /// The fence for the next lease under the same grant, if one is left.
    pub(crate) fn next_fence(&self) -> Option<Fence> {
        if self.spare_fences > 0 { self.proof.fence.plus(1).ok() } else { None }
    }

    /// Returns the next lease under the same grant, with its [`next_fence`](Lease::next_fence). It owns the grant from now on.
    pub(crate) fn next_lease(&mut self, fence: Fence) -> Lease {
        self.is_owner = false;
        let spare_fences = self.spare_fences.saturating_sub(1);
        Lease { proof: Proof { fence, ..self.proof.clone() }, spare_fences, is_owner: true }
    }

    /// Whether another task of this client had a lease under the same grant before.
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

    /// A proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.proof.clone()
    }

    /// Renews the lease now, and from now on for this TTL. Never shortens what is left, and never goes beyond the
    /// lock's `max_hold`.
    ///
    /// # Errors
    /// [`Error::Lost`] where it is too late; [`Error::Unknown`] where no answer came: the lease is then as good
    /// as it was, and no better.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the lease lasts at least as long as before.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        self.client().check_ttl("TTL", ttl)?;
        self.proof.state.extend(ttl).await
    }

    /// Lets go, and says whether the lock was held to the end, as far as this client knows: the store, if it is
    /// asked, or else (where the lease goes straight to another task of this client) the last renewal.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease had ended before: what it protected may have been touched by others, so
    /// roll back. [`Error::Unknown`] where the store gave no answer: the lease was valid when this was called, and
    /// the lock is being given back in the background.
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

    /// Gives the claim back to the store. The user let go at `now`.
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
                    // The lease was valid when its holder let go. It may have expired before the request arrived.
                    return unknown(&"it was answered after the deadline");
                }
                report.is_due = false;
                state.report_loss(Loss::Deleted, *fence);
                Err(Error::lost(state.names(), Loss::Deleted))
            }
            Err(error) => unknown(&error),
        }
    }

    /// Has the lock outlive this client and its process: for this TTL from now, by the store's clock, and no longer unless it
    /// is [extended](Detached::extend). There is no gap: nobody else gets it in between. A TTL below what the lease has left
    /// shortens it. (A renewal that is still on its way to the store may make it last for one TTL of the lease.)
    ///
    /// From this call on the lease itself is over: nobody renews it, and its proofs say [`Loss::Released`]. What comes back has
    /// its fence.
    ///
    /// # Errors
    /// Whatever the error, the lock is held no more, and what may be left of it is given back. [`Error::Lost`] where the lease
    /// had ended before; [`Error::Unknown`] where no answer came within 5 s; [`Error::Refused`] when the store says so;
    /// [`Error::Invalid`] for a bad TTL, and where a `max_hold` is set, which nobody would be there to enforce;
    /// [`Error::Closed`] where the client was closed meanwhile.
    ///
    /// # Cancel safety
    /// Dropped before its end, the lock is given back in the background. Once it has given the detached lease, that stays until
    /// it is released or its TTL is over.
    pub async fn detach(self, ttl: Duration) -> Result<Detached> {
        let ttl = Ttl::new(ttl)?;
        self.client().check_ttl("TTL", ttl)?;
        Detached::refuse_max_hold(self.proof.state.max_hold())?;
        let client = self.client().clone();
        let _in_use = client.closing.in_use();
        // Boxed: few leases need it.
        Box::pin(self.into_detached()?.settle(ttl)).await
    }

    /// Ends the lease and has the name stay taken for so long from now, also where this client and its process end before: for
    /// work that is done and must not be done again before then. Zero is a [`release`](Lease::release). A `max_hold` does
    /// not matter here: it limits the work, which is over.
    ///
    /// Unlike [`detach`](Lease::detach) it never gives the name back. The store is asked again until it answers or the
    /// lease's own deadline passes; where no answer comes, the name stays taken for the time asked for, or, where the store
    /// never executed the request, until the lease's TTL is over.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease had ended before; [`Error::Unknown`] where the store did not confirm it in time;
    /// [`Error::Invalid`] where the store does not keep a name for so long.
    ///
    /// # Cancel safety
    /// Dropped before it is polled, the lock is given back in the background. Dropped later, the name stays taken as where
    /// no answer comes.
    pub async fn keep_for(self, time: Duration) -> Result<()> {
        let until = self.clock().now().plus(time);
        self.keep_until(until).await
    }

    /// [`keep_for`](Lease::keep_for), up to this deadline.
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

    /// Ends the lease. The claim stays in the store, and the value returned owns it.
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

    /// Runs the work while the lease lasts. The moment it is lost, the work is cancelled (its future dropped). Where the work
    /// panics, the lock is let go.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease was lost under the work, or turns out at the release to have been.
    /// A release that gets no answer is no error here: the work was protected to its end.
    ///
    /// # Cancel safety
    /// Dropped anywhere, the work is cancelled and the lock let go.
    pub async fn run<T, F, W>(self, work: F) -> Result<T>
    where
        F: FnOnce(Proof) -> W,
        W: Future<Output = T>,
    {
        self.run_or_rollback(work, |_| std::future::ready(())).await
    }

    /// Like [`run`](Lease::run), and where the lease is lost, runs `rollback` before it returns the error. The
    /// roll-back is told the reason, and the work's output where it had come to its end.
    ///
    /// An `Err` that the work itself returns is an output like any other: it comes back as `Ok(Err(…))`, and nothing is
    /// rolled back.
    ///
    /// The roll-back runs *without* the lock: it must only undo what is this work's own, or carry the
    /// [`fence`](Setback::fence).
    ///
    /// # Errors
    /// As [`run`](Lease::run).
    ///
    /// # Cancel safety
    /// Dropped anywhere, the work is cancelled and the lock let go; the roll-back is not started, and is
    /// cancelled if it had been.
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

    /// Lets go, and passes the grant to the next task of this client. Returns false if the grant has to go back to the store.
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

/// The event of a release, sent where it is dropped: also by a caller who does not wait for the answer.
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

/// What a roll-back is told.
#[derive(Debug)]
pub struct Setback<T> {
    /// Why the lease was lost.
    pub reason: Loss,
    /// The fence of the lost lease.
    pub fence: Fence,
    /// The work's output, where it came to its end; `None` where it was cancelled.
    pub output: Option<T>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_owner {
            return;
        }
        let released_at = match self.proof.state.has_in_hand(self.proof.fence) {
            true => Some(self.clock().now()).filter(|now| self.proof.state.loss_at(*now).is_none()),
            // Its user has let go, or it was dropped on its way to one.
            false => None,
        };
        if released_at.is_some_and(|now| self.pass_on(now)) {
            return;
        }
        let state = &self.proof.state;
        if state.end(Loss::Released, Then::Withdraw) {
            released_at.into_iter().for_each(|now| self.report_released(now));
        } else if let Some(Loss::Deleted | Loss::Taken | Loss::Gone) = state.end_reason() {
            // The user has let go of a lease that was taken away: an operator may wait for that.
            state.client.cleanup.confirm_end(state.names().clone(), state.fence);
        }
    }
}

/// Gives types that have a lease in this field every method of its [`Proof`].
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

//! `Lease`: a lock that a user holds. `Proof`: a handle that watches it.

pub(crate) mod convert;
pub(crate) mod detached;
pub(crate) mod state;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use self::detached::Detached;
use self::state::{LeaseState, OwnedGrant};
use crate::claim::{Names, Share};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::locks::Client;
use crate::loss::Then;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;

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
            let mut ended = std::pin::pin!(state.ended.notified());
            // Registers before it checks, or it would miss an end in between.
            ended.as_mut().enable();
            if let Some(loss) = self.loss() {
                return loss;
            }
            state.clock().until(state.valid_until(), ended).await;
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
    /// `None` once this lease has given it away.
    grant: Option<OwnedGrant>,
}

impl Lease {
    pub(crate) fn new(grant: OwnedGrant, since: Deadline) -> Self {
        grant.state.take_in_hand(grant.fence);
        Lease { proof: Proof { state: grant.state.clone(), fence: grant.fence, since }, grant: Some(grant) }
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
        let now = self.proof.state.client.clock().now();
        if let Some(reason) = self.proof.loss_at(now) {
            return Err(Error::Lost { names: self.names().clone(), reason });
        }
        let Some(grant) = self.pass_on(now) else { return Ok(()) };
        let mut report = Report { proof: &self.proof, now, is_due: true };
        // Boxed: most leases under contention are passed on, and do not need it.
        let end = Box::pin(grant.release()).await;
        report.is_due = !matches!(end, Err(Error::Lost { .. }));
        end
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
        let until = self.client().clock().now().plus(time);
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

    /// Ends the lease. The value returned owns its claim.
    fn into_detached(mut self) -> Result<Detached> {
        let reason = self.proof.loss();
        let Some(grant) = self.grant.take_if(|_| reason.is_none()) else {
            return Err(self.proof.state.lost(reason.unwrap_or(Loss::Released)));
        };
        grant.state.let_go();
        grant.detach(self.proof.since)
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
                Err(Error::Lost { names, reason })
            }
        }
    }

    /// Lets go, and passes the grant to the next task of this client. Returns the grant if it has to go back to the store.
    fn pass_on(&mut self, now: Deadline) -> Option<OwnedGrant> {
        let grant = self.grant.take()?;
        grant.state.let_go();
        let back = self.client().queues.pass(grant, now);
        if back.is_none() {
            self.report_released(now);
        }
        back
    }

    fn report_released(&self, now: Deadline) {
        drop(Report { proof: &self.proof, now, is_due: true });
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
        if self.grant.is_none() {
            return;
        }
        let now = self.clock().now();
        // Dropping the grant of a lost lease tells those who took it away that its holder has let go.
        if self.proof.loss_at(now).is_none()
            && let Some(grant) = self.pass_on(now)
            && grant.state.end(Loss::Released, Then::Withdraw)
        {
            self.report_released(now);
        }
    }
}

impl Deref for Lease {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.proof
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("names", self.names())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

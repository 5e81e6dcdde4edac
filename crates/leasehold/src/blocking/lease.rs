//! The leases of the blocking API: what its lock types return.

use std::time::Duration;

use super::mirror::mirror;
use crate::claim::Names;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::lease::{Proof, Setback, deref_to_proof};
use crate::token::Token;

mirror! {
    /// A lock held on a lease. It has every method of a [`Proof`]. See [`crate::Lease`].
    #[must_use = "the lock is released as soon as the lease is dropped"]
    struct Lease(crate::Lease) {
        /// Returns a proof, for other threads to watch.
        fn proof(&self) -> Proof;
        /// Renews the lease now, and from now on for this TTL.
        async fn extend(&self, ttl: Duration) -> Result<()>;
        /// Makes the lease outlive this client and its process, for this TTL from now.
        async fn detach(self, ttl: Duration) -> Result<Detached>;
        /// Ends the lease, and keeps the name taken for this long from now.
        async fn keep_for(self, time: Duration) -> Result<()>;
        /// Turns a writer's lease into a reader's, without a gap.
        async fn downgrade(self) -> Result<Lease>;
        /// Releases the lock, and reports whether it was held to the end.
        async fn release(self) -> Result<()>;
    }

    /// A lease that is not renewed and outlives its process. A drop does not release it. See
    /// [`crate::Detached`].
    #[must_use = "the lock stays taken until its TTL is over: keep the token, or release it"]
    struct Detached(crate::Detached) {
        /// Returns the names that the lease holds.
        fn names(&self) -> &Names;
        /// Returns the token, with which any process extends or releases the lease.
        fn token(&self) -> &Token;
        /// Returns the fence; `None` if the lease was taken up again by its token alone.
        fn fence(&self) -> Option<Fence>;
        /// Sets the fence of a lease that was taken up again by its token.
        fn with_fence(self, fence: Fence) -> Self;
        /// Returns how long the lease lasts at least, as far as this process knows.
        fn remaining(&self) -> Duration;
        /// Makes the lease last for this TTL from now.
        async fn extend(&mut self, ttl: Duration) -> Result<()>;
        /// Releases the lock, and reports whether it was held to the end.
        async fn release(self) -> Result<()>;
    }

    /// A lease on a re-entrant lock, with every method of a [`Proof`]. See [`crate::CountedLease`].
    #[must_use = "the lock is released as soon as the lease is dropped"]
    struct CountedLease(crate::CountedLease) {
        /// Returns a proof, for other threads to watch.
        fn proof(&self) -> Proof;
        /// Returns how many leases the owner holds now, this one included.
        fn count(&self) -> usize;
        /// Ends this lease; the last of the owner's leases releases the lock.
        async fn release(self) -> Result<()>;
    }

    /// The run of a period. It has every method of a [`Proof`]. See [`crate::Turn`].
    #[must_use = "the run is given back as soon as its turn is dropped"]
    struct Turn(crate::Turn) {
        /// Returns a proof, for other threads to watch.
        fn proof(&self) -> Proof;
        /// Ends the run, which counts: the period has no other run.
        async fn done(self) -> Result<()>;
        /// Ends the run, which does not count.
        async fn give_back(self) -> Result<()>;
    }

    /// The term of a leader. It has every method of a [`Proof`]. See [`crate::Leadership`].
    #[must_use = "the leader resigns as soon as this is dropped"]
    struct Leadership(crate::Leadership) {
        /// Returns the term, which is the fence of the lease.
        fn term(&self) -> Fence;
        /// Returns a proof, for other threads to watch.
        fn proof(&self) -> Proof;
        /// Ends the term, so that the next candidate leads at once.
        async fn resign(self) -> Result<()>;
        /// Returns the lease, to run work under it or to detach it.
        fn into_lease(self) -> Lease;
    }
}

deref_to_proof!(Lease CountedLease Turn Leadership: inner);

impl Lease {
    /// Waits until the lease is lost, at most this long; returns `None` if it is still held then.
    pub fn wait_lost(&self, timeout: Duration) -> Result<Option<Loss>> {
        let clock = self.inner.clock();
        self.engine.block_on(clock.until(clock.now().plus(timeout), self.inner.lost()))
    }

    /// Turns a reader's lease into a writer's, if it needs no wait. See [`crate::Lease::upgrade`].
    pub fn upgrade(self) -> Result<Upgrade> {
        let engine = self.engine;
        Ok(match engine.block_on(self.inner.upgrade())?? {
            crate::Upgrade::Granted(inner) => Upgrade::Granted(Lease { inner, engine }),
            crate::Upgrade::Refused(inner) => Upgrade::Refused(Lease { inner, engine }),
        })
    }

    /// Runs the work on this thread, and releases the lock. Only async work can be cancelled, so
    /// long work checks [`Proof::is_valid`] before each step that matters.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost while the work ran: roll back. An unanswered release
    /// is no error here: the work was protected to its end.
    pub fn run<T>(self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.run_or_rollback(work, |_| ())
    }

    /// Acts as [`run`](Lease::run), and calls `rollback` before it returns the error of a lost
    /// lease. See [`crate::Lease::run_or_rollback`].
    ///
    /// # Errors
    /// As [`run`](Lease::run).
    pub fn run_or_rollback<T>(
        self,
        work: impl FnOnce(&Proof) -> T,
        rollback: impl FnOnce(Setback<T>),
    ) -> Result<T> {
        let fence = self.fence();
        let output = work(&self);
        match self.release() {
            Ok(()) | Err(Error::Unknown { .. }) => Ok(output),
            Err(error) => {
                if let Error::Lost { reason, .. } = error {
                    rollback(Setback { reason, fence, output: Some(output) });
                }
                Err(error)
            }
        }
    }
}

/// The result of an attempt to become a writer. See [`crate::Upgrade`].
#[derive(Debug)]
#[must_use = "it contains a lease, which is released as soon as it is dropped"]
pub enum Upgrade {
    /// The writer's lease, with a new fence.
    Granted(Lease),
    /// The reader's lease, unchanged, because there are other holders.
    Refused(Lease),
}

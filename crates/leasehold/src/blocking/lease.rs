//! Leases, kept and detached, for code that is not async.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::claim::Names;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::lease::{Proof, Setback};
use crate::token::Token;

/// What came of an attempt to become a writer; see [`crate::Upgrade`].
#[derive(Debug)]
#[must_use = "a lease is in it, and is let go as soon as it is dropped"]
pub enum Upgrade {
    /// It is a writer's now, with a new fence.
    Granted(Lease),
    /// Others hold the name too: this is the reader's lease, as it was.
    Refused(Lease),
}

/// A lock held on a lease; see [`crate::Lease`]. It has everything a [`Proof`] has.
#[must_use = "the lock is let go as soon as the lease is dropped"]
#[derive(Debug)]
pub struct Lease {
    // Before the engine, so that what its drop sends still finds the janitor.
    pub(super) inner: crate::Lease,
    pub(super) engine: Arc<Engine>,
}

impl Lease {
    /// A proof for other threads to watch.
    pub fn proof(&self) -> Proof {
        self.inner.proof()
    }

    /// Waits until the lease is lost, at most this long; `None` where it still lasts then.
    pub fn wait_lost(&self, timeout: Duration) -> Result<Option<Loss>> {
        let clock = self.inner.clock();
        self.engine.block_on(async {
            tokio::select! {
                biased;
                loss = self.inner.lost() => Some(loss),
                () = clock.sleep_until(clock.now().plus(timeout)) => None,
            }
        })
    }

    /// Renews the lease now, and from now on for this TTL. See [`crate::Lease::extend`].
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.engine.block_on(self.inner.extend(ttl))?
    }

    /// Has the lock outlive this client and its process, for this TTL from now. See [`crate::Lease::detach`].
    pub fn detach(self, ttl: Duration) -> Result<Detached> {
        let inner = self.engine.block_on(self.inner.detach(ttl))??;
        Ok(Detached { inner, engine: self.engine })
    }

    /// Ends the lease and has the name stay taken for so long from now. See [`crate::Lease::keep_for`].
    pub fn keep_for(self, time: Duration) -> Result<()> {
        self.engine.block_on(self.inner.keep_for(time))?
    }

    /// Makes a reader's lease of a writer's, without a gap. See [`crate::Lease::downgrade`].
    pub fn downgrade(self) -> Result<Lease> {
        let inner = self.engine.block_on(self.inner.downgrade())??;
        Ok(Lease { inner, engine: self.engine })
    }

    /// Tries to make a writer's lease of a reader's, without a gap and without waiting. See [`crate::Lease::upgrade`].
    pub fn upgrade(self) -> Result<Upgrade> {
        let engine = self.engine;
        Ok(match engine.block_on(self.inner.upgrade())?? {
            crate::Upgrade::Granted(inner) => Upgrade::Granted(Lease { inner, engine }),
            crate::Upgrade::Refused(inner) => Upgrade::Refused(Lease { inner, engine }),
        })
    }

    /// Does the work on this thread, and lets go. Work that is not async cannot be cancelled: long work looks at
    /// [`Proof::is_valid`] before each step that matters.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease was lost under the work: roll back. A release that gets no answer is no error here:
    /// the work was protected to its end.
    pub fn run<T>(self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.run_or_rollback(work, |_| ())
    }

    /// Like [`run`](Lease::run), and where the lease was lost, calls `rollback` before it returns the error. See
    /// [`crate::Lease::run_or_rollback`].
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

    /// Lets go, and says whether the lock was held to the end. See [`crate::Lease::release`].
    pub fn release(self) -> Result<()> {
        self.engine.block_on(self.inner.release())?
    }
}

impl Deref for Lease {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.inner
    }
}

/// A lease that nobody keeps; see [`crate::Detached`]. Dropping it does not let go.
#[must_use = "it stays taken until its TTL is over: keep its token, or release it"]
#[derive(Debug)]
pub struct Detached {
    // Before the engine, as in a lease.
    pub(super) inner: crate::Detached,
    pub(super) engine: Arc<Engine>,
}

impl Detached {
    /// What is held.
    pub fn names(&self) -> &Names {
        self.inner.names()
    }

    /// What it takes to take it up again. See [`crate::Detached::token`].
    pub fn token(&self) -> &Token {
        self.inner.token()
    }

    /// The fence; `None` where it was taken up again by its token alone.
    pub fn fence(&self) -> Option<Fence> {
        self.inner.fence()
    }

    /// Tells it its fence. See [`crate::Detached::with_fence`].
    pub fn with_fence(self, fence: Fence) -> Self {
        Detached { inner: self.inner.with_fence(fence), engine: self.engine }
    }

    /// How long it lasts at least, as far as this process knows. See [`crate::Detached::remaining`].
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Has it last for this TTL from now on. See [`crate::Detached::extend`].
    pub fn extend(&mut self, ttl: Duration) -> Result<()> {
        self.engine.block_on(self.inner.extend(ttl))?
    }

    /// Lets go, and says whether it was held to the end. See [`crate::Detached::release`].
    pub fn release(self) -> Result<()> {
        self.engine.block_on(self.inner.release())?
    }
}

//! Owners who take again what they hold, for code that is not async.

use std::ops::Deref;
use std::sync::Arc;

use super::engine::Engine;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Proof;
use crate::name::IntoName;

/// An owner under whose name a lock that is held already may be taken again. See [`crate::Scope`].
#[derive(Debug, Clone)]
pub struct Scope {
    pub(crate) inner: crate::Scope,
    pub(super) engine: Arc<Engine>,
}

impl Scope {
    /// A lock that this owner may take as often as it likes, and others not at all meanwhile.
    pub fn mutex(&self, name: impl IntoName) -> ReentrantMutex {
        ReentrantMutex { inner: self.inner.mutex(name), engine: self.engine.clone() }
    }
}

/// A lock that one owner at a time has, as often as it likes. See [`crate::ReentrantMutex`].
#[derive(Debug, Clone)]
pub struct ReentrantMutex {
    pub(crate) inner: crate::ReentrantMutex,
    engine: Arc<Engine>,
}

impl ReentrantMutex {
    /// Takes the lock, or takes it too. See [`crate::ReentrantMutex::lock`].
    pub fn lock(&self) -> Result<CountedLease> {
        let inner = self.engine.block_on(self.inner.lock())??;
        Ok(CountedLease { inner, engine: self.engine.clone() })
    }

    /// The same if that can be done now; `None` where it cannot.
    pub fn try_lock(&self) -> Result<Option<CountedLease>> {
        let inner = self.engine.block_on(self.inner.try_lock())??;
        Ok(inner.map(|inner| CountedLease { inner, engine: self.engine.clone() }))
    }
}

/// A lock that its owner holds, perhaps several times. See [`crate::CountedLease`]. It has everything a [`Proof`] has.
#[must_use = "the lock is let go as soon as the lease is dropped"]
#[derive(Debug)]
pub struct CountedLease {
    // Before the engine, so that what its drop sends still finds the janitor.
    inner: crate::CountedLease,
    engine: Arc<Engine>,
}

impl CountedLease {
    /// How many times the owner holds it now.
    pub fn count(&self) -> usize {
        self.inner.count()
    }

    /// Lets go; the last of the owner's to do so gives the lock back. See [`crate::CountedLease::release`].
    pub fn release(self) -> Result<()> {
        self.engine.block_on(self.inner.release())?
    }
}

impl Deref for CountedLease {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.inner
    }
}

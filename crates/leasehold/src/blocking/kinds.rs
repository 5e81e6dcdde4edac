//! The kinds of lock, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::lease::{Detached, Lease};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::{Proof, Setback};

/// A lock that one holder at a time has. The options are those of [`crate::Mutex`].
#[derive(Debug, Clone)]
pub struct Mutex {
    pub(crate) inner: crate::Mutex,
    pub(super) engine: Arc<Engine>,
}

impl Mutex {
    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Result<Lease> {
        taken(&self.engine, self.inner.lock())
    }

    /// Takes the lock if it is free; `None` where it is not.
    pub fn try_lock(&self) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_lock())
    }

    /// Waits for the lock and takes it for longer than this process may live. See [`crate::Mutex::lock_detached`].
    pub fn lock_detached(&self) -> Result<Detached> {
        let inner = self.engine.block_on(self.inner.lock_detached())??;
        Ok(Detached { inner, engine: self.engine.clone() })
    }

    /// The same if it is free; `None` where it is not.
    pub fn try_lock_detached(&self) -> Result<Option<Detached>> {
        let inner = self.engine.block_on(self.inner.try_lock_detached())??;
        Ok(inner.map(|inner| Detached { inner, engine: self.engine.clone() }))
    }

    /// Locks, does the work, and lets go. See [`Lease::run`].
    pub fn run<T>(&self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.lock()?.run(work)
    }

    /// Locks, does the work, and lets go; rolls back where the lease was lost. See [`Lease::run_or_rollback`].
    pub fn run_or_rollback<T>(
        &self,
        work: impl FnOnce(&Proof) -> T,
        rollback: impl FnOnce(Setback<T>),
    ) -> Result<T> {
        self.lock()?.run_or_rollback(work, rollback)
    }
}

/// A lock that many readers hold together, or one writer alone. The options are those of [`crate::RwLock`].
#[derive(Debug, Clone)]
pub struct RwLock {
    pub(crate) inner: crate::RwLock,
    pub(super) engine: Arc<Engine>,
}

impl RwLock {
    /// Waits until no writer holds the lock or waits ahead, and takes a reader's share of it.
    pub fn read(&self) -> Result<Lease> {
        taken(&self.engine, self.inner.read())
    }

    /// Takes a reader's share if no writer holds the lock or waits for it; `None` where one does.
    pub fn try_read(&self) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_read())
    }

    /// Waits until nobody holds the lock, and takes the whole of it.
    pub fn write(&self) -> Result<Lease> {
        taken(&self.engine, self.inner.write())
    }

    /// Takes the whole of the lock if nobody holds it; `None` where somebody does.
    pub fn try_write(&self) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_write())
    }
}

/// A limit that holders keep together. The options, and what different limits come to, are those of [`crate::Semaphore`].
#[derive(Debug, Clone)]
pub struct Semaphore {
    pub(crate) inner: crate::Semaphore,
    pub(super) engine: Arc<Engine>,
}

impl Semaphore {
    /// In order of arrival, as it is if nothing is said.
    #[must_use]
    pub fn fair(self) -> Self {
        self.with(crate::Semaphore::fair)
    }

    /// As soon as enough permits are free, past those who wait.
    #[must_use]
    pub fn barging(self) -> Self {
        self.with(crate::Semaphore::barging)
    }

    /// Waits for a permit and takes it.
    pub fn acquire(&self) -> Result<Lease> {
        taken(&self.engine, self.inner.acquire())
    }

    /// Takes a permit if one is free; `None` where none is.
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_acquire())
    }

    /// Waits for so many permits and takes them together, on one lease.
    pub fn acquire_many(&self, permits: u32) -> Result<Lease> {
        taken(&self.engine, self.inner.acquire_many(permits))
    }

    /// Takes so many permits if they are free; `None` where they are not.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_acquire_many(permits))
    }

    fn with(self, change: impl FnOnce(crate::Semaphore) -> crate::Semaphore) -> Self {
        Semaphore { inner: change(self.inner), engine: self.engine }
    }
}

/// Several names, had alone, all or none. The options are those of [`crate::All`].
#[derive(Debug, Clone)]
pub struct All {
    pub(crate) inner: crate::All,
    pub(super) engine: Arc<Engine>,
}

impl All {
    /// Waits until nobody holds any of the names, and takes all of them.
    pub fn lock(&self) -> Result<Lease> {
        taken(&self.engine, self.inner.lock())
    }

    /// Takes all of the names if all are free; `None` where one is not.
    pub fn try_lock(&self) -> Result<Option<Lease>> {
        free(&self.engine, self.inner.try_lock())
    }

    /// Locks all, does the work, and lets go. See [`Lease::run`].
    pub fn run<T>(&self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.lock()?.run(work)
    }
}

fn taken(engine: &Arc<Engine>, asked: impl Future<Output = Result<crate::Lease>>) -> Result<Lease> {
    let inner = engine.block_on(asked)??;
    Ok(Lease { inner, engine: engine.clone() })
}

fn free(
    engine: &Arc<Engine>,
    asked: impl Future<Output = Result<Option<crate::Lease>>>,
) -> Result<Option<Lease>> {
    let inner = engine.block_on(asked)??;
    Ok(inner.map(|inner| Lease { inner, engine: engine.clone() }))
}

/// A gate that is closed until so many have counted down. See [`crate::Latch`].
#[derive(Debug, Clone)]
pub struct Latch {
    pub(crate) inner: crate::Latch,
    pub(super) engine: Arc<Engine>,
}

impl Latch {
    /// For how long it is remembered after somebody counted down last.
    #[must_use]
    pub fn kept_for(self, time: Duration) -> Self {
        Latch { inner: self.inner.kept_for(time), engine: self.engine }
    }

    /// Counts down by one, and says how many are still missing. See [`crate::Latch::count_down`].
    pub fn count_down(&self) -> Result<u32> {
        self.engine.block_on(self.inner.count_down())?
    }

    /// The same under a name: however often, and from wherever, it counts once.
    pub fn count_down_as(&self, id: impl AsRef<str>) -> Result<u32> {
        self.engine.block_on(self.inner.count_down_as(id))?
    }

    /// How many are still missing; zero where it is open.
    pub fn missing(&self) -> Result<u32> {
        self.engine.block_on(self.inner.missing())?
    }

    /// Waits until it is open.
    pub fn wait(&self) -> Result<()> {
        self.engine.block_on(self.inner.wait())?
    }

    /// Waits until it is open, at most so long; says whether it is.
    pub fn wait_for(&self, time: Duration) -> Result<bool> {
        self.engine.block_on(self.inner.wait_for(time))?
    }

    /// Forgets who has counted. See [`crate::Latch::reset`].
    pub fn reset(&self) -> Result<()> {
        self.engine.block_on(self.inner.reset())?
    }
}

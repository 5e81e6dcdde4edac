//! The lock types of the blocking API.
//!
//! `src/kinds` declares the methods of several lock types (options, `run`), for both APIs.

use std::time::Duration;

use super::lease::{CountedLease, Detached, Leadership, Lease, Turn};
use super::mirror::mirror;
use crate::error::Result;
use crate::kinds::election::Leader;
use crate::lease::Proof;
use crate::name::IntoName;

mirror! {
    /// A lock that one holder at a time has. See [`crate::Mutex`].
    #[derive(Clone)]
    #[must_use = "a lock is not acquired before `lock` or `try_lock` is called"]
    struct Mutex(crate::Mutex) {
        /// Waits for the lock and acquires it.
        async fn lock(&self) -> Result<Lease>;
        /// Acquires the lock if it is free; returns `None` if it is not.
        async fn try_lock(&self) -> Result<Option<Lease>>;
        /// Waits for the lock and acquires it on a lease that outlives this process.
        async fn lock_detached(&self) -> Result<Detached>;
        /// Acquires the lock on such a lease if it is free; returns `None` if it is not.
        async fn try_lock_detached(&self) -> Result<Option<Detached>>;
    }

    /// A lock that many readers hold together, or one writer alone. See [`crate::RwLock`].
    #[derive(Clone)]
    #[must_use = "a lock is not acquired before `read` or `write` is called"]
    struct RwLock(crate::RwLock) {
        /// Waits until no writer holds the lock or waits ahead, and acquires it as a reader.
        async fn read(&self) -> Result<Lease>;
        /// Acquires the lock as a reader; returns `None` if a writer holds it or waits for it.
        async fn try_read(&self) -> Result<Option<Lease>>;
        /// Waits until the lock has no holder, and acquires it as the writer.
        async fn write(&self) -> Result<Lease>;
        /// Acquires the lock as the writer if it has no holder; returns `None` if it has one.
        async fn try_write(&self) -> Result<Option<Lease>>;
    }

    /// A number of permits that holders share. See [`crate::Semaphore`].
    #[derive(Clone)]
    #[must_use = "no permit is acquired before `acquire` or `try_acquire` is called"]
    struct Semaphore(crate::Semaphore) {
        /// Serves waiters in order of arrival, which is the default.
        fn fair(self) -> Self;
        /// Serves a caller as soon as enough permits are free, ahead of waiters that need more.
        fn barging(self) -> Self;
        /// Waits for a permit and acquires it.
        async fn acquire(&self) -> Result<Lease>;
        /// Acquires a permit if one is free; returns `None` if none is.
        async fn try_acquire(&self) -> Result<Option<Lease>>;
        /// Waits for this many permits and acquires them together, on one lease.
        async fn acquire_many(&self, permits: u32) -> Result<Lease>;
        /// Acquires this many permits if they are free; returns `None` if they are not.
        async fn try_acquire_many(&self, permits: u32) -> Result<Option<Lease>>;
    }

    /// Several names, acquired all together or not at all. See [`crate::All`].
    #[derive(Clone)]
    #[must_use = "nothing is acquired before `lock` or `try_lock` is called"]
    struct All(crate::All) {
        /// Waits until none of the names has a holder, and acquires all of them.
        async fn lock(&self) -> Result<Lease>;
        /// Acquires all of the names if all are free; returns `None` if one is not.
        async fn try_lock(&self) -> Result<Option<Lease>>;
    }

    /// An owner that may acquire a lock again that it holds. See [`crate::Scope`].
    #[derive(Clone)]
    struct Scope(crate::Scope) {
        /// Returns a lock that this owner may acquire many times, while all others wait.
        fn mutex(&self, name: impl IntoName) -> ReentrantMutex;
    }

    /// A lock that one owner at a time holds, any number of times. See [`crate::ReentrantMutex`].
    #[derive(Clone)]
    #[must_use = "a lock is not acquired before `lock` or `try_lock` is called"]
    struct ReentrantMutex(crate::ReentrantMutex) {
        /// Waits for the lock and acquires it; at once if this owner holds it already.
        async fn lock(&self) -> Result<CountedLease>;
        /// Acquires the lock if that needs no wait; returns `None` if it does.
        async fn try_lock(&self) -> Result<Option<CountedLease>>;
    }

    /// At most one run per period, across all processes. See [`crate::Once`].
    #[derive(Clone)]
    #[must_use = "nothing runs before `run` or `take` is called"]
    struct Once(crate::Once) {
        /// Sets the period: from the begin of one run to the earliest begin of the next.
        fn per(self, period: Duration) -> Self;
        /// Limits a run: past this its lease is lost.
        fn at_most_for(self, at_most_for: Duration) -> Self;
        /// Sets how long the name stays taken after a run that is given back.
        fn at_least_for(self, at_least_for: Duration) -> Self;
        /// Begins a run; returns `None` if this period has one already.
        async fn take(&self) -> Result<Option<Turn>>;
    }

    /// One leader at a time among the candidates. See [`crate::Election`].
    #[derive(Clone)]
    #[must_use = "a candidate does not campaign before `campaign` is called"]
    struct Election(crate::Election) {
        /// Sets how often observers ask the store which candidate leads.
        fn look_every(self, look_every: Duration) -> Self;
        /// Waits in the queue until this candidate leads.
        async fn campaign(&self) -> Result<Leadership>;
        /// Returns the leader; `None` if there is none.
        async fn leader(&self) -> Result<Option<Leader>>;
        /// Observes every change of leader from now on.
        fn leader_changed(&self) -> Changes;
    }

    /// The changes of leader. See [`crate::Changes`].
    struct Changes(crate::Changes) {
        /// Returns the leader: at once on the first call, later after a change of leader or term.
        #[allow(clippy::should_implement_trait)]
        async fn next(&mut self) -> Result<Option<Leader>>;
    }

    /// A gate that is closed until a number of callers have counted down. See [`crate::Latch`].
    #[derive(Clone)]
    #[must_use = "a latch does nothing until it is counted down or waited for"]
    struct Latch(crate::Latch) {
        /// Sets how long the store remembers the latch after the last count.
        fn kept_for(self, time: Duration) -> Self;
        /// Counts down by one, and returns how many counts are still missing.
        async fn count_down(&self) -> Result<u32>;
        /// Counts down under an id, which counts once however often it is used.
        async fn count_down_as(&self, id: impl AsRef<str>) -> Result<u32>;
        /// Returns how many counts are still missing; zero if the latch is open.
        async fn missing(&self) -> Result<u32>;
        /// Waits until the latch is open.
        async fn wait(&self) -> Result<()>;
        /// Waits until the latch is open, at most this long; returns whether it is.
        async fn wait_for(&self, time: Duration) -> Result<bool>;
        /// Forgets all counts: the next count starts a new latch.
        async fn reset(&self) -> Result<()>;
    }
}

impl Once {
    /// Runs the work on this thread; returns `None` if this period has a run already. Long work
    /// checks [`Proof::is_valid`], as in [`Lease::run`].
    pub fn run<T>(&self, work: impl FnOnce(&Proof) -> T) -> Result<Option<T>> {
        let Some(turn) = self.take()? else { return Ok(None) };
        let output = work(&turn);
        turn.done()?;
        Ok(Some(output))
    }
}

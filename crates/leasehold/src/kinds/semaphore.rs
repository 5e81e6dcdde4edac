//! `Semaphore`, a lock with a limited number of permits.

use super::options::{LockOptions, lock_options};
use crate::claim::{Names, Permits, Share};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

/// A limited number of permits, made by [`Locks::semaphore`](crate::Locks::semaphore). Each holder
/// has one or several of them, on its own lease; one release may admit several waiters.
///
/// **Each claim is judged by its own limit.** The store keeps no limit, only the permits of each
/// holder. A claim for 1 of 4 is granted if at most 3 are taken, under any limit. So all callers
/// should use the same limit. If they differ (such as during the rollout of a new limit), a claim
/// with the lower limit waits until few enough are taken; holders keep their permits.
///
/// Permits exclude a [`Mutex`](crate::Mutex) or an [`RwLock`](crate::RwLock) of the same name.
///
/// It is [`fair`](Semaphore::fair) unless set to [`barging`](Semaphore::barging). The other options
/// and defaults are those of a [`Mutex`](crate::Mutex), without `strict_order`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let uploads = locks.semaphore("uploads", 4);
///
/// let one = uploads.acquire().await?;
/// let three = uploads.acquire_many(3).await?;
/// assert!(uploads.try_acquire().await?.is_none(), "all four are taken");
/// three.release().await?;
/// one.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "no permit is taken before `acquire` or `try_acquire` is awaited"]
pub struct Semaphore {
    options: LockOptions,
    limit: u32,
    barging: bool,
}

lock_options!(Semaphore: ttl wait owner max_hold no_renewal min_validity);

impl Semaphore {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>, limit: u32) -> Self {
        Semaphore { options: LockOptions::new(client, name.map(Names::from)), limit, barging: false }
    }

    /// Grants in order of arrival (the default), so that small claims do not starve a large one.
    pub fn fair(self) -> Self {
        Semaphore { barging: false, ..self }
    }

    /// Grants as soon as enough permits are free, past the waiters. More permits are in use, but a
    /// large claim may wait as long as small ones keep coming.
    pub fn barging(self) -> Self {
        Semaphore { barging: true, ..self }
    }

    /// Acquires one permit, as [`acquire_many`](Semaphore::acquire_many) does.
    ///
    /// # Cancel safety
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn acquire(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.acquire_many(1)
    }

    /// Like [`acquire`](Semaphore::acquire), but returns `None` instead of waiting. A fair permit
    /// is not free while the semaphore has waiters.
    ///
    /// # Cancel safety
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.try_acquire_many(1)
    }

    /// Waits for all permits and acquires them: for ever, unless [`wait`](Semaphore::wait) is set.
    ///
    /// A task that waits for permits while it holds some of the same semaphore may wait for itself.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); [`Error::Invalid`] also for no permit, or more than
    /// the limit; [`Error::Unsupported`] on a store without permits.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.with_share(self.share(permits)).acquire()
    }

    /// Like [`try_acquire`](Semaphore::try_acquire), for a number of permits.
    ///
    /// # Cancel safety
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn try_acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.with_share(self.share(permits)).try_acquire()
    }

    fn share(&self, take: u32) -> Result<Share> {
        let permits = Permits::new(take, self.limit)?;
        Ok(Share::Permits(if self.barging { permits.barging() } else { permits }))
    }
}

//! `Semaphore`: so many permits, and no more.

use super::options::{LockOptions, lock_options};
use crate::claim::{Names, Permits, Share};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

/// A limit that holders keep together: what [`Locks::semaphore`](crate::Locks::semaphore) gives. Each takes one permit or
/// several of it, on a lease of its own; one let go may admit several who wait.
///
/// **Each claim is judged by its own limit.** The store keeps no limit, only who holds how many permits. Whoever asks for 1 of
/// 4 is let in if at most 3 are taken, whatever limit those were taken under. So all who use a name should say the same
/// limit; where they do not (as while a new limit is rolled out), whoever says the lower one waits until that few are taken,
/// and nobody who holds is put out.
///
/// Permits are never held beside a [`Mutex`](crate::Mutex) or an [`RwLock`](crate::RwLock) of the same name.
///
/// It is [`fair`](Semaphore::fair) unless set to [`barging`](Semaphore::barging). Its other options are those of a
/// [`Mutex`](crate::Mutex), with the same defaults, without `strict_order`.
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

    /// In order of arrival, as it is if nothing is said: whoever comes waits behind those who wait already, one who wants
    /// little behind one who wants much, so that the latter is served too.
    pub fn fair(self) -> Self {
        Semaphore { barging: false, ..self }
    }

    /// As soon as enough permits are free, past those who wait. More permits are in use at a time; but one who wants much may
    /// wait for as long as others who want little keep coming.
    pub fn barging(self) -> Self {
        Semaphore { barging: true, ..self }
    }

    /// Waits for a permit and takes it: for ever, unless [`wait`](Semaphore::wait) says otherwise.
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many).
    ///
    /// # Cancel safety
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn acquire(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.acquire_many(1)
    }

    /// Takes a permit if one is free; `None` where none is. A fair one is not free as long as somebody waits.
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`acquire_many`](Semaphore::acquire_many).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.try_acquire_many(1)
    }

    /// Waits for so many permits and takes them together, on one lease: for ever, unless [`wait`](Semaphore::wait) says
    /// otherwise.
    ///
    /// A task that waits for permits while it holds some of the same semaphore may wait for itself.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); [`Error::Invalid`] also for no permit, or more than the limit; and
    /// [`Error::Unsupported`] on a store that cannot count permits.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn acquire_many(&self, permits: u32) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.with_share(self.share(permits)).acquire()
    }

    /// Takes so many permits if they are free; `None` where they are not. Fair ones are not free as long as somebody waits.
    ///
    /// # Errors
    /// As [`acquire_many`](Semaphore::acquire_many), without [`Error::Busy`].
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

//! `RwLock`, a lock with many readers or one writer.

use super::options::{LockOptions, lock_options};
use crate::claim::{Names, Share};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

/// A lock with many readers or one writer, made by [`Locks::rwlock`](crate::Locks::rwlock).
///
/// A writer holds the whole name, exactly as a [`Mutex`](crate::Mutex) of the same name does: it
/// excludes that mutex and all readers. A reader holds a share, with its own lease and fence.
/// [`Lease::downgrade`] and [`Lease::upgrade`] convert between the two without a gap.
///
/// A [fair](crate::Capabilities::fair) store grants in order of arrival. So a waiting writer stops
/// new readers, which cannot starve it; the readers behind it are granted together after it.
///
/// The options and defaults are those of a [`Mutex`](crate::Mutex).
/// [`strict_order`](RwLock::strict_order) is for writers: readers always queue in the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let prices = locks.rwlock("prices");
///
/// let (one, two) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none(), "not beside readers");
/// one.release().await?;
/// two.release().await?;
///
/// let lease = prices.write().await?;
/// assert!(prices.try_read().await?.is_none(), "not beside a writer");
/// lease.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken before `read` or `write` is awaited"]
pub struct RwLock {
    options: LockOptions,
}

lock_options!(RwLock: ttl wait owner max_hold no_renewal min_validity strict_order);

impl RwLock {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        RwLock { options: LockOptions::new(client, name.map(Names::from)) }
    }

    /// Waits for a reader's share of the lock: for ever, unless [`wait`](RwLock::wait) is set.
    ///
    /// It is not re-entrant: a task that reads under its own write lock waits for itself. So does a
    /// task that reads twice, if a writer queued in between.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); [`Error::Unsupported`] without shared locks.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn read(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.with_share(Ok(Share::Shared)).acquire()
    }

    /// Like [`read`](RwLock::read), but returns `None` instead of waiting.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_read(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.with_share(Ok(Share::Shared)).try_acquire()
    }

    /// Acquires the whole lock, exactly as [`Mutex::lock`](crate::Mutex::lock) does, on any store.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn write(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Like [`write`](RwLock::write), but returns `None` instead of waiting.
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_write(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }
}

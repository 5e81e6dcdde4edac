//! `RwLock`: many readers, or one writer.

use super::options::{LockOptions, lock_options};
use crate::claim::{Names, Share};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

/// A lock that many readers hold together, or one writer alone: what [`Locks::rwlock`](crate::Locks::rwlock) gives.
///
/// A writer has the whole of the name, exactly as a [`Mutex`](crate::Mutex) has it: [`write`](RwLock::write) and the
/// [`lock`](crate::Mutex::lock) of a mutex of the same name are one and the same, and exclude each other and all readers. A
/// reader has a share of it, with a lease and a fence of its own.
///
/// On a store that is [fair](crate::Capabilities::fair), they are served in order of arrival. So a writer that waits stops new
/// readers, and readers cannot starve it; those who come behind it are let in together once it is done.
///
/// A writer's lease becomes a reader's, and a reader's a writer's, without a gap: [`Lease::downgrade`], [`Lease::upgrade`].
///
/// Its options are those of a [`Mutex`](crate::Mutex), with the same defaults. [`strict_order`](RwLock::strict_order) concerns
/// writers: readers queue one by one in the store in any case.
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

    /// Waits until no writer holds the lock or waits ahead, and takes a reader's share of it: for ever, unless
    /// [`wait`](RwLock::wait) says otherwise.
    ///
    /// It is not re-entrant: a task that reads what it writes waits for itself, and so does one that reads twice where a
    /// writer came in between.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); and [`Error::Unsupported`] on a store that cannot share.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn read(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.with_share(Ok(Share::Shared)).acquire()
    }

    /// Takes a reader's share if no writer holds the lock or waits for it; `None` where one does.
    ///
    /// # Errors
    /// As [`read`](RwLock::read), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_read(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.with_share(Ok(Share::Shared)).try_acquire()
    }

    /// Waits until nobody holds the lock, and takes the whole of it: what [`Mutex::lock`](crate::Mutex::lock) does, on any
    /// store.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn write(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Takes the whole of the lock if nobody holds it; `None` where somebody does: what
    /// [`Mutex::try_lock`](crate::Mutex::try_lock) does.
    ///
    /// # Errors
    /// As [`write`](RwLock::write), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`read`](RwLock::read).
    pub fn try_write(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }
}

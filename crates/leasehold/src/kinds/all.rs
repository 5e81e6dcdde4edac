//! `All`, a lock on several names at once: all or none.

use super::options::{LockOptions, lock_options, run_methods};
use crate::claim::Names;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::sync::Arc;

/// An exclusive lock on several names, all or none, made by [`Locks::all`](crate::Locks::all).
///
/// One lease covers all names, and losing one loses all. Each excludes a [`Mutex`](crate::Mutex).
///
/// **No deadlock,** in any order of the names. A store that claims several names [in one
/// step](crate::Capabilities::several_names) holds none of them while it waits. On another store
/// the client acquires them one by one, sorted as text, and keeps each until it has the rest. A
/// caller that holds one of the names by another lease is outside of that order.
///
/// **One fence** for all: it is above every earlier fence of any of these names.
///
/// The options and defaults are those of a [`Mutex`](crate::Mutex), without `strict_order`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let lease = locks.all(["account:7", "account:4"]).lock().await?;
/// println!("{} with fence {}", lease.names(), lease.fence());
/// assert!(locks.mutex("account:4").try_lock().await?.is_none());
/// assert!(locks.all(["account:7", "account:9"]).try_lock().await?.is_none(), "all or none");
/// assert!(locks.mutex("account:9").try_lock().await?.is_some());
/// lease.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is taken before `lock` or `try_lock` is awaited"]
pub struct All {
    options: LockOptions,
}

run_methods!(All);
lock_options!(All: ttl wait owner max_hold no_renewal min_validity);

impl All {
    pub(crate) fn new(client: Arc<Client>, names: Result<Names>) -> Self {
        All { options: LockOptions::new(client, names) }
    }

    /// Waits for all names and acquires them: for ever, unless [`wait`](All::wait) is set.
    ///
    /// It is not re-entrant: a task that acquires a name that it holds waits for itself.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); [`Error::Invalid`] also for no names, or more than
    /// [`Names::COUNT_MAX`]; [`Error::Unreachable`] also if it loses a name while it waits.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn lock(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Like [`lock`](All::lock), but returns `None` instead of waiting.
    ///
    /// # Cancel safety
    /// As [`lock`](All::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }
}

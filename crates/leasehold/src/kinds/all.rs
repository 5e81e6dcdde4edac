//! `All`: several names at once, all or none.

use super::options::{LockOptions, lock_options, run_methods};
use crate::claim::Names;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::Client;
use crate::sync::Arc;

/// Several names, had alone, all or none: what [`Locks::all`](crate::Locks::all) gives.
///
/// There is one lease over all of them, with one [`lost`](crate::Proof::lost): the loss of one name is the loss of all. Each name
/// is held as a [`Mutex`](crate::Mutex) of it holds it, and excludes that.
///
/// **No deadlock,** in whatever order callers say their names: a store that takes several names
/// [in one step](crate::Capabilities::several_names) holds none of them while it waits; on one that does not, they are
/// taken one after the other in *their* order (as text), the same for everybody, and what was taken is kept until the rest is
/// there. Whoever holds a name by another lease while it asks for these, is outside of that order.
///
/// **One fence** for all: it is above every fence that was given before for any of these names.
///
/// Its options are those of a [`Mutex`](crate::Mutex), with the same defaults, without `strict_order`.
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

    /// Waits until nobody holds any of the names, and takes all of them: for ever, unless [`wait`](All::wait) says otherwise.
    ///
    /// It is not re-entrant: a task that asks for a name it holds already waits for itself.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock); [`Error::Invalid`] also for no names, or more than [`Names::COUNT_MAX`];
    /// [`Error::Unreachable`] also where names that are taken one by one were lost while the rest was waited for.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim to any of the names, no place in any queue, no task.
    pub fn lock(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Takes all of the names if all are free; `None` where one is not.
    ///
    /// # Errors
    /// As [`lock`](All::lock), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`lock`](All::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }
}

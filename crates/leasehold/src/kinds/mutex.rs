//! `Mutex`, a lock with one holder at a time.

use super::options::{LockOptions, lock_options, run_methods};
use crate::claim::Names;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::lease::Lease;
use crate::lease::detached::Detached;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

/// A lock with one holder at a time, made by [`Locks::mutex`](crate::Locks::mutex).
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`ttl`](Mutex::ttl) | 30 s | the time that the lock outlives a dead holder |
/// | [`wait`](Mutex::wait) | for ever | the time that [`lock`](Mutex::lock) waits |
/// | [`owner`](Mutex::owner) | `host:pid` | the label of the holder, for people |
/// | [`max_hold`](Mutex::max_hold) | none | past this the lease is lost, although renewed |
/// | [`no_renewal`](Mutex::no_renewal) | renewed | the lease ends with its TTL unless [extended](Lease::extend) |
/// | [`min_validity`](Mutex::min_validity) | half the TTL | a grant with less left is renewed or given back |
/// | [`strict_order`](Mutex::strict_order) | off | tasks of one client queue one by one in the store |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let locks = leasehold::connect("memory:").await?;
/// let lease = locks.mutex("orders:42").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).lock().await?;
/// println!("held with fence {} for another {:?}", lease.fence(), lease.remaining());
/// lease.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock is not taken before `lock` or `try_lock` is awaited"]
pub struct Mutex {
    options: LockOptions,
}

run_methods!(Mutex);
lock_options!(Mutex: ttl wait owner max_hold no_renewal min_validity strict_order);

impl Mutex {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        Mutex { options: LockOptions::new(client, name.map(Names::from)) }
    }

    /// For a lock that running work needs: granted also during a drain.
    #[cfg(not(shuttle))]
    pub(crate) fn internal(self) -> Self {
        Mutex { options: self.options.internal() }
    }

    /// Waits for the lock and acquires it: for ever, unless [`wait`](Mutex::wait) is set.
    ///
    /// It is not re-entrant: a task that locks a name that it holds waits for itself.
    ///
    /// # Errors
    /// [`Error::Busy`] when the [`wait`](Mutex::wait) is over; [`Error::Unreachable`] if the store
    /// does not answer; [`Error::Late`] for a grant that came [too late](Mutex::min_validity);
    /// [`Error::Refused`] if the store refuses; [`Error::Invalid`] for an invalid name or option;
    /// [`Error::Closed`] on a closed client.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn lock(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Like [`lock`](Mutex::lock), but returns `None` instead of waiting. It fails with
    /// [`Error::Unreachable`] if the store does not answer within 5 s.
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }

    /// Waits for the lock and acquires it as a [`Detached`] lease, which outlives this process.
    ///
    /// It follows [`ttl`](Mutex::ttl), [`wait`](Mutex::wait), [`owner`](Mutex::owner) and
    /// [`min_validity`](Mutex::min_validity). It always has [`no_renewal`](Mutex::no_renewal) and
    /// [`strict_order`](Mutex::strict_order): it queues in the store, and is never passed on.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock); [`Error::Invalid`] also with a [`max_hold`](Mutex::max_hold).
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock). A returned lease stays until it is released or its TTL is over.
    pub fn lock_detached(&self) -> impl Future<Output = Result<Detached>> + Send + use<> {
        self.options.acquire_detached()
    }

    /// Like [`lock_detached`](Mutex::lock_detached), but returns `None` instead of waiting.
    ///
    /// # Cancel safety
    /// As [`lock_detached`](Mutex::lock_detached).
    pub fn try_lock_detached(&self) -> impl Future<Output = Result<Option<Detached>>> + Send + use<> {
        self.options.try_acquire_detached()
    }
}

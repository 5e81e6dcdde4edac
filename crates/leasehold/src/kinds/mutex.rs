//! `Mutex`: one holder at a time.

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

/// A lock that one holder at a time has: what [`Locks::mutex`](crate::Locks::mutex) gives.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`ttl`](Mutex::ttl) | 30 s | how long the lock outlives a dead holder |
/// | [`wait`](Mutex::wait) | for ever | how long [`lock`](Mutex::lock) waits |
/// | [`owner`](Mutex::owner) | `host:pid` | who holds it, for people |
/// | [`max_hold`](Mutex::max_hold) | none | past this it is lost, however well it is renewed |
/// | [`no_renewal`](Mutex::no_renewal) | renewed | it ends with its TTL unless [extended](Lease::extend) |
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

    /// For a lock that running work needs, also while the client is drained.
    #[cfg(not(shuttle))]
    pub(crate) fn internal(self) -> Self {
        Mutex { options: self.options.internal() }
    }

    /// Waits for the lock and takes it: for ever, unless [`wait`](Mutex::wait) says otherwise.
    ///
    /// It is not re-entrant: a task that locks a name it holds already waits for itself.
    ///
    /// # Errors
    /// [`Error::Busy`] when the [`wait`](Mutex::wait) is over; [`Error::Unreachable`] when the store does not answer;
    /// [`Error::Late`] for a grant that came too [late](Mutex::min_validity); [`Error::Refused`] when the store says so;
    /// [`Error::Invalid`] for a bad name or option; [`Error::Closed`] on a closed client.
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn lock(&self) -> impl Future<Output = Result<Lease>> + Send + use<> {
        self.options.acquire()
    }

    /// Takes the lock if it is free; `None` where it is not. A store that does not say so within 5 s is
    /// [`Error::Unreachable`].
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`lock`](Mutex::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Lease>>> + Send + use<> {
        self.options.try_acquire()
    }

    /// Waits for the lock, as [`lock`](Mutex::lock) does, and takes it for longer than this process may live: nobody
    /// renews it, and dropping it does not let go. See [`Detached`].
    ///
    /// Of the options it follows [`ttl`](Mutex::ttl), [`wait`](Mutex::wait), [`owner`](Mutex::owner) and
    /// [`min_validity`](Mutex::min_validity). [`no_renewal`](Mutex::no_renewal) and [`strict_order`](Mutex::strict_order) it
    /// is in any case: it takes its own place in the store's queue, and is never passed on.
    ///
    /// # Errors
    /// As [`lock`](Mutex::lock); and [`Error::Invalid`] where [`max_hold`](Mutex::max_hold) is set, which nobody would be
    /// there to enforce.
    ///
    /// # Cancel safety
    /// Dropped before its end, it leaves nothing behind: no claim, no place in any queue, no task. Once it has given
    /// the lease, that stays until it is released or its TTL is over.
    pub fn lock_detached(&self) -> impl Future<Output = Result<Detached>> + Send + use<> {
        self.options.acquire_detached()
    }

    /// Takes the lock as [`lock_detached`](Mutex::lock_detached) does, if it is free; `None` where it is not.
    ///
    /// # Errors
    /// As [`lock_detached`](Mutex::lock_detached), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`lock_detached`](Mutex::lock_detached).
    pub fn try_lock_detached(&self) -> impl Future<Output = Result<Option<Detached>>> + Send + use<> {
        self.options.try_acquire_detached()
    }
}

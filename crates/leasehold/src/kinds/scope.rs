//! `Scope`, an owner whose locks are re-entrant: counted, with one fence.
//!
//! The count lives in this client. To the store and to other clients, an owner holds a name once.

use std::sync::{Arc as StdArc, Weak};

use tokio::sync::Notify;

use super::options::{LockOptions, lock_options};
use crate::debug::debug_parts;
use crate::error::{Error, Result};
use crate::lease::{Lease, Proof, deref_to_proof};
use crate::locks::Client;
use crate::name::{IntoName, Name};
use crate::store::registry::{Entry, Registry};
use crate::sync::{Arc, Mutex, lock, notified_until};
use crate::token::Owner;

/// An owner whose locks are re-entrant, made by [`Locks::owner`](crate::Locks::owner).
///
/// For code that locks a name that its caller may have locked: under one owner both hold it. An
/// owner is an id of your choice, such as that of a request, and known to this client only. A plain
/// [`Mutex`](crate::Mutex) waits for the owner as for any other holder.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let job = locks.owner("import-7");
/// let outer = job.mutex("orders").lock().await?;
/// let inner = job.mutex("orders").lock().await?; // not again, but too
/// assert_eq!(inner.fence(), outer.fence());
/// outer.release().await?;
/// assert!(locks.mutex("orders").try_lock().await?.is_none(), "one of them still holds it");
/// inner.release().await?;
/// assert!(locks.mutex("orders").try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Scope {
    client: Arc<Client>,
    owner: Result<Owner>,
}

impl Scope {
    pub(crate) fn new(client: Arc<Client>, owner: Result<Owner>) -> Self {
        Scope { client, owner }
    }

    /// Returns a lock that this owner may acquire repeatedly while it excludes all others.
    pub fn mutex(&self, name: impl IntoName) -> ReentrantMutex {
        let name = name.into_name();
        let key = self.owner.clone().and_then(|owner| Ok((owner, name.clone()?)));
        let options = LockOptions::new(self.client.clone(), name.map(Into::into));
        let options = match &self.owner {
            Ok(owner) => options.owner(owner.as_str()),
            Err(_) => options,
        };
        ReentrantMutex { key, options }
    }
}

debug_parts!(Scope: owner);

/// A lock that one owner at a time holds, any number of times, made by [`Scope::mutex`].
///
/// The options are those of a [`Mutex`](crate::Mutex). Those of the owner's first lease apply to
/// its later leases; [`max_hold`](ReentrantMutex::max_hold) counts from the first one and ends all.
#[derive(Clone)]
#[must_use = "a lock is not taken before `lock` or `try_lock` is awaited"]
pub struct ReentrantMutex {
    key: Result<(Owner, Name)>,
    options: LockOptions,
}

lock_options!(ReentrantMutex: ttl wait max_hold no_renewal min_validity);

impl ReentrantMutex {
    /// Joins the lease if this owner holds the lock; else waits for the lock and acquires it. Tasks
    /// of the owner that wait with the same options are one waiter in the store.
    ///
    /// A future that is not polled blocks the owner's other tasks for no longer than its TTL.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind; another task of the owner takes its place.
    pub fn lock(&self) -> impl Future<Output = Result<CountedLease>> + Send + use<> {
        self.clone().enter()
    }

    /// Like [`lock`](ReentrantMutex::lock), but returns `None` instead of waiting.
    ///
    /// # Cancel safety
    /// As [`lock`](ReentrantMutex::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<CountedLease>>> + Send + use<> {
        self.clone().try_enter()
    }

    /// Every task sends its own request: in the local queue one request serves all tasks of the
    /// owner, and a future that is not polled loses its place there.
    async fn enter(self) -> Result<CountedLease> {
        let place = self.place()?;
        tokio::select! {
            biased;
            lease = place.joined() => Ok(lease),
            lease = self.options.acquire() => Ok(place.begin(lease?)),
        }
    }

    async fn try_enter(self) -> Result<Option<CountedLease>> {
        let place = self.place()?;
        if let Some(lease) = place.join() {
            return Ok(Some(lease));
        }
        let lease = self.options.try_acquire().await?;
        // Another task of the owner may have acquired it meanwhile.
        Ok(lease.map(|lease| place.begin(lease)).or_else(|| place.join()))
    }

    fn place(&self) -> Result<Entry<(Owner, Name), Place>> {
        Ok(self.options.client.scopes.join(self.key.clone()?))
    }
}

/// A lease of an owner that may have several on the lock. It derefs to a [`Proof`]; all of them
/// have one fence and are lost together. Dropping it releases it in the background.
#[must_use = "the lock is let go as soon as the lease is dropped"]
pub struct CountedLease {
    /// Shared by the owner's leases; the last one releases it.
    lease: StdArc<Lease>,
    /// Keeps the registry entry as long as the lease is held.
    _place: Entry<(Owner, Name), Place>,
}

impl CountedLease {
    /// Returns a proof for other tasks to watch. It lasts as long as the owner holds the lock.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// Returns the number of the owner's leases on the lock, this one included.
    pub fn count(&self) -> usize {
        StdArc::strong_count(&self.lease)
    }

    /// Releases this lease; the owner's last one gives the lock back to the store.
    ///
    /// # Errors
    /// As [`Lease::release`]; if the lock was lost, each lease returns [`Error::Lost`].
    ///
    /// # Cancel safety
    /// Dropped before the answer, the lock is given back in the background.
    pub async fn release(self) -> Result<()> {
        let CountedLease { lease, _place } = self;
        let lost = lease.loss().map(|reason| Error::lost(lease.names(), reason));
        match StdArc::into_inner(lease) {
            Some(lease) => lease.release().await,
            None => lost.map_or(Ok(()), Err),
        }
    }
}

deref_to_proof!(CountedLease: lease);
debug_parts!(CountedLease: names() fence() count());

/// The locks that the owners of a client hold or wait for.
pub(crate) type Scopes = Registry<(Owner, Name), Place>;

/// One name, for one owner.
#[derive(Default)]
pub(crate) struct Place {
    /// Wakes the owner's tasks when one of them has acquired the lock.
    begun: Notify,
    /// The owner's current lease; it cannot be joined after its last holder dropped it.
    latest: Mutex<Weak<Lease>>,
}

impl Entry<(Owner, Name), Place> {
    /// Waits until the owner holds the lock, and joins.
    async fn joined(&self) -> CountedLease {
        notified_until(&self.begun, || self.join()).await
    }

    /// Returns one more lease if the owner holds the lock.
    fn join(&self) -> Option<CountedLease> {
        let lease = lock(&self.latest).upgrade()?;
        // Outside of any lock: this check may declare the loss.
        lease.is_valid().then(|| CountedLease { lease, _place: self.clone() })
    }

    fn begin(&self, lease: Lease) -> CountedLease {
        let lease = StdArc::new(lease);
        *lock(&self.latest) = StdArc::downgrade(&lease);
        self.begun.notify_waiters();
        CountedLease { lease, _place: self.clone() }
    }
}

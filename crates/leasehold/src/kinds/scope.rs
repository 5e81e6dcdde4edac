//! `Scope`: an owner who may take again what it holds already. Counted, with one fence; the last one out lets go.
//!
//! What is shared lives in this client: to the store, and to everybody else, an owner holds a name once.

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

/// An owner under whose name a lock that is held already may be taken again: what [`Locks::owner`](crate::Locks::owner) gives.
///
/// For code that locks what its caller may have locked: under one owner, both have it, and it is let go when the last of
/// them lets go. An owner is a name of your choice, such as the id of a request or of a job. It is known to this client only:
/// to all others, in other processes too, it is a holder like any other. A plain [`Mutex`](crate::Mutex) of the same name
/// stays what it is: it waits for the owner as for anybody else.
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

    /// A lock that this owner may take as often as it likes, and others not at all meanwhile.
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

/// A lock that one owner at a time has, as often as it likes: what [`Scope::mutex`] gives.
///
/// The options mean what they mean for a [`Mutex`](crate::Mutex). Those of the owner's first lease hold for all leases that the
/// owner takes beside it; [`max_hold`](ReentrantMutex::max_hold) counts from that first lease, and ends all of them.
#[derive(Clone)]
#[must_use = "a lock is not taken before `lock` or `try_lock` is awaited"]
pub struct ReentrantMutex {
    key: Result<(Owner, Name)>,
    options: LockOptions,
}

lock_options!(ReentrantMutex: ttl wait max_hold no_renewal min_validity);

impl ReentrantMutex {
    /// Takes the lock too, where this owner holds it; waits for it and takes it, where nobody or somebody else does. Several
    /// tasks of the owner that wait with the same options are one waiter to the store.
    ///
    /// A future that is kept and not polled blocks no other task of the owner for longer than its TTL.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind; another task of the owner goes on in its place.
    pub fn lock(&self) -> impl Future<Output = Result<CountedLease>> + Send + use<> {
        self.clone().enter()
    }

    /// Takes the lock, or takes it too, if that can be done now; `None` where it cannot.
    ///
    /// # Errors
    /// As [`lock`](ReentrantMutex::lock), without [`Error::Busy`].
    ///
    /// # Cancel safety
    /// As [`lock`](ReentrantMutex::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<CountedLease>>> + Send + use<> {
        self.clone().try_enter()
    }

    /// Every task asks for itself: in the local queue one request serves all tasks of the owner, and a future that is not polled
    /// loses its place there.
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
        // Another task of the owner may have got it meanwhile.
        Ok(lease.map(|lease| place.begin(lease)).or_else(|| place.join()))
    }

    fn place(&self) -> Result<Entry<(Owner, Name), Place>> {
        Ok(self.options.client.scopes.join(self.key.clone()?))
    }
}

/// A lock that its owner holds, perhaps several times. It has everything a [`Proof`] has; all that the owner holds of one lock
/// have the same fence, and are lost together.
///
/// Dropping it lets go, as [`release`](CountedLease::release) does, in the background.
#[must_use = "the lock is let go as soon as the lease is dropped"]
pub struct CountedLease {
    /// The leases of the owner share it, and the last of them releases it.
    lease: StdArc<Lease>,
    /// Keeps the place in the registry for as long as it is held.
    _place: Entry<(Owner, Name), Place>,
}

impl CountedLease {
    /// A proof for other tasks to watch. It lasts as long as the owner holds the lock, which may be longer than this lease.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// How many times the owner holds it now; this one is among them.
    pub fn count(&self) -> usize {
        StdArc::strong_count(&self.lease)
    }

    /// Lets go; the last of the owner's to do so gives the lock back to the store.
    ///
    /// # Errors
    /// As [`Lease::release`]: [`Error::Lost`] to each of them, where the lock was lost before.
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

/// What the owners of a client hold, or ask for.
pub(crate) type Scopes = Registry<(Owner, Name), Place>;

/// One name, for one owner.
#[derive(Default)]
pub(crate) struct Place {
    /// Wakes the owner's tasks when one of them has got the lock.
    begun: Notify,
    /// The lease that the owner got last. Once the last of the owner's leases has gone, it cannot be joined any more.
    latest: Mutex<Weak<Lease>>,
}

impl Entry<(Owner, Name), Place> {
    /// Waits until the owner holds it, and is one more.
    async fn joined(&self) -> CountedLease {
        notified_until(&self.begun, || self.join()).await
    }

    /// One more, where the owner holds it.
    fn join(&self) -> Option<CountedLease> {
        let lease = lock(&self.latest).upgrade()?;
        // Outside of any lock: looking may declare the loss.
        lease.is_valid().then(|| CountedLease { lease, _place: self.clone() })
    }

    /// The first.
    fn begin(&self, lease: Lease) -> CountedLease {
        let lease = StdArc::new(lease);
        *lock(&self.latest) = StdArc::downgrade(&lease);
        self.begun.notify_waiters();
        CountedLease { lease, _place: self.clone() }
    }
}

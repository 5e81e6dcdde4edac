//! `Locks`, a client: a connection to a store, a renewal task, a cleanup task and local queues.

use std::fmt;
use std::time::Duration;

use crate::acquire::{LocalQueues, Request};
use crate::cells::Cells;
#[cfg(not(shuttle))]
use crate::cells::cache::{Cache, SingleFlights};
use crate::cells::rate::RateLimit;
use crate::cells::rate::line::Lines;
use crate::cells::store::CellStore;
use crate::claim::{Adopted, Evicted, Names, Share, Status, Ticket};
use crate::cleanup::Cleanup;
use crate::clock::Clock;
use crate::closing::Closing;
use crate::connect::Options;
use crate::departures::Departures;
use crate::error::{Error, Result};
use crate::event::Events;
use crate::fence::Fence;
use crate::kinds::all::All;
use crate::kinds::election::Election;
use crate::kinds::latch::Latch;
use crate::kinds::mutex::Mutex;
use crate::kinds::once::Once;
use crate::kinds::rwlock::RwLock;
use crate::kinds::scope::{Scope, Scopes};
use crate::kinds::semaphore::Semaphore;
use crate::lease::detached::Detached;
use crate::name::{IntoName, Name};
use crate::renewal::Renewer;
use crate::store::{Capabilities, Ordered, Store};
use crate::sync::{Arc, require_runtime};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// A client of a store, returned by [`connect`](crate::connect).
///
/// Making a lock sends nothing. An invalid name, owner or option is reported when the lock is
/// acquired. A lock can be cloned and acquired any number of times; its futures do not borrow it.
///
/// Clones are the same client. Its tasks end when the last clone, the last lease (including
/// [`Detached`] values) and the last proof are dropped.
#[derive(Clone)]
pub struct Locks {
    pub(crate) client: Arc<Client>,
}

pub(crate) struct Client {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) cleanup: Cleanup,
    pub(crate) queues: Arc<LocalQueues>,
    pub(crate) events: Events,
    pub(crate) defaults: Options,
    pub(crate) closing: Closing,
    pub(crate) scopes: Scopes,
    pub(crate) lines: Lines,
    #[cfg(not(shuttle))]
    pub(crate) caches: Arc<SingleFlights>,
}

/// The time limit of a call that does not wait for other clients, beside the store's own.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

const CLOSE_MAX: Duration = Duration::from_secs(5);

const LAST_EVENTS: Duration = Duration::from_secs(1);

impl Locks {
    pub(crate) fn start(store: Arc<dyn Store>, options: Options) -> Result<Self> {
        require_runtime()?;
        let store = Ordered::over(store);
        let events = Events::new(options.hook.clone());
        let queues = Arc::new(LocalQueues::new(store.clock().clone()));
        let client = Client {
            renewer: Renewer::start(store.clone(), queues.clone()),
            cleanup: Cleanup::start(store.clone(), events.clone()),
            store,
            queues,
            events,
            defaults: options,
            closing: Closing::default(),
            scopes: Scopes::default(),
            lines: Lines::default(),
            #[cfg(not(shuttle))]
            caches: Arc::default(),
        };
        Ok(Locks { client: Arc::new(client) })
    }

    /// Returns a lock with one holder at a time.
    pub fn mutex(&self, name: impl IntoName) -> Mutex {
        Mutex::new(self.client.clone(), name.into_name())
    }

    /// Returns a lock with many readers or one writer.
    pub fn rwlock(&self, name: impl IntoName) -> RwLock {
        RwLock::new(self.client.clone(), name.into_name())
    }

    /// Returns a semaphore with `limit` permits for all clients that use the name. All callers
    /// should pass the same limit: [each claim is judged by its own](Semaphore).
    pub fn semaphore(&self, name: impl IntoName, limit: u32) -> Semaphore {
        Semaphore::new(self.client.clone(), name.into_name(), limit)
    }

    /// Returns a gate that opens after `count` counts.
    pub fn latch(&self, name: impl IntoName, count: u32) -> Latch {
        Latch::new(self.client.clone(), name.into_name(), count)
    }

    /// Returns values that need no lock: counters, compare-and-set, optimistic updates, scripts.
    pub fn cells(&self) -> Cells {
        Cells::new(self.client.clone())
    }

    /// Returns a limit on the rate of operations, shared by all clients that use the name.
    pub fn rate_limit(&self, name: impl IntoName) -> RateLimit {
        RateLimit::new(self.client.clone(), name.into_name())
    }

    /// Returns a lock on several names, all or none, with one lease.
    pub fn all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> All {
        let names: Result<Vec<Name>> = names.into_iter().map(IntoName::into_name).collect();
        All::new(self.client.clone(), names.and_then(Names::new))
    }

    /// Returns a guard that allows at most one run per [period](Once::per), across all clients.
    pub fn once(&self, name: impl IntoName) -> Once {
        Once::new(self.client.clone(), name.into_name())
    }

    /// Returns an election: one leader at a time, for a term.
    pub fn election(&self, name: impl IntoName) -> Election {
        Election::new(self.client.clone(), name.into_name())
    }

    /// Returns a cache whose values are loaded once for all clients that request them.
    #[cfg(not(shuttle))]
    pub fn cache(&self, name: impl IntoName) -> Cache {
        Cache::new(self.client.clone(), name.into_name())
    }

    /// Returns an owner whose locks are re-entrant. Within a client, equal ids are the same owner.
    pub fn owner(&self, id: impl AsRef<str>) -> Scope {
        Scope::new(self.client.clone(), Owner::new(id))
    }

    /// Takes up a [`Detached`] lease again from its name and its token, in any process. It sends
    /// nothing; [`extend`](Detached::extend) or [`release`](Detached::release) reports a loss.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name.
    pub fn detached(&self, name: impl IntoName, token: Token) -> Result<Detached> {
        let names = name.into_name()?.into();
        Ok(Detached::found(&self.client, Ticket { names, token, share: Share::Exclusive, fence: None }))
    }

    /// Returns the holders and waiters of a name, or `None` if it has neither. Tasks in a local
    /// queue are not in the store and not shown.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the store does not answer; [`Error::Invalid`] for an invalid name.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn inspect(&self, name: impl IntoName) -> Result<Option<Status>> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.inspect(&name)).await
    }

    /// Returns the names in use that start with `prefix`, sorted, at most `limit` of them.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.client.in_time(self.client.store.list(prefix, limit)).await
    }

    /// Takes a name from all its holders. The next fence is higher than any before, so a resource
    /// that checks fences is safe at once.
    ///
    /// Holders learn of it at once if the store can push, else at their next renewal; a lease
    /// without renewal learns of it at its release. Until its work has ended, an evicted holder may
    /// work beside the next one: [`departures`](Locks::departures) waits for that.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the eviction may or may not have happened; it can be repeated.
    pub async fn evict(&self, name: impl IntoName) -> Result<Evicted> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.evict(&name)).await
    }

    /// Takes a name from the one holder with this fence (see [`inspect`](Locks::inspect)), such as
    /// one of several readers. Without such a holder, nothing changes.
    ///
    /// # Cancel safety
    /// As [`evict`](Locks::evict).
    pub async fn evict_holder(&self, name: impl IntoName, fence: Fence) -> Result<Evicted> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.evict_holder(&name, fence)).await
    }

    /// Watches for the end of evicted holders. Call it before [`evict`](Locks::evict), or it may
    /// miss an end.
    pub fn departures(&self) -> Departures {
        Departures::new(self.client.clone())
    }

    /// Sets an expiry on a lock that has none. A library that sets the expiry in a second step
    /// leaves such a lock if it dies in between. A lock with an expiry is not changed.
    ///
    /// The holder may still be at work and is not told: choose a TTL longer than that work.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if all its locks expire; [`Error::Refused`] if the key is no lock.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the change may or may not have happened; it can be repeated.
    pub async fn adopt(&self, name: impl IntoName, ttl: Duration) -> Result<Adopted> {
        let (name, ttl) = (name.into_name()?, Ttl::new(ttl)?);
        self.client.in_time(self.client.store.adopt(&name, ttl)).await
    }

    /// Returns what the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.client.store.capabilities()
    }

    /// Returns a descriptor for the child processes of this process to inherit.
    ///
    /// Some stores (`file:`) free the locks of a process as soon as it is dead, while its children
    /// may still run. While a child has this descriptor open, the store treats this client as
    /// alive: its locks last to the end of their TTL. `None` on a store where only the TTL counts.
    ///
    /// The descriptor is closed on `exec` unless the caller clears that flag.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no descriptor left.
    #[cfg(unix)]
    pub fn lifeline(&self) -> Result<Option<std::os::fd::OwnedFd>> {
        self.client.store.lifeline()
    }

    /// Waits until everything dropped or cancelled so far has been given back to the store.
    ///
    /// # Cancel safety
    /// Only waits; can be dropped at any time.
    pub async fn settled(&self) {
        self.client.cleanup.done().await;
    }

    /// Stops granting new locks and waits, up to `limit`, until the leases held by running work are
    /// released. Returns whether this client holds nothing any more.
    ///
    /// Acquiring, also by tasks that already wait, fails with [`Error::Closed`]. Held leases stay
    /// valid and renewed, and can be extended, converted, detached and released; the owner of a
    /// [re-entrant](Scope) lock can acquire it again. Values, counters, rate limits and caches work
    /// as before. After `false`, leases stay held until they are released or the client is
    /// [closed](Locks::close_within). A drain cannot be undone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # use std::time::Duration;
    /// # let locks = leasehold::connect("memory:").await?;
    /// // On SIGTERM: up to 20 s for the running work, then up to 5 s to give back what is left.
    /// if !locks.drain(Duration::from_secs(20)).await {
    ///     eprintln!("some work did not end in time, and loses its locks");
    /// }
    /// locks.close_within(Duration::from_secs(5)).await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// No new lock is granted after the first poll; dropping the future only stops the waiting.
    pub async fn drain(&self, limit: Duration) -> bool {
        let Client { closing, queues, .. } = &*self.client;
        closing.drain();
        queues.close();
        self.within(limit, async {
            closing.unused().await;
            self.settled().await;
        })
        .await
    }

    /// Gives back every lease of this client, leaked ones included, and waits at most 5 s until the
    /// store has them back or their TTL is over. [`close_within`](Locks::close_within) sets another
    /// limit and returns the outcome; [`drain`](Locks::drain) lets running work finish first.
    ///
    /// Holders see [`Loss::Closed`](crate::Loss::Closed). Waiters and later callers get
    /// [`Error::Closed`], and their claims are withdrawn. A hook gets 1 s to process the last
    /// events. A [`Detached`] lease stays in the store; another client can take it up.
    ///
    /// Call it before the process ends: a release in the background may not reach the store.
    ///
    /// # Cancel safety
    /// The client is closed at once; dropping the future only stops the waiting.
    pub async fn close(&self) {
        self.close_within(CLOSE_MAX).await;
    }

    /// Closes the client as [`close`](Locks::close) does, and waits for the store at most `limit`.
    ///
    /// Returns true if the store has everything back. After false, the claims end with their TTL,
    /// or earlier: the client retries as long as its runtime runs.
    ///
    /// # Cancel safety
    /// As [`close`](Locks::close).
    pub async fn close_within(&self, limit: Duration) -> bool {
        let Client { closing, cleanup, queues, renewer, events, .. } = &*self.client;
        closing.close();
        cleanup.withdraw_listed();
        queues.close();
        renewer.close();
        self.within(limit, async {
            renewer.ended().await;
            self.settled().await;
            self.within(LAST_EVENTS, events.heard()).await;
        })
        .await
    }

    async fn within(&self, limit: Duration, work: impl Future<Output = ()>) -> bool {
        let clock = self.client.clock();
        clock.until(clock.now().plus(limit), work).await.is_some()
    }
}

impl Client {
    pub(crate) fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// Limits a call that does not wait to [`ANSWER_MAX`].
    pub(crate) async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let enough = self.clock().now().plus(ANSWER_MAX);
        self.clock().until(enough, call).await.unwrap_or_else(|| Err(self.no_answer()))
    }

    /// Runs the work, and fails with [`Error::Closed`] when the client is closed.
    pub(crate) async fn while_open<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_open()?;
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.closing.closed() => Err(Error::Closed),
        }
    }

    pub(crate) fn no_answer(&self) -> Error {
        Error::Unreachable { store: self.store.capabilities().store, why: "no answer in time".into() }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses a value larger than `max_value_bytes`.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        let most = self.defaults.max_value_bytes;
        if value.len() <= most {
            return Ok(());
        }
        let why = format!(
            "this client writes values of at most {most} bytes (`Options::max_value_bytes`); keep it elsewhere, and its place here"
        );
        Err(Error::invalid("value", format!("{} bytes", value.len()), why))
    }

    /// Returns the store's values; without them, an error that names `what`.
    pub(crate) fn cells(&self, what: &'static str) -> Result<&dyn CellStore> {
        let can = self.store.capabilities();
        let why = "it keeps no values beside its locks";
        self.store.cells().ok_or(Error::Unsupported { store: can.store, what, why })
    }

    /// Like [`cells`](Client::cells), and fails if the client is closed.
    pub(crate) fn open_cells(&self, what: &'static str) -> Result<&dyn CellStore> {
        self.check_open()?;
        self.cells(what)
    }

    /// Refuses a TTL longer than the store's `max_ttl`.
    pub(crate) fn check_ttl(&self, what: &'static str, ttl: Ttl) -> Result<()> {
        let can = self.store.capabilities();
        if ttl <= can.max_ttl {
            return Ok(());
        }
        let why = format!(
            "this {} store keeps a lock for at most {} (`max_ttl`); use a shorter time, or set `max_ttl` to more for every \
             client of it",
            can.store, can.max_ttl
        );
        Err(Error::invalid(what, ttl.to_string(), why))
    }

    /// Refuses a request that this store cannot execute.
    pub(crate) fn check(&self, request: &Request) -> Result<()> {
        if self.closing.refuses(request.is_internal) {
            return Err(Error::Closed);
        }
        self.check_ttl("TTL", request.ttl)?;
        let can = self.store.capabilities();
        let unsupported = |what, why| Err(Error::Unsupported { store: can.store, what, why });
        match request.share {
            Share::Shared if !can.shared => {
                unsupported("shared locks", can.no_shares.unwrap_or("it cannot count readers"))
            }
            Share::Permits(_) if !can.permits => {
                unsupported("permits", can.no_shares.unwrap_or("it cannot keep a limit"))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.renewer.close();
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", &self.capabilities().store).finish_non_exhaustive()
    }
}

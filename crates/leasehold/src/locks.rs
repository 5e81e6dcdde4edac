//! `Locks`: the handle from which all locks are made. A client is one connection to a store, with its renewal task, its
//! cleanup task and its local queues.

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

/// A client of a store: what [`connect`](crate::connect) gives.
///
/// Making a lock sends nothing. A name, an owner or an option that is not valid is reported when the lock is asked for. A lock
/// can be kept, cloned and asked for any number of times; the futures it gives do not borrow it.
///
/// Clones are the same client. Its tasks end when the last clone, the last lease (detached ones in hand included) and
/// the last proof are gone.
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

/// How long a call that does not wait for anybody may take, whatever the store's own time-out is.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How long [`Locks::close`] waits for the store.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// How long closing waits for a hook to hear the last events.
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

    /// A lock that one holder at a time has.
    pub fn mutex(&self, name: impl IntoName) -> Mutex {
        Mutex::new(self.client.clone(), name.into_name())
    }

    /// A lock that many readers hold together, or one writer alone.
    pub fn rwlock(&self, name: impl IntoName) -> RwLock {
        RwLock::new(self.client.clone(), name.into_name())
    }

    /// So many permits, and no more, for all who use this name. [Each claim is judged by its own limit](Semaphore), so they
    /// should all say the same.
    pub fn semaphore(&self, name: impl IntoName, limit: u32) -> Semaphore {
        Semaphore::new(self.client.clone(), name.into_name(), limit)
    }

    /// A gate that is closed until so many have counted down.
    pub fn latch(&self, name: impl IntoName, count: u32) -> Latch {
        Latch::new(self.client.clone(), name.into_name(), count)
    }

    /// What needs no lock: counters, values that are compared and set, optimistic updates, scripts.
    pub fn cells(&self) -> Cells {
        Cells::new(self.client.clone())
    }

    /// So much in such a time, for all who use the name.
    pub fn rate_limit(&self, name: impl IntoName) -> RateLimit {
        RateLimit::new(self.client.clone(), name.into_name())
    }

    /// Several names at once, all or none, on one lease.
    pub fn all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> All {
        let names: Result<Vec<Name>> = names.into_iter().map(IntoName::into_name).collect();
        All::new(self.client.clone(), names.and_then(Names::new))
    }

    /// At most one run per [period](Once::per), in the whole fleet.
    pub fn once(&self, name: impl IntoName) -> Once {
        Once::new(self.client.clone(), name.into_name())
    }

    /// One leader at a time among those who campaign, for a term.
    pub fn election(&self, name: impl IntoName) -> Election {
        Election::new(self.client.clone(), name.into_name())
    }

    /// Values that are loaded once for all who want them.
    #[cfg(not(shuttle))]
    pub fn cache(&self, name: impl IntoName) -> Cache {
        Cache::new(self.client.clone(), name.into_name())
    }

    /// An owner under whose name a lock that it holds already may be taken again. Owners of one client that are called the same
    /// are the same.
    pub fn owner(&self, id: impl AsRef<str>) -> Scope {
        Scope::new(self.client.clone(), Owner::new(id))
    }

    /// Takes up a [`Detached`] lease again, from its name and its token: in another process than the one that took it, or
    /// later in the same. Nothing is sent: whether it still lasts, [`extend`](Detached::extend) and
    /// [`release`](Detached::release) tell.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    pub fn detached(&self, name: impl IntoName, token: Token) -> Result<Detached> {
        let names = name.into_name()?.into();
        Ok(Detached::found(&self.client, Ticket { names, token, share: Share::Exclusive, fence: None }))
    }

    /// Who holds a name, which clients wait, and for how long; `None` where nobody does. (Tasks that wait for their own
    /// client to pass the lock on are not in the store, and not shown.)
    ///
    /// # Errors
    /// [`Error::Unreachable`] where the store does not answer; [`Error::Invalid`] for a bad name.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn inspect(&self, name: impl IntoName) -> Result<Option<Status>> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.inspect(&name)).await
    }

    /// The names in use that start with `prefix`, sorted, at most `limit` of them.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.client.in_time(self.client.store.list(prefix, limit)).await
    }

    /// Takes a name from all who hold it. The next fence is higher than any before, so a resource that checks fences is
    /// safe at once.
    ///
    /// The holders are told at once, where the store can push, and at their next renewal in any case. Until they know, and
    /// until their work has ended, the next holder may be at work beside them: [`departures`](Locks::departures) waits for
    /// that. (A lease without renewal is told when it is released.)
    ///
    /// # Cancel safety
    /// Dropped before the answer, it may or may not have happened; it can be repeated.
    pub async fn evict(&self, name: impl IntoName) -> Result<Evicted> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.evict(&name)).await
    }

    /// Takes a name from the one holder with this fence, as [`inspect`](Locks::inspect) shows it: one of several readers, or
    /// one of those who have permits. Where nobody holds it with this fence, nothing changes.
    ///
    /// # Cancel safety
    /// Dropped before the answer, it may or may not have happened; it can be repeated.
    pub async fn evict_holder(&self, name: impl IntoName, fence: Fence) -> Result<Evicted> {
        let name: Name = name.into_name()?;
        self.client.in_time(self.client.store.evict_holder(&name, fence)).await
    }

    /// Watches for the end of what evicted holders do. Make it before the [eviction](Locks::evict), so that it misses
    /// nothing.
    pub fn departures(&self) -> Departures {
        Departures::new(self.client.clone())
    }

    /// Gives an end to a lock that has none, as a library leaves it that takes a lock in one step and sets its expiry in
    /// another, and dies in between. What ends by itself is left as it is.
    ///
    /// Whoever holds it may be at work all the same, and does not know: choose a TTL within which that is surely over.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a store where every lock ends; [`Error::Refused`] for a key that is no lock.
    ///
    /// # Cancel safety
    /// Dropped before the answer, it may or may not have happened; it can be repeated.
    pub async fn adopt(&self, name: impl IntoName, ttl: Duration) -> Result<Adopted> {
        let (name, ttl) = (name.into_name()?, Ttl::new(ttl)?);
        self.client.in_time(self.client.store.adopt(&name, ttl)).await
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.client.store.capabilities()
    }

    /// For a process that starts others under a lock: a descriptor to be inherited by them.
    ///
    /// A store may free what a process held as soon as that process is dead (`file:` does). Whatever it had started may still
    /// run then. As long as any of them has this descriptor open, the store takes this client for alive, and what it
    /// holds lasts to the end of its TTL. `None` where the TTL is all that counts anyway.
    ///
    /// It is closed on `exec` unless you clear that flag.
    ///
    /// # Errors
    /// [`Error::System`] where the process has no descriptor left.
    #[cfg(unix)]
    pub fn lifeline(&self) -> Result<Option<std::os::fd::OwnedFd>> {
        self.client.store.lifeline()
    }

    /// Ends when everything that was dropped or cancelled so far has been given back to the store.
    ///
    /// # Cancel safety
    /// Only waits; can be dropped at any time.
    pub async fn settled(&self) {
        self.client.cleanup.done().await;
    }

    /// Grants no new lock from now on, and waits until the running work has let go of those it holds; at most so long.
    ///
    /// A lock that is asked for from now on, and one that is waited for, is [`Error::Closed`]. Leases that are held stay valid and
    /// are renewed; they can be extended, converted, detached and released as before. A [re-entrant](Scope) lock
    /// can be taken again by the owner who holds it. Values, counters, rate limits and caches work as before. The client cannot be
    /// opened again.
    ///
    /// True where this client holds nothing any more. False where the time was over: what is held stays held until it is released,
    /// or the client is [closed](Locks::close_within).
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
    /// No new lock is granted from the first poll on; dropping the future only stops the waiting.
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

    /// Gives back every lease of this client, leaked ones included, and ends when the store has them back (or their TTL has done
    /// it), after 5 s at the latest. To wait longer or less, and to hear which it was, use
    /// [`close_within`](Locks::close_within); to let running work finish first, [`drain`](Locks::drain).
    ///
    /// Whoever still relies on a lease is told [`Loss::Closed`](crate::Loss::Closed); whoever
    /// waits for one, or asks for one from now on, is told [`Error::Closed`], and what it had asked for is withdrawn. A hook gets a second to hear the last events.
    ///
    /// A [`Detached`] lease stays in the store; to be extended or released it is taken up again by another client.
    ///
    /// Call it before a process ends: what is only dropped may not get out any more.
    ///
    /// # Cancel safety
    /// The client is closed at once; dropping the future only stops the waiting.
    pub async fn close(&self) {
        self.close_within(CLOSE_MAX).await;
    }

    /// As [`close`](Locks::close), and waits for the store at most so long.
    ///
    /// True where the store has everything back. False where it did not answer in time: then what was held ends with its TTL, or
    /// earlier, since the client goes on trying for as long as its runtime runs.
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

    /// Whether it ended in time.
    async fn within(&self, limit: Duration, work: impl Future<Output = ()>) -> bool {
        let clock = self.client.clock();
        clock.until(clock.now().plus(limit), work).await.is_some()
    }
}

impl Client {
    pub(crate) fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// What a store answers before a caller who does not wait has waited long enough.
    pub(crate) async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let enough = self.clock().now().plus(ANSWER_MAX);
        self.clock().until(enough, call).await.unwrap_or_else(|| Err(self.no_answer()))
    }

    /// Does the work, and ends it with [`Error::Closed`] when the client is closed.
    pub(crate) async fn while_open<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_open()?;
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.closing.closed() => Err(Error::Closed),
        }
    }

    /// A call of the store that was not answered in time.
    pub(crate) fn no_answer(&self) -> Error {
        Error::Unreachable { store: self.store.capabilities().store, why: "no answer in time".into() }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses a value that is larger than this client writes, before anything is sent.
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

    /// Where values are kept, for this.
    pub(crate) fn cells(&self, what: &'static str) -> Result<&dyn CellStore> {
        let can = self.store.capabilities();
        let why = "it keeps no values beside its locks";
        self.store.cells().ok_or(Error::Unsupported { store: can.store, what, why })
    }

    /// As [`cells`](Client::cells), while the client is open.
    pub(crate) fn open_cells(&self, what: &'static str) -> Result<&dyn CellStore> {
        self.check_open()?;
        self.cells(what)
    }

    /// Refuses a time for which this store keeps no lock, before anything is sent.
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

    /// Refuses what this store cannot do, before anything is sent.
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

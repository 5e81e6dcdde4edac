//! The same face for code that is not async.
//!
//! Each client has one background thread with a current-thread runtime, which renews its leases. A call inside
//! an async runtime would stall that runtime, and is [`Error::InsideRuntime`] instead; on a thread of
//! `spawn_blocking` it is fine. (Under `tokio::task::unconstrained` a runtime cannot be told from a plain thread.)
//!
//! ```
//! let locks = leasehold::blocking::connect("memory:")?;
//! let lease = locks.mutex("orders:42").lock()?;
//! println!("held with fence {}", lease.fence());
//! lease.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```

mod cache;
mod cells;
mod election;
mod engine;
mod kinds;
mod lease;
mod once;
mod rate;
mod scope;

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Adopted, Evicted, Status};
use crate::connect::Options;
use crate::departures::Departed;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::IntoName;
use crate::store::{Capabilities, Store};
use crate::token::Token;
use engine::Engine;

pub use cache::Cache;
pub use cells::{Call, Cell, Cells, Counter, Script};
pub use election::{Changes, Election, Leadership};
pub use kinds::{All, Latch, Mutex, RwLock, Semaphore};
pub use lease::{Detached, Lease, Upgrade};
pub use once::{Once, Turn};
pub use rate::RateLimit;
pub use scope::{CountedLease, ReentrantMutex, Scope};

/// Connects to the store at this URL, with the default options. The URLs are those of [`crate::connect`].
pub fn connect(url: &str) -> Result<Locks> {
    connect_with(Options::default(), url)
}

/// Connects to the store at this URL, with options.
pub fn connect_with(options: Options, url: &str) -> Result<Locks> {
    let mut engine = Engine::start()?;
    let inner = engine.block_on(options.connect(url))??;
    engine.janitor = Some(inner.client.janitor.clone());
    Ok(Locks { inner, engine: Arc::new(engine) })
}

/// A client over a store of your own, or over one that several clients of this process share. The store is made on the
/// client's runtime, where its clock and its tasks belong.
pub fn over(options: Options, make: impl FnOnce() -> Result<Arc<dyn Store>>) -> Result<Locks> {
    let options = options.checked()?;
    let mut engine = Engine::start()?;
    let inner = engine.block_on(async { options.over(make()?) })??;
    engine.janitor = Some(inner.client.janitor.clone());
    Ok(Locks { inner, engine: Arc::new(engine) })
}

/// Watches for the end of what evicted holders do. See [`crate::Departures`].
#[derive(Debug)]
#[must_use = "nothing is waited for before `of` is called"]
pub struct Departures {
    inner: crate::Departures,
    engine: Arc<Engine>,
}

impl Departures {
    /// Waits until each of these holders has confirmed its end, or its lease has run out. See [`crate::Departures::of`].
    pub fn of(self, name: impl IntoName, evicted: &Evicted) -> Result<Vec<Departed>> {
        self.engine.block_on(self.inner.of(name, evicted))?
    }
}

/// A client of a store, for code that is not async. Clones are the same client.
#[derive(Debug, Clone)]
pub struct Locks {
    inner: crate::Locks,
    engine: Arc<Engine>,
}

impl Locks {
    /// A lock that one holder at a time has.
    pub fn mutex(&self, name: impl IntoName) -> Mutex {
        Mutex { inner: self.inner.mutex(name), engine: self.engine.clone() }
    }

    /// A lock that many readers hold together, or one writer alone.
    pub fn rwlock(&self, name: impl IntoName) -> RwLock {
        RwLock { inner: self.inner.rwlock(name), engine: self.engine.clone() }
    }

    /// So many permits, and no more. See [`crate::Locks::semaphore`].
    pub fn semaphore(&self, name: impl IntoName, limit: u32) -> Semaphore {
        Semaphore { inner: self.inner.semaphore(name, limit), engine: self.engine.clone() }
    }

    /// A gate that is closed until so many have counted down. See [`crate::Locks::latch`].
    pub fn latch(&self, name: impl IntoName, count: u32) -> Latch {
        Latch { inner: self.inner.latch(name, count), engine: self.engine.clone() }
    }

    /// What needs no lock. See [`crate::Locks::cells`].
    pub fn cells(&self) -> Cells {
        Cells { inner: self.inner.cells(), engine: self.engine.clone() }
    }

    /// So much in such a time, for all who use the name. See [`crate::Locks::rate_limit`].
    pub fn rate_limit(&self, name: impl IntoName) -> RateLimit {
        RateLimit { inner: self.inner.rate_limit(name), engine: self.engine.clone() }
    }

    /// Several names at once, all or none, on one lease. See [`crate::Locks::all`].
    pub fn all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> All {
        All { inner: self.inner.all(names), engine: self.engine.clone() }
    }

    /// At most one run per period, in the whole fleet. See [`crate::Locks::once`].
    pub fn once(&self, name: impl IntoName) -> Once {
        Once { inner: self.inner.once(name), engine: self.engine.clone() }
    }

    /// One leader at a time among those who campaign, for a term. See [`crate::Locks::election`].
    pub fn election(&self, name: impl IntoName) -> Election {
        Election { inner: self.inner.election(name), engine: self.engine.clone() }
    }

    /// Values that are loaded once for all who want them. See [`crate::Locks::cache`].
    pub fn cache(&self, name: impl IntoName) -> Cache {
        Cache { inner: self.inner.cache(name), engine: self.engine.clone() }
    }

    /// An owner under whose name a lock that it holds already may be taken again. See [`crate::Locks::owner`].
    pub fn owner(&self, id: impl AsRef<str>) -> Scope {
        Scope { inner: self.inner.owner(id), engine: self.engine.clone() }
    }

    /// Takes up a detached lease again, from its name and its token. See [`crate::Locks::detached`].
    pub fn detached(&self, name: impl IntoName, token: Token) -> Result<Detached> {
        Ok(Detached { inner: self.inner.detached(name, token)?, engine: self.engine.clone() })
    }

    /// Who holds a name, who waits, and for how long; `None` where nobody does.
    pub fn inspect(&self, name: impl IntoName) -> Result<Option<Status>> {
        self.engine.block_on(self.inner.inspect(name))?
    }

    /// The names in use that start with `prefix`, sorted, at most `limit` of them.
    pub fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.engine.block_on(self.inner.list(prefix, limit))?
    }

    /// Takes a name from whoever holds it. See [`crate::Locks::evict`].
    pub fn evict(&self, name: impl IntoName) -> Result<Evicted> {
        self.engine.block_on(self.inner.evict(name))?
    }

    /// Takes a name from one of its holders. See [`crate::Locks::evict_holder`].
    pub fn evict_holder(&self, name: impl IntoName, fence: Fence) -> Result<Evicted> {
        self.engine.block_on(self.inner.evict_holder(name, fence))?
    }

    /// Watches for the end of what evicted holders do. See [`crate::Locks::departures`].
    pub fn departures(&self) -> Departures {
        Departures { inner: self.inner.departures(), engine: self.engine.clone() }
    }

    /// Gives an end to a lock that has none. See [`crate::Locks::adopt`].
    pub fn adopt(&self, name: impl IntoName, ttl: Duration) -> Result<Adopted> {
        self.engine.block_on(self.inner.adopt(name, ttl))?
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    /// For a process that starts others under a lock. See [`crate::Locks::lifeline`].
    #[cfg(unix)]
    pub fn lifeline(&self) -> Result<Option<std::os::fd::OwnedFd>> {
        self.inner.lifeline()
    }

    /// Ends when everything that was dropped so far has been given back to the store.
    pub fn settled(&self) -> Result<()> {
        self.engine.block_on(self.inner.settled())
    }

    /// Grants no new lock, and waits for those that are held to be let go. See [`crate::Locks::drain`].
    pub fn drain(&self, limit: Duration) -> Result<bool> {
        self.engine.block_on(self.inner.drain(limit))
    }

    /// As [`close`](Locks::close), and waits for the store at most so long. See [`crate::Locks::close_within`].
    pub fn close_within(&self, limit: Duration) -> Result<bool> {
        self.engine.block_on(self.inner.close_within(limit))
    }

    /// Gives back every lease of this client. See [`crate::Locks::close`].
    pub fn close(&self) -> Result<()> {
        self.engine.block_on(self.inner.close())
    }
}

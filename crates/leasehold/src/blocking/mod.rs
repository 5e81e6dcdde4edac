//! The blocking API: the same locks for code that is not async.
//!
//! Each client has one background thread with a current-thread runtime, which renews its leases. A
//! call inside an async runtime would stall that runtime, and fails with [`Error::InsideRuntime`]
//! instead; a thread of `spawn_blocking` may call. (Under `tokio::task::unconstrained` the client
//! cannot tell a runtime from a plain thread.)
//!
//! Each type has the methods of the async type with the same name, and links to them.
//!
//! ```
//! let locks = leasehold::blocking::connect("memory:")?;
//! let lease = locks.mutex("orders:42").lock()?;
//! println!("held with fence {}", lease.fence());
//! lease.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```

mod cells;
mod engine;
mod kinds;
mod lease;
mod mirror;

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
use mirror::{FromAsync, mirror};

pub use cells::{Cache, Call, Cell, Cells, Counter, RateLimit, Script};
pub use kinds::{All, Changes, Election, Latch, Mutex, Once, ReentrantMutex, RwLock, Scope, Semaphore};
pub use lease::{CountedLease, Detached, Leadership, Lease, Turn, Upgrade};

/// Connects to the store at this URL (see [`crate::connect`]), with the default options.
pub fn connect(url: &str) -> Result<Locks> {
    connect_with(Options::default(), url)
}

/// Connects to the store at this URL, with options.
pub fn connect_with(options: Options, url: &str) -> Result<Locks> {
    start(options.connect(url))
}

/// Makes a client over a store of your own, or one that several clients of this process share.
/// `make` runs on the client's runtime, where the store's clock and tasks belong.
pub fn over(options: Options, make: impl FnOnce() -> Result<Arc<dyn Store>>) -> Result<Locks> {
    let options = options.checked()?;
    start(async { options.over(make()?) })
}

/// Starts the background thread of a client, and makes the client there.
fn start(connect: impl Future<Output = Result<crate::Locks>>) -> Result<Locks> {
    let mut engine = Engine::start()?;
    let inner = engine.block_on(connect)??;
    engine.cleanup = Some(inner.client.cleanup.clone());
    Ok(Locks { inner, engine: Arc::new(engine) })
}

mirror! {
    /// A client of a store. Clones are the same client. See [`crate::Locks`].
    #[derive(Clone)]
    struct Locks(crate::Locks) {
        /// Returns a lock that one holder at a time has.
        fn mutex(&self, name: impl IntoName) -> Mutex;
        /// Returns a lock that many readers hold together, or one writer alone.
        fn rwlock(&self, name: impl IntoName) -> RwLock;
        /// Returns a lock with this many permits.
        fn semaphore(&self, name: impl IntoName, limit: u32) -> Semaphore;
        /// Returns a gate that is closed until this many callers have counted down.
        fn latch(&self, name: impl IntoName, count: u32) -> Latch;
        /// Returns the values, counters and scripts, which need no lock.
        fn cells(&self) -> Cells;
        /// Returns a limit per period, for all clients that use the name.
        fn rate_limit(&self, name: impl IntoName) -> RateLimit;
        /// Returns a job that runs at most once per period, across all processes.
        fn once(&self, name: impl IntoName) -> Once;
        /// Returns an election, with one leader at a time.
        fn election(&self, name: impl IntoName) -> Election;
        /// Returns a cache, whose values one caller loads for all others.
        fn cache(&self, name: impl IntoName) -> Cache;
        /// Returns an owner that may acquire a lock again that it holds.
        fn owner(&self, id: impl AsRef<str>) -> Scope;
        /// Returns the holders and waiters of a name; `None` if it has no holder.
        async fn inspect(&self, name: impl IntoName) -> Result<Option<Status>>;
        /// Returns the names in use that start with `prefix`, sorted, at most `limit` of them.
        async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>>;
        /// Takes a name from all its holders.
        async fn evict(&self, name: impl IntoName) -> Result<Evicted>;
        /// Takes a name from the holder with this fence.
        async fn evict_holder(&self, name: impl IntoName, fence: Fence) -> Result<Evicted>;
        /// Observes the end of the work of evicted holders.
        fn departures(&self) -> Departures;
        /// Sets an expiry for a lock that has none.
        async fn adopt(&self, name: impl IntoName, ttl: Duration) -> Result<Adopted>;
        /// Returns what the store can do.
        fn capabilities(&self) -> Capabilities;
        /// Returns a descriptor for child processes that work under a lock of this client.
        #[cfg(unix)]
        fn lifeline(&self) -> Result<Option<std::os::fd::OwnedFd>>;
    }
}

impl Locks {
    /// Returns a lock on several names, all or none. See [`crate::Locks::all`].
    pub fn all<N: IntoName>(&self, names: impl IntoIterator<Item = N>) -> All {
        All::from_async(self.inner.all(names), &self.engine)
    }

    /// Takes up a detached lease by its name and its token. See [`crate::Locks::detached`].
    pub fn detached(&self, name: impl IntoName, token: Token) -> Result<Detached> {
        Ok(Detached::from_async(self.inner.detached(name, token)?, &self.engine))
    }

    /// Waits until all dropped leases and claims are released. See [`crate::Locks::settled`].
    pub fn settled(&self) -> Result<()> {
        self.engine.block_on(self.inner.settled())
    }

    /// Grants no new lock, and waits for the held leases to end. See [`crate::Locks::drain`].
    pub fn drain(&self, limit: Duration) -> Result<bool> {
        self.engine.block_on(self.inner.drain(limit))
    }

    /// Acts as [`close`](Locks::close), for at most this long. See [`crate::Locks::close_within`].
    pub fn close_within(&self, limit: Duration) -> Result<bool> {
        self.engine.block_on(self.inner.close_within(limit))
    }

    /// Releases every lease of this client. See [`crate::Locks::close`].
    pub fn close(&self) -> Result<()> {
        self.engine.block_on(self.inner.close())
    }
}

mirror! {
    /// Observes the end of the work of evicted holders. See [`crate::Departures`].
    #[must_use = "nothing is waited for before `of` is called"]
    struct Departures(crate::Departures) {
        /// Waits until each of these holders has confirmed its end, or its lease has expired.
        async fn of(self, name: impl IntoName, evicted: &Evicted) -> Result<Vec<Departed>>;
    }
}

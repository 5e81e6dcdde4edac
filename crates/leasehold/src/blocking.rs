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

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::coop;

use crate::claim::{Evicted, Names, Status};
use crate::connect::Options;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::janitor::Janitor;
use crate::lease::{Proof, Setback};
use crate::name::IntoName;
use crate::store::{Capabilities, Store};
use crate::token::Token;

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

    /// Gives back every lease of this client. See [`crate::Locks::close`].
    pub fn close(&self) -> Result<()> {
        self.engine.block_on(self.inner.close())
    }
}

/// A lock that one holder at a time has. The options are those of [`crate::Mutex`].
#[derive(Debug, Clone)]
pub struct Mutex {
    inner: crate::Mutex,
    engine: Arc<Engine>,
}

impl Mutex {
    /// How long the lock outlives a holder that dies.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|mutex| mutex.ttl(ttl))
    }

    /// How long [`lock`](Mutex::lock) waits before it says [`Error::Busy`].
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|mutex| mutex.wait(wait))
    }

    /// Who holds it, for people.
    #[must_use]
    pub fn owner(self, label: impl AsRef<str>) -> Self {
        self.with(|mutex| mutex.owner(label))
    }

    /// A cap on holding.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|mutex| mutex.max_hold(max_hold))
    }

    /// No renewal in the background.
    #[must_use]
    pub fn no_renewal(self) -> Self {
        self.with(crate::Mutex::no_renewal)
    }

    /// A grant that comes with less than this left is renewed, or else given back.
    #[must_use]
    pub fn min_validity(self, min_validity: Duration) -> Self {
        self.with(|mutex| mutex.min_validity(min_validity))
    }

    /// Each caller takes its own place in the store's queue.
    #[must_use]
    pub fn strict_order(self) -> Self {
        self.with(crate::Mutex::strict_order)
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Result<Lease> {
        let inner = self.engine.block_on(self.inner.lock())??;
        Ok(Lease { inner, engine: self.engine.clone() })
    }

    /// Takes the lock if it is free; `None` where it is not.
    pub fn try_lock(&self) -> Result<Option<Lease>> {
        let inner = self.engine.block_on(self.inner.try_lock())??;
        Ok(inner.map(|inner| Lease { inner, engine: self.engine.clone() }))
    }

    /// Waits for the lock and takes it for longer than this process may live. See [`crate::Mutex::lock_detached`].
    pub fn lock_detached(&self) -> Result<Detached> {
        let inner = self.engine.block_on(self.inner.lock_detached())??;
        Ok(Detached { inner, engine: self.engine.clone() })
    }

    /// The same if it is free; `None` where it is not.
    pub fn try_lock_detached(&self) -> Result<Option<Detached>> {
        let inner = self.engine.block_on(self.inner.try_lock_detached())??;
        Ok(inner.map(|inner| Detached { inner, engine: self.engine.clone() }))
    }

    /// Locks, does the work, and lets go. See [`Lease::run`].
    pub fn run<T>(&self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.lock()?.run(work)
    }

    /// Locks, does the work, and lets go; rolls back where the lease was lost. See [`Lease::run_or_rollback`].
    pub fn run_or_rollback<T>(
        &self,
        work: impl FnOnce(&Proof) -> T,
        rollback: impl FnOnce(Setback<T>),
    ) -> Result<T> {
        self.lock()?.run_or_rollback(work, rollback)
    }

    fn with(self, change: impl FnOnce(crate::Mutex) -> crate::Mutex) -> Self {
        Mutex { inner: change(self.inner), engine: self.engine }
    }
}

/// A lock held on a lease; see [`crate::Lease`]. It has everything a [`Proof`] has.
#[must_use = "the lock is let go as soon as the lease is dropped"]
#[derive(Debug)]
pub struct Lease {
    // Before the engine, so that what its drop sends still finds the janitor.
    inner: crate::Lease,
    engine: Arc<Engine>,
}

impl Lease {
    /// A proof for other threads to watch.
    pub fn proof(&self) -> Proof {
        self.inner.proof()
    }

    /// Waits until the lease is lost, at most this long; `None` where it still lasts then.
    pub fn wait_lost(&self, timeout: Duration) -> Result<Option<Loss>> {
        let clock = self.inner.clock();
        self.engine.block_on(async {
            tokio::select! {
                biased;
                loss = self.inner.lost() => Some(loss),
                () = clock.sleep_until(clock.now().plus(timeout)) => None,
            }
        })
    }

    /// Renews the lease now, and from now on for this TTL. See [`crate::Lease::extend`].
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.engine.block_on(self.inner.extend(ttl))?
    }

    /// Does the work on this thread, and lets go. Work that is not async cannot be cancelled: long work looks at
    /// [`Proof::is_valid`] before each step that matters.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease was lost under the work: roll back. A release that gets no answer is no error here:
    /// the work was protected to its end.
    pub fn run<T>(self, work: impl FnOnce(&Proof) -> T) -> Result<T> {
        self.run_or_rollback(work, |_| ())
    }

    /// Like [`run`](Lease::run), and where the lease was lost, calls `rollback` before it returns the error. See
    /// [`crate::Lease::run_or_rollback`].
    ///
    /// # Errors
    /// As [`run`](Lease::run).
    pub fn run_or_rollback<T>(
        self,
        work: impl FnOnce(&Proof) -> T,
        rollback: impl FnOnce(Setback<T>),
    ) -> Result<T> {
        let fence = self.fence();
        let output = work(&self);
        match self.release() {
            Ok(()) | Err(Error::Unknown { .. }) => Ok(output),
            Err(error) => {
                if let Error::Lost { reason, .. } = error {
                    rollback(Setback { reason, fence, output: Some(output) });
                }
                Err(error)
            }
        }
    }

    /// Lets go, and says whether the lock was held to the end. See [`crate::Lease::release`].
    pub fn release(self) -> Result<()> {
        self.engine.block_on(self.inner.release())?
    }
}

impl Deref for Lease {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.inner
    }
}

/// A lease that nobody keeps; see [`crate::Detached`]. Dropping it does not let go.
#[must_use = "it stays taken until its TTL is over: keep its token, or release it"]
#[derive(Debug)]
pub struct Detached {
    // Before the engine, as in a lease.
    inner: crate::Detached,
    engine: Arc<Engine>,
}

impl Detached {
    /// What is held.
    pub fn names(&self) -> &Names {
        self.inner.names()
    }

    /// What it takes to take it up again. See [`crate::Detached::token`].
    pub fn token(&self) -> &Token {
        self.inner.token()
    }

    /// The fence; `None` where it was taken up again by its token alone.
    pub fn fence(&self) -> Option<Fence> {
        self.inner.fence()
    }

    /// Tells it its fence. See [`crate::Detached::with_fence`].
    pub fn with_fence(self, fence: Fence) -> Self {
        Detached { inner: self.inner.with_fence(fence), engine: self.engine }
    }

    /// How long it lasts at least, as far as this process knows. See [`crate::Detached::remaining`].
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Has it last for this TTL from now on. See [`crate::Detached::extend`].
    pub fn extend(&mut self, ttl: Duration) -> Result<()> {
        self.engine.block_on(self.inner.extend(ttl))?
    }

    /// Lets go, and says whether it was held to the end. See [`crate::Detached::release`].
    pub fn release(self) -> Result<()> {
        self.engine.block_on(self.inner.release())?
    }
}

/// The background thread of a client. It ends with the last handle and lease of the client, after what they
/// dropped has been given back.
struct Engine {
    runtime: Handle,
    janitor: Option<Janitor>,
    /// Sending or dropping it ends the thread.
    stop: Option<oneshot::Sender<Janitor>>,
}

impl Engine {
    fn start() -> Result<Self> {
        let refused = |error: std::io::Error| Error::System {
            what: "background thread for a blocking client",
            why: error.to_string(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<Janitor>();
        let work = move || {
            runtime.block_on(async {
                if let Ok(janitor) = stopped.await {
                    janitor.done().await;
                }
            });
        };
        std::thread::Builder::new().name("leasehold".into()).spawn(work).map_err(refused)?;
        Ok(Engine { runtime: handle, janitor: None, stop: Some(stop) })
    }

    /// Runs a future to its end on the calling thread, while the background thread drives timers and sockets.
    fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        if is_inside_runtime() {
            return Err(Error::InsideRuntime);
        }
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Ok(output);
            }
            std::thread::park();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let (Some(stop), Some(janitor)) = (self.stop.take(), self.janitor.take()) {
            let _ = stop.send(janitor);
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Whether this thread is polling a task of a tokio runtime.
///
/// A thread of `spawn_blocking` has a runtime handle too, but may block. What tells them apart without a panic is
/// tokio's cooperative budget: it is limited while a task is polled, and only then. Asking for more than there can
/// be shows it; the guards give back what was taken.
fn is_inside_runtime() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut taken = Vec::new();
    // The budget is kept in a byte.
    for _ in 0..=u8::MAX {
        match coop::poll_proceed(&mut cx) {
            Poll::Ready(guard) => taken.push(guard),
            Poll::Pending => break,
        }
    }
    let limited = taken.len() <= usize::from(u8::MAX);
    // Each guard puts back the budget it found, so the first must be the last to go.
    while taken.pop().is_some() {}
    limited
}

//! What the tests share: the scale of the long proofs, clients over one store, what they can be asked for, a store that can
//! be made to hang, and one in another process.
//!
//! A crate, so that it is compiled once for all of them. It is held to what tests are held to, not to what users read.
#![allow(missing_docs, missing_debug_implementations, clippy::new_without_default, clippy::unwrap_used)]

pub mod attack;
pub mod cases;
pub mod child;
pub mod disk;
pub mod fleet;
pub mod history;
pub mod operations;
pub mod page;
pub mod record;
pub mod remote;
pub mod stores;
pub mod wall;
pub mod worker;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::cells::store::CellStore;
use leasehold::store::memory::Memory;
use leasehold::{
    Acquired, Adopted, Capabilities, Claim, Clock, Converted, Deadline, Error, Evicted, Locks, Name, Options,
    Released, Renewed, Result, Share, Status, Store, Ticket, Ttl,
};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// So many at full scale; fewer where `LEASEHOLD_SCALE` says so (a tenth if nothing is said).
pub fn scaled(full: u64) -> u64 {
    let scale: f64 = match std::env::var("LEASEHOLD_SCALE") {
        Ok(text) => text.parse().expect("LEASEHOLD_SCALE is a number such as 0.1"),
        Err(_) => 0.1,
    };
    ((full as f64 * scale) as u64).max(1)
}

/// Opens a store that was told to be impatient, again until the machine has the time: what is proven is what it does then.
pub async fn opened<S, F: Future<Output = Result<S>>>(open: impl Fn() -> F) -> S {
    let start = std::time::Instant::now();
    loop {
        match open().await {
            Ok(store) => return store,
            Err(Error::Unreachable { .. }) if start.elapsed() < secs(20) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// SplitMix64, so that a seed gives one run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// Runs `work` for 0..count, on as many threads as there are cores.
pub fn in_parallel(count: u64, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return;
                    }
                    work(i);
                }
            });
        }
    });
}

/// A runtime of one thread with paused time, so that a run is the same each time.
pub fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A runtime of one thread on a clock of its own, which leaps to the next timer whenever there is nothing else to do.
/// Real time has no part in it: a run is the same to the nanosecond each time.
pub fn leaping_runtime() -> (tokio::runtime::Runtime, Clock) {
    let clock = Clock::manual();
    let leaping = clock.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            leaping.advance_to_next();
        })
        .build()
        .unwrap();
    (runtime, clock)
}

/// Where every clock starts: from there a deadline is a plain duration, to the nanosecond.
pub fn origin() -> Deadline {
    Deadline::FAR.minus(Duration::MAX)
}

pub async fn sleep(clock: &Clock, duration: Duration) {
    clock.sleep_until(clock.now().plus(duration)).await;
}

/// Polls a future once, as a caller does that keeps it and does something else.
pub async fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await
}

/// What a future gives within a time, or nothing.
pub async fn within<T>(clock: &Clock, duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    clock.until(clock.now().plus(duration), future).await
}

pub fn client(store: &Arc<impl Store + 'static>, owner: &str) -> Locks {
    Options::default().owner(owner).over(store.clone()).unwrap()
}

/// Two clients over one memory store, on tokio's (paused) clock.
pub fn two_clients() -> (Locks, Locks) {
    let store = Arc::new(Memory::new(Clock::tokio()));
    (client(&store, "a"), client(&store, "b"))
}

/// How a store takes one call.
#[derive(Debug, Clone, Copy)]
pub enum Mood {
    Well,
    /// It is executed after so many milliseconds.
    Slow(u64),
    /// There is no answer in time.
    Fails,
    /// There is none, and that takes so many milliseconds to find out.
    SlowlyFails(u64),
    /// There is never an answer.
    Hangs,
    /// It panics when it is polled a second time.
    PanicsLate,
}

/// From the call's name and the lock's.
pub type Rule = fn(&str, &str) -> Mood;

/// A memory store that hangs, is late, or fails at a word or by a rule, and counts what it is asked.
#[derive(Debug)]
pub struct Moody {
    inner: Memory,
    rule: Rule,
    late_window: Duration,
    /// From now on no call is ever answered.
    pub hangs: AtomicBool,
    /// It says that it can do no more than exclude.
    pub is_plain: AtomicBool,
    /// How late a granted acquire or a conversion is answered.
    pub grant_late_ms: AtomicU64,
    /// How late a renewal or a detach is answered.
    pub renewal_late_ms: AtomicU64,
    /// So many renewals fail before one is let through.
    pub failing_renewals: AtomicU64,
    pub acquires: AtomicU64,
    /// Of those, how many were to outlive their client.
    pub detached: AtomicU64,
    pub renewals: AtomicU64,
    /// How many renewals are under way, and the most there ever were.
    pub under_way: AtomicU64,
    pub under_way_max: AtomicU64,
}

/// One call under way, until it is answered or dropped.
struct UnderWay<'a>(&'a Moody);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Moody {
    pub fn new(clock: Clock) -> Arc<Self> {
        Moody::by(clock, Duration::ZERO, |_, _| Mood::Well)
    }

    pub fn by(clock: Clock, late_window: Duration, rule: Rule) -> Arc<Self> {
        Arc::new(Moody {
            inner: Memory::new(clock),
            rule,
            late_window,
            hangs: AtomicBool::new(false),
            is_plain: AtomicBool::new(false),
            grant_late_ms: AtomicU64::new(0),
            renewal_late_ms: AtomicU64::new(0),
            failing_renewals: AtomicU64::new(0),
            acquires: AtomicU64::new(0),
            detached: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            under_way_max: AtomicU64::new(0),
        })
    }

    pub fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    async fn mood(&self, call: &str, name: &str) -> Result<()> {
        let mood = if self.hangs.load(Ordering::SeqCst) { Mood::Hangs } else { (self.rule)(call, name) };
        match mood {
            Mood::Well => {}
            Mood::Slow(late_ms) => self.clock().sleep_until(self.clock().now().plus(ms(late_ms))).await,
            Mood::Fails => return Err(Error::Unreachable { store: "moody", why: "on purpose".into() }),
            Mood::SlowlyFails(late_ms) => {
                self.clock().sleep_until(self.clock().now().plus(ms(late_ms))).await;
                return Err(Error::Unreachable { store: "moody", why: "on purpose".into() });
            }
            Mood::Hangs => std::future::pending().await,
            Mood::PanicsLate => {
                tokio::task::yield_now().await;
                panic!("on purpose");
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Moody {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        self.detached.fetch_add(u64::from(claim.detached), Ordering::SeqCst);
        self.mood("acquire", claim.ticket.names.first().as_str()).await?;
        let answer = self.inner.acquire(claim).await;
        let late = ms(self.grant_late_ms.load(Ordering::SeqCst));
        self.clock().sleep_until(self.clock().now().plus(late)).await;
        answer
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.under_way_max.fetch_max(under_way, Ordering::SeqCst);
        let _under_way = UnderWay(self);
        for (ticket, _) in due {
            if let Err(error) = self.mood("renew", ticket.names.first().as_str()).await {
                return due.iter().map(|_| Err(error.clone())).collect();
            }
        }
        let failing =
            self.failing_renewals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        if failing.is_ok() {
            let error = Error::Unreachable { store: "moody", why: "on purpose".into() };
            return due.iter().map(|_| Err(error.clone())).collect();
        }
        let answers = self.inner.renew(due).await;
        let late = ms(self.renewal_late_ms.load(Ordering::SeqCst));
        self.clock().sleep_until(self.clock().now().plus(late)).await;
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.mood("release", ticket.names.first().as_str()).await?;
        self.inner.release(ticket).await
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        self.mood("detach", ticket.names.first().as_str()).await?;
        let answer = self.inner.detach(ticket, ttl).await;
        let late = ms(self.renewal_late_ms.load(Ordering::SeqCst));
        self.clock().sleep_until(self.clock().now().plus(late)).await;
        answer
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        self.mood("convert", ticket.names.first().as_str()).await?;
        let answer = self.inner.convert(ticket, to).await;
        let late = ms(self.grant_late_ms.load(Ordering::SeqCst));
        self.clock().sleep_until(self.clock().now().plus(late)).await;
        answer
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        self.mood("inspect", name.as_str()).await?;
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.mood("list", prefix).await?;
        self.inner.list(prefix, limit).await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.mood("evict", name.as_str()).await?;
        self.inner.evict(name).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        self.mood("adopt", name.as_str()).await?;
        self.inner.adopt(name, ttl).await
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = match self.is_plain.load(Ordering::SeqCst) {
            true => Capabilities::none("plain"),
            false => self.inner.capabilities(),
        };
        can.late_window = self.late_window;
        can.cells = false;
        can
    }

    fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        self.inner.lifeline()
    }
}

/// Everything that can happen to a lease, once or more.
pub async fn everything(store: Arc<Moody>, locks: Locks) {
    // Acquired, passed, released.
    let held = locks.mutex("x").lock().await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mutex = locks.mutex("x");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(ms(1)).await;
    // Busy.
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    // Renewal failed, then lost.
    let lease = locks.mutex("x").lock().await.unwrap();
    store.failing_renewals.store(1, Ordering::SeqCst);
    tokio::time::sleep(secs(15)).await;
    locks.evict("x").await.unwrap();
    lease.lost().await;
    drop(lease);
    // Clean-up failed.
    drop(locks.mutex("bad").lock().await.unwrap());
    locks.close().await;
}

/// A store on which whatever is called `bad` cannot be given back.
pub fn failing_cleanup() -> Arc<Moody> {
    let bad =
        |call: &str, name: &str| if (call, name) == ("release", "bad") { Mood::Fails } else { Mood::Well };
    Moody::by(Clock::tokio(), ms(0), bad)
}

/// A directory for one test, gone when it is dropped.
#[derive(Debug)]
pub struct Home(std::path::PathBuf);

impl Home {
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A new directory, which a file store may be opened in or below.
pub fn home(what: &str) -> Home {
    home_in(&folder(), what)
}

/// The same in memory: for what is about short times, in which a disk that is busy with others may stand still.
pub fn home_in_memory(what: &str) -> Home {
    home_in(std::path::Path::new("/dev/shm"), &format!("leasehold_{what}"))
}

/// Cargo's folder for what tests write, `target/tmp`. It is named only to what cargo compiles as a test, which this crate is
/// not; but every test program is in `target/PROFILE/deps`.
fn folder() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn home_in(folder: &std::path::Path, what: &str) -> Home {
    use std::os::unix::fs::DirBuilderExt;
    static HOMES: AtomicU64 = AtomicU64::new(0);
    let number = HOMES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("{what}_{}_{number}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    Home(path)
}

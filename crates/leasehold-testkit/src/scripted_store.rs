//! A memory store that hangs, delays or fails calls on request, and counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::store::intercept::{Call, Execution, Intercept};
use leasehold::store::memory::Memory;
use leasehold::{Capabilities, Clock, Error, Locks, Result, Store};

use super::{ms, secs, sleep};

#[derive(Debug, Clone, Copy)]
pub enum Behaviour {
    Answers,
    /// The call is executed after this many milliseconds.
    Slow(u64),
    Fails,
    /// The call fails after this many milliseconds.
    SlowlyFails(u64),
    Hangs,
    /// The call panics at its second poll.
    PanicsLate,
}

/// Chooses a behaviour by the method of the call and the name of the lock.
pub type Rule = fn(&str, &str) -> Behaviour;

#[derive(Debug)]
pub struct ScriptedStore {
    inner: Arc<dyn Store>,
    rule: Rule,
    late_window: Duration,
    /// No call is answered any more.
    pub hangs: AtomicBool,
    /// The store reports no capabilities.
    pub is_plain: AtomicBool,
    /// The delay of the answers to acquires and conversions.
    pub grant_late_ms: AtomicU64,
    /// The delay of the answers to renewals and detaches.
    pub renewal_late_ms: AtomicU64,
    /// The number of renewals that fail before one is let through.
    pub failing_renewals: AtomicU64,
    pub acquires: AtomicU64,
    /// Acquires of detached leases.
    pub detached: AtomicU64,
    pub renewals: AtomicU64,
    /// The renewals under way, now and at most.
    pub under_way: AtomicU64,
    pub under_way_max: AtomicU64,
}

impl ScriptedStore {
    pub fn new(clock: Clock) -> Arc<Self> {
        ScriptedStore::by(clock, Duration::ZERO, |_, _| Behaviour::Answers)
    }

    pub fn by(clock: Clock, late_window: Duration, rule: Rule) -> Arc<Self> {
        Arc::new(ScriptedStore {
            inner: Arc::new(Memory::new(clock)),
            rule,
            late_window,
            hangs: AtomicBool::default(),
            is_plain: AtomicBool::default(),
            grant_late_ms: AtomicU64::default(),
            renewal_late_ms: AtomicU64::default(),
            failing_renewals: AtomicU64::default(),
            acquires: AtomicU64::default(),
            detached: AtomicU64::default(),
            renewals: AtomicU64::default(),
            under_way: AtomicU64::default(),
            under_way_max: AtomicU64::default(),
        })
    }

    pub fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    async fn behave(&self, method: &str, name: &str) -> Result<()> {
        let is_hung = self.hangs.load(Ordering::SeqCst);
        match if is_hung { Behaviour::Hangs } else { (self.rule)(method, name) } {
            Behaviour::Answers => Ok(()),
            Behaviour::Slow(late_ms) => {
                sleep(self.clock(), ms(late_ms)).await;
                Ok(())
            }
            Behaviour::Fails => Err(on_purpose()),
            Behaviour::SlowlyFails(late_ms) => {
                sleep(self.clock(), ms(late_ms)).await;
                Err(on_purpose())
            }
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::PanicsLate => {
                tokio::task::yield_now().await;
                panic!("on purpose");
            }
        }
    }

    /// Counts a call. The guard counts a renewal under way.
    fn count(&self, call: &Call) -> Option<UnderWay<'_>> {
        match call.method {
            "acquire" => {
                self.acquires.fetch_add(1, Ordering::SeqCst);
                self.detached.fetch_add(u64::from(call.detached), Ordering::SeqCst);
                None
            }
            "renew" => {
                self.renewals.fetch_add(1, Ordering::SeqCst);
                let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
                self.under_way_max.fetch_max(under_way, Ordering::SeqCst);
                Some(UnderWay(self))
            }
            _ => None,
        }
    }

    fn is_failing_renewal(&self, call: &Call) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        call.method == "renew"
            && self.failing_renewals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

struct UnderWay<'a>(&'a ScriptedStore);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

fn on_purpose() -> Error {
    Error::Unreachable { store: "scripted", why: "on purpose".into() }
}

impl Intercept for ScriptedStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    async fn intercept<T: Send, E>(&self, call: Call, execute: E) -> Result<T>
    where
        E: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync,
    {
        let _under_way = self.count(&call);
        for name in &call.about {
            self.behave(call.method, name).await?;
        }
        if self.is_failing_renewal(&call) {
            return Err(on_purpose());
        }
        let answer = execute(self.inner.clone()).await;
        let late_ms = match call.method {
            "acquire" | "convert" => &self.grant_late_ms,
            "renew" | "detach" => &self.renewal_late_ms,
            _ => return answer,
        };
        sleep(self.clock(), ms(late_ms.load(Ordering::SeqCst))).await;
        answer
    }

    fn adjust(&self, inner: Capabilities) -> Capabilities {
        let mut can = match self.is_plain.load(Ordering::SeqCst) {
            true => Capabilities::none("plain"),
            false => inner,
        };
        (can.late_window, can.cells) = (self.late_window, false);
        can
    }

    fn passes_notices_and_values(&self) -> bool {
        false
    }
}

/// Makes each event of a lease happen at least once.
pub async fn everything(store: Arc<ScriptedStore>, locks: Locks) {
    // Acquired, handed over, released.
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

/// A store that fails to release the name `bad`.
pub fn failing_cleanup() -> Arc<ScriptedStore> {
    let bad = |call: &str, name: &str| {
        if (call, name) == ("release", "bad") { Behaviour::Fails } else { Behaviour::Answers }
    };
    ScriptedStore::by(Clock::tokio(), ms(0), bad)
}

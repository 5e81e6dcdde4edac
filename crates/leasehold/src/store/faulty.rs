//! A store behind a bad network, which delays, loses and repeats requests, and loses replies. The
//! same seed over the same calls gives the same faults and the same trace.

use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot;

use super::intercept::{Call, Execution, Intercept};
use super::{Capabilities, Store};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, spawn};

/// The faults and their frequency.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The seed of every decision.
    pub seed: u64,
    /// The longest delay of a request, of a reply, and of a duplicate.
    pub delay_max: Duration,
    /// The time after which the caller of a lost request or reply gets an error.
    pub timeout: Duration,
    /// The requests in 1,000 that never arrive.
    pub lost_requests: u16,
    /// The requests in 1,000 whose replies never arrive.
    pub lost_replies: u16,
    /// The requests in 1,000 that are executed a second time, later.
    pub duplicates: u16,
}

impl Plan {
    /// Returns a plan without faults.
    pub fn calm(seed: u64) -> Self {
        Plan {
            seed,
            delay_max: Duration::ZERO,
            timeout: Duration::from_millis(50),
            lost_requests: 0,
            lost_replies: 0,
            duplicates: 0,
        }
    }

    /// Returns a plan with every fault now and then, and delays of up to 20 ms.
    pub fn stormy(seed: u64) -> Self {
        Plan {
            delay_max: Duration::from_millis(20),
            lost_requests: 70,
            lost_replies: 70,
            duplicates: 100,
            ..Plan::calm(seed)
        }
    }

    fn fate(&self, call: u64) -> Fate {
        let mut dice = Dice(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ call);
        let delay_max_us = self.delay_max.as_micros() as u64;
        let mut delay = || Duration::from_micros(dice.roll() % (delay_max_us + 1));
        let (before, after, again_after) = (delay(), delay(), delay());
        let mut happens = |per_mille: u16| dice.roll() % 1_000 < u64::from(per_mille);
        let (request_lost, reply_lost) = (happens(self.lost_requests), happens(self.lost_replies));
        let again = happens(self.duplicates).then_some(again_after);
        Fate { before, after, request_lost, reply_lost, again }
    }
}

#[derive(Debug, Clone, Copy)]
struct Fate {
    before: Duration,
    after: Duration,
    request_lost: bool,
    reply_lost: bool,
    again: Option<Duration>,
}

/// SplitMix64: small, and the same on every platform.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A client's view of a store through a bad network. Wrap the same inner store once per client.
#[derive(Clone)]
pub struct Faulty {
    line: Arc<Line>,
}

struct Line {
    inner: Arc<dyn Store>,
    plan: Plan,
    calls: AtomicU64,
    trace: Mutex<Vec<String>>,
}

impl Faulty {
    /// Puts a bad network in front of a store.
    pub fn new(inner: Arc<dyn Store>, plan: Plan) -> Self {
        let (calls, trace) = (AtomicU64::new(0), Mutex::default());
        Faulty { line: Arc::new(Line { inner, plan, calls, trace }) }
    }

    /// Returns the calls so far, one a line, without tokens, so that two runs can be compared.
    pub fn trace(&self) -> Vec<String> {
        lock(&self.line.trace).clone()
    }

    fn after(&self, delay: Duration) -> Deadline {
        self.clock().now().plus(delay)
    }

    async fn deliver<T, F>(
        self,
        fate: Fate,
        repeatable: bool,
        execute: F,
        mut reply: oneshot::Sender<Result<T>>,
    ) where
        T: Send + 'static,
        F: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync + 'static,
    {
        self.clock().sleep_until(self.after(fate.before)).await;
        let outcome = tokio::select! {
            biased;
            // Polled once in any case. A wait goes on only as long as the caller does.
            outcome = execute(self.line.inner.clone()) => Some(outcome),
            () = reply.closed() => None,
        };
        if let Some(outcome) = outcome {
            let reply_arrives = self.after(fate.after);
            let told = self.after(self.line.plan.timeout);
            let network = self.clone();
            // The reply and a duplicate of the request travel at the same time.
            spawn(async move {
                if fate.reply_lost {
                    network.clock().sleep_until(told).await;
                } else {
                    network.clock().sleep_until(reply_arrives).await;
                    let _ = reply.send(outcome);
                }
            });
        }
        if let Some(again_after) = fate.again.filter(|_| repeatable) {
            self.clock().sleep_until(self.after(again_after)).await;
            // A duplicate is executed, but its answer reaches no caller.
            let mut again = execute(self.line.inner.clone());
            std::future::poll_fn(|cx| {
                let _ = again.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
        }
    }
}

impl Intercept for Faulty {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.line.inner
    }

    /// A request that was sent is executed even if its caller is dropped meanwhile.
    async fn intercept<T, E>(&self, call: Call, execute: E) -> Result<T>
    where
        T: fmt::Debug + Send + 'static,
        E: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync + 'static,
    {
        // A second eviction would evict the next holder.
        let repeatable = !matches!(call.method, "evict" | "evict_holder" | "adopt");
        let number = self.line.calls.fetch_add(1, Ordering::SeqCst);
        let fate = self.line.plan.fate(number);
        let gives_up = self.after(self.line.plan.timeout);
        let no_answer = |why: &str| Error::Unreachable { store: "faulty", why: why.to_owned() };
        let outcome = if fate.request_lost {
            self.clock().sleep_until(gives_up).await;
            Err(no_answer("request lost"))
        } else {
            let (reply, mut answer) = oneshot::channel();
            let network = self.clone();
            spawn(async move { network.deliver(fate, repeatable, execute, reply).await });
            // No time-out, because an acquire may wait for long. `deliver` reports a lost reply.
            match (&mut answer).await {
                Ok(outcome) => outcome,
                Err(_) => Err(no_answer("reply lost")),
            }
        };
        let now = self.clock().now();
        lock(&self.line.trace)
            .push(format!("{number} {} {:?} {fate:?} -> {outcome:?} @ {now:?}", call.method, call.about));
        outcome
    }

    fn adjust(&self, inner: Capabilities) -> Capabilities {
        // A request and its duplicate may each be delayed once.
        Capabilities { late_window: inner.late_window + self.line.plan.delay_max * 2, ..inner }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("plan", &self.line.plan).finish_non_exhaustive()
    }
}

//! The events of leases and requests: sent to a user's hook, to `tracing` and to `metrics`.
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `leasehold_acquired_total` | counter | | leases acquired |
//! | `leasehold_passed_total` | counter | | of those, passed on within the client without a request |
//! | `leasehold_busy_total` | counter | | requests that ended busy |
//! | `leasehold_released_total` | counter | | leases released by their holders |
//! | `leasehold_lost_total` | counter | `reason` | leases lost |
//! | `leasehold_degraded_total` | counter | | leases that came to be held by no more nodes than required |
//! | `leasehold_renewal_failures_total` | counter | | renewals without an answer |
//! | `leasehold_cleanup_failures_total` | counter | | withdrawals without an answer (retried until the TTL is over) |
//! | `leasehold_wait_seconds` | histogram | | from request to lease |
//! | `leasehold_hold_seconds` | histogram | | from lease to release or loss |

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::claim::Names;
use crate::fence::Fence;
pub use crate::loss::Loss;
use crate::sync::{Arc, AtomicU64, Ordering, spawn};

/// An event of a lease or a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A lease was acquired.
    Acquired {
        /// The names held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The time from request to lease.
        waited: Duration,
        /// True if another task of this client passed the lease on, without a request to the store.
        passed: bool,
    },
    /// A request ended without a lease, because other holders have it.
    Busy {
        /// The names requested.
        names: Names,
        /// The time waited.
        waited: Duration,
    },
    /// A renewal got no answer; it is retried until the deadline.
    RenewalFailed {
        /// The names held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The cause.
        why: String,
        /// The number of failures in a row.
        tries: u64,
        /// The time left until the deadline.
        remaining: Duration,
    },
    /// A renewal succeeded after at least one that got no answer.
    RenewalRecovered {
        /// The names held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The number of failures in a row before.
        failures: u64,
        /// The time left until the new deadline.
        remaining: Duration,
    },
    /// A lease has no more nodes than it needs: one failure loses it. Sent once per occurrence.
    Degraded {
        /// The names held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The number of nodes that hold it.
        held: usize,
        /// The number of all nodes.
        nodes: usize,
        /// The nodes that do not hold it.
        missing: Vec<String>,
    },
    /// A lease was lost.
    Lost {
        /// The names that were held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The reason.
        reason: Loss,
        /// The time since the grant.
        held: Duration,
    },
    /// A lease was released; a [`Detached`](crate::Detached) one by the client that acquired it.
    Released {
        /// The names that were held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// The time that it was held.
        held: Duration,
    },
    /// A release or a withdrawal got no answer; it is retried until the TTL is over.
    CleanupFailed {
        /// The names to withdraw.
        names: Names,
        /// The cause.
        why: String,
    },
}

type HookFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
pub(crate) type Hook = Arc<dyn Fn(Event) -> HookFuture + Send + Sync>;

/// The sender of events to the hook, the log and the metrics.
#[derive(Clone)]
pub(crate) struct Events {
    hook: Option<HookLine>,
}

/// The handle of the hook's task. The task is separate so that a slow hook never delays a renewal.
#[derive(Clone)]
struct HookLine {
    sender: mpsc::UnboundedSender<Message>,
    queued: Arc<AtomicU64>,
}

enum Message {
    Event(Event),
    /// Answered when the hook has processed every event before it.
    Mark(oneshot::Sender<()>),
}

/// Beyond this number of queued events only losses are queued; other events are dropped.
const QUEUED_MAX: u64 = 1_024;

impl Events {
    pub(crate) fn new(hook: Option<Hook>) -> Self {
        Events { hook: hook.map(HookLine::start) }
    }

    pub(crate) fn emit(&self, event: Event) {
        self.emit_from(event, false);
    }

    /// Like [`emit`](Events::emit); `is_closed` says whether the user closed the client.
    pub(crate) fn emit_from(&self, event: Event, is_closed: bool) {
        record(&event, is_closed);
        if let Some(line) = &self.hook {
            line.send(event);
        }
    }

    pub(crate) fn acquired(&self, names: &Names, fence: Fence, waited: Duration, passed: bool) {
        self.emit(Event::Acquired { names: names.clone(), fence, waited, passed });
    }

    pub(crate) fn released(&self, names: &Names, fence: Fence, held: Duration) {
        self.emit(Event::Released { names: names.clone(), fence, held });
    }

    /// Counts and logs the release of a lease that another process acquired. It makes no event: its
    /// fence and the time that it was held are unknown here.
    pub(crate) fn released_for_another(&self, names: &Names) {
        metrics::counter!("leasehold_released_total").increment(1);
        tracing::debug!(%names, "released for the process that took it");
    }

    /// Waits until the hook has processed all events so far.
    pub(crate) async fn heard(&self) {
        if let Some(line) = &self.hook {
            let (mark, heard) = oneshot::channel();
            if line.sender.send(Message::Mark(mark)).is_ok() {
                let _ = heard.await;
            }
        }
    }
}

impl HookLine {
    fn start(hook: Hook) -> Self {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicU64::new(0));
        let heard = queued.clone();
        spawn(async move {
            while let Some(message) = receiver.recv().await {
                match message {
                    Message::Event(event) => {
                        heard.fetch_sub(1, Ordering::Relaxed);
                        // A hook that panics must not miss later losses.
                        if AssertUnwindSafe(async { hook(event).await }).catch_unwind().await.is_err() {
                            tracing::error!("the event hook panicked");
                        }
                    }
                    Message::Mark(mark) => drop(mark.send(())),
                }
            }
        });
        HookLine { sender, queued }
    }

    fn send(&self, event: Event) {
        let queued = self.queued.fetch_add(1, Ordering::Relaxed);
        let kept = queued < QUEUED_MAX || matches!(event, Event::Lost { .. });
        if !kept || self.sender.send(Message::Event(event)).is_err() {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Logs and counts an event. A loss because the user closed the client is not logged as an error.
pub(crate) fn record(event: &Event, is_closed: bool) {
    match event {
        Event::Acquired { names, fence, waited, passed } => {
            metrics::counter!("leasehold_acquired_total").increment(1);
            metrics::histogram!("leasehold_wait_seconds").record(*waited);
            if *passed {
                metrics::counter!("leasehold_passed_total").increment(1);
            }
            tracing::debug!(%names, %fence, ?waited, passed, "acquired");
        }
        Event::Released { names, fence, held } => {
            metrics::counter!("leasehold_released_total").increment(1);
            metrics::histogram!("leasehold_hold_seconds").record(*held);
            tracing::debug!(%names, %fence, ?held, "released");
        }
        Event::Busy { names, waited } => {
            metrics::counter!("leasehold_busy_total").increment(1);
            tracing::debug!(%names, ?waited, "busy");
        }
        Event::RenewalFailed { names, fence, why, tries, remaining } => {
            metrics::counter!("leasehold_renewal_failures_total").increment(1);
            // One warning per lease is enough: an outage may affect thousands of leases.
            match tries {
                1 => tracing::warn!(%names, %fence, why, ?remaining, "a renewal got no answer; trying again"),
                _ => tracing::debug!(%names, %fence, why, tries, ?remaining, "a renewal got no answer"),
            }
        }
        Event::RenewalRecovered { names, fence, failures, remaining } => {
            tracing::info!(%names, %fence, failures, ?remaining, "renewed again");
        }
        Event::Degraded { names, fence, held, nodes, missing } => {
            metrics::counter!("leasehold_degraded_total").increment(1);
            tracing::warn!(%names, %fence, held, nodes, missing = missing.join(", "), "held by a bare majority");
        }
        Event::Lost { names, fence, reason, held } => {
            metrics::counter!("leasehold_lost_total", "reason" => reason.as_str()).increment(1);
            metrics::histogram!("leasehold_hold_seconds").record(*held);
            match reason {
                Loss::Closed if is_closed => {
                    tracing::info!(%names, %fence, ?held, "given back, since the client was closed");
                }
                _ => tracing::error!(%names, %fence, reason = reason.as_str(), ?held, "lease lost"),
            }
        }
        Event::CleanupFailed { names, why } => {
            metrics::counter!("leasehold_cleanup_failures_total").increment(1);
            tracing::warn!(%names, why, "a withdrawal got no answer; trying again");
        }
    }
}

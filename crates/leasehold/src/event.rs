//! What happened: to a user's hook, to `tracing`, and to `metrics`.
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `leasehold_acquired_total` | counter | | leases handed out |
//! | `leasehold_passed_total` | counter | | of those, passed on within the client without asking the store |
//! | `leasehold_busy_total` | counter | | requests that ended busy |
//! | `leasehold_released_total` | counter | | leases let go by their holders |
//! | `leasehold_lost_total` | counter | `reason` | leases lost |
//! | `leasehold_degraded_total` | counter | | leases that came to be held by no more nodes of their store than have to hold them |
//! | `leasehold_renewal_failures_total` | counter | | renewals without an answer |
//! | `leasehold_cleanup_failures_total` | counter | | withdrawals without an answer (tried again until the TTL has done it) |
//! | `leasehold_wait_seconds` | histogram | | from asking to holding |
//! | `leasehold_hold_seconds` | histogram | | from holding to release or loss |

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::claim::Names;
use crate::fence::Fence;
pub use crate::loss::Loss;
use crate::sync::{Arc, AtomicU64, Ordering, spawn};

/// Something that happened to a lease or a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A lease was handed out.
    Acquired {
        /// What is held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// From asking to holding.
        waited: Duration,
        /// Whether it came from another task of this client, without asking the store.
        passed: bool,
    },
    /// A request ended without a lease, because others hold it.
    Busy {
        /// What was asked for.
        names: Names,
        /// How long was waited.
        waited: Duration,
    },
    /// A renewal got no answer; it is tried again until the deadline.
    RenewalFailed {
        /// What is held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// What was seen.
        why: String,
        /// How many have failed in a row.
        tries: u64,
        /// What is left until the deadline.
        remaining: Duration,
    },
    /// A renewal worked after one or more that got no answer.
    RenewalRecovered {
        /// What is held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// How many renewals had failed in a row.
        failures: u64,
        /// What is left until the new deadline.
        remaining: Duration,
    },
    /// A lease is held by no more nodes of its store than have to hold it: if one more of them fails, it is lost. Told once,
    /// and again if it comes to that again.
    Degraded {
        /// What is held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// On how many nodes.
        held: usize,
        /// Of how many.
        nodes: usize,
        /// Which of them do not hold it.
        missing: Vec<String>,
    },
    /// A lease was lost.
    Lost {
        /// What was held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// Why.
        reason: Loss,
        /// How long the grant had been held.
        held: Duration,
    },
    /// A lease was let go by its holder. (A [`Detached`](crate::Detached) one: by the client that took it.)
    Released {
        /// What was held.
        names: Names,
        /// Its fence.
        fence: Fence,
        /// How long it had been held.
        held: Duration,
    },
    /// A release or a withdrawal got no answer; it is tried again until the TTL has done it.
    CleanupFailed {
        /// What is to be withdrawn.
        names: Names,
        /// What was seen.
        why: String,
    },
}

type HookFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
pub(crate) type Hook = Arc<dyn Fn(Event) -> HookFuture + Send + Sync>;

/// Tells the hook, the log and the metrics.
#[derive(Clone)]
pub(crate) struct Events {
    hook: Option<HookLine>,
}

/// The handle of the hook's own task, so that a slow hook never delays a renewal.
#[derive(Clone)]
struct HookLine {
    sender: mpsc::UnboundedSender<Message>,
    queued: Arc<AtomicU64>,
}

enum Message {
    Event(Event),
    /// Answered when everything before it has been heard.
    Mark(oneshot::Sender<()>),
}

/// Beyond this many unheard events only losses are still queued for the hook; the rest is dropped.
const QUEUED_MAX: u64 = 1_024;

impl Events {
    pub(crate) fn new(hook: Option<Hook>) -> Self {
        Events { hook: hook.map(HookLine::start) }
    }

    pub(crate) fn emit(&self, event: Event) {
        self.emit_from(event, false);
    }

    /// As [`emit`](Events::emit), of a client that its user may have closed.
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

    /// As [`released`](Events::released), for a lease that another process took. Neither its fence nor how long it was held is known here, so
    /// it is counted and logged, and makes no event.
    pub(crate) fn released_for_another(&self, names: &Names) {
        metrics::counter!("leasehold_released_total").increment(1);
        tracing::debug!(%names, "released for the process that took it");
    }

    /// Ends when the hook has heard everything so far.
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
                        // A hook that panics must not miss the losses to come.
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

/// A loss that the user brought about by closing the client is no error to the log.
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
            // One line a lease is enough: in an outage there may be thousands of leases.
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

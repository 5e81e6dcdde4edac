//! The shutdown of a client: a drain grants no new lock, closing gives back what is held.

use tokio::sync::Notify;

use crate::sync::{AtomicBool, AtomicU64, Ordering, notified_until};

/// The progress of the shutdown, and the count of leases and releases that a drain waits for.
#[derive(Default)]
pub(crate) struct Closing {
    draining: AtomicBool,
    closed: AtomicBool,
    /// Notified when the client is closed.
    rung: std::sync::Arc<Notify>,
    /// Notified when the client is drained or closed.
    refuses: std::sync::Arc<Notify>,
    /// The number of leases held and of releases under way.
    in_use: AtomicU64,
    /// Notified when `in_use` falls to zero.
    unused: Notify,
}

/// Keeps a drain waiting as long as it exists.
pub(crate) struct InUse<'a>(&'a Closing);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns whether no new lock is granted. A lock that running work needs (`is_internal`) is
    /// granted until the client is closed.
    pub(crate) fn refuses(&self, is_internal: bool) -> bool {
        self.is_closed() || !is_internal && self.draining.load(Ordering::Acquire)
    }

    /// Returns the notification for a change of [`refuses`](Closing::refuses).
    pub(crate) fn rung_for(&self, is_internal: bool) -> &std::sync::Arc<Notify> {
        if is_internal { &self.rung } else { &self.refuses }
    }

    pub(crate) fn begun(&self) {
        self.in_use.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn ended(&self) {
        if self.in_use.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.unused.notify_waiters();
        }
    }

    /// Makes a drain wait between the end of a lease and the store's answer.
    pub(crate) fn in_use(&self) -> InUse<'_> {
        self.begun();
        InUse(self)
    }

    /// Waits until this client holds no lease and no release is under way.
    pub(crate) async fn unused(&self) {
        notified_until(&self.unused, || (self.in_use.load(Ordering::Acquire) == 0).then_some(())).await;
    }

    pub(crate) async fn closed(&self) {
        notified_until(&self.rung, || self.is_closed().then_some(())).await;
    }

    /// Refuses new locks from now on, and wakes the waiters.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.refuses.notify_waiters();
    }

    /// Closes the client and wakes the waiters. The caller withdraws their claims after this call.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.rung.notify_waiters();
        self.refuses.notify_waiters();
    }
}

//! Shutting a client down: draining, where no new lock is granted, and closing, where what is held is given back.

use tokio::sync::Notify;

use crate::sync::{AtomicBool, AtomicU64, Ordering, notified_until};

/// How far the shutdown is, for those who wait; and what is held or under way, for whoever shuts the client down.
#[derive(Default)]
pub(crate) struct Closing {
    draining: AtomicBool,
    closed: AtomicBool,
    /// Rung when the client is closed.
    rung: std::sync::Arc<Notify>,
    /// Rung when no new lock is granted any more: the client is drained or closed.
    refuses: std::sync::Arc<Notify>,
    /// How many leases this client holds, and how many of its releases are under way.
    in_use: AtomicU64,
    /// Rung when `in_use` falls to zero.
    unused: Notify,
}

/// Keeps a drain waiting for as long as it lives.
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

    /// Whether a lock is not granted any more. One that running work needs (`is_internal`) is, until the client is closed.
    pub(crate) fn refuses(&self, is_internal: bool) -> bool {
        self.is_closed() || !is_internal && self.draining.load(Ordering::Acquire)
    }

    /// Rung when [`refuses`](Closing::refuses) may have become true.
    pub(crate) fn rung_for(&self, is_internal: bool) -> &std::sync::Arc<Notify> {
        if is_internal { &self.rung } else { &self.refuses }
    }

    /// Counts a lease that begins.
    pub(crate) fn begun(&self) {
        self.in_use.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of one.
    pub(crate) fn ended(&self) {
        if self.in_use.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.unused.notify_waiters();
        }
    }

    /// Has a drain wait for what is done between the end of a lease and the store's answer.
    pub(crate) fn in_use(&self) -> InUse<'_> {
        self.begun();
        InUse(self)
    }

    /// Ends when this client holds no lease and no release is under way.
    pub(crate) async fn unused(&self) {
        notified_until(&self.unused, || (self.in_use.load(Ordering::Acquire) == 0).then_some(())).await;
    }

    /// Ends when the client is closed.
    pub(crate) async fn closed(&self) {
        notified_until(&self.rung, || self.is_closed().then_some(())).await;
    }

    /// Grants no new lock from now on, and tells those who wait for one.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.refuses.notify_waiters();
    }

    /// Tells those who wait. The caller withdraws what they asked for after this.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.rung.notify_waiters();
        self.refuses.notify_waiters();
    }
}

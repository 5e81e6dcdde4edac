//! Closing a client: who is told, and what is withdrawn.

use std::collections::HashMap;

use tokio::sync::Notify;

use crate::janitor::{Errand, Janitor};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Whether the client is closed, for those who wait; and what is under way, for whoever closes it.
#[derive(Default)]
pub(crate) struct Closing {
    closed: AtomicBool,
    pub(crate) rung: std::sync::Arc<Notify>,
    pending: Mutex<(u64, HashMap<u64, Errand>)>,
}

/// A request that has been sent and not answered.
pub(crate) struct Pending {
    closing: Arc<Closing>,
    number: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.closing.pending).1.remove(&self.number);
    }
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Notes a request that is not answered at once, so that closing can withdraw it, whoever polls it or does not.
    pub(crate) fn pending(self: &Arc<Self>, errand: Errand) -> Pending {
        let mut pending = lock(&self.pending);
        pending.0 += 1;
        let number = pending.0;
        pending.1.insert(number, errand);
        Pending { closing: self.clone(), number }
    }

    /// Tells those who wait, and has withdrawn what they asked for.
    pub(crate) fn close(&self, janitor: &Janitor) {
        self.closed.store(true, Ordering::Release);
        self.rung.notify_waiters();
        let pending = std::mem::take(&mut lock(&self.pending).1);
        pending.into_values().for_each(|errand| janitor.withdraw(errand));
    }
}

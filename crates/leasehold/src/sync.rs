//! The synchronization primitives of the core, so that `crates/leasehold-schedules` can compile the
//! same sources over shuttle's and try many schedules.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use tokio::sync::Notify;

use crate::error::Result;

/// Locks, also after a panic of another thread: no critical section here leaves a half-made change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns what `check` finds. It is called at once, and after each notification.
///
/// # Cancel safety
/// Can be dropped at any time.
pub(crate) async fn notified_until<T>(notify: &Notify, mut check: impl FnMut() -> Option<T>) -> T {
    loop {
        // Registers before it checks, or it would miss a notification in between.
        let mut notified = std::pin::pin!(notify.notified());
        notified.as_mut().enable();
        if let Some(found) = check() {
            return found;
        }
        notified.await;
    }
}

/// Starts a task of a client.
#[cfg(not(shuttle))]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

#[cfg(shuttle)]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    // Not dropped, which would detach it: a schedule ends only when every task has ended.
    std::mem::forget(shuttle::future::spawn(task));
}

/// Fails outside a tokio runtime, where no task can be started.
pub(crate) fn require_runtime() -> Result<()> {
    #[cfg(not(shuttle))]
    if tokio::runtime::Handle::try_current().is_err() {
        let why = "connect inside a tokio runtime, or use leasehold::blocking";
        return Err(crate::error::Error::invalid("call", "connect", why));
    }
    Ok(())
}

//! The primitives the core is built on, in one place, so that `crates/leasehold-schedules` can compile the
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

use crate::error::Result;

/// Locks, also after a panic of another thread: no critical section here leaves a half-made change behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts one of a client's own tasks.
#[cfg(not(shuttle))]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

#[cfg(shuttle)]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    // Not dropped, which would detach it: a schedule ends when every task has, so a task left behind shows.
    std::mem::forget(shuttle::future::spawn(task));
}

/// An error where no task could be started.
pub(crate) fn require_runtime() -> Result<()> {
    #[cfg(not(shuttle))]
    if tokio::runtime::Handle::try_current().is_err() {
        let why = "connect inside a tokio runtime, or use leasehold::blocking";
        return Err(crate::error::Error::invalid("call", "connect", why));
    }
    Ok(())
}

//! The background thread of a blocking client, and the wait of its callers.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::coop;

use crate::cleanup::Cleanup;
use crate::error::{Error, Result};

/// The background thread of a client. It ends with the client's last handle and lease, after their
/// releases.
pub(super) struct Engine {
    runtime: Handle,
    pub(super) cleanup: Option<Cleanup>,
    /// A message, or a drop, ends the thread.
    stop: Option<oneshot::Sender<Cleanup>>,
}

impl Engine {
    pub(super) fn start() -> Result<Self> {
        let refused = |error: std::io::Error| Error::System {
            what: "background thread for a blocking client",
            why: error.to_string(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<Cleanup>();
        let work = move || {
            runtime.block_on(async {
                if let Ok(cleanup) = stopped.await {
                    cleanup.done().await;
                }
            });
        };
        std::thread::Builder::new().name("leasehold".into()).spawn(work).map_err(refused)?;
        Ok(Engine { runtime: handle, cleanup: None, stop: Some(stop) })
    }

    /// Runs a future on the calling thread, while the background thread drives timers and sockets.
    pub(super) fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        if is_inside_runtime() {
            return Err(Error::InsideRuntime);
        }
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Ok(output);
            }
            std::thread::park();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let (Some(stop), Some(cleanup)) = (self.stop.take(), self.cleanup.take()) {
            let _ = stop.send(cleanup);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns whether this thread is polling a task of a tokio runtime.
///
/// A `spawn_blocking` thread has a runtime handle too, but may block. Only while a task is polled
/// is tokio's cooperative budget limited, and this can be tested without a panic: by asking for
/// more than the budget can hold. The guards give back what was taken.
fn is_inside_runtime() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut taken = Vec::new();
    // The budget is kept in a byte.
    for _ in 0..=u8::MAX {
        match coop::poll_proceed(&mut cx) {
            Poll::Ready(guard) => taken.push(guard),
            Poll::Pending => break,
        }
    }
    let limited = taken.len() <= usize::from(u8::MAX);
    // Each guard restores the budget it found, so the first is dropped last.
    while taken.pop().is_some() {}
    limited
}

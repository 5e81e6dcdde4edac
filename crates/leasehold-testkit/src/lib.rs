//! The kit of the tests: the scale of the long proofs, runtimes and clocks, clients over one store, a store that fails on
//! request, a store in another process, and judges of what many processes did.
//!
//! A crate, so that it is compiled once for all of them. It is held to what tests are held to, not to what users read.
#![allow(missing_docs, missing_debug_implementations, clippy::new_without_default, clippy::unwrap_used)]

pub mod cancel_points;
pub mod cases;
pub mod child;
pub mod clock_shim;
pub mod crash_load;
pub mod disk;
pub mod history;
pub mod log_capture;
pub mod quorum_nodes;
pub mod record;
pub mod remote;
mod scripted_store;
pub mod stores;
pub mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::store::memory::Memory;
use leasehold::{Clock, Deadline, Error, Locks, Options, Result, Store};

pub use leasehold_lab::{Dice, Home};
pub use scripted_store::{Behaviour, Rule, ScriptedStore, everything, failing_cleanup};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Scales a count by `LEASEHOLD_SCALE` (default 0.1).
pub fn scaled(full: u64) -> u64 {
    let scale: f64 = match std::env::var("LEASEHOLD_SCALE") {
        Ok(text) => text.parse().expect("LEASEHOLD_SCALE is a number such as 0.1"),
        Err(_) => 0.1,
    };
    ((full as f64 * scale) as u64).max(1)
}

/// Opens a store that was told to be impatient, again until the machine has the time: what is proven is what it does then.
pub async fn opened<S, F: Future<Output = Result<S>>>(open: impl Fn() -> F) -> S {
    let start = std::time::Instant::now();
    loop {
        match open().await {
            Ok(store) => return store,
            Err(Error::Unreachable { .. }) if start.elapsed() < secs(20) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs `work` for 0..count, on as many threads as there are cores.
pub fn in_parallel(count: u64, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                numbers.take_while(|number| *number < count).for_each(&work);
            });
        }
    });
}

/// Runs the work on a runtime of two threads.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// A runtime of one thread with paused time, so that a run is the same each time.
pub fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A runtime of one thread on a clock of its own, which leaps to the next timer whenever there is nothing else to do.
/// Real time has no part in it: a run is the same to the nanosecond each time.
pub fn leaping_runtime() -> (tokio::runtime::Runtime, Clock) {
    let clock = Clock::manual();
    let leaping = clock.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            leaping.advance_to_next();
        })
        .build()
        .unwrap();
    (runtime, clock)
}

/// The deadline at which every clock starts: from there a deadline is a plain duration, to the nanosecond.
pub fn origin() -> Deadline {
    Deadline::FAR.minus(Duration::MAX)
}

pub async fn sleep(clock: &Clock, duration: Duration) {
    clock.sleep_until(clock.now().plus(duration)).await;
}

/// Polls a future once, as a caller does that keeps it and does something else.
pub async fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await
}

/// Returns the output of a future that ends within a time.
pub async fn within<T>(clock: &Clock, duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    clock.until(clock.now().plus(duration), future).await
}

pub fn client(store: &Arc<impl Store + 'static>, owner: &str) -> Locks {
    Options::default().owner(owner).over(store.clone()).unwrap()
}

/// Two clients over one memory store, on tokio's (paused) clock.
pub fn two_clients() -> (Locks, Locks) {
    let store = Arc::new(Memory::new(Clock::tokio()));
    (client(&store, "a"), client(&store, "b"))
}

/// A new directory, which a file store may be opened in or below.
pub fn home(what: &str) -> Home {
    Home::new(&folder(), what).unwrap()
}

/// A new directory in memory, for tests of short times, in which a busy disk may stand still.
pub fn home_in_memory(what: &str) -> Home {
    Home::in_memory(what).unwrap()
}

/// Cargo's folder for what tests write, `target/tmp`. It is named only to what cargo compiles as a test, which this crate is
/// not; but every test program is in `target/PROFILE/deps`.
fn folder() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

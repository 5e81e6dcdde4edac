//! The kit that the tests share: a crate, so that it is compiled once, with the lints of tests.
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
    let parse = |text: String| text.parse().expect("LEASEHOLD_SCALE is a number such as 0.1");
    let scale: f64 = std::env::var("LEASEHOLD_SCALE").map_or(0.1, parse);
    ((full as f64 * scale) as u64).max(1)
}

/// Opens a store with a short time-out, again for 20 seconds on a busy machine.
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

/// Runs `work` for 0..count, on one thread per core.
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

pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// A runtime of one thread with paused time, for reproducible runs.
pub fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// A runtime of one thread, and a clock that advances to the next timer whenever the runtime is
/// idle: runs are reproducible to the nanosecond.
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

/// The deadline at which every clock starts, so that a deadline converts to an exact duration.
pub fn origin() -> Deadline {
    Deadline::FAR.minus(Duration::MAX)
}

pub async fn sleep(clock: &Clock, duration: Duration) {
    clock.sleep_until(clock.now().plus(duration)).await;
}

pub async fn polled_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await
}

pub async fn within<T>(clock: &Clock, duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    clock.until(clock.now().plus(duration), future).await
}

pub fn client(store: &Arc<impl Store + 'static>, owner: &str) -> Locks {
    Options::default().owner(owner).over(store.clone()).unwrap()
}

/// Two clients of one memory store, on tokio's (paused) clock.
pub fn two_clients() -> (Locks, Locks) {
    let store = Arc::new(Memory::new(Clock::tokio()));
    (client(&store, "a"), client(&store, "b"))
}

pub fn home(what: &str) -> Home {
    Home::new(&folder(), what).unwrap()
}

/// A new directory in memory, for tests of short times: a busy disk may stall.
pub fn home_in_memory(what: &str) -> Home {
    Home::in_memory(what).unwrap()
}

/// Cargo's `target/tmp`, for files of tests. Cargo names it only to tests, and not to this crate,
/// but every test program is in `target/PROFILE/deps`.
fn folder() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

//! The core's own cost: a lock over the memory store beside `tokio::sync::Mutex`. Prints ratios of medians of
//! interleaved runs, with their spread; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::Locks;
use tokio::runtime::{Builder, Runtime};

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const RUN_FOR: Duration = Duration::from_millis(200);
const TASKS: u64 = 64;

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|word| name.contains(word.as_str()));
    println!("\n| what | Leasehold, `memory:` | `tokio::sync::Mutex` | ratio | spread of the ratio |");
    println!("|---|---|---|---|---|");
    let one = || Builder::new_current_thread().enable_all().build().unwrap();
    let two = || Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if wanted("uncontended lock + release, one thread") {
        compare("uncontended lock + release, one thread", "pairs", &one(), ours_alone, tokios_alone);
    }
    if wanted("64 tasks contending, held over a yield, one thread") {
        compare(
            "64 tasks contending, held over a yield, one thread",
            "hand-overs",
            &one(),
            ours_contended,
            tokios_contended,
        );
    }
    if wanted("64 tasks contending, nothing done under the lock, two threads") {
        let what = "64 tasks contending, nothing done under the lock, two threads";
        compare(what, "hand-overs", &two(), ours_at_once, tokios_at_once);
    }
    if wanted("64 tasks contending, held over a yield, two threads") {
        compare(
            "64 tasks contending, held over a yield, two threads",
            "hand-overs",
            &two(),
            ours_contended,
            tokios_contended,
        );
    }
    if wanted("a permit and a reader beside a mutex, uncontended, one thread") {
        shares(&one());
    }
    println!("\nMedians of {ROUNDS} interleaved runs of {} ms.", RUN_FOR.as_millis());
}

/// Events per second of both, turn by turn.
fn compare(
    what: &str,
    unit: &str,
    runtime: &Runtime,
    ours: fn(&Runtime) -> f64,
    theirs: fn(&Runtime) -> f64,
) {
    // Once to warm up.
    ours(runtime);
    theirs(runtime);
    let runs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (ours(runtime), theirs(runtime))).collect();
    let ours = median(runs.iter().map(|run| run.0));
    let theirs = median(runs.iter().map(|run| run.1));
    let ratios: Vec<f64> = runs.iter().map(|run| run.0 / run.1).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "| {what} | {} {unit}/s ({:.0} ns) | {} {unit}/s ({:.0} ns) | {:.3} | {least:.3} to {most:.3} |",
        thousands(ours),
        1e9 / ours,
        thousands(theirs),
        1e9 / theirs,
        median(ratios.iter().copied()),
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How many pairs fit into the time, looking at the clock now and then.
async fn pairs_per_second<W: Future<Output = ()>>(pair: impl Fn() -> W) -> f64 {
    let start = Instant::now();
    let mut pairs = 0u64;
    while start.elapsed() < RUN_FOR {
        for _ in 0..100 {
            pair().await;
        }
        pairs += 100;
    }
    pairs as f64 / start.elapsed().as_secs_f64()
}

fn ours_alone(runtime: &Runtime) -> f64 {
    runtime.block_on(async {
        let locks = leasehold::connect("memory:").await.unwrap();
        let mutex = locks.mutex("orders:42");
        pairs_per_second(|| async { mutex.lock().await.unwrap().release().await.unwrap() }).await
    })
}

fn tokios_alone(runtime: &Runtime) -> f64 {
    runtime.block_on(async {
        let mutex = tokio::sync::Mutex::new(());
        pairs_per_second(|| async { drop(mutex.lock().await) }).await
    })
}

/// What it costs to hold a name beside others, where there are none.
fn shares(runtime: &Runtime) {
    let ns = |pair: fn(&Locks) -> BoxFuture<'_, ()>| {
        runtime.block_on(async {
            let locks = leasehold::connect("memory:").await.unwrap();
            1e9 / pairs_per_second(|| pair(&locks)).await
        })
    };
    let mutex =
        || ns(|locks| async { drop(locks.mutex("orders:42").lock().await.unwrap().release().await) }.boxed());
    let permit = || {
        ns(|locks| {
            async { drop(locks.semaphore("orders:42", 5).acquire().await.unwrap().release().await) }.boxed()
        })
    };
    let reader = || {
        ns(|locks| async { drop(locks.rwlock("orders:42").read().await.unwrap().release().await) }.boxed())
    };
    // Once to warm up.
    mutex();
    permit();
    reader();
    let runs: Vec<[f64; 3]> = (0..ROUNDS).map(|_| [mutex(), permit(), reader()]).collect();
    println!(
        "\n| uncontended, one thread, `memory:` | ns | ratio | spread of the ratio |\n|---|---|---|---|"
    );
    for (i, what) in ["mutex: lock + release", "a permit: acquire + release", "a reader: read + release"]
        .iter()
        .enumerate()
    {
        let ratios: Vec<f64> = runs.iter().map(|run| run[i] / run[0]).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let (each, ratio) = (median(runs.iter().map(|run| run[i])), median(ratios.iter().copied()));
        println!("| {what} | {each:.0} | {ratio:.2} | {least:.2} to {most:.2} |");
    }
}

/// Changes of holder per second: a task that gets the lock again at once has not handed it over.
async fn hand_overs_per_second<W, F>(visit: F) -> f64
where
    F: Fn(u64, Arc<AtomicU64>, Arc<AtomicU64>) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let (last, hand_overs) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let tasks: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(visit(task, last.clone(), hand_overs.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    hand_overs.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// What is done under the lock: notes who has it.
fn note(task: u64, last: &AtomicU64, hand_overs: &AtomicU64) {
    if last.swap(task, Ordering::Relaxed) != task {
        hand_overs.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Whether the run's time is over; looks at the clock at every 64th call only, so as not to measure the clock.
fn is_over(start: Instant) -> bool {
    LOOKS.with(|looks| {
        looks.set(looks.get().wrapping_add(1));
        looks.get() % 64 == 0 && start.elapsed() >= RUN_FOR
    })
}

fn ours_contended(runtime: &Runtime) -> f64 {
    ours(runtime, true)
}

fn tokios_contended(runtime: &Runtime) -> f64 {
    tokios(runtime, true)
}

fn ours_at_once(runtime: &Runtime) -> f64 {
    ours(runtime, false)
}

fn tokios_at_once(runtime: &Runtime) -> f64 {
    tokios(runtime, false)
}

fn ours(runtime: &Runtime, yields: bool) -> f64 {
    runtime.block_on(async {
        let locks = leasehold::connect("memory:").await.unwrap();
        let start = Instant::now();
        hand_overs_per_second(|task, last, hand_overs| {
            let mutex = locks.mutex("orders:42");
            async move {
                while !is_over(start) {
                    let lease = mutex.lock().await.unwrap();
                    note(task, &last, &hand_overs);
                    if yields {
                        tokio::task::yield_now().await;
                    }
                    lease.release().await.unwrap();
                }
            }
        })
        .await
    })
}

fn tokios(runtime: &Runtime, yields: bool) -> f64 {
    runtime.block_on(async {
        let mutex = Arc::new(tokio::sync::Mutex::new(()));
        let start = Instant::now();
        hand_overs_per_second(|task, last, hand_overs| {
            let mutex = mutex.clone();
            async move {
                while !is_over(start) {
                    let guard = mutex.lock().await;
                    note(task, &last, &hand_overs);
                    if yields {
                        tokio::task::yield_now().await;
                    }
                    drop(guard);
                }
            }
        })
        .await
    })
}

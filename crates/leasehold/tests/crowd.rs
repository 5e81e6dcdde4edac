//! Ten thousand waiters, nine thousand of them cancelled: the rest are served in order, and nothing is left, in
//! memory neither.
#![allow(clippy::unwrap_used)]

use leasehold_testkit as common;

use std::sync::{Arc, Mutex};

use common::{client, paused_runtime};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Locks, Store};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// What one test allocates must not be counted against the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const WAITERS: usize = 10_000;

/// Who is cancelled: all but every tenth.
fn stays(waiter: usize) -> bool {
    waiter % 10 == 3
}

/// A crowd waits for one name while it is held; most go, the others are served. Returns the order of service.
async fn crowd(locks: &[Locks], strict_order: bool) -> Vec<usize> {
    let held = locks[0].mutex("x").lock().await.unwrap();
    let served: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut tasks = Vec::new();
    for i in 0..WAITERS {
        let mutex = locks[i % locks.len()].mutex("x");
        let mutex = if strict_order { mutex.strict_order() } else { mutex };
        let served = served.clone();
        tasks.push(tokio::spawn(async move {
            let lease = mutex.lock().await.unwrap();
            served.lock().unwrap().push(i);
            lease.release().await.unwrap();
        }));
        // Each takes its place before the next comes.
        tokio::task::yield_now().await;
    }
    for (i, task) in tasks.iter().enumerate() {
        if !stays(i) {
            task.abort();
        }
    }
    held.release().await.unwrap();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.is_ok(), stays(i), "waiter {i}");
    }
    for locks in locks {
        locks.settled().await;
    }
    Arc::into_inner(served).unwrap().into_inner().unwrap()
}

#[test]
fn the_living_of_a_crowd_are_served_in_order_and_memory_returns() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let _profiler = dhat::Profiler::builder().testing().build();
    paused_runtime().block_on(async {
        let store = Arc::new(Memory::new(Clock::tokio()));
        let locks = client(&store, "a");
        let expected: Vec<usize> = (0..WAITERS).filter(|i| stays(*i)).collect();
        // Once to warm up: queues keep the room they grew to.
        for strict_order in [false, true] {
            let served = crowd(std::slice::from_ref(&locks), strict_order).await;
            assert_eq!(served, expected, "strict order: {strict_order}");
        }
        let before = dhat::HeapStats::get();
        for strict_order in [false, true] {
            crowd(std::slice::from_ref(&locks), strict_order).await;
        }
        let after = dhat::HeapStats::get();
        assert!(store.list("", 10).await.unwrap().is_empty(), "left in the store");
        let kept = after.curr_bytes as i64 - before.curr_bytes as i64;
        println!(
            "peak {} KiB, kept {kept} bytes in {} blocks",
            after.max_bytes / 1024,
            after.curr_blocks - before.curr_blocks.min(after.curr_blocks)
        );
        assert!(kept < 4_096, "{kept} bytes were kept for {WAITERS} waiters that are gone");
    });
}

#[test]
fn crowds_of_several_clients_are_served_in_order_within_each() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    paused_runtime().block_on(async {
        let store = Arc::new(Memory::new(Clock::tokio()));
        let locks: Vec<Locks> = (0..3).map(|i| client(&store, &format!("client-{i}"))).collect();
        let served = crowd(&locks, false).await;
        assert_eq!(served.len(), (0..WAITERS).filter(|i| stays(*i)).count());
        for client in 0..3 {
            let order: Vec<usize> = served.iter().copied().filter(|i| i % 3 == client).collect();
            assert!(order.is_sorted(), "client {client}");
        }
        // In strict order, the order is that of all clients together.
        let served = crowd(&locks, true).await;
        assert!(served.is_sorted());
        assert!(store.list("", 10).await.unwrap().is_empty(), "left in the store");
    });
}

//! The mutex over the memory store, with paused time: what a user sees.

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::memory::Memory;
use leasehold::{Clock, Error, Locks, Loss, Options};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two clients over one memory store, on tokio's (paused) clock.
fn two_clients() -> (Locks, Locks) {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let client = |owner| Options::default().owner(owner).over(store.clone()).unwrap();
    (client("a"), client("b"))
}

#[tokio::test(start_paused = true)]
async fn a_lock_excludes_until_it_is_released() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").lock().await.unwrap();
    assert!(lease.is_valid());
    assert!(b.mutex("x").try_lock().await.unwrap().is_none());
    assert!(a.mutex("x").try_lock().await.unwrap().is_none());
    let fence = lease.fence();
    lease.release().await.unwrap();
    let next = b.mutex("x").try_lock().await.unwrap().unwrap();
    assert!(next.fence() > fence);
}

#[tokio::test(start_paused = true)]
async fn busy_says_who_holds_it_and_for_how_long() {
    let (a, b) = two_clients();
    let _lease = a.mutex("nightly").lock().await.unwrap();
    let error = b.mutex("nightly").wait(ms(5_000)).lock().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
    assert_eq!(error.to_string(), "`nightly` is held by a for another 25 s unless renewed; waited 5.0 s");
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_renewed_and_a_dropped_one_given_back() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").ttl(ms(300)).lock().await.unwrap();
    tokio::time::sleep(ms(3_000)).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
    drop(lease);
    a.settled().await;
    assert!(b.mutex("x").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_evicted_lease_is_lost_within_a_renewal_interval() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").lock().await.unwrap();
    b.evict("x").await.unwrap();
    let started = tokio::time::Instant::now();
    assert_eq!(lease.lost().await, Loss::Deleted);
    assert!(started.elapsed() <= ms(11_000), "{:?}", started.elapsed());
    assert!(matches!(lease.release().await, Err(Error::Lost { reason: Loss::Deleted, .. })));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_two_clients_are_served() {
    let (a, b) = two_clients();
    let mut tasks = Vec::new();
    for i in 0..64 {
        let locks = if i % 2 == 0 { a.clone() } else { b.clone() };
        tasks.push(tokio::spawn(async move {
            let lease = locks.mutex("x").lock().await.unwrap();
            let fence = lease.fence();
            tokio::time::sleep(ms(1)).await;
            lease.release().await.unwrap();
            fence
        }));
    }
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.unwrap());
    }
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 64);
    assert!(a.inspect("x").await.unwrap().is_none());
}

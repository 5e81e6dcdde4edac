//! What is particular to the memory store: who is passed over, and when.

use leasehold_testkit as common;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::secs;
use leasehold::store::memory::Memory;
use leasehold::{Claim, Clock, Name, Names, Owner, Permits, Share, Store, Ticket, Token, Ttl, Wait};

fn claim(names: &[&str], share: Share, ttl: Duration, wait: Wait) -> Claim {
    let names = Names::new(names.iter().map(|name| Name::new(name).unwrap())).unwrap();
    let token = Token::fresh(&Owner::new("test").unwrap()).unwrap();
    let ticket = Ticket { names, token, share, fence: None };
    Claim { ticket, ttl: Ttl::new(ttl).unwrap(), wait, fences: 1, detached: false }
}

fn permits(take: u32) -> Share {
    Share::Permits(Permits::new(take, 2).unwrap())
}

/// Joins the line and is never heard of again.
async fn dies_in_line(store: &Memory, claim: &Claim) {
    let mut waiting = store.acquire(claim);
    let polled = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_behind_a_dead_waiter_is_served_at_the_dead_ones_show_deadline() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let start = tokio::time::Instant::now();
    store.acquire(&claim(&["x"], permits(1), secs(36_000), Wait::Never)).await.unwrap();
    dies_in_line(&store, &claim(&["x"], permits(2), secs(1), Wait::Forever)).await;
    // It looks by itself every twenty minutes only.
    store.acquire(&claim(&["x"], permits(1), secs(3_600), Wait::Forever)).await.unwrap();
    assert!(start.elapsed() <= secs(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_same_holds_for_claims_over_several_names() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let start = tokio::time::Instant::now();
    store.acquire(&claim(&["c"], Share::Exclusive, secs(36_000), Wait::Never)).await.unwrap();
    dies_in_line(&store, &claim(&["b", "c"], Share::Exclusive, secs(1), Wait::Forever)).await;
    store.acquire(&claim(&["a", "b"], Share::Exclusive, secs(3_600), Wait::Forever)).await.unwrap();
    assert!(start.elapsed() <= secs(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn thousands_of_readers_and_of_barging_waiters_are_no_burden() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    // Quadratic work would take minutes here.
    for _ in 0..10_000 {
        store.acquire(&claim(&["x"], Share::Shared, secs(3_600), Wait::Never)).await.unwrap();
    }
    assert_eq!(store.evict(&Name::new("x").unwrap()).await.unwrap().holders.len(), 10_000);
    let barging = Share::Permits(Permits::new(1, 100).unwrap().barging());
    for _ in 0..100 {
        store.acquire(&claim(&["y"], barging, secs(3_600), Wait::Never)).await.unwrap();
    }
    let mut waiting = Vec::new();
    for _ in 0..4_000 {
        let (store, claim) = (store.clone(), claim(&["y"], barging, secs(3_600), Wait::Forever));
        waiting.push(tokio::spawn(async move { store.acquire(&claim).await }));
        tokio::task::yield_now().await;
    }
    assert_eq!(store.inspect(&Name::new("y").unwrap()).await.unwrap().unwrap().waiters.len(), 4_000);
    store.evict(&Name::new("y").unwrap()).await.unwrap();
    tokio::task::yield_now().await;
    let status = store.inspect(&Name::new("y").unwrap()).await.unwrap().unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (100, 3_900));
}

#[tokio::test(start_paused = true)]
async fn a_name_nobody_uses_any_more_is_not_kept() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    store.acquire(&claim(&["a"], Share::Exclusive, secs(30), Wait::Never)).await.unwrap();
    dies_in_line(&store, &claim(&["a", "z"], Share::Exclusive, secs(1), Wait::Forever)).await;
    // Somebody comes to one of its names when it has long been gone.
    tokio::time::sleep(secs(5)).await;
    store.acquire(&claim(&["a"], Share::Exclusive, secs(1), Wait::Never)).await.unwrap();
    assert!(store.inspect(&Name::new("z").unwrap()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn whoever_becomes_first_in_line_watches_the_holder_from_then_on() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let start = tokio::time::Instant::now();
    // Its holder is never heard of again.
    store.acquire(&claim(&["x"], Share::Exclusive, secs(5), Wait::Never)).await.unwrap();
    let head = claim(&["x"], Share::Exclusive, secs(60), Wait::Forever);
    dies_in_line(&store, &head).await;
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&claim(&["x"], Share::Exclusive, secs(3_600), Wait::Forever)).await }
    });
    tokio::time::sleep(secs(1)).await;
    store.release(&head.ticket).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(start.elapsed() <= secs(6), "{:?}", start.elapsed());
}

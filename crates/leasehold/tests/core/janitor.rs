//! The janitor: what is dropped is given back soon, whatever else it has to do, and no errand lasts for ever.

use leasehold_testkit as common;

use std::time::Duration;

use common::{Behaviour, ScriptedStore, client, ms, secs};
use leasehold::{Clock, Locks};

/// How long another client waits for a name.
async fn time_to_get(locks: &Locks, name: &str) -> Duration {
    let start = tokio::time::Instant::now();
    let _lease = locks.mutex(name).lock().await.unwrap();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lease_does_not_wait_behind_errands_that_wait_for_late_requests() {
    let store = ScriptedStore::by(Clock::tokio(), secs(1), |_, _| Behaviour::Answers);
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let mut held = Vec::new();
    for i in 0..640 {
        held.push(b.mutex(format!("n{i}")).lock().await.unwrap());
    }
    let lease = a.mutex("good").lock().await.unwrap();
    let waiting: Vec<_> = (0..640).map(|i| tokio::spawn(a.mutex(format!("n{i}")).lock())).collect();
    tokio::time::sleep(ms(10)).await;
    waiting.iter().for_each(|task| task.abort());
    tokio::time::sleep(ms(1)).await;
    drop(lease);
    let waited = time_to_get(&b, "good").await;
    assert!(waited < ms(100), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn settling_does_not_keep_the_janitor_from_its_work() {
    let bad = |call: &str, name: &str| {
        if (call, name) == ("release", "bad") { Behaviour::Fails } else { Behaviour::Answers }
    };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, bad);
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let (bad, good) = (a.mutex("bad").lock().await.unwrap(), a.mutex("good").lock().await.unwrap());
    drop(bad);
    let settling = tokio::spawn({
        let a = a.clone();
        async move { a.settled().await }
    });
    tokio::time::sleep(ms(1)).await;
    drop(good);
    let waited = time_to_get(&b, "good").await;
    assert!(waited < ms(100), "{waited:?}");
    assert!(!settling.is_finished(), "settled, with an errand still open");
    settling.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_errand_is_over_when_its_ttl_is_however_many_there_are() {
    for mood in [
        (|call: &str, _: &str| if call == "release" { Behaviour::Fails } else { Behaviour::Answers })
            as common::Rule,
        |call, _| {
            if call == "release" { Behaviour::Hangs } else { Behaviour::Answers }
        },
    ] {
        let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, mood);
        let locks = client(&store, "a");
        let mut held = Vec::new();
        for i in 0..640 {
            held.push(locks.mutex(format!("n{i}")).ttl(secs(10)).lock().await.unwrap());
        }
        drop(held);
        let start = tokio::time::Instant::now();
        locks.settled().await;
        assert!(start.elapsed() <= secs(11), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_errand_lasts_as_long_as_the_longest_ttl_the_store_may_have_given() {
    // Releases fail for the first ten minutes.
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let lease = locks.mutex("x").ttl(secs(10)).lock().await.unwrap();
    lease.extend(secs(3_600)).await.unwrap();
    lease.extend(secs(10)).await.unwrap();
    store.hang();
    drop(lease);
    tokio::time::sleep(secs(600)).await;
    store.hangs.store(false, std::sync::atomic::Ordering::SeqCst);
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none(), "given up with most of an hour left in the store");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_is_not_in_the_way_of_others() {
    let bad = |call: &str, name: &str| match call {
        "release" if name.starts_with("bad") => Behaviour::Hangs,
        _ => Behaviour::Answers,
    };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, bad);
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let mut held = Vec::new();
    for i in 0..2_000 {
        held.push(a.mutex(format!("bad{i}")).ttl(secs(60)).lock().await.unwrap());
    }
    held.push(a.mutex("good").ttl(secs(60)).lock().await.unwrap());
    drop(held);
    let waited = time_to_get(&b, "good").await;
    assert!(waited < secs(20), "{waited:?}");
}

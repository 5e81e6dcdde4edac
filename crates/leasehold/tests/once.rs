//! Once in a period: who runs, for how long the name stays taken, and what does not count.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::stores::{on_a_server, on_every_store, plain_client};
use common::{Mood, Moody, client, ms, secs};
use leasehold::{Clock, Error, Locks, Loss};

const PERIOD: Duration = Duration::from_millis(1_500);

/// A detached lease is what every store has.
fn everywhere<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    on_every_store(&claim);
    on_a_server("", &claim);
    on_a_server("?scripts=off", &claim);
}

async fn over(locks: &Locks, name: &str) {
    while locks.inspect(name).await.unwrap().is_some() {
        tokio::time::sleep(ms(10)).await;
    }
}

#[test]
fn one_run_per_period_whoever_comes_first() {
    everywhere(|a, b| async move {
        let runs = Arc::new(AtomicU64::new(0));
        let run = async |locks: &Locks| {
            let once = locks.once("x").per(PERIOD);
            once.run(|_| async { runs.fetch_add(1, Ordering::SeqCst) }).await.unwrap().is_some()
        };
        let (first, second) = tokio::join!(run(&a), run(&b));
        assert!(first != second, "one of them: {first}, {second}");
        for locks in [&a, &b, &a] {
            assert!(!run(locks).await);
        }
        let status = a.inspect("x").await.unwrap().unwrap();
        assert!(status.holders[0].remaining <= PERIOD, "{status:?}");
        over(&a, "x").await;
        assert!(run(&b).await, "the next period");
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        over(&a, "x").await;
    });
}

/// The period counts from the beginning of the run, and outlives whoever ran.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_the_period_is_kept_whatever_becomes_of_the_client() {
    let store = Moody::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    a.once("x").per(secs(3_600)).run(|_| tokio::time::sleep(secs(600))).await.unwrap().unwrap();
    let left = b.inspect("x").await.unwrap().unwrap().holders[0].remaining;
    assert!(left <= secs(3_000) && left >= secs(2_999), "{left:?}");
    a.close().await;
    drop(a);
    tokio::time::sleep(secs(2_990)).await;
    assert!(b.once("x").per(secs(3_600)).take().await.unwrap().is_none());
    tokio::time::sleep(secs(11)).await;
    // One that takes longer than its period is followed at once.
    b.once("x").per(secs(60)).run(|_| tokio::time::sleep(secs(61))).await.unwrap().unwrap();
    assert!(b.inspect("x").await.unwrap().is_none());
}

#[test]
fn a_turn_that_is_given_back_does_not_count_but_for_what_was_said() {
    everywhere(|a, b| async move {
        let once = a.once("x").per(secs(600));
        once.take().await.unwrap().unwrap().give_back().await.unwrap();
        let turn = once.clone().at_least_for(PERIOD).take().await.unwrap().unwrap();
        let fence = turn.fence();
        turn.give_back().await.unwrap();
        assert!(b.once("x").per(secs(600)).take().await.unwrap().is_none(), "not before that");
        over(&b, "x").await;
        let turn = b.once("x").per(secs(600)).take().await.unwrap().unwrap();
        assert!(turn.fence() > fence);
        drop(turn);
        b.settled().await;
        assert!(a.inspect("x").await.unwrap().is_none(), "dropped, it is given back");
    });
}

#[tokio::test(start_paused = true)]
async fn a_run_that_hangs_is_lost_and_does_not_count() {
    let store = Moody::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let once = a.once("x").per(secs(3_600)).at_most_for(secs(60));
    let start = tokio::time::Instant::now();
    let error = once.run(|_| std::future::pending::<()>()).await.unwrap_err();
    assert!(matches!(error, Error::Lost { reason: Loss::HoldLimit, .. }), "{error}");
    assert!(start.elapsed() <= ms(60_010), "{:?}", start.elapsed());
    a.settled().await;
    // One that ends in time is kept past that limit.
    let once = b.once("x").per(secs(3_600)).at_most_for(secs(60));
    once.run(|_| tokio::time::sleep(secs(30))).await.unwrap().unwrap();
    tokio::time::sleep(secs(3_500)).await;
    assert!(a.once("x").per(secs(3_600)).take().await.unwrap().is_none());
    tokio::time::sleep(secs(100)).await;

    let error = once
        .run(|_| async {
            a.evict("x").await.unwrap();
            std::future::pending::<()>().await
        })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Lost { reason: Loss::Deleted, .. }), "{error}");
}

/// Whether it is kept is not known: that is no success.
#[tokio::test(start_paused = true)]
async fn without_an_answer_it_may_be_run_again_and_the_caller_is_told() {
    let fails = |call: &str, _: &str| if call == "detach" { Mood::Fails } else { Mood::Well };
    let store = Moody::by(Clock::tokio(), ms(0), fails);
    let locks = client(&store, "a");
    let error = locks.once("x").per(secs(600)).run(|_| async {}).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { what: "detach", .. }), "{error}");
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn bad_values_are_told_before_anything_is_sent() {
    let (store, locks) = plain_client();
    for (bad, what) in [
        (locks.once("x"), "period"),
        (locks.once("x").per(ms(1)), "TTL"),
        (locks.once("a{b").per(secs(60)), "name"),
        (locks.once("x").per(secs(60)).at_most_for(ms(0)), "max_hold"),
    ] {
        let error = bad.take().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { what: found, .. } if found.contains(what)), "{error}");
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0);
}

#[test]
fn the_same_without_async() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let once = locks.once("x").per(secs(600));
    assert_eq!(once.run(|proof| proof.is_valid()).unwrap(), Some(true));
    assert_eq!(once.run(|_| ()).unwrap(), None);
    let turn = locks.once("y").per(secs(600)).take().unwrap().unwrap();
    turn.give_back().unwrap();
    assert!(locks.once("y").per(secs(600)).take().unwrap().is_some());
}

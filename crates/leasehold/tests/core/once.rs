//! Once in a period: who runs, for how long the name stays taken, and what does not count.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::stores::{on_a_server, on_every_store, plain_client};
use common::{Behaviour, ScriptedStore, client, ms, secs};
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
    let store = ScriptedStore::new(Clock::tokio());
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
    let store = ScriptedStore::new(Clock::tokio());
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

/// The client asks again until its lease ends, reports that the outcome is unknown, and gives nothing back.
#[tokio::test(start_paused = true)]
async fn a_run_that_the_store_does_not_confirm_is_an_error_and_is_not_given_back() {
    let fails = |call: &str, _: &str| if call == "detach" { Behaviour::Fails } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), fails);
    let locks = client(&store, "a");
    let start = tokio::time::Instant::now();
    let error = locks.once("x").per(secs(600)).ttl(secs(10)).run(|_| async {}).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { what: "keep", .. }), "{error}");
    assert!(start.elapsed() >= secs(9), "asked again until the lease's deadline: {:?}", start.elapsed());
    assert!(start.elapsed() <= secs(16), "{:?}", start.elapsed());

    let turn = locks.once("y").per(secs(600)).ttl(secs(10)).take().await.unwrap().unwrap();
    // Dropped before its answer: whether the store has recorded it is unknown.
    tokio::select! {
        biased;
        _ = turn.done() => panic!("it fails"),
        () = tokio::time::sleep(ms(1)) => {}
    }
    locks.settled().await;
    assert!(locks.inspect("y").await.unwrap().is_some(), "it lasts until its TTL is over");
    tokio::time::sleep(secs(11)).await;
    assert!(locks.inspect("y").await.unwrap().is_none());
}

/// A store that pauses for longer than one call waits for records the run all the same.
#[tokio::test(start_paused = true)]
async fn a_run_is_recorded_when_the_store_answers_again_before_the_lease_ends() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let turn = a.once("x").per(secs(600)).take().await.unwrap().unwrap();
    store.hang();
    let resumed = async {
        tokio::time::sleep(secs(12)).await;
        store.hangs.store(false, Ordering::SeqCst);
    };
    let (done, ()) = tokio::join!(turn.done(), resumed);
    done.unwrap();
    a.close().await;
    tokio::time::sleep(secs(500)).await;
    assert!(b.once("x").per(secs(600)).take().await.unwrap().is_none(), "the period is kept");
}

/// The store records the run and its reply is lost.
#[test]
fn a_lost_reply_does_not_undo_the_record_of_a_run() {
    let server = leasehold_lab::Server::start(leasehold_lab::Kind::Redis).unwrap();
    let proxy = leasehold_lab::Proxy::to(server.addr()).unwrap();
    let locks = leasehold::blocking::connect(&proxy.url()).unwrap();
    // The server learns the script, so that the request whose reply is lost is executed.
    locks.once("warm").per(secs(600)).run(|_| ()).unwrap();
    let once = locks.once("x").per(secs(600));
    let lose = |_: &leasehold::Proof| proxy.arm_for("EVALSHA", leasehold_lab::Trick::LoseReply);
    assert_eq!(once.run(lose).unwrap(), Some(()));
    assert_eq!(proxy.armed(), 0, "the reply was lost");
    assert_eq!(once.run(|_| ()).unwrap(), None, "the run counts");
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

/// Three servers, and a client of their quorum, which keeps nothing for longer than a minute.
fn quorum() -> (Vec<leasehold_lab::Server>, leasehold::blocking::Locks) {
    let nodes: Vec<_> =
        (0..3).map(|_| leasehold_lab::Server::start(leasehold_lab::Kind::Redis).unwrap()).collect();
    let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock:{}?timeout=3000&quarantine=off", addresses.join(","));
    (nodes, leasehold::blocking::connect(&url).unwrap())
}

#[test]
fn a_period_that_the_store_cannot_keep_is_refused_before_the_run() {
    let (_nodes, locks) = quorum();
    assert_eq!(locks.capabilities().max_ttl.as_duration(), secs(60));
    let too_long = [
        locks.once("x").per(secs(23 * 3_600)),
        locks.once("x").per(secs(50)).at_least_for(secs(120)),
        locks.once("x").per(secs(50)).ttl(secs(120)),
    ];
    for once in too_long {
        let error = once.run(|_| panic!("it runs")).unwrap_err();
        assert!(matches!(&error, Error::Invalid { why, .. } if why.contains("at most 60 s")), "{error}");
    }
    assert!(locks.inspect("x").unwrap().is_none(), "nothing was acquired");
    assert_eq!(locks.once("x").per(secs(50)).run(|_| ()).unwrap(), Some(()));
    assert_eq!(locks.once("x").per(secs(50)).run(|_| ()).unwrap(), None);

    for (name, mutex) in [("a", locks.mutex("a")), ("b", locks.mutex("b"))] {
        let lease = mutex.lock().unwrap();
        assert!(matches!(lease.extend(secs(120)).unwrap_err(), Error::Invalid { .. }));
        assert!(lease.is_valid(), "an extension that is refused changes nothing");
        let error = match name {
            "a" => lease.detach(secs(120)).unwrap_err(),
            _ => lease.keep_for(secs(120)).unwrap_err(),
        };
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
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

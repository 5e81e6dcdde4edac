//! Owners who take again what they hold: counted, with one fence, lost together; the last one out lets go.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::stores::{on_every_store, on_every_store_and_server};
use common::{Behaviour, ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Locks, Loss};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

async fn is_free(locks: &Locks, name: &str) -> bool {
    match locks.mutex(name).try_lock().await.unwrap() {
        Some(lease) => lease.release().await.is_ok(),
        None => false,
    }
}

#[test]
fn an_owner_takes_it_again_and_the_last_one_out_lets_go() {
    on_every_store_and_server(|a, b| async move {
        let owner = a.owner("job-7");
        let one = owner.mutex("x").lock().await.unwrap();
        // The same owner by another handle; and without waiting.
        let two = a.owner("job-7").mutex("x").lock().await.unwrap();
        let three = owner.mutex("x").try_lock().await.unwrap().unwrap();
        assert_eq!((one.fence(), two.fence(), three.count()), (three.fence(), three.fence(), 3));
        assert_eq!(a.inspect("x").await.unwrap().unwrap().holders[0].owner.as_str(), "job-7");
        // Nobody else: not by a plain lock, not another owner, not one of the same name in another client.
        assert!(!is_free(&a, "x").await && !is_free(&b, "x").await);
        assert!(a.owner("job-8").mutex("x").try_lock().await.unwrap().is_none());
        assert!(b.owner("job-7").mutex("x").try_lock().await.unwrap().is_none());
        // In whatever order they go.
        one.release().await.unwrap();
        drop(three);
        assert!(two.is_valid() && two.count() == 1);
        assert!(!is_free(&b, "x").await);
        let fence = two.fence();
        two.release().await.unwrap();
        assert!(is_free(&b, "x").await);
        let next = owner.mutex("x").lock().await.unwrap();
        assert!(next.fence() > fence, "it is another lease");
        drop(next);
        a.settled().await;
        assert!(is_free(&b, "x").await);
    });
}

#[test]
fn all_of_them_are_lost_together_and_what_comes_after_is_another() {
    on_every_store_and_server(|a, b| async move {
        let mutex = a.owner("job").mutex("x").ttl(TTL);
        let (one, two) = (mutex.lock().await.unwrap(), mutex.lock().await.unwrap());
        b.evict("x").await.unwrap();
        assert_eq!((one.lost().await, two.lost().await), (Loss::Deleted, Loss::Deleted));
        let next = mutex.lock().await.unwrap();
        assert!(next.fence() > one.fence() && next.count() == 1);
        for lost in [one, two] {
            assert!(matches!(lost.release().await, Err(Error::Lost { reason: Loss::Deleted, .. })));
        }
        a.settled().await;
        assert!(next.is_valid() && !is_free(&b, "x").await, "the lost ones took it along");
        next.release().await.unwrap();
    });
}

/// Of many tasks of one owner, one asks.
#[tokio::test(start_paused = true)]
async fn tasks_of_an_owner_share_one_request() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = b.mutex("x").lock().await.unwrap();
    let owner = a.owner("job");
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(owner.mutex("x").lock())).collect();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(a.inspect("x").await.unwrap().unwrap().waiters.len(), 1);
    assert!(owner.mutex("x").try_lock().await.unwrap().is_none(), "they wait for it");
    held.release().await.unwrap();
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(task.await.unwrap().unwrap());
    }
    // The one of `b`, the one of `try_lock`, and one for all tasks of the owner.
    assert_eq!(store.acquires.load(Ordering::SeqCst), 3);
    assert_eq!(leases[0].count(), 8);
    for lease in leases {
        assert!(!is_free(&b, "x").await);
        lease.release().await.unwrap();
    }
    assert!(is_free(&b, "x").await);
}

#[test]
fn where_the_one_who_asks_gives_up_the_next_goes_on() {
    on_every_store(|a, b| async move {
        let held = b.mutex("x").lock().await.unwrap();
        let owner = a.owner("job");
        let first = tokio::spawn(owner.mutex("x").lock());
        tokio::time::sleep(ms(20)).await;
        let second = tokio::spawn(owner.mutex("x").lock());
        tokio::time::sleep(ms(20)).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        // Whoever waits for the one who asks waits no longer than it said.
        let error = owner.mutex("x").wait(ms(50)).lock().await.unwrap_err();
        assert!(matches!(&error, Error::Busy { waited, .. } if *waited >= ms(50)), "{error:?}");
        assert!(error.to_string().starts_with("`x` is held by b for another "), "{error}");
        held.release().await.unwrap();
        let lease = second.await.unwrap().unwrap();
        assert_eq!(lease.count(), 1);
        lease.release().await.unwrap();
    });
}

/// A future that waits in a `select!` loop or a stream may not be polled for a long time. The other tasks of the owner get the
/// lock all the same, after the TTL of the request that nobody polls at the latest.
#[test]
fn a_lock_future_that_is_kept_and_not_polled_does_not_block_its_owner() {
    on_every_store_and_server(|a, b| async move {
        let held = b.mutex("x").lock().await.unwrap();
        let mutex = a.owner("job").mutex("x").ttl(TTL);
        let mut kept = Box::pin(mutex.lock());
        assert!(common::polled_once(kept.as_mut()).await.is_pending());
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(mutex.lock())).collect();
        tokio::time::sleep(ms(20)).await;
        held.release().await.unwrap();
        for task in tasks {
            let lease =
                tokio::time::timeout(secs(60), task).await.expect("it waits for a future that nobody polls");
            lease.unwrap().unwrap().release().await.unwrap();
        }
        let lease = tokio::time::timeout(secs(60), kept).await.expect("polled again, it goes on").unwrap();
        lease.release().await.unwrap();
    });
}

/// The last one out has let go, and the store has not answered yet: whoever comes then asks anew.
#[tokio::test(start_paused = true)]
async fn whoever_comes_while_the_last_one_lets_go_gets_another_lease() {
    let slow =
        |call: &str, _: &str| if call == "release" { Behaviour::Slow(100) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
    let locks = client(&store, "a");
    let mutex = locks.owner("job").mutex("x");
    let lease = mutex.lock().await.unwrap();
    let fence = lease.fence();
    let (released, next) = tokio::join!(lease.release(), async {
        tokio::time::sleep(ms(10)).await;
        mutex.lock().await
    });
    released.unwrap();
    let next = next.unwrap();
    assert!(next.fence() > fence && next.is_valid());
    // Cut off in the middle, it is given back all the same.
    tokio::select! {
        biased;
        _ = next.release() => panic!("it takes longer"),
        () = tokio::time::sleep(ms(10)) => {}
    }
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_first_one_decides_how_it_is_held() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let owner = locks.owner("job");
    let first = owner.mutex("x").max_hold(secs(10)).lock().await.unwrap();
    let second = owner.mutex("x").lock().await.unwrap();
    assert_eq!((first.lost().await, second.lost().await), (Loss::HoldLimit, Loss::HoldLimit));
    for (bad, what) in [
        (locks.owner("").mutex("x"), "owner"),
        (owner.mutex("a{b"), "name"),
        (owner.mutex("x").ttl(ms(1)), "TTL"),
    ] {
        let error = bad.lock().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { what: found, .. } if found.contains(what)), "{error}");
    }
    locks.close().await;
    assert!(matches!(owner.mutex("y").lock().await, Err(Error::Closed)));
}

#[test]
fn the_same_without_async() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let owner = locks.owner("job");
    let (one, two) = (owner.mutex("x").lock().unwrap(), owner.mutex("x").try_lock().unwrap().unwrap());
    assert_eq!((one.fence(), two.count()), (two.fence(), 2));
    one.release().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_none());
    two.release().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_some());
}

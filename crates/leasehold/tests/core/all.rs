//! Several names, all or none: in one step where the store can, one after the other where it cannot. One lease, one loss, and
//! nothing left of those who gave up.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::stores::{on_a_server, on_every_store, plain_client, waiting};
use common::{Behaviour, ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Locks, Loss};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

/// On stores that take several names in one step, and on those that take one at a time.
fn everywhere<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    on_every_store(&claim);
    on_a_server("", &claim);
    on_a_server("?scripts=off", &claim);
    common::paused_runtime().block_on(async {
        let (store, a) = plain_client();
        claim(a.clone(), client(&store, "b")).await;
        a.settled().await;
        assert!(a.list("", 10).await.unwrap().is_empty());
    });
}

async fn is_free(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_lock().await.unwrap().is_some()
}

#[test]
fn all_or_none_on_one_lease() {
    everywhere(|a, b| async move {
        let lease = a.all(["y", "x", "y"]).owner("import").lock().await.unwrap();
        assert_eq!(lease.names().to_string(), "`x`, `y`");
        for name in ["x", "y"] {
            assert!(!is_free(&b, name).await);
            let status = b.inspect(name).await.unwrap().unwrap();
            assert_eq!(status.holders[0].owner.as_str(), "import");
        }
        assert!(b.all(["w", "y"]).try_lock().await.unwrap().is_none());
        assert!(is_free(&b, "w").await, "a part of it is left");
        b.settled().await;
        let error = b.all(["a", "w", "y"]).wait(ms(20)).lock().await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("`a`, `w`, `y` is held by import for another "), "{text}");
        for name in ["a", "w"] {
            assert!(is_free(&b, name).await, "a part of it is left: {name}");
        }
        b.settled().await;
        lease.release().await.unwrap();
        let next = b.all(["x", "w"]).lock().await.unwrap();
        let alone = a.mutex("y").lock().await.unwrap();
        next.release().await.unwrap();
        alone.release().await.unwrap();
    });
}

/// Above every fence that was given before for any of the names, whoever had it and with which others.
#[test]
fn one_fence_that_is_above_all_before() {
    everywhere(|a, b| async move {
        let mut highest = None;
        for (locks, names) in [(&a, ["x", "z"]), (&b, ["y", "z"]), (&a, ["y", "x"]), (&b, ["z", "x"])] {
            let fenced = locks.capabilities().fenced;
            let lease = locks.all(names).lock().await.unwrap();
            assert!(!fenced || highest < Some(lease.fence()), "{highest:?}, {}", lease.fence());
            highest = Some(lease.fence());
            lease.release().await.unwrap();
            let alone = locks.mutex(names[0]).lock().await.unwrap();
            assert!(!fenced || highest < Some(alone.fence()));
            highest = Some(alone.fence());
            alone.release().await.unwrap();
        }
    });
}

#[test]
fn it_waits_for_the_last_of_them_and_is_renewed_meanwhile_and_after() {
    everywhere(|a, b| async move {
        let held = b.mutex("z").lock().await.unwrap();
        let all = a.all(["z", "x"]).ttl(TTL).lock();
        let all = match a.capabilities().several_names {
            true => waiting(&a, "z", all).await,
            false => {
                let task = tokio::spawn(all);
                // It holds the one it has while it waits for the other.
                while b.inspect("x").await.unwrap().is_none() {
                    tokio::time::sleep(ms(1)).await;
                }
                task
            }
        };
        tokio::time::sleep(TTL * 2).await;
        assert!(!all.is_finished());
        held.release().await.unwrap();
        let lease = all.await.unwrap().unwrap();
        tokio::time::sleep(TTL * 2).await;
        assert!(lease.is_valid(), "{:?}", lease.loss());
        for name in ["x", "z"] {
            assert!(!is_free(&b, name).await);
        }
        lease.release().await.unwrap();
    });
}

#[test]
fn the_loss_of_one_is_the_loss_of_all() {
    everywhere(|a, b| async move {
        for evicted in ["x", "y", "z"] {
            let lease = a.all(["x", "y", "z"]).ttl(TTL).lock().await.unwrap();
            b.evict(evicted).await.unwrap();
            assert_eq!(lease.lost().await, Loss::Deleted);
            let error = lease.release().await.unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            a.settled().await;
            for name in ["x", "y", "z"] {
                assert!(is_free(&b, name).await, "{name} is left after {evicted} was lost");
            }
            b.settled().await;
        }
    });
}

#[test]
fn whoever_gives_up_or_drops_it_leaves_none_of_them() {
    everywhere(|a, b| async move {
        drop(a.all(["x", "y"]).lock().await.unwrap());
        a.settled().await;
        assert!(is_free(&b, "x").await && is_free(&b, "y").await);
        b.settled().await;
        let held = b.mutex("y").lock().await.unwrap();
        let task = tokio::spawn(a.all(["z", "y", "x"]).lock());
        tokio::time::sleep(ms(50)).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        a.settled().await;
        for name in ["x", "z"] {
            assert!(is_free(&b, name).await, "{name} is left");
        }
        b.settled().await;
        held.release().await.unwrap();
    });
}

#[test]
fn in_any_order_nobody_waits_for_ever() {
    everywhere(|a, b| async move {
        let mut tasks = Vec::new();
        for i in 0..12_usize {
            let locks = if i % 2 == 0 { a.clone() } else { b.clone() };
            let mut names = ["x", "y", "z"];
            names.rotate_left(i % 3);
            if i % 4 < 2 {
                names.reverse();
            }
            tasks.push(tokio::spawn(async move {
                for _ in 0..3 {
                    let lease = locks.all(&names[..2]).lock().await.unwrap();
                    tokio::task::yield_now().await;
                    lease.release().await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_one_at_a_time_is_asked_for_one_at_a_time() {
    let (store, locks) = plain_client();
    let lease = locks.all(["a", "b", "c"]).lock().await.unwrap();
    assert_eq!(store.acquires.load(Ordering::SeqCst), 3);
    lease.release().await.unwrap();
    // It stops at the first that is taken.
    let held = client(&store, "b").mutex("a").lock().await.unwrap();
    assert!(locks.all(["a", "b", "c"]).try_lock().await.unwrap().is_none());
    assert_eq!(store.acquires.load(Ordering::SeqCst), 5);
    held.release().await.unwrap();
}

/// What was taken first is lost while the second is waited for: all is given back, also what is granted after that.
#[tokio::test(start_paused = true)]
async fn what_is_lost_while_the_rest_is_waited_for_is_told_and_nothing_stays() {
    let (store, locks) = plain_client();
    let other = client(&store, "b");
    let held = other.mutex("y").lock().await.unwrap();
    let task = tokio::spawn(locks.all(["x", "y"]).ttl(secs(3)).lock());
    tokio::time::sleep(ms(10)).await;
    other.evict("x").await.unwrap();
    let error = task.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("`x` was lost while the other names were waited for"), "{error}");
    locks.settled().await;
    held.release().await.unwrap();
    assert!(is_free(&other, "y").await && is_free(&other, "x").await);
}

/// A store that does not answer for the second: the first goes too.
#[tokio::test(start_paused = true)]
async fn where_the_store_fails_in_the_middle_nothing_stays() {
    let fails = |call: &str, name: &str| match (call, name) {
        ("acquire", "y") => Behaviour::Fails,
        ("acquire", "z") => Behaviour::Hangs,
        _ => Behaviour::Answers,
    };
    for second in ["y", "z"] {
        let store = ScriptedStore::by(Clock::tokio(), ms(0), fails);
        store.is_plain.store(true, Ordering::SeqCst);
        let locks = client(&store, "a");
        let error = locks.all(["x", second]).wait(secs(2)).lock().await.unwrap_err();
        assert!(error.is_outcome_unknown() || matches!(error, Error::Busy { .. }), "{error}");
        locks.settled().await;
        assert!(locks.inspect("x").await.unwrap().is_none(), "the first is left");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_names_and_options_are_told_before_anything_is_sent() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let none: [&str; 0] = [];
    let many: Vec<String> = (0..65).map(|i| format!("n{i}")).collect();
    for (bad, what) in [
        (locks.all(none), "names"),
        (locks.all(many), "names"),
        (locks.all(["x", "a{b"]), "name"),
        (locks.all(["x", "y"]).ttl(ms(1)), "TTL"),
        (locks.all(["x", "y"]).max_hold(ms(0)), "max_hold"),
    ] {
        let error = bad.lock().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { what: found, .. } if found.contains(what)), "{error}");
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0, "nothing was sent");
    assert_eq!(
        format!("{:?}", locks.all(["y", "x"])),
        "All { names: [Name(x), Name(y)], ttl: Ttl(30000 ms), .. }"
    );
    let lease = locks.all(["x", "y"]).max_hold(secs(60)).lock().await.unwrap();
    assert_eq!(lease.lost().await, Loss::HoldLimit);
}

/// A claim over several names outlives its client as any other does.
#[test]
fn several_names_can_be_detached_together() {
    everywhere(|a, b| async move {
        let lease = a.all(["x", "y"]).lock().await.unwrap();
        let kept = lease.detach(secs(60)).await.unwrap();
        a.close().await;
        for name in ["x", "y"] {
            assert!(!is_free(&b, name).await);
        }
        for name in ["x", "y"] {
            b.evict(name).await.unwrap();
        }
        drop(kept);
        // The client is closed, and is not asked what is left.
        assert!(is_free(&b, "x").await && is_free(&b, "y").await);
        b.settled().await;
    });
}

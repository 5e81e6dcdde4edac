//! Permits: how many fit, who comes first, and what becomes of those that are lost or given up.

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::stores::{in_line, on_every_store, plain_client, waiting};
use common::{Dice, ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Lease, Loss};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

async fn give_back(leases: impl IntoIterator<Item = Lease>) {
    for lease in leases {
        lease.release().await.unwrap();
    }
}

#[test]
fn permits_add_up_to_the_limit_and_no_further() {
    on_every_store(|a, b| async move {
        let mut held = Vec::new();
        for locks in [&a, &a, &b] {
            held.push(locks.semaphore("x", 3).try_acquire().await.unwrap().unwrap());
        }
        assert!(held.windows(2).all(|pair| pair[0].fence() < pair[1].fence()), "one fence per lease");
        for locks in [&a, &b] {
            assert!(locks.semaphore("x", 3).try_acquire().await.unwrap().is_none(), "four of three");
        }
        let error = b.semaphore("x", 3).wait(ms(20)).acquire().await.unwrap_err();
        assert!(matches!(&error, Error::Busy { waited, .. } if *waited >= ms(20)), "{error:?}");
        assert!(error.to_string().starts_with("`x` is held by a for another "), "{error}");
        held.remove(1).release().await.unwrap();
        held.push(b.semaphore("x", 3).acquire().await.unwrap());
        assert!(a.semaphore("x", 3).try_acquire().await.unwrap().is_none());
        // A dropped lease gives its permit back too.
        held.pop();
        b.settled().await;
        held.push(a.semaphore("x", 3).try_acquire().await.unwrap().unwrap());
        give_back(held).await;
    });
}

#[test]
fn a_lease_weighs_as_much_as_it_took_and_one_release_admits_several() {
    on_every_store(|a, b| async move {
        let semaphore = a.semaphore("x", 5);
        let heavy = semaphore.acquire_many(3).await.unwrap();
        assert!(b.semaphore("x", 5).try_acquire_many(3).await.unwrap().is_none(), "six of five");
        let rest = b.semaphore("x", 5).try_acquire_many(2).await.unwrap().unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none(), "six of five");
        let mut line = Vec::new();
        for (locks, take) in [(&b, 2), (&a, 1), (&b, 1)] {
            line.push(waiting(&a, "x", locks.semaphore("x", 5).acquire_many(take)).await);
        }
        heavy.release().await.unwrap();
        let mut admitted = Vec::new();
        // Three were given back: enough for two and one, not for the last.
        for task in line.drain(..2) {
            admitted.push(task.await.unwrap().unwrap());
        }
        assert_eq!(in_line(&a, "x", 1).await.holders.len(), 3);
        rest.release().await.unwrap();
        admitted.push(line.remove(0).await.unwrap().unwrap());
        give_back(admitted).await;
    });
}

#[test]
fn who_wants_little_waits_behind_who_wants_much_unless_it_barges() {
    on_every_store(|a, b| async move {
        let (fair, barging) = (a.semaphore("x", 3), a.semaphore("x", 3).barging());
        let one = fair.acquire().await.unwrap();
        let much = waiting(&a, "x", b.semaphore("x", 3).acquire_many(3)).await;
        assert!(fair.try_acquire().await.unwrap().is_none(), "passed one who waits");
        assert!(barging.clone().fair().try_acquire().await.unwrap().is_none(), "passed one who waits");
        let two = barging.try_acquire_many(2).await.unwrap().unwrap();
        assert!(barging.try_acquire().await.unwrap().is_none(), "four of three");
        // Also from the line: first the fair one, then the barging one, who is served first.
        let little = waiting(&a, "x", fair.acquire()).await;
        let pushy = waiting(&a, "x", barging.acquire()).await;
        one.release().await.unwrap();
        let pushy = pushy.await.unwrap().unwrap();
        assert_eq!(in_line(&a, "x", 2).await.holders.len(), 2);
        let newest = pushy.fence();
        give_back([two, pushy]).await;
        let much = much.await.unwrap().unwrap();
        assert!(much.fence() > newest);
        let newest = much.fence();
        much.release().await.unwrap();
        let little = little.await.unwrap().unwrap();
        assert!(little.fence() > newest, "served in order of arrival");
        little.release().await.unwrap();
    });
}

#[test]
fn each_claim_is_judged_by_its_own_limit() {
    on_every_store(|a, b| async move {
        let held = a.semaphore("x", 4).acquire_many(3).await.unwrap();
        assert!(b.semaphore("x", 3).try_acquire().await.unwrap().is_none(), "of three, three are taken");
        let more = b.semaphore("x", 5).acquire_many(2).await.unwrap();
        assert!(held.is_valid() && more.is_valid());
        assert!(a.semaphore("x", 4).try_acquire().await.unwrap().is_none(), "of four, five are taken");
        let lower = waiting(&a, "x", b.semaphore("x", 1).acquire()).await;
        more.release().await.unwrap();
        in_line(&a, "x", 1).await;
        held.release().await.unwrap();
        lower.await.unwrap().unwrap().release().await.unwrap();
    });
}

#[test]
fn permits_are_not_held_beside_a_mutex_or_readers() {
    on_every_store(|a, b| async move {
        let permit = a.semaphore("x", 9).acquire().await.unwrap();
        assert!(b.mutex("x").try_lock().await.unwrap().is_none());
        assert!(a.rwlock("x").try_write().await.unwrap().is_none());
        assert!(b.rwlock("x").try_read().await.unwrap().is_none());
        permit.release().await.unwrap();
        let reader = b.rwlock("x").read().await.unwrap();
        assert!(a.semaphore("x", 9).try_acquire().await.unwrap().is_none());
        reader.release().await.unwrap();
        let holder = b.mutex("x").lock().await.unwrap();
        assert!(a.semaphore("x", 9).barging().try_acquire().await.unwrap().is_none());
        holder.release().await.unwrap();
    });
}

#[test]
fn a_permit_is_renewed_and_its_loss_is_its_own() {
    on_every_store(|a, b| async move {
        let kept = a.semaphore("x", 2).ttl(TTL).acquire().await.unwrap();
        let brief = b.semaphore("x", 2).ttl(TTL).no_renewal().acquire().await.unwrap();
        assert!(a.semaphore("x", 2).try_acquire().await.unwrap().is_none());
        assert_eq!(brief.lost().await, Loss::Expired);
        assert!(matches!(brief.release().await, Err(Error::Lost { reason: Loss::Expired, .. })));
        // What it had goes to the next, once the store has counted to the end of it.
        let next = b.semaphore("x", 2).wait(secs(10)).acquire().await.unwrap();
        assert!(kept.is_valid(), "{:?}", kept.loss());
        tokio::time::sleep(TTL / 2).await;
        assert!(kept.is_valid(), "held for longer than its TTL: {:?}", kept.loss());
        assert!(a.semaphore("x", 2).try_acquire().await.unwrap().is_none(), "three of two");
        b.evict("x").await.unwrap();
        assert_eq!(kept.lost().await, Loss::Deleted);
        drop((kept, next));
    });
}

#[test]
fn whoever_gives_up_waiting_leaves_nothing_and_lets_the_next_in() {
    on_every_store(|a, b| async move {
        let held = a.semaphore("x", 3).acquire_many(2).await.unwrap();
        let much = waiting(&a, "x", b.semaphore("x", 3).acquire_many(3)).await;
        let little = waiting(&a, "x", a.semaphore("x", 3).acquire()).await;
        much.abort();
        let little = little.await.unwrap().unwrap();
        let mut gone = Vec::new();
        for locks in [&a, &b] {
            gone.push(waiting(&a, "x", locks.semaphore("x", 3).acquire()).await);
            gone.push(waiting(&a, "x", locks.semaphore("x", 3).barging().acquire_many(2)).await);
        }
        for task in gone {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        a.settled().await;
        b.settled().await;
        let status = a.inspect("x").await.unwrap().unwrap();
        assert_eq!((status.holders.len(), status.waiters.len()), (2, 0), "{status:?}");
        give_back([held, little]).await;
    });
}

/// Everybody comes at once, fair and barging, wanting one to three of four.
#[test]
fn the_limit_is_kept_in_a_crowd_and_everybody_is_served() {
    const LIMIT: u32 = 4;
    on_every_store(|a, b| async move {
        let in_use = Arc::new(AtomicU32::new(0));
        let most = Arc::new(AtomicU32::new(0));
        let mut dice = Dice(7);
        let mut tasks = Vec::new();
        for i in 0..48 {
            let locks = if i % 2 == 0 { &a } else { &b };
            let semaphore = locks.semaphore("x", LIMIT);
            let semaphore = if dice.below(3) == 0 { semaphore.barging() } else { semaphore };
            let take = 1 + dice.below(3) as u32;
            let (in_use, most) = (in_use.clone(), most.clone());
            tasks.push(tokio::spawn(async move {
                let lease = semaphore.acquire_many(take).await.unwrap();
                let now = in_use.fetch_add(take, Ordering::SeqCst) + take;
                assert!(now <= LIMIT, "{now} permits of {LIMIT} are in use");
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(ms(1)).await;
                in_use.fetch_sub(take, Ordering::SeqCst);
                lease.release().await.unwrap();
            }));
        }
        for task in tasks {
            tokio::time::timeout(secs(60), task).await.expect("everybody is served").unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), LIMIT, "as many as fit were in use");
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_count_permits_refuses_them() {
    let (store, locks) = plain_client();
    let semaphore = locks.semaphore("x", 3);
    for error in [
        semaphore.acquire().await.unwrap_err(),
        semaphore.acquire_many(2).await.unwrap_err(),
        semaphore.try_acquire().await.unwrap_err(),
        semaphore.clone().barging().try_acquire_many(2).await.unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "the plain store does not offer permits: it cannot keep a limit");
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0, "nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused_before_anything_is_sent() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    for (limit, take) in [(0, 1), (3, 0), (3, 4), (u32::MAX - 1, u32::MAX)] {
        let semaphore = locks.semaphore("x", limit);
        for error in [
            semaphore.acquire_many(take).await.unwrap_err(),
            semaphore.clone().barging().try_acquire_many(take).await.unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                format!(
                    "invalid permits `{take} of {limit}`: one takes at least 1 permit and at most the limit"
                )
            );
        }
    }
    let error = locks.semaphore("a{b", 0).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "name", .. }), "the first thing wrong: {error:?}");
    let error = locks.semaphore("x", 1).ttl(ms(1)).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "TTL", .. }), "{error:?}");
    drop(locks.semaphore("x", 1).acquire());
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0);
    // The most there can be.
    let all = locks.semaphore("x", u32::MAX).acquire_many(u32::MAX).await.unwrap();
    assert!(locks.semaphore("x", u32::MAX).try_acquire().await.unwrap().is_none());
    all.release().await.unwrap();
    let semaphore = locks.semaphore("x", 1).ttl(secs(9)).max_hold(secs(60)).min_validity(secs(1));
    assert_eq!(format!("{semaphore:?}"), "Semaphore { name: Name(x), ttl: Ttl(9000 ms), .. }");
    let permit = semaphore.owner("upload").acquire().await.unwrap();
    assert_eq!(locks.inspect("x").await.unwrap().unwrap().holders[0].owner.to_string(), "upload");
    assert_eq!(permit.lost().await, Loss::HoldLimit);
    locks.close().await;
    assert!(matches!(locks.semaphore("x", 1).acquire().await, Err(Error::Closed)));
}

/// The tasks of one client do not meet: each has permits of its own, and none is passed on.
#[tokio::test(start_paused = true)]
async fn each_task_of_a_client_has_a_claim_of_its_own() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let semaphore = locks.semaphore("x", 2);
    let held = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
    let next = waiting(&locks, "x", semaphore.acquire()).await;
    assert_eq!(store.acquires.load(Ordering::SeqCst), 3);
    let [one, two] = held;
    one.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.fence() > two.fence());
    give_back([two, next]).await;
    assert!(locks.inspect("x").await.unwrap().is_none());
}

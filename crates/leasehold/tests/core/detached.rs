//! Leases that nobody keeps: taken as such or made of one that was kept, extended and let go by another client, ended by
//! their TTL.

use leasehold_testkit as common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use common::child::ChildTest;
use common::child_test;
use common::stores::{in_line, on_every_store, waiting};
use common::{Behaviour, ScriptedStore, client, ms, paused_runtime, secs, two_clients};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Detached, Error, Event, Fence, Locks, Loss, Name, Options, Owner, Store, Token};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// Whether the lock can be had now; where it can, it is given back.
async fn is_free(locks: &Locks, name: &str) -> bool {
    match locks.mutex(name).try_lock().await.unwrap() {
        Some(lease) => lease.release().await.is_ok(),
        None => false,
    }
}

/// What a script writes down, and another process reads.
fn taken_up(locks: &Locks, lease: &Detached) -> Detached {
    locks.detached("x", Token::parse(lease.token().expose()).unwrap()).unwrap()
}

fn loss(end: Result<(), Error>) -> Loss {
    match end {
        Err(Error::Lost { reason, .. }) => reason,
        end => panic!("not lost: {end:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn it_outlives_its_client_for_its_ttl_and_no_longer() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").ttl(secs(10)).lock_detached().await.unwrap();
    assert_eq!(b.inspect("x").await.unwrap().unwrap().holders[0].fence, lease.fence());
    drop(lease);
    a.close().await;
    drop(a);
    tokio::time::sleep(ms(9_990)).await;
    assert!(!is_free(&b, "x").await, "still held, though nobody is left who knows of it");
    tokio::time::sleep(ms(10)).await;
    assert!(is_free(&b, "x").await, "its TTL is over");
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 3, "{tasks} tasks, of which three are the other client's");
}

#[tokio::test(start_paused = true)]
async fn whoever_has_its_token_extends_it_and_lets_go() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").ttl(secs(10)).lock_detached().await.unwrap();
    let mut again = taken_up(&b, &lease);
    let fence = lease.fence();
    a.close().await;
    drop((lease, a));
    assert_eq!((again.fence(), again.remaining()), (None, ms(0)), "not known here");
    for _ in 0..5 {
        tokio::time::sleep(secs(6)).await;
        again.extend(secs(10)).await.unwrap();
        assert!(again.remaining() > secs(9) && again.remaining() < secs(10));
        assert!(!is_free(&b, "x").await);
    }
    let held = b.inspect("x").await.unwrap().unwrap().holders[0].fence;
    assert_eq!(held, fence, "the same grant all the time");
    again.release().await.unwrap();
    assert!(is_free(&b, "x").await);
}

#[tokio::test(start_paused = true)]
async fn a_fence_that_is_known_is_proven() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").lock_detached().await.unwrap();
    let fence = lease.fence().unwrap();
    taken_up(&b, &lease).with_fence(fence).extend(secs(60)).await.unwrap();
    let mut wrong = taken_up(&b, &lease).with_fence(fence.plus(1).unwrap());
    assert_eq!(wrong.fence(), Some(Fence::new(fence.get() + 1).unwrap()));
    assert_eq!(loss(wrong.extend(secs(60)).await), Loss::Taken);
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_foreign_token_or_another_name_changes_nothing() {
    let (a, b) = two_clients();
    let mut lease = a.mutex("x").ttl(secs(10)).lock_detached().await.unwrap();
    let foreign = || b.detached("x", Token::fresh(&Owner::this_process()).unwrap()).unwrap();
    let elsewhere = || b.detached("y", lease.token().clone()).unwrap();
    assert_eq!(loss(foreign().extend(secs(60)).await), Loss::Taken);
    assert_eq!(loss(foreign().release().await), Loss::Gone);
    assert_eq!(loss(elsewhere().extend(secs(60)).await), Loss::Gone);
    assert_eq!(loss(elsewhere().release().await), Loss::Gone);
    let left = b.inspect("x").await.unwrap().unwrap().holders[0].remaining;
    assert!(left <= secs(10), "extended by somebody else: {left:?}");
    lease.extend(secs(20)).await.unwrap();
    lease.release().await.unwrap();
    // A lease that is kept is not touched either.
    let kept = a.mutex("x").lock().await.unwrap();
    assert_eq!(loss(foreign().release().await), Loss::Gone);
    kept.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_has_gone_is_lost_and_never_made_again() {
    let (a, b) = two_clients();
    let gone = "the lease on `x` was lost: it is not in the store any more: its TTL was over, or it was let go or \
                evicted; roll back what it protected";
    // Released before.
    let lease = a.mutex("x").lock_detached().await.unwrap();
    let mut again = taken_up(&b, &lease);
    lease.release().await.unwrap();
    assert_eq!(loss(again.extend(secs(60)).await), Loss::Gone);
    let error = again.release().await.unwrap_err();
    assert_eq!(error.to_string(), gone);
    // Its TTL over.
    let mut lease = a.mutex("x").ttl(secs(1)).lock_detached().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(loss(lease.extend(secs(60)).await), Loss::Gone);
    assert!(lease.remaining().is_zero() && b.inspect("x").await.unwrap().is_none());
    assert_eq!(loss(lease.release().await), Loss::Gone);
    // Evicted.
    let mut lease = a.mutex("x").lock_detached().await.unwrap();
    b.evict("x").await.unwrap();
    assert!(lease.remaining() > secs(29), "nobody has told it");
    assert_eq!(loss(lease.extend(secs(60)).await), Loss::Gone);
    assert!(lease.remaining().is_zero());
    // Taken by somebody else, who is not touched.
    let next = b.mutex("x").lock().await.unwrap();
    assert_eq!(loss(lease.extend(secs(60)).await), Loss::Taken);
    assert_eq!(loss(lease.release().await), Loss::Gone);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_remains_never_exceeds_the_ttl_and_is_never_shortened() {
    let (a, b) = two_clients();
    let mut lease = a.mutex("x").ttl(secs(10)).lock_detached().await.unwrap();
    assert_eq!(lease.remaining(), ms(10_000 - 102));
    tokio::time::sleep(secs(4)).await;
    assert_eq!(lease.remaining(), ms(6_000 - 102));
    lease.extend(secs(1)).await.unwrap();
    assert_eq!(lease.remaining(), ms(6_000 - 102), "shortened");
    lease.extend(secs(20)).await.unwrap();
    assert_eq!(lease.remaining(), ms(20_000 - 202));
    assert!(matches!(lease.extend(ms(0)).await, Err(Error::Invalid { what: "TTL", .. })));
    // Past its own deadline by what another was given: the store knows, and this one hears of it.
    taken_up(&b, &lease).extend(secs(60)).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    assert!(lease.remaining().is_zero());
    lease.extend(secs(1)).await.unwrap();
    assert!(lease.remaining() > secs(29));
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_waits_and_is_refused_as_any_lock() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").owner("nightly").ttl(secs(10)).lock_detached().await.unwrap();
    assert!(b.mutex("x").try_lock_detached().await.unwrap().is_none());
    let error = b.mutex("x").wait(secs(5)).lock_detached().await.unwrap_err();
    assert_eq!(error.to_string(), "`x` is held by nightly for another 5.0 s unless renewed; waited 5.0 s");
    let next = b.mutex("x").ttl(secs(10)).lock_detached().await.unwrap();
    assert!(next.fence() > lease.fence());
    assert_eq!(next.remaining(), ms(10_000 - 102), "counted from the grant, not from the wait");
    assert_eq!(b.inspect("x").await.unwrap().unwrap().waiters.len(), 0);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_is_never_passed_on_and_local_tasks_wait_in_order() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let order: Arc<Mutex<Vec<u64>>> = Arc::default();
    let held = locks.mutex("x").lock_detached().await.unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|n| {
            let (mutex, order) = (locks.mutex("x"), order.clone());
            tokio::spawn(async move {
                tokio::time::sleep(ms(n)).await;
                let fence = if n == 2 {
                    let lease = mutex.lock_detached().await.unwrap();
                    order.lock().unwrap().push(n);
                    let fence = lease.fence().unwrap();
                    lease.release().await.unwrap();
                    fence
                } else {
                    let lease = mutex.lock().await.unwrap();
                    order.lock().unwrap().push(n);
                    let fence = lease.fence();
                    lease.release().await.unwrap();
                    fence
                };
                fence.get()
            })
        })
        .collect();
    tokio::time::sleep(ms(100)).await;
    assert!(order.lock().unwrap().is_empty(), "nobody passes it on, and nobody gets past it");
    // One place for the tasks that meet, one for the one that does not.
    assert_eq!(locks.inspect("x").await.unwrap().unwrap().waiters.len(), 2);
    held.release().await.unwrap();
    let mut fences = Vec::new();
    for task in tasks {
        fences.push(task.await.unwrap());
    }
    let order = order.lock().unwrap().clone();
    let local: Vec<u64> = order.iter().copied().filter(|n| *n != 2).collect();
    assert_eq!((order.len(), local), (4, vec![0, 1, 3]), "{order:?}");
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 4, "each its own fence");
    assert_eq!(store.detached.load(Ordering::SeqCst), 2, "and only these were to outlive the client");
    assert!(locks.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn nobody_renews_it() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let _lease = locks.mutex("x").ttl(secs(1)).lock_detached().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert!(is_free(&locks, "x").await);
    assert_eq!(store.renewals.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn what_only_a_keeper_could_do_is_refused_before_anything_is_sent() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let error = locks.mutex("x").max_hold(secs(60)).lock_detached().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid max_hold `60 s`: nobody keeps a detached lease, so nobody could end it then; it ends with its TTL, so \
         set that"
    );
    let error = locks.mutex("x").max_hold(secs(60)).try_lock_detached().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "max_hold", .. }), "{error:?}");
    let error = locks.mutex("a{b").lock_detached().await.unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "name", .. }), "{error:?}");
    let token = Token::fresh(&Owner::this_process()).unwrap();
    let error = locks.detached("a{b", token).unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "name", .. }), "{error:?}");
    drop(locks.mutex("x").lock_detached());
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0);
    // What it is in any case does no harm.
    let lease = locks.mutex("x").no_renewal().strict_order().lock_detached().await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn through_a_closed_client_nothing_is_done_and_another_takes_it_up() {
    let (a, b) = two_clients();
    let mut lease = a.mutex("x").lock_detached().await.unwrap();
    let waiting = tokio::spawn(a.mutex("x").lock_detached());
    tokio::time::sleep(ms(1)).await;
    assert_eq!(b.inspect("x").await.unwrap().unwrap().waiters.len(), 1);
    a.close().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert_eq!(b.inspect("x").await.unwrap().unwrap().waiters.len(), 0, "its place is given up");
    assert!(matches!(a.mutex("x").lock_detached().await, Err(Error::Closed)));
    assert!(matches!(lease.extend(secs(60)).await, Err(Error::Closed)));
    let again = taken_up(&b, &lease);
    assert!(matches!(lease.release().await, Err(Error::Closed)));
    assert!(!is_free(&b, "x").await, "closing does not end it");
    again.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_outcome_is_unknown_and_a_release_is_finished_in_the_background() {
    let store = ScriptedStore::by(Clock::tokio(), ms(0), |call, name| match (call, name) {
        ("renew", "silent") => Behaviour::Hangs,
        ("renew", "failing") => Behaviour::Fails,
        ("release", "slow") => Behaviour::Slow(200),
        _ => Behaviour::Answers,
    });
    let locks = client(&store, "a");
    // It lasted when its holder let go: good work is kept.
    let lease = locks.mutex("slow").ttl(secs(1)).lock_detached().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    let error = lease.release().await.unwrap_err();
    assert!(matches!(&error, Error::Unknown { why, .. } if why.contains("after the deadline")), "{error:?}");
    for name in ["silent", "failing"] {
        let mut lease = locks.mutex(name).ttl(secs(30)).lock_detached().await.unwrap();
        let (before, started) = (lease.remaining(), tokio::time::Instant::now());
        let error = lease.extend(secs(60)).await.unwrap_err();
        assert!(matches!(error, Error::Unknown { what: "extend", .. }), "{error:?}");
        assert!(started.elapsed() <= secs(5));
        assert_eq!(lease.remaining() + started.elapsed(), before, "as good as it was, and no better");
        lease.release().await.unwrap();
    }
    let lease = locks.mutex("x").ttl(secs(600)).lock_detached().await.unwrap();
    let again = taken_up(&locks, &lease);
    for lease in [lease, again] {
        store.hang();
        let error = lease.release().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "whether `x` was released is unknown (the memory store gave no answer: no answer in time; see that it runs \
             and can be reached, then try again); it is tried again in the background while this process runs, and its \
             TTL ends it in any case"
        );
        store.hangs.store(false, Ordering::SeqCst);
        let started = tokio::time::Instant::now();
        locks.settled().await;
        assert!(started.elapsed() <= secs(6), "{:?}", started.elapsed());
        assert!(locks.inspect("x").await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_late_is_renewed_or_given_back() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    store.grant_late_ms.store(6_000, Ordering::SeqCst);
    let mutex = locks.mutex("x").ttl(secs(10));
    let lease = mutex.lock_detached().await.unwrap();
    assert!(lease.remaining() > secs(9), "{:?}", lease.remaining());
    lease.release().await.unwrap();
    store.renewal_late_ms.store(4_999, Ordering::SeqCst);
    let error = mutex.clone().min_validity(secs(8)).lock_detached().await.unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error:?}");
    store.failing_renewals.store(1, Ordering::SeqCst);
    let error = mutex.lock_detached().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none(), "nobody has it in hand, so nobody has it");
}

#[test]
fn its_end_by_ttl_is_no_event_and_a_release_is_told_by_whoever_took_it() {
    let heard: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let notes = heard.clone();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        paused_runtime().block_on(async {
            let options = Options::default().on_event(move |event| {
                notes.lock().unwrap().push(match event {
                    Event::Acquired { passed: false, .. } => "acquired",
                    Event::Released { held, .. } if held == secs(1) => "released",
                    Event::Busy { .. } => "busy",
                    _ => "something else",
                });
                async {}
            });
            let locks = options.over(Arc::new(Memory::new(Clock::tokio()))).unwrap();
            let lease = locks.mutex("x").ttl(secs(2)).lock_detached().await.unwrap();
            assert!(locks.mutex("x").try_lock_detached().await.unwrap().is_none());
            tokio::time::sleep(secs(2)).await;
            assert_eq!(loss(lease.release().await), Loss::Gone);
            let lease = locks.mutex("x").lock_detached().await.unwrap();
            tokio::time::sleep(secs(1)).await;
            lease.release().await.unwrap();
            let lease = locks.mutex("x").lock_detached().await.unwrap();
            taken_up(&locks, &lease).release().await.unwrap();
            locks.close().await;
        });
    });
    assert_eq!(*heard.lock().unwrap(), ["acquired", "busy", "acquired", "released", "acquired"]);
    let counts: Vec<(String, u64)> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter_map(|(key, _, _, value)| match value {
            DebugValue::Counter(count) => Some((key.key().name().to_owned(), count)),
            _ => None,
        })
        .collect();
    for (name, count) in
        [("leasehold_acquired_total", 3), ("leasehold_busy_total", 1), ("leasehold_released_total", 2)]
    {
        assert!(counts.contains(&(name.to_owned(), count)), "{name} is not {count}: {counts:?}");
    }
    assert_eq!(counts.len(), 3, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn its_secret_is_not_shown() {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let locks = client(&store, "nightly@web-3");
    let mut lease = locks.mutex("x").lock_detached().await.unwrap();
    let secret = lease.token().expose()[..32].to_owned();
    let status = store.inspect(&Name::new("x").unwrap()).await.unwrap();
    store.evict(&Name::new("x").unwrap()).await.unwrap();
    let error = lease.extend(secs(60)).await.unwrap_err();
    for text in [
        format!("{lease:?}"),
        format!("{:?}", lease.token()),
        format!("{status:?}"),
        format!("{error} {error:?}"),
    ] {
        assert!(!text.contains(&secret) && !text.contains(&secret[..8]), "{text}");
    }
    assert!(format!("{lease:?}").contains("nightly@web-3"), "{lease:?}");
}

#[test]
fn a_kept_lease_goes_on_without_a_gap_for_whoever_has_its_token() {
    on_every_store(|a, b| async move {
        let lease = a.mutex("x").lock().await.unwrap();
        let (fence, proof) = (lease.fence(), lease.proof());
        let next = waiting(&b, "x", b.mutex("x").lock()).await;
        let detached = lease.detach(secs(60)).await.unwrap();
        assert_eq!(proof.loss(), Some(Loss::Released), "the lease itself is over");
        assert!(detached.remaining() > secs(55) && detached.remaining() < secs(60));
        assert_eq!(detached.fence(), Some(fence));
        let status = b.inspect("x").await.unwrap().unwrap();
        assert_eq!(
            (status.holders[0].fence, status.waiters.len()),
            (Some(fence), 1),
            "nobody came in between"
        );
        let mut again = taken_up(&b, &detached).with_fence(fence);
        // What its client does now is nothing to it.
        drop(detached);
        a.settled().await;
        a.close().await;
        again.extend(secs(90)).await.unwrap();
        assert!(again.remaining() > secs(80));
        again.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap();
    });
}

#[test]
fn it_lasts_for_as_long_as_was_said_from_then_and_who_waits_hears_of_it() {
    on_every_store(|a, b| async move {
        // The leases would have had 30 s, and those who wait would not look for 10.
        let lease = a.mutex("x").lock().await.unwrap();
        let next = waiting(&b, "x", b.mutex("x").lock()).await;
        let semaphore = a.semaphore("y", 2);
        let (one, two) = (semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap());
        let much = waiting(&b, "y", b.semaphore("y", 2).acquire_many(2)).await;
        let barging = waiting(&b, "y", b.semaphore("y", 2).barging().acquire()).await;
        let started = tokio::time::Instant::now();
        let detached = lease.detach(ms(300)).await.unwrap();
        let permit = one.detach(ms(300)).await.unwrap();
        assert!(detached.remaining() < ms(300), "{:?}", detached.remaining());
        assert!(b.mutex("x").try_lock().await.unwrap().is_none(), "still held");
        let next = next.await.unwrap().unwrap();
        let barging = barging.await.unwrap().unwrap();
        let waited = started.elapsed();
        assert!(waited >= ms(300) && waited < secs(5), "{waited:?}");
        assert_eq!(loss(detached.release().await), Loss::Gone);
        assert_eq!(loss(permit.release().await), Loss::Gone);
        for lease in [next, barging, two] {
            lease.release().await.unwrap();
        }
        much.await.unwrap().unwrap().release().await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn its_new_ttl_counts_to_the_millisecond_and_nobody_renews_it() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    for (ttl, then) in [(secs(30), secs(2)), (secs(1), secs(40))] {
        let lease = locks.mutex("x").ttl(ttl).lock().await.unwrap();
        tokio::time::sleep(ttl / 2).await;
        let renewals = store.renewals.load(Ordering::SeqCst);
        assert!(renewals > 0);
        let detached = lease.detach(then).await.unwrap();
        assert_eq!(detached.remaining(), then - then / 100 - ms(2));
        tokio::time::sleep(then - ms(1)).await;
        assert!(!is_free(&locks, "x").await);
        tokio::time::sleep(ms(1)).await;
        assert!(is_free(&locks, "x").await);
        assert_eq!(store.renewals.load(Ordering::SeqCst), renewals);
        store.renewals.store(0, Ordering::SeqCst);
    }
}

/// What was passed on has a later fence of the grant's block, and that is the one its user wrote down.
#[tokio::test(start_paused = true)]
async fn one_that_was_passed_on_keeps_its_own_fence() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = a.mutex("x").lock().await.unwrap();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(a.mutex("x").lock())).collect();
    tokio::time::sleep(ms(1)).await;
    held.release().await.unwrap();
    let mut tasks = tasks.into_iter();
    let first = tasks.next().unwrap().await.unwrap().unwrap();
    let granted = first.fence();
    first.release().await.unwrap();
    let passed = tasks.next().unwrap().await.unwrap().unwrap();
    assert_eq!(passed.fence(), granted.plus(1).unwrap());
    assert_eq!(store.acquires.load(Ordering::SeqCst), 2, "of the same grant");
    let fence = passed.fence();
    let detached = passed.detach(secs(60)).await.unwrap();
    assert_eq!(detached.fence(), Some(fence));
    taken_up(&b, &detached).with_fence(fence).extend(secs(90)).await.unwrap();
    assert_eq!(loss(taken_up(&b, &detached).with_fence(granted).extend(secs(90)).await), Loss::Taken);
    // The third is served after it, and not before.
    let last = tasks.next().unwrap();
    in_line(&b, "x", 1).await;
    detached.release().await.unwrap();
    assert!(last.await.unwrap().unwrap().fence() > fence);
}

#[test]
fn readers_and_permits_are_detached_like_any_other() {
    on_every_store(|a, b| async move {
        let semaphore = a.semaphore("x", 3);
        let two = semaphore.acquire_many(2).await.unwrap().detach(secs(60)).await.unwrap();
        let one = semaphore.acquire().await.unwrap();
        assert!(semaphore.try_acquire().await.unwrap().is_none(), "four of three");
        taken_up(&b, &two).release().await.unwrap();
        semaphore.try_acquire_many(2).await.unwrap().unwrap().release().await.unwrap();
        one.release().await.unwrap();
        let reader = a.rwlock("x").read().await.unwrap().detach(secs(60)).await.unwrap();
        b.rwlock("x").read().await.unwrap().release().await.unwrap();
        assert!(b.rwlock("x").try_write().await.unwrap().is_none());
        taken_up(&b, &reader).release().await.unwrap();
        assert!(is_free(&b, "x").await);
    });
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_detached_is_given_back() {
    let store = ScriptedStore::by(Clock::tokio(), ms(0), |call, name| match (call, name) {
        ("detach", "silent") => Behaviour::Hangs,
        ("detach", "failing") => Behaviour::Fails,
        ("detach", "slow") => Behaviour::Slow(2_000),
        _ => Behaviour::Answers,
    });
    let locks = client(&store, "a");
    let error = locks.mutex("x").lock().await.unwrap().detach(ms(1)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "TTL", .. }), "{error:?}");
    locks.settled().await;
    assert!(is_free(&locks, "x").await);
    let capped = locks.mutex("x").max_hold(secs(60)).lock().await.unwrap();
    let error = capped.detach(secs(10)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid max_hold `60 s`: nobody keeps a detached lease, so nobody could end it then; it ends with its TTL, so \
         set that"
    );
    locks.settled().await;
    assert!(is_free(&locks, "x").await);
    for name in ["silent", "failing"] {
        let lease = locks.mutex(name).lock().await.unwrap();
        let started = tokio::time::Instant::now();
        let error = lease.detach(secs(600)).await.unwrap_err();
        assert!(started.elapsed() <= secs(5));
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("whether the lease on `{name}` was detached is unknown (")),
            "{text}"
        );
        assert!(text.ends_with("; it is held no more, and is being given back in the background"), "{text}");
        locks.settled().await;
        assert!(is_free(&locks, name).await);
    }
    // Over before it got there; and not.
    let lease = locks.mutex("slow").ttl(secs(1)).no_renewal().lock().await.unwrap();
    assert_eq!(loss(lease.detach(secs(60)).await.map(drop)), Loss::Expired);
    let lease = locks.mutex("slow").ttl(secs(3)).lock().await.unwrap();
    lease.detach(secs(60)).await.unwrap().release().await.unwrap();
    // Detached, and over before it was told so.
    store.renewal_late_ms.store(200, Ordering::SeqCst);
    let error = locks.mutex("x").lock().await.unwrap().detach(ms(100)).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unknown { what: "detach", why, .. } if why.contains("the new deadline")),
        "{error:?}"
    );
    store.renewal_late_ms.store(0, Ordering::SeqCst);
    locks.settled().await;
    // Gone meanwhile: taken by another, evicted and not known to be, evicted and known to be.
    let lease = locks.mutex("x").lock().await.unwrap();
    locks.evict("x").await.unwrap();
    let other = client(&store, "b").mutex("x").lock().await.unwrap();
    assert_eq!(loss(lease.detach(secs(60)).await.map(drop)), Loss::Taken);
    other.release().await.unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    locks.evict("x").await.unwrap();
    assert_eq!(loss(lease.detach(secs(60)).await.map(drop)), Loss::Deleted);
    let lease = locks.mutex("x").lock().await.unwrap();
    locks.evict("x").await.unwrap();
    lease.lost().await;
    assert_eq!(loss(lease.detach(secs(60)).await.map(drop)), Loss::Deleted);
    // Closed while it is on its way.
    let lease = locks.mutex("slow").lock().await.unwrap();
    let detaching = tokio::spawn(lease.detach(secs(600)));
    tokio::time::sleep(secs(1)).await;
    locks.close().await;
    assert!(matches!(detaching.await.unwrap(), Err(Error::Closed)));
    client(&store, "b").mutex("slow").wait(secs(1)).lock().await.unwrap().release().await.unwrap();
}

#[test]
fn a_detach_is_no_event_and_its_failure_is_the_end_of_a_lease() {
    let heard: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let notes = heard.clone();
    paused_runtime().block_on(async {
        let options = Options::default().on_event(move |event| {
            notes.lock().unwrap().push(match event {
                Event::Acquired { .. } => "acquired",
                Event::Released { held, .. } if held == secs(2) => "released",
                Event::Lost { reason: Loss::Deleted, held, .. } if held == secs(1) => "lost",
                _ => "something else",
            });
            async {}
        });
        let store = ScriptedStore::by(Clock::tokio(), ms(0), |call, name| match (call, name) {
            ("detach", "slow") => Behaviour::SlowlyFails(1_000),
            _ => Behaviour::Answers,
        });
        let locks = options.over(store).unwrap();
        let kept = async |name: &str| {
            let lease = locks.mutex(name).lock().await.unwrap();
            tokio::time::sleep(secs(1)).await;
            lease
        };
        let detached = kept("x").await.detach(secs(60)).await.unwrap();
        tokio::time::sleep(secs(1)).await;
        detached.release().await.unwrap();
        drop(kept("x").await.detach(secs(60)).await.unwrap());
        locks.evict("x").await.unwrap();
        let lease = kept("x").await;
        locks.evict("x").await.unwrap();
        assert_eq!(loss(lease.detach(secs(60)).await.map(drop)), Loss::Deleted);
        assert!(matches!(kept("slow").await.detach(secs(60)).await, Err(Error::Unknown { .. })));
        locks.close().await;
    });
    let heard = heard.lock().unwrap().clone();
    assert_eq!(heard, ["acquired", "released", "acquired", "acquired", "lost", "acquired", "released"]);
}

#[cfg(all(feature = "file", target_os = "linux"))]
const WORKER: ChildTest = child_test!(worker);

/// Holds two locks, detaches one of them, and is killed.
#[cfg(all(feature = "file", target_os = "linux"))]
#[test]
fn worker() {
    common::worker::play(|_, home| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locks = common::stores::on_disk(home, "worker").await;
            let _kept = locks.mutex("kept").ttl(secs(600)).lock().await.unwrap();
            let lease = locks.mutex("x").ttl(secs(600)).lock().await.unwrap();
            let lease = lease.detach(secs(300)).await.unwrap();
            common::worker::say(format!("{} {}", lease.token().expose(), lease.fence().unwrap()));
            common::worker::listen();
        });
    });
}

#[cfg(all(feature = "file", target_os = "linux"))]
#[tokio::test]
async fn it_stays_when_the_process_is_killed_that_had_kept_it() {
    let home = common::home("detach");
    let mut worker = common::worker::Worker::start(WORKER, "hold", home.path());
    let said = worker.hear();
    let (token, fence) = said.split_once(' ').unwrap();
    let fence = Fence::new(fence.parse().unwrap()).unwrap();
    let locks = common::stores::on_disk(home.path(), "test").await;
    assert!(!is_free(&locks, "kept").await && !is_free(&locks, "x").await);
    let next = waiting(&locks, "x", locks.mutex("x").lock()).await;
    drop(worker);
    // The one goes with its process, the other does not.
    let kept = locks.mutex("kept").wait(secs(30)).lock().await.unwrap();
    kept.release().await.unwrap();
    let status = locks.inspect("x").await.unwrap().unwrap();
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 1), "{status:?}");
    assert_eq!(status.holders[0].fence, Some(fence));
    assert!(status.holders[0].remaining < secs(300), "{status:?}");
    let mut lease = locks.detached("x", Token::parse(token).unwrap()).unwrap().with_fence(fence);
    lease.extend(secs(60)).await.unwrap();
    lease.release().await.unwrap();
    assert!(next.await.unwrap().unwrap().fence() > fence);
}

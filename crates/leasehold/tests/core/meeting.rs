//! Tasks of one client that want one name: served by one place in the store, within a bound, and no place is lost.

use leasehold_testkit as common;

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use common::{Behaviour, ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Fence, Lease, Locks, Mutex as Lock};

type Log = Arc<Mutex<Vec<(&'static str, Fence)>>>;

/// A task that takes the lock once, notes its fence, holds for a moment, and lets go.
fn visitor(locks: &Locks, who: &'static str, hold_us: u64, log: &Log) -> tokio::task::JoinHandle<()> {
    let (mutex, log) = (locks.mutex("x"), log.clone());
    tokio::spawn(async move {
        let lease = mutex.lock().await.unwrap();
        log.lock().unwrap().push((who, lease.fence()));
        match hold_us {
            0 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(std::time::Duration::from_micros(hold_us)).await,
        }
        assert!(lease.is_valid());
        let proof = lease.proof();
        lease.release().await.unwrap();
        assert!(!proof.is_valid(), "valid after it was passed on");
    })
}

#[tokio::test(start_paused = true)]
async fn passes_have_distinct_rising_fences_and_spare_the_store() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let log = Log::default();
    let tasks: Vec<_> = (0..64).map(|_| visitor(&locks, "a", 0, &log)).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let fences: Vec<_> = log.lock().unwrap().iter().map(|(_, fence)| *fence).collect();
    assert_eq!(fences.len(), 64);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    // 1 for the first, which came into an empty room, and one for each 16 of the other 63.
    assert_eq!(store.acquires.load(Ordering::SeqCst), 5);
    assert!(locks.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn strict_order_gives_each_task_its_own_place() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    for _ in 0..10 {
        let _ = locks.mutex("x").strict_order().lock().await.unwrap();
    }
    let mutex = locks.mutex("x").strict_order();
    let held = mutex.lock().await.unwrap();
    let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(mutex.lock())).collect();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(locks.inspect("x").await.unwrap().unwrap().waiters.len(), 5);
    let mut last = held.fence();
    held.release().await.unwrap();
    for task in waiting {
        let lease = task.await.unwrap().unwrap();
        assert!(lease.fence() > last);
        last = lease.fence();
        lease.release().await.unwrap();
    }
}

/// How many of `a`'s tasks are served, one after the other, while a task of `b` waits.
async fn longest_run_of_a(hold_us: u64) -> usize {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let log = Log::default();
    let first = a.mutex("x").lock().await.unwrap();
    let mut tasks: Vec<_> = (0..64).map(|_| visitor(&a, "a", hold_us, &log)).collect();
    tokio::time::sleep(ms(1)).await;
    // From here on another client waits, always.
    tasks.extend((0..20).map(|_| visitor(&b, "b", 0, &log)));
    tokio::time::sleep(ms(1)).await;
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let log = log.lock().unwrap();
    assert!(log.is_sorted_by(|(_, one), (_, two)| one < two), "fences rise across clients");
    let until = log.iter().rposition(|(who, _)| *who == "b").unwrap();
    log[..until].split(|(who, _)| *who == "b").map(<[_]>::len).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn while_another_client_waits_at_most_sixteen_are_served_together() {
    let run = longest_run_of_a(0).await;
    assert!(run <= 16, "{run} in a row");
    assert!(run > 1, "tasks of one client are not served together at all");
}

#[tokio::test(start_paused = true)]
async fn while_another_client_waits_a_grant_is_passed_on_for_ten_milliseconds_at_most() {
    let run = longest_run_of_a(3_000).await;
    // The fifth would start after 12 ms.
    assert!((2..=4).contains(&run), "{run} of 3 ms each in a row");
}

#[tokio::test(start_paused = true)]
async fn cancelling_the_first_in_line_does_not_lose_the_place() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b, c) = (client(&store, "a"), client(&store, "b"), client(&store, "c"));
    let log = Log::default();
    let held = a.mutex("x").lock().await.unwrap();
    let first = visitor(&b, "b1", 0, &log);
    tokio::time::sleep(ms(1)).await;
    let second = visitor(&b, "b2", 0, &log);
    tokio::time::sleep(ms(1)).await;
    let other = visitor(&c, "c", 0, &log);
    tokio::time::sleep(ms(1)).await;
    // `b1` polls the one request of client b. It goes; `b2` goes on with it, before `c`.
    first.abort();
    tokio::time::sleep(ms(1)).await;
    held.release().await.unwrap();
    second.await.unwrap();
    other.await.unwrap();
    let order: Vec<_> = log.lock().unwrap().iter().map(|(who, _)| *who).collect();
    assert_eq!(order, ["b2", "c"]);
    assert_eq!(store.acquires.load(Ordering::SeqCst), 3, "one request a client");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_leaves_the_place_to_the_next() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b, c) = (client(&store, "a"), client(&store, "b"), client(&store, "c"));
    let held = a.mutex("x").lock().await.unwrap();
    let impatient = tokio::spawn(b.mutex("x").wait(secs(1)).lock());
    tokio::time::sleep(ms(1)).await;
    let log = Log::default();
    let patient = visitor(&b, "b", 0, &log);
    tokio::time::sleep(ms(1)).await;
    let other = visitor(&c, "c", 0, &log);
    assert!(matches!(impatient.await.unwrap(), Err(leasehold::Error::Busy { .. })));
    held.release().await.unwrap();
    patient.await.unwrap();
    other.await.unwrap();
    let order: Vec<_> = log.lock().unwrap().iter().map(|(who, _)| *who).collect();
    assert_eq!(order, ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_does_not_keep_local_tasks_waiting_for_its_holder() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let lost = locks.mutex("x").lock().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("x").lock());
    tokio::time::sleep(ms(1)).await;
    locks.evict("x").await.unwrap();
    lost.lost().await;
    // Its holder does nothing about it; the next one is served all the same.
    let next = tokio::time::timeout(secs(1), waiting).await.expect("served").unwrap().unwrap();
    assert!(next.fence() > lost.fence());
    drop(lost);
    assert!(next.is_valid(), "a lost lease took the next one with it");
}

#[tokio::test(start_paused = true)]
async fn a_lease_passed_to_a_task_that_is_never_polled_again_ends_with_its_ttl() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = b.mutex("x").lock().await.unwrap();
    let mutex = a.mutex("x");
    let (mut first, mut second, mut stuck) =
        (Box::pin(mutex.lock()), Box::pin(mutex.lock()), Box::pin(mutex.lock()));
    for future in [&mut first, &mut second, &mut stuck] {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    }
    held.release().await.unwrap();
    first.await.unwrap().release().await.unwrap();
    // The second asks with one in line behind it, so its grant has a fence to pass on.
    second.await.unwrap().release().await.unwrap();
    assert_eq!(store.acquires.load(Ordering::SeqCst), 3, "passed on without a request");
    // `stuck` has it now, and nobody polls it. Others get it after a TTL at most.
    let start = tokio::time::Instant::now();
    b.mutex("x").lock().await.unwrap().release().await.unwrap();
    assert!(start.elapsed() > secs(1) && start.elapsed() <= secs(31), "{:?}", start.elapsed());
    assert_eq!(store.renewals.load(Ordering::SeqCst), 0, "renewed for nobody");
    // Polled at last, it finds that its turn has passed, and asks again.
    assert!(stuck.await.unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn two_alternating_tasks_pass_the_lease_locally() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mut held = locks.mutex("x").lock().await.unwrap();
    for _ in 0..10 {
        let next = tokio::spawn(locks.mutex("x").lock());
        tokio::time::sleep(ms(1)).await;
        held.release().await.unwrap();
        held = next.await.unwrap().unwrap();
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 6, "of 11 leases, every second is passed");
}

#[tokio::test(start_paused = true)]
async fn different_ttls_do_not_share_a_grant() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let held = locks.mutex("x").ttl(secs(10)).lock().await.unwrap();
    let other = tokio::spawn(locks.mutex("x").ttl(secs(20)).lock());
    tokio::time::sleep(ms(1)).await;
    assert!(locks.mutex("x").ttl(secs(5)).try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    let lease = other.await.unwrap().unwrap();
    assert!(lease.remaining() > secs(19));
}

/// Two tasks in line behind a holder: what the first gets is passed to the second, if it can be.
async fn one_after_the_other(locks: &Locks, first: Lock, second: Lock) -> Lease {
    let held = locks.mutex("x").lock().await.unwrap();
    let first = tokio::spawn(first.lock());
    tokio::time::sleep(ms(1)).await;
    let second = tokio::spawn(second.lock());
    tokio::time::sleep(ms(1)).await;
    held.release().await.unwrap();
    first.await.unwrap().unwrap().release().await.unwrap();
    second.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_has_the_terms_its_own_task_asked_for() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let plain = || locks.mutex("x");

    let lease = one_after_the_other(&locks, plain().max_hold(secs(20)), plain()).await;
    tokio::time::sleep(secs(21)).await;
    assert!(lease.is_valid(), "ended by somebody else's hold limit: {:?}", lease.loss());
    lease.release().await.unwrap();

    let lease = one_after_the_other(&locks, plain(), plain().max_hold(ms(100))).await;
    tokio::time::sleep(secs(1)).await;
    assert!(!lease.is_valid(), "past its own hold limit");
    drop(lease);

    let lease = one_after_the_other(&locks, plain().no_renewal(), plain()).await;
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid(), "not renewed, because somebody else's was not: {:?}", lease.loss());
    lease.release().await.unwrap();

    let lease = one_after_the_other(&locks, plain().owner("first"), plain().owner("second")).await;
    let status = locks.inspect("x").await.unwrap().unwrap();
    assert_eq!(status.holders[0].owner.as_str(), "second");
    lease.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_try_leaves_nothing_that_would_end_a_wait() {
    let slow = |call: &str, _: &str| if call == "acquire" { Behaviour::Slow(50) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = b.mutex("x").lock().await.unwrap();
    let trying = tokio::spawn(a.mutex("x").try_lock());
    tokio::time::sleep(ms(10)).await;
    let waiting = tokio::spawn(a.mutex("x").lock());
    tokio::time::sleep(ms(10)).await;
    trying.abort();
    tokio::time::sleep(secs(1)).await;
    assert!(!waiting.is_finished(), "a wait without end was over: {:?}", waiting.await);
    held.release().await.unwrap();
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_is_not_used_for_a_ttl_goes_to_the_next() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mutex = locks.mutex("x").ttl(secs(1));
    let held = mutex.lock().await.unwrap();
    // Seated from the line and never polled; forgotten even, so that nothing tells of it.
    let mut forgotten = Box::pin(mutex.lock());
    let polled = std::future::poll_fn(|cx| Poll::Ready(forgotten.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    std::mem::forget(forgotten);
    held.release().await.unwrap();
    let lease = tokio::time::timeout(secs(3), mutex.lock()).await.expect("served").unwrap();
    lease.release().await.unwrap();

    // Kept across another branch of the same task that wants the same lock.
    let held = mutex.lock().await.unwrap();
    let mut kept = std::pin::pin!(mutex.lock());
    tokio::select! {
        biased;
        _ = &mut kept => panic!("granted beside a holder"),
        () = tokio::time::sleep(ms(100)) => {}
    }
    held.release().await.unwrap();
    let lease = tokio::time::timeout(secs(5), mutex.lock()).await.expect("served").unwrap();
    lease.release().await.unwrap();
    // Polled again, it is served too.
    assert!(tokio::time::timeout(secs(5), kept).await.expect("served").is_ok());
}

#[tokio::test(start_paused = true)]
async fn everybody_in_line_hears_of_an_outage_at_once() {
    // It takes a second to find out that there is no answer.
    let down = |call: &str, _: &str| {
        if call == "acquire" { Behaviour::SlowlyFails(1_000) } else { Behaviour::Answers }
    };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), down);
    let locks = client(&store, "a");
    let waiting: Vec<_> = (0..100).map(|_| tokio::spawn(locks.mutex("x").lock())).collect();
    let start = tokio::time::Instant::now();
    for task in waiting {
        assert!(matches!(task.await.unwrap(), Err(Error::Unreachable { .. })));
    }
    assert!(start.elapsed() < secs(2), "one after the other: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_tells_those_who_wait() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = a.mutex("x").lock().await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| tokio::spawn(b.mutex("x").lock()))
        .chain([tokio::spawn(b.mutex("x").strict_order().lock())])
        .collect();
    tokio::time::sleep(ms(1)).await;
    assert_eq!(a.inspect("x").await.unwrap().unwrap().waiters.len(), 2);
    b.close().await;
    for task in waiting {
        let end = tokio::time::timeout(secs(1), task).await.expect("told").unwrap();
        assert!(matches!(end, Err(Error::Closed)), "{end:?}");
    }
    b.settled().await;
    assert_eq!(a.inspect("x").await.unwrap().unwrap().waiters.len(), 0);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_who_lost_the_seat_and_is_granted_the_lease_late_passes_nothing_on() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let (ours, theirs) = (a.mutex("x").ttl(secs(1)), b.mutex("x").ttl(secs(1)));
    let poll = async |future: &mut Pin<Box<dyn Future<Output = leasehold::Result<Lease>> + Send>>| {
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    };
    let held = ours.lock().await.unwrap();
    let mut late: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(ours.lock());
    assert!(poll(&mut late).await.is_pending());
    let second = tokio::spawn(ours.lock());
    let taken = tokio::spawn(theirs.lock());
    tokio::time::sleep(ms(1)).await;
    held.release().await.unwrap();
    let taken = taken.await.unwrap().unwrap();
    // Seated, it asks for two, since one stands in line behind it; and then it is not polled for a while.
    assert!(poll(&mut late).await.is_pending());
    tokio::time::sleep(secs(3)).await;
    // The second has its seat by now, and stands in the store's queue. The late one joins behind it.
    assert!(poll(&mut late).await.is_pending());
    let third = tokio::spawn(ours.lock());
    tokio::time::sleep(ms(1)).await;
    let fourth = tokio::spawn(ours.lock());
    tokio::time::sleep(ms(1)).await;
    taken.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    let late = tokio::time::timeout(secs(5), late).await.expect("served").unwrap();
    late.release().await.unwrap();
    let third = tokio::time::timeout(secs(5), third).await.expect("served").unwrap().unwrap();
    third.release().await.unwrap();
    fourth.await.unwrap().unwrap().release().await.unwrap();
    assert!(a.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn closing_withdraws_what_was_asked_for_also_where_nobody_polls_it() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let held = b.mutex("x").lock().await.unwrap();
    let mut idle = Box::pin(a.mutex("x").lock());
    let polled = std::future::poll_fn(|cx| Poll::Ready(idle.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    // Granted by the store, and not polled since.
    held.release().await.unwrap();
    a.close().await;
    assert!(b.inspect("x").await.unwrap().is_none(), "closed, and something is still held");
    assert!(matches!(idle.await, Err(Error::Closed)));
    // Polled after all, it does not ask again with a token that was released.
    assert!(b.inspect("x").await.unwrap().is_none(), "held again after it was closed");
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_asked_once_for_all_who_wait() {
    let slow =
        |call: &str, _: &str| if call == "acquire" { Behaviour::Slow(10_000) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
    let locks = client(&store, "a");
    let waiting: Vec<_> = (0..8).map(|_| tokio::spawn(locks.mutex("x").ttl(secs(1)).lock())).collect();
    tokio::time::sleep(ms(9_900)).await;
    assert_eq!(store.acquires.load(Ordering::SeqCst), 1, "one place, one request");
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_for_one_does_not_panic_for_the_next() {
    let panics = |call: &str, name: &str| match (call, name) {
        ("acquire", "x") => Behaviour::PanicsLate,
        _ => Behaviour::Answers,
    };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), panics);
    let locks = client(&store, "a");
    let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(locks.mutex("x").lock())).collect();
    for (i, task) in waiting.into_iter().enumerate() {
        let end = tokio::time::timeout(secs(60), task).await.expect("an end");
        // Each asks for itself, and each call panics once, "on purpose"; none goes on with what another left.
        let panic = end.expect_err("this store always panics").into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"), "task {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_passed_on_and_evicted_meanwhile_does_not_end_the_wait_of_its_taker() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mutex = locks.mutex("x").min_validity(secs(25));
    let held = mutex.lock().await.unwrap();
    let first = tokio::spawn(mutex.lock());
    tokio::time::sleep(ms(1)).await;
    let mut second = Box::pin(mutex.lock());
    let polled = std::future::poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
    held.release().await.unwrap();
    first.await.unwrap().unwrap().release().await.unwrap();
    // Passed to the second, which picks it up late; by then an operator has taken it.
    locks.evict("x").await.unwrap();
    tokio::time::sleep(secs(8)).await;
    let lease = second.await.unwrap();
    assert!(lease.is_valid());
}

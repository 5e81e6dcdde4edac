//! Losing a lease: at its deadline whatever the store does, as an event with a reason, and never in silence.

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Behaviour, ScriptedStore, client, ms, secs, two_clients};
use leasehold::store::faulty::{Faulty, Plan};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Error, Event, Locks, Loss, Options};
use tokio::sync::mpsc;

/// A client that passes on every event it hears.
fn overheard(store: &Arc<ScriptedStore>) -> (Locks, mpsc::UnboundedReceiver<Event>) {
    let (sender, events) = mpsc::unbounded_channel();
    let options = Options::default().on_event(move |event| {
        let _ = sender.send(event);
        async {}
    });
    (options.over(store.clone()).unwrap(), events)
}

/// Runs guarded work on a store that hangs for ever, and returns how long the lease was believed in.
async fn a_hanging_store(clock: Clock, ttl: Duration) -> Duration {
    let store = ScriptedStore::new(clock.clone());
    let (locks, mut events) = overheard(&store);
    let lease = locks.mutex("x").ttl(ttl).lock().await.unwrap();
    let proof = lease.proof();
    let start = clock.now();
    store.hang();

    let cancelled = Arc::new(AtomicBool::new(false));
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let guard = OnDrop(cancelled.clone());
    let end = lease
        .run(|_| async move {
            let _guard = guard;
            std::future::pending::<()>().await
        })
        .await;
    let believed = clock.now().since(start);

    assert!(matches!(end, Err(Error::Lost { reason: Loss::Unreachable, .. })), "{end:?}");
    assert!(cancelled.load(Ordering::SeqCst), "the work goes on");
    assert!(!proof.is_valid());
    let reason = loop {
        if let Event::Lost { reason, .. } = events.recv().await.unwrap() {
            break reason;
        }
    };
    assert_eq!(reason, Loss::Unreachable);
    believed
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_for_ever_loses_the_lease_at_its_deadline() {
    let believed = a_hanging_store(Clock::tokio(), secs(30)).await;
    // 30 s less a drift of 302 ms; a timer of tokio's may be a millisecond late.
    assert!(believed >= ms(29_697) && believed <= ms(29_700), "{believed:?}");
}

#[tokio::test]
async fn a_store_that_hangs_for_ever_loses_the_lease_on_the_real_clock_too() {
    let believed = a_hanging_store(Clock::system().unwrap(), ms(300)).await;
    assert!(believed >= ms(290), "lost before its deadline: {believed:?}");
}

#[tokio::test]
async fn a_thread_that_stood_still_past_the_deadline_finds_its_lease_lost_at_the_first_look() {
    // One thread, which blocks: neither the keeper nor a timer gets to run before the look.
    let locks = leasehold::connect("memory:").await.unwrap();
    let lease = locks.mutex("x").ttl(ms(30)).lock().await.unwrap();
    assert!(lease.is_valid());
    std::thread::sleep(ms(60));
    assert!(!lease.is_valid());
    assert_eq!(lease.lost().await, Loss::Expired);
    assert!(matches!(lease.release().await, Err(Error::Lost { reason: Loss::Expired, .. })));
}

#[tokio::test]
async fn a_machine_that_slept_past_the_ttl_finds_its_lease_lost_at_the_first_look() {
    let clock = Clock::manual();
    let store = ScriptedStore::new(clock.clone());
    let locks = client(&store, "a");
    let lease = locks.mutex("x").lock().await.unwrap();
    // Suspended: time passes and no timer fires.
    clock.sleep_through(secs(3_600));
    assert!(!lease.is_valid(), "valid by the clock of before the suspend");
    assert_eq!(lease.loss(), Some(Loss::Expired));
    clock.advance(ms(1));
    tokio::task::yield_now().await;
    locks.settled().await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 0, "a renewal was sent after the deadline");
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_is_tried_again() {
    let store = ScriptedStore::new(Clock::tokio());
    let (locks, mut events) = overheard(&store);
    let lease = locks.mutex("x").lock().await.unwrap();
    store.failing_renewals.store(3, Ordering::SeqCst);
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
    let mut failures = 0;
    while let Ok(event) = events.try_recv() {
        failures += usize::from(matches!(event, Event::RenewalFailed { .. }));
    }
    assert_eq!(failures, 3);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_works_after_failures_is_one_event_with_their_number() {
    let store = ScriptedStore::new(Clock::tokio());
    let (locks, mut events) = overheard(&store);
    let lease = locks.mutex("x").lock().await.unwrap();
    store.failing_renewals.store(3, Ordering::SeqCst);
    tokio::time::sleep(secs(60)).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
    let mut recovered = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::RenewalRecovered { failures, remaining, .. } = event {
            assert!(remaining > secs(25), "the new deadline, not the old one: {remaining:?}");
            recovered.push(failures);
        }
    }
    assert_eq!(recovered, [3]);
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_at_about_the_same_time_are_renewed_together() {
    const LEASES: u64 = 1_000;
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mut leases = Vec::new();
    for i in 0..LEASES {
        leases.push(locks.mutex(format!("{i}")).lock().await.unwrap());
        tokio::time::sleep(ms(10)).await;
    }
    let before = store.renewals.load(Ordering::SeqCst);
    tokio::time::sleep(secs(100)).await;
    assert!(leases.iter().all(|lease| lease.is_valid()));
    // Each about ten times, in steps of a hundredth of a third of the TTL.
    let asked = store.renewals.load(Ordering::SeqCst) - before;
    assert!(asked <= 1_010, "{asked} requests for {} renewals", LEASES * 10);
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_until_the_deadline_lose_the_lease() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let lease = locks.mutex("x").lock().await.unwrap();
    store.failing_renewals.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(lease.lost().await, Loss::Unreachable);
    assert!(store.renewals.load(Ordering::SeqCst) > 5, "tried again until the deadline");
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none(), "the store is told");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_its_hold_limit_is_reached_and_the_next_is_served() {
    let (a, b) = two_clients();
    let lease = a.mutex("x").max_hold(secs(45)).lock().await.unwrap();
    let waiting = tokio::spawn(async move { b.mutex("x").lock().await.map(|lease| lease.fence()) });
    let start = tokio::time::Instant::now();
    assert_eq!(lease.lost().await, Loss::HoldLimit);
    assert!(start.elapsed() >= secs(45) && start.elapsed() < ms(45_010), "{:?}", start.elapsed());
    assert!(waiting.await.unwrap().unwrap() > lease.fence());
    assert!(lease.extend(secs(10)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_extended_lease_lasts_and_a_shorter_extension_takes_nothing_away() {
    let (a, _) = two_clients();
    let lease = a.mutex("x").ttl(secs(10)).no_renewal().lock().await.unwrap();
    lease.extend(secs(60)).await.unwrap();
    assert!(lease.remaining() > secs(59));
    lease.extend(secs(1)).await.unwrap();
    assert!(lease.remaining() > secs(59), "{:?}", lease.remaining());
    assert!(matches!(lease.extend(Duration::ZERO).await, Err(Error::Invalid { .. })));
    tokio::time::sleep(secs(58)).await;
    assert!(lease.is_valid());
    assert_eq!(lease.lost().await, Loss::Expired);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_hangs_ends_with_the_lease() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let lease = locks.mutex("x").no_renewal().lock().await.unwrap();
    store.hang();
    let end = lease.extend(secs(30)).await;
    assert!(matches!(end, Err(Error::Lost { reason: Loss::Expired, .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_late_is_renewed_before_it_is_handed_out() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    store.grant_late_ms.store(20_000, Ordering::SeqCst);
    let lease = locks.mutex("x").lock().await.unwrap();
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    assert!(lease.remaining() > secs(29), "{:?}", lease.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_late_and_cannot_be_renewed_in_time_is_given_back() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    store.grant_late_ms.store(20_000, Ordering::SeqCst);
    store.renewal_late_ms.store(20_000, Ordering::SeqCst);
    let error = locks.mutex("x").min_validity(secs(15)).lock().await.unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error:?}");
    // An outage is not a TTL that is too short.
    store.failing_renewals.store(1, Ordering::SeqCst);
    let error = locks.mutex("x").lock().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none(), "given back");
    // One who can do with less gets it.
    assert!(locks.mutex("x").min_validity(secs(5)).lock().await.is_ok());
    // One that comes after its own deadline is nobody's, and is not renewed.
    store.grant_late_ms.store(40_000, Ordering::SeqCst);
    let renewals = store.renewals.load(Ordering::SeqCst);
    let error = locks.mutex("y").no_renewal().min_validity(Duration::ZERO).lock().await.unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error:?}");
    assert_eq!(store.renewals.load(Ordering::SeqCst), renewals, "renewed past its deadline");
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_look_like_contention() {
    let store = ScriptedStore::new(Clock::tokio());
    let (a, b) = (client(&store, "a"), client(&store, "b"));
    let _lease = a.mutex("x").lock().await.unwrap();
    store.hang();
    for mutex in [b.mutex("x"), b.mutex("x").strict_order(), a.mutex("x").ttl(secs(7))] {
        let error = mutex.wait(secs(5)).lock().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_unknown_and_good_work_is_kept() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let lease = locks.mutex("x").lock().await.unwrap();
    let other = locks.mutex("y").lock().await.unwrap();
    let work = other.run(|_| async {
        store.hang();
        "done"
    });
    assert_eq!(work.await.unwrap(), "done");
    let end = lease.release().await;
    assert!(matches!(end, Err(Error::Unknown { what: "release", .. })), "{end:?}");
    // The janitor does not try for ever: by then the TTL has done it.
    tokio::time::timeout(secs(120), locks.settled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn both_batches_hanging_do_not_keep_other_leases_from_being_renewed() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mut leases = Vec::new();
    for i in 0..700 {
        leases.push(locks.mutex(format!("{i}")).lock().await.unwrap());
    }
    store.hang();
    // Both batches are under way and hang; then the store is back, well before the deadlines.
    tokio::time::sleep(secs(12)).await;
    store.hangs.store(false, Ordering::SeqCst);
    tokio::time::sleep(secs(60)).await;
    let lost = leases.iter().filter(|lease| !lease.is_valid()).count();
    assert_eq!(lost, 0, "of 700 leases");
}

#[test]
fn a_runtime_that_shuts_down_tells_whoever_relies_on_a_lease() {
    let clock = Clock::manual();
    let store = Arc::new(Memory::new(clock.clone()));
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lease = first.block_on(async { client(&store, "a").mutex("x").lock().await.unwrap() });
    let leaked = first.block_on(async { client(&store, "a").mutex("y").lock().await.unwrap() });
    std::mem::forget(leaked);
    assert!(lease.is_valid());
    drop(first);
    assert_eq!(lease.loss(), Some(Loss::Closed), "nobody renews it any more");
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    second.block_on(async {
        assert_eq!(lease.lost().await, Loss::Closed);
        // No renewing for the dead: the TTL ends both.
        clock.advance(secs(31));
        let other = client(&store, "b");
        assert!(other.mutex("x").try_lock().await.unwrap().is_some());
        assert!(other.mutex("y").try_lock().await.unwrap().is_some());
    });
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn long_leases_whose_renewal_hangs_do_not_cost_a_short_one_its_life() {
    let hangs_for_long = |call: &str, name: &str| match (call, name) {
        ("renew", "short") => Behaviour::Answers,
        ("renew", _) => Behaviour::Hangs,
        _ => Behaviour::Answers,
    };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, hangs_for_long);
    let locks = client(&store, "a");
    let _one = locks.mutex("one").lock().await.unwrap();
    let _two = locks.mutex("two").lock().await.unwrap();
    tokio::time::sleep(ms(8_900)).await;
    let short = locks.mutex("short").ttl(ms(600)).lock().await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert!(short.is_valid(), "{:?}", short.loss());
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_not_a_dead_one() {
    // Each answer takes longer than the patience of a 300 ms lease, and comes well before its deadline.
    let slow = |call: &str, _: &str| if call == "renew" { Behaviour::Slow(60) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, slow);
    let locks = client(&store, "a");
    let lease = locks.mutex("x").ttl(ms(300)).lock().await.unwrap();
    tokio::time::sleep(secs(5)).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
}

#[tokio::test(start_paused = true)]
async fn work_that_ended_under_a_valid_lease_is_kept_though_its_release_was_slow() {
    let slow = |call: &str, _: &str| if call == "release" { Behaviour::Slow(50) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, slow);
    let locks = client(&store, "a");
    let lease = locks.mutex("x").ttl(ms(300)).no_renewal().lock().await.unwrap();
    tokio::time::sleep(ms(270)).await;
    assert!(lease.is_valid());
    // By the time the release is executed, the claim has expired.
    assert_eq!(lease.run(|_| async { "done" }).await.unwrap(), "done");
}

#[tokio::test]
async fn a_hold_limit_below_half_the_ttl_is_no_reason_to_refuse() {
    let locks = leasehold::connect("memory:").await.unwrap();
    let lease = locks.mutex("x").max_hold(secs(5)).lock().await.unwrap();
    assert!(lease.remaining() <= secs(5) && lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_definite_refusal_of_an_extension_is_not_unknown() {
    let (a, _) = two_clients();
    let lease = a.mutex("x").lock().await.unwrap();
    assert!(matches!(lease.extend(Duration::MAX).await, Err(Error::Invalid { what: "TTL", .. })));
    assert!(lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_hears_of_the_next_loss_all_the_same() {
    let heard = Arc::new(AtomicBool::new(false));
    let note = heard.clone();
    let options = Options::default().on_event(move |event| {
        let note = note.clone();
        async move {
            match event {
                Event::Acquired { .. } => panic!("on purpose"),
                Event::Lost { .. } => note.store(true, Ordering::SeqCst),
                _ => {}
            }
        }
    });
    let locks = options.over(Arc::new(Memory::new(Clock::tokio()))).unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    locks.evict("x").await.unwrap();
    lease.lost().await;
    // Closing waits until the hook has heard the last event.
    locks.close().await;
    assert!(heard.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn sleeping_works_on_a_clock_of_any_age() {
    let clock = Clock::tokio();
    for days in [1, 399, 401, 4_000] {
        tokio::time::advance(secs(days * 86_400)).await;
        let start = tokio::time::Instant::now();
        clock.sleep_until(clock.now().plus(secs(10))).await;
        assert!(start.elapsed() >= secs(10), "slept {:?} of 10 s", start.elapsed());
    }
}

#[test]
fn a_runtime_without_timers_of_its_own_is_a_clear_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { leasehold::connect("memory:").await.unwrap_err() });
    assert!(error.to_string().contains("enable_all"), "{error}");
    let outside = std::panic::catch_unwind(|| Clock::system().unwrap_err());
    assert!(matches!(outside.unwrap(), Error::Invalid { .. }));
}

#[tokio::test(start_paused = true)]
async fn calls_that_do_not_wait_end_on_a_store_that_hangs() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    store.hang();
    let silent = |error: Error| assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let start = tokio::time::Instant::now();
    silent(locks.mutex("x").try_lock().await.unwrap_err());
    silent(locks.mutex("x").strict_order().try_lock().await.unwrap_err());
    silent(locks.mutex("x").wait(Duration::ZERO).lock().await.unwrap_err());
    silent(locks.inspect("x").await.unwrap_err());
    silent(locks.list("", 1).await.unwrap_err());
    silent(locks.evict("x").await.unwrap_err());
    assert!(start.elapsed() < secs(60), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_never_handed_out_is_nobodys_loss() {
    let store = ScriptedStore::new(Clock::tokio());
    let (locks, mut events) = overheard(&store);
    store.grant_late_ms.store(40_000, Ordering::SeqCst);
    assert!(matches!(locks.mutex("x").lock().await, Err(Error::Late { .. })));
    locks.close().await;
    while let Ok(event) = events.try_recv() {
        assert!(!matches!(event, Event::Lost { .. }), "{event:?}");
    }
}

#[tokio::test]
async fn an_answer_that_comes_after_the_deadline_revives_nothing() {
    let clock = Clock::manual();
    let store = ScriptedStore::new(clock.clone());
    let locks = client(&store, "a");
    store.renewal_late_ms.store(5_000, Ordering::SeqCst);
    let lease = locks.mutex("x").lock().await.unwrap();
    // The renewal is executed at about a third of the TTL; its answer, good until 39 s, is still on its way …
    clock.advance(secs(11));
    settle().await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1);
    // … when the machine is suspended, past the deadline the lease had, and both are noticed at once.
    clock.advance(secs(24));
    settle().await;
    assert_eq!(lease.loss(), Some(Loss::Unreachable), "valid again after its deadline");
}

/// Lets every task that can run, run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn errors_say_what_happened_to_what_and_what_to_do() {
    let silent = |call: &str, name: &str| match (call, name) {
        ("renew" | "release", _) | ("inspect", "z") => Behaviour::Fails,
        _ => Behaviour::Answers,
    };
    let store = ScriptedStore::by(Clock::tokio(), Duration::ZERO, silent);
    let locks = client(&store, "web-3:4711");
    let lease = locks.mutex("x").lock().await.unwrap();
    let evicted = locks.mutex("y").no_renewal().ttl(secs(1)).lock().await.unwrap();
    let said = [
        locks.mutex("x").wait(secs(2)).lock().await.unwrap_err(),
        locks.mutex("a{b").lock().await.unwrap_err(),
        locks.mutex("x").ttl(Duration::ZERO).lock().await.unwrap_err(),
        locks.inspect("z").await.unwrap_err(),
        lease.extend(secs(60)).await.unwrap_err(),
        lease.release().await.unwrap_err(),
        evicted.release().await.unwrap_err(),
        leasehold::connect("gopher://user:secret@host/").await.unwrap_err(),
        leasehold::connect("/tmp/locks").await.unwrap_err(),
    ];
    let expected = [
        "`x` is held by web-3:4711 for another 28 s unless renewed; waited 2.0 s",
        "invalid name `a{b`: a name has no braces; they mean something to Redis Cluster",
        "invalid TTL `0 ms`: a TTL lies between 10 ms and 366 days (to hold longer, let the lease be renewed)",
        "the scripted store gave no answer: on purpose; see that it runs and can be reached, then try again",
        "whether the lease on `x` was extended is unknown (the scripted store gave no answer: on purpose; see that it runs \
         and can be reached, then try again); it lasts as long as it did before, so look at what remains, or try again",
        "whether `x` was released is unknown (the scripted store gave no answer: on purpose; see that it runs and can be \
         reached, then try again); it was protected until now, and is being given back in the background",
        "the lease on `y` was lost: its deadline passed without renewal; roll back what it protected",
        "invalid store URL `gopher:…`: no such store in this build; it has `file:`, `redis:`, `redlock:`, `memory:`",
        "invalid store URL `…`: it has no scheme; write SCHEME:…, such as `file:/var/lib/locks`",
    ];
    for (said, expected) in said.iter().zip(expected) {
        assert_eq!(said.to_string(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_late_and_surely_keeps_a_lease() {
    for late_ms in [60, 300, 450, 550, 600] {
        let store = ScriptedStore::new(Clock::tokio());
        let locks = client(&store, "a");
        store.renewal_late_ms.store(late_ms, Ordering::SeqCst);
        let lease = locks.mutex("x").ttl(secs(1)).lock().await.unwrap();
        tokio::time::sleep(secs(120)).await;
        assert!(lease.is_valid(), "answers {late_ms} ms late: {:?}", lease.loss());
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_do_not_pile_up() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let _lease = locks.mutex("x").ttl(secs(24 * 3_600)).lock().await.unwrap();
    store.hang();
    tokio::time::sleep(secs(20 * 3_600)).await;
    let (most, now) = (store.under_way_max.load(Ordering::SeqCst), store.under_way.load(Ordering::SeqCst));
    assert!(most <= 16, "{most} at a time, {now} now");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_heard_of_after_a_shorter_extension_and_under_a_hold_limit() {
    let (a, b) = two_clients();
    let extended = a.mutex("x").ttl(secs(3_600)).lock().await.unwrap();
    extended.extend(secs(10)).await.unwrap();
    let capped = a.mutex("y").ttl(secs(60)).max_hold(secs(50)).lock().await.unwrap();
    b.evict("x").await.unwrap();
    b.evict("y").await.unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(extended.lost().await, Loss::Deleted);
    assert!(start.elapsed() <= secs(4), "{:?}", start.elapsed());
    assert_eq!(capped.lost().await, Loss::Deleted);
    assert!(start.elapsed() <= secs(22), "{:?}", start.elapsed());
}

#[test]
fn a_release_that_meets_the_closing_of_its_client_is_no_loss() {
    for seed in 0..500 {
        common::paused_runtime().block_on(async {
            let memory = Arc::new(Memory::new(Clock::tokio()));
            let plan = Plan { delay_max: ms(5), ..Plan::calm(seed) };
            let locks = client(&Arc::new(Faulty::new(memory, plan)), "a");
            let lease = locks.mutex("x").lock().await.unwrap();
            let (released, ()) = tokio::join!(lease.release(), locks.close());
            assert!(
                matches!(released, Ok(()) | Err(Error::Unknown { .. })),
                "seed {seed}: good work is rolled back: {released:?}"
            );
        });
    }
}

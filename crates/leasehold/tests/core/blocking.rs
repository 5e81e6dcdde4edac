//! The blocking face: the same locks from plain threads, and a clear error where blocking would stall a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Error, Loss, Token, blocking};

#[test]
fn threads_exclude_each_other_and_nothing_is_lost() {
    let locks = blocking::connect("memory:").unwrap();
    let counter = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (locks, counter) = (locks.clone(), counter.clone());
            scope.spawn(move || {
                for _ in 0..100 {
                    let lease = locks.mutex("x").lock().unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                    lease.release().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), 800);
    assert!(locks.inspect("x").unwrap().is_none());
}

#[test]
fn run_reports_a_lost_lease() {
    let locks = blocking::connect("memory:").unwrap();
    let result = locks.mutex("x").run(|_| locks.evict("x").unwrap());
    assert!(matches!(result, Err(Error::Lost { reason: Loss::Deleted, .. })), "{result:?}");
    assert!(locks.mutex("x").run(|lease| lease.is_valid()).unwrap());
}

#[test]
fn a_loss_can_be_waited_for() {
    let locks = blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").ttl(Duration::from_millis(50)).no_renewal().lock().unwrap();
    assert_eq!(lease.wait_lost(Duration::from_secs(60)).unwrap(), Some(Loss::Expired));
    let lease = locks.mutex("x").lock().unwrap();
    assert_eq!(lease.wait_lost(Duration::from_millis(1)).unwrap(), None);
    lease.extend(Duration::from_secs(60)).unwrap();
    assert!(lease.remaining() > Duration::from_secs(50));
}

#[test]
fn a_panic_under_the_lock_lets_it_go() {
    let locks = blocking::connect("memory:").unwrap();
    let inner = locks.clone();
    let panicked = std::thread::spawn(move || inner.mutex("x").run(|_| panic!("on purpose"))).join();
    assert!(panicked.is_err());
    locks.settled().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_some());
}

#[test]
fn inside_a_runtime_it_is_an_error_and_not_a_panic() {
    let locks = blocking::connect("memory:").unwrap();
    let refused = |locks: &blocking::Locks| matches!(locks.mutex("x").lock(), Err(Error::InsideRuntime));
    assert!(!refused(&locks));
    for runtime in [
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap(),
    ] {
        runtime.block_on(async {
            assert!(refused(&locks), "in block_on");
            let inner = locks.clone();
            tokio::spawn(async move { assert!(refused(&inner), "in a task") }).await.unwrap();
            let inner = locks.clone();
            let allowed = tokio::task::spawn_blocking(move || !refused(&inner)).await.unwrap();
            assert!(allowed, "on a thread where blocking is fine");
            assert!(matches!(blocking::connect("memory:"), Err(Error::InsideRuntime)));
        });
        // The probe gave back the budget it took, and a thread that merely knows a runtime may block.
        let _context = runtime.enter();
        assert!(!refused(&locks), "outside any task");
    }
}

#[test]
fn a_lease_keeps_its_client_alive() {
    let locks = blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").ttl(Duration::from_millis(900)).lock().unwrap();
    let proof = lease.proof();
    drop(locks);
    assert_eq!(lease.wait_lost(Duration::from_millis(2_000)).unwrap(), None, "it is still renewed");
    drop(lease);
    assert_eq!(proof.loss(), Some(Loss::Released));
}

#[test]
fn a_detached_lease_is_taken_up_again_and_let_go() {
    let locks = blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").ttl(Duration::from_secs(60)).lock_detached().unwrap();
    let (note, fence) = (lease.token().expose().to_owned(), lease.fence().unwrap());
    assert!(lease.remaining() > Duration::from_secs(50));
    drop(lease);
    locks.settled().unwrap();
    assert!(locks.mutex("x").try_lock_detached().unwrap().is_none());
    let mut lease = locks.detached("x", Token::parse(&note).unwrap()).unwrap().with_fence(fence);
    assert!(lease.remaining().is_zero());
    lease.extend(Duration::from_secs(90)).unwrap();
    assert!(lease.remaining() > Duration::from_secs(80));
    assert_eq!((lease.names().to_string(), lease.fence()), ("`x`".to_owned(), Some(fence)));
    lease.release().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_some());
}

#[test]
fn a_kept_lease_is_detached() {
    let locks = blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").lock().unwrap();
    let fence = lease.fence();
    let lease = lease.detach(Duration::from_secs(60)).unwrap();
    assert!(lease.fence() == Some(fence) && lease.remaining() > Duration::from_secs(50));
    let note = lease.token().expose().to_owned();
    drop(lease);
    locks.settled().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_none());
    locks.detached("x", Token::parse(&note).unwrap()).unwrap().release().unwrap();
    let refused = locks.mutex("x").lock().unwrap().detach(Duration::ZERO);
    assert!(matches!(refused, Err(Error::Invalid { what: "TTL", .. })));
    locks.settled().unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_some());
}

#[test]
fn readers_share_and_permits_add_up() {
    let locks = blocking::connect("memory:").unwrap();
    let rwlock = locks.rwlock("x").wait(Duration::from_millis(10));
    let readers = [rwlock.read().unwrap(), rwlock.try_read().unwrap().unwrap()];
    assert!(rwlock.try_write().unwrap().is_none());
    assert!(matches!(rwlock.write(), Err(Error::Busy { .. })));
    readers.into_iter().for_each(|reader| reader.release().unwrap());
    let writer = rwlock.write().unwrap();
    assert!(rwlock.try_read().unwrap().is_none() && locks.mutex("x").try_lock().unwrap().is_none());
    writer.release().unwrap();

    let semaphore = locks.semaphore("x", 3).wait(Duration::from_millis(10)).owner("upload");
    let (one, two) = (semaphore.acquire().unwrap(), semaphore.acquire_many(2).unwrap());
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(matches!(semaphore.clone().barging().acquire(), Err(Error::Busy { .. })));
    one.release().unwrap();
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    semaphore.try_acquire_many(1).unwrap().unwrap().release().unwrap();
    two.run(|proof| assert!(proof.is_valid())).unwrap();
    assert!(matches!(semaphore.acquire_many(4), Err(Error::Invalid { what: "permits", .. })));
}

#[test]
fn clients_of_one_store_exclude_each_other_and_a_lost_lease_is_rolled_back() {
    let store = std::sync::OnceLock::new();
    let a = blocking::over(leasehold::Options::default().owner("a"), || {
        let shared: Arc<dyn leasehold::Store> =
            Arc::new(leasehold::store::memory::Memory::new(leasehold::Clock::system()?));
        Ok(store.get_or_init(|| shared).clone())
    })
    .unwrap();
    let shared = store.get().unwrap().clone();
    let b = blocking::over(leasehold::Options::default().owner("b"), || Ok(shared)).unwrap();
    let mut undone = None;
    let end = a.mutex("x").run_or_rollback(
        |proof| {
            assert!(b.mutex("x").try_lock().unwrap().is_none());
            b.evict("x").unwrap();
            proof.fence()
        },
        |setback| undone = Some((setback.fence, setback.output)),
    );
    assert!(matches!(end, Err(Error::Lost { reason: Loss::Deleted, .. })), "{end:?}");
    let (fence, output) = undone.unwrap();
    assert_eq!(output, Some(fence), "the work had come to its end");
    assert!(matches!(
        blocking::over(leasehold::Options::default().owner(""), || panic!("not asked")),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn a_reentrant_lock_has_the_options_of_the_async_one() {
    let locks = blocking::connect("memory:").unwrap();
    let job = locks.owner("import-7");
    let too_much = job.mutex("x").ttl(Duration::from_secs(1)).min_validity(Duration::from_secs(1));
    assert!(matches!(too_much.lock(), Err(Error::Invalid { what: "min_validity", .. })));
    let unrenewed = job.mutex("x").ttl(Duration::from_millis(50)).no_renewal().lock().unwrap();
    let next = locks.mutex("x").wait(Duration::from_secs(60)).lock();
    assert!(next.is_ok(), "a lease without renewal ends with its TTL: {next:?}");
    assert_eq!(unrenewed.loss(), Some(Loss::Expired));
}

#[test]
fn the_loss_of_one_name_rolls_back_the_work_on_all_names() {
    let locks = blocking::connect("memory:").unwrap();
    let both = locks.all(["x", "y"]);
    let kept = both.run_or_rollback(|_| 7, |_| panic!("the lease was held to the end"));
    assert_eq!(kept.unwrap(), 7);
    let mut undone = None;
    let end = both.run_or_rollback(
        |proof| {
            locks.evict("y").unwrap();
            proof.fence()
        },
        |setback| undone = Some((setback.fence, setback.output)),
    );
    assert!(matches!(end, Err(Error::Lost { reason: Loss::Deleted, .. })), "{end:?}");
    let (fence, output) = undone.unwrap();
    assert_eq!(output, Some(fence), "the work had come to its end");
}

#[test]
fn the_proof_of_each_lease_type_outlives_the_lease() {
    let locks = blocking::connect("memory:").unwrap();
    let counted = locks.owner("import-7").mutex("x").lock().unwrap();
    let turn = locks.once("y").per(Duration::from_secs(60)).take().unwrap().unwrap();
    let leadership = locks.election("z").campaign().unwrap();
    let proofs = [counted.proof(), turn.proof(), leadership.proof()];
    assert!(proofs.iter().all(leasehold::Proof::is_valid));
    counted.release().unwrap();
    turn.done().unwrap();
    leadership.resign().unwrap();
    for proof in proofs {
        assert_eq!(proof.loss(), Some(Loss::Released), "{proof:?}");
    }
}

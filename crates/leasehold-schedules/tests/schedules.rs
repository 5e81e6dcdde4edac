//! The lease, the renewal task, the local queue and the cleanup task under many schedules: no lost
//! wake-up, no double hand-over, no use after loss. Shuttle may switch tasks at every lock, atomic
//! and await, and reports a task that waits for ever as a deadlock.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use leasehold_schedules::store::memory::Memory;
use leasehold_schedules::{Clock, Error, Lease, Locks, Loss, Options, Proof};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

fn explore(scenario: impl Fn() + Send + Sync + 'static) {
    const SCHEDULES: f64 = 200_000.0;
    let scale: f64 = std::env::var("LEASEHOLD_SCALE").map_or(0.1, |text| text.parse().expect("a number"));
    let schedules = (SCHEDULES * scale) as usize;
    let scenario = std::sync::Arc::new(scenario);
    // Random finds broad faults, PCT deep ones that need few switches at exact places.
    let pct = scenario.clone();
    shuttle::check_random(move || scenario(), schedules / 2);
    shuttle::check_pct(move || pct(), schedules / 2, 3);
    println!("{} schedules", schedules / 2 * 2);
}

/// Two clients of a store on a manual clock.
struct World {
    clock: Clock,
    a: Locks,
    b: Locks,
    witness: Witness,
}

impl World {
    fn new() -> Self {
        let clock = Clock::manual();
        let store = Arc::new(Memory::new(clock.clone()));
        let client = || Options::default().over(store.clone()).unwrap();
        World { clock, a: client(), b: client(), witness: Witness::default() }
    }

    /// Asserts that no holder and no waiter is left. Shuttle itself checks that all tasks end.
    fn nothing_is_left(&self) {
        // A renewal task that has declared a loss may not yet have told the cleanup task.
        for _ in 0..100 {
            block_on(async {
                self.a.settled().await;
                self.b.settled().await;
            });
            if block_on(self.a.inspect("x")).unwrap().is_none() {
                return;
            }
            thread::yield_now();
        }
        panic!("left in the store: {:?}", block_on(self.a.inspect("x")));
    }
}

/// Asserts that each fence is given once, and that no two leases are valid at once.
#[derive(Clone, Default)]
struct Witness {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    fences: BTreeSet<u64>,
    in_use: Vec<Proof>,
}

impl Witness {
    fn enter(&self, lease: &Lease) {
        let mut seen = self.seen.lock().unwrap();
        assert!(seen.fences.insert(lease.fence().get()), "fence {} was given twice", lease.fence());
        for other in &seen.in_use {
            // Validity ends for good. If the other is valid, and this one is still valid after
            // that, both were valid at the time of the first check.
            assert!(!(other.is_valid() && lease.is_valid()), "two leases are valid at once");
        }
        seen.in_use.push(lease.proof());
    }

    fn leave(&self, lease: &Lease) {
        self.seen.lock().unwrap().in_use.retain(|proof| proof.fence() != lease.fence());
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().fences.len()
    }
}

/// Drops a future after a random number of polls.
async fn impatiently<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut polls = thread_rng().gen_range(0..4);
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        // The next poll needs no wake-up from the library.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn a_pass_is_never_lost_and_never_made_twice() {
    explore(|| {
        let world = World::new();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (locks, witness) = (world.a.clone(), world.witness.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        block_on(async {
                            let lease = locks.mutex("x").lock().await.unwrap();
                            witness.enter(&lease);
                            thread::yield_now();
                            witness.leave(&lease);
                            lease.release().await.unwrap();
                        });
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.witness.count(), 6);
        world.nothing_is_left();
    });
}

#[test]
fn cancelled_tasks_of_two_clients_leave_the_others_served() {
    explore(|| {
        let world = World::new();
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let locks = if i % 2 == 0 { world.a.clone() } else { world.b.clone() };
                let witness = world.witness.clone();
                thread::spawn(move || {
                    block_on(async {
                        let mutex = locks.mutex("x");
                        // Two of the four are cancelled at some point; the other two complete.
                        let lease =
                            if i < 2 { impatiently(mutex.lock()).await } else { Some(mutex.lock().await) };
                        let Some(lease) = lease else { return };
                        let lease = lease.unwrap();
                        witness.enter(&lease);
                        thread::yield_now();
                        witness.leave(&lease);
                        if i % 2 == 0 {
                            drop(lease)
                        } else {
                            impatiently(lease.release()).await.unwrap_or(Ok(())).unwrap()
                        }
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(world.witness.count() >= 2);
        world.nothing_is_left();
    });
}

#[test]
fn a_lease_lost_at_any_moment_is_never_used_again() {
    explore(|| {
        let world = World::new();
        let renews = thread_rng().gen_bool(0.5);
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let locks = if i == 0 { world.b.clone() } else { world.a.clone() };
                let witness = world.witness.clone();
                thread::spawn(move || {
                    block_on(async {
                        let mutex =
                            locks.mutex("x").ttl(Duration::from_millis(100)).min_validity(Duration::ZERO);
                        let mutex = if renews { mutex } else { mutex.no_renewal() };
                        let lease = match mutex.lock().await {
                            Ok(lease) => lease,
                            // The grant ended before the client could return it.
                            Err(Error::Late { .. }) => return,
                            Err(error) => panic!("{error}"),
                        };
                        witness.enter(&lease);
                        thread::yield_now();
                        let proof = lease.proof();
                        let loss = proof.loss();
                        witness.leave(&lease);
                        let end = lease.release().await;
                        assert!(!proof.is_valid(), "valid after its release");
                        match (loss, end) {
                            (None, Ok(()) | Err(Error::Lost { .. } | Error::Unknown { .. })) => {}
                            (Some(seen), Err(Error::Lost { reason, .. })) => assert_eq!(seen, reason),
                            (seen, end) => panic!("{seen:?}, and then {end:?}"),
                        }
                    });
                })
            })
            .collect();
        // Time advances timer by timer, so that leases expire under their holders. Then it stops:
        // only other tasks wake the waiters.
        for _ in 0..thread_rng().gen_range(0..16) {
            world.clock.advance_to_next();
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.nothing_is_left();
    });
}

#[test]
fn an_eviction_meets_a_pass_and_a_release_at_any_moment() {
    explore(|| {
        let world = World::new();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let locks = if i == 0 { world.b.clone() } else { world.a.clone() };
                let witness = world.witness.clone();
                thread::spawn(move || {
                    block_on(async {
                        let lease = locks.mutex("x").lock().await.unwrap();
                        let fence = lease.fence().get();
                        let is_new = witness.seen.lock().unwrap().fences.insert(fence);
                        assert!(is_new, "fence {fence} was given twice");
                        match lease.release().await {
                            Ok(()) | Err(Error::Lost { reason: Loss::Deleted | Loss::Taken, .. }) => {}
                            end => panic!("{end:?}"),
                        }
                    });
                })
            })
            .collect();
        block_on(world.b.evict("x")).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.nothing_is_left();
    });
}

#[test]
fn closing_meets_leases_waiters_and_watchers_at_any_moment() {
    explore(|| {
        let world = World::new();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let locks = world.a.clone();
                thread::spawn(move || {
                    block_on(async {
                        let lease = match locks.mutex("x").lock().await {
                            Ok(lease) => lease,
                            Err(Error::Closed) => return,
                            Err(error) => panic!("{error}"),
                        };
                        let proof = lease.proof();
                        let watcher = thread::spawn(move || block_on(proof.lost()));
                        thread::yield_now();
                        let end = lease.release().await;
                        let loss = watcher.join().unwrap();
                        match end {
                            Ok(()) => assert_eq!(loss, Loss::Released),
                            // The holder had released it before: that is no loss.
                            Err(Error::Unknown { .. }) => assert_eq!(loss, Loss::Released),
                            Err(Error::Lost { reason, .. }) => {
                                assert_eq!(reason, Loss::Closed);
                                assert!(loss == reason || loss == Loss::Released)
                            }
                            Err(error) => panic!("{error}"),
                        }
                    });
                })
            })
            .collect();
        block_on(world.a.close());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.nothing_is_left();
        assert!(matches!(block_on(world.a.mutex("x").lock()), Err(Error::Closed)));
    });
}

#[test]
fn closing_meets_a_detached_lease_on_its_way_there_or_back() {
    explore(|| {
        let world = World::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (ours, theirs) = (world.a.clone(), world.b.clone());
                thread::spawn(move || {
                    block_on(async {
                        let lease = match ours.mutex("x").lock_detached().await {
                            Ok(lease) => lease,
                            Err(Error::Closed) => return,
                            Err(error) => panic!("{error}"),
                        };
                        thread::yield_now();
                        // The token keeps its power after its client has closed.
                        let mut again = theirs.detached("x", lease.token().clone()).unwrap();
                        again.extend(Duration::from_secs(60)).await.unwrap();
                        match lease.release().await {
                            Ok(()) | Err(Error::Unknown { .. }) => {}
                            Err(Error::Closed) => again.release().await.unwrap(),
                            Err(error) => panic!("{error}"),
                        }
                    });
                })
            })
            .collect();
        block_on(world.a.close());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.nothing_is_left();
    });
}

//! Cancelled at every await point, panicking, dropped, forgotten: no claim, no place in a queue, no task stays.
#![allow(clippy::unwrap_used)]

mod common;

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use common::{client, ms, paused_runtime, secs};
use futures_util::FutureExt;
use leasehold::store::faulty::{Faulty, Plan};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Detached, Error, Lease, Locks, Loss, Store};

/// A memory store behind a line that delays each request and each reply, so that every call has several awaits,
/// and what was sent before a cancel arrives after it.
struct World {
    store: Arc<Memory>,
    a: Locks,
    b: Locks,
}

impl World {
    fn new(seed: u64) -> Self {
        let store = Arc::new(Memory::new(Clock::tokio()));
        let line = |seed| Arc::new(Faulty::new(store.clone(), Plan { delay_max: ms(5), ..Plan::calm(seed) }));
        World { a: client(&line(seed), "a"), b: client(&line(seed + 1_000), "b"), store }
    }

    /// Nothing is held, nobody waits, and no task is left but those of a client that lives.
    async fn nothing_is_left(self) {
        self.a.settled().await;
        self.b.settled().await;
        tokio::time::sleep(ms(50)).await;
        let left = self.store.list("", 100).await.unwrap();
        assert!(left.is_empty(), "left in the store: {left:#?}");
        drop((self.a, self.b));
        // The tasks see that nobody needs them any more.
        tokio::time::sleep(ms(1)).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks are left");
    }
}

/// Where an operation is cut off.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// After so many polls.
    Polls(usize),
    /// After so many milliseconds, wherever requests and replies are by then.
    Ms(u64),
}

impl Cut {
    async fn off<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Cut::Polls(polls) => polled(polls, future).await,
            Cut::Ms(after) => tokio::time::timeout(ms(after), future).await.ok(),
        }
    }
}

/// Polls a future at most so many times, and drops it.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The last poll's wake-up never comes: let go now.
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

type Attempted<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// Cancels an operation after 0, 1, 2, … polls, and after 0, 1, 2, … milliseconds, until it gets through; each time
/// on a new world.
fn at_every_await_point(what: &str, operation: impl for<'a> Fn(&'a World, Cut) -> Attempted<'a>) {
    let mut points = 0;
    for seed in 0..10 {
        for kind in [Cut::Polls as fn(usize) -> Cut, |after| Cut::Ms(after as u64)] {
            for point in 0.. {
                assert!(point < 100_000, "{what} never gets through");
                points += 1;
                let finished = paused_runtime().block_on(async {
                    let world = World::new(seed);
                    let finished = operation(&world, kind(point)).await;
                    world.nothing_is_left().await;
                    finished
                });
                if finished {
                    assert!(point > 0, "{what} has no await point");
                    break;
                }
            }
        }
    }
    println!("{what}: cancelled at {points} points");
}

#[test]
fn an_uncontended_lock() {
    at_every_await_point("lock", |world, cut| {
        Box::pin(async move { cut.off(world.a.mutex("x").lock()).await.is_some() })
    });
}

#[test]
fn a_try() {
    at_every_await_point("try_lock", |world, cut| {
        Box::pin(async move { cut.off(world.a.mutex("x").try_lock()).await.is_some() })
    });
}

/// Somebody holds the lock for a while; the operation waits meanwhile, and gets it if it is not cancelled.
async fn while_held(holder: &Locks, waiting: impl Future<Output = bool>) -> bool {
    let lease = holder.mutex("x").lock().await.unwrap();
    let (_, finished) = tokio::join!(
        async {
            tokio::time::sleep(ms(100)).await;
            lease.release().await.unwrap();
        },
        waiting
    );
    finished
}

#[test]
fn a_wait_behind_another_client() {
    at_every_await_point("lock behind another client", |world, cut| {
        Box::pin(while_held(&world.b, async move { cut.off(world.a.mutex("x").lock()).await.is_some() }))
    });
}

#[test]
fn a_wait_behind_a_task_of_the_same_client() {
    at_every_await_point("lock behind a local task", |world, cut| {
        Box::pin(while_held(&world.a, async move { cut.off(world.a.mutex("x").lock()).await.is_some() }))
    });
}

#[test]
fn a_wait_with_a_deadline_and_one_in_strict_order() {
    at_every_await_point("lock with a wait", |world, cut| {
        Box::pin(while_held(&world.b, async move {
            cut.off(world.a.mutex("x").wait(ms(50)).lock()).await.is_some()
        }))
    });
    at_every_await_point("lock in strict order", |world, cut| {
        Box::pin(while_held(&world.b, async move {
            cut.off(world.a.mutex("x").strict_order().lock()).await.is_some()
        }))
    });
}

/// What got through was meant to stay; it is let go here, so that what is left after that was left by a cancel.
async fn and_back(taken: Option<Result<Detached, Error>>) -> bool {
    match taken {
        Some(Ok(lease)) => lease.release().await.is_ok(),
        Some(Err(error)) => matches!(error, Error::Late { .. }),
        None => false,
    }
}

#[test]
fn a_detached_lock_until_its_taker_has_it_in_hand() {
    at_every_await_point("lock_detached", |world, cut| {
        Box::pin(async move { and_back(cut.off(world.a.mutex("x").lock_detached()).await).await })
    });
    at_every_await_point("lock_detached behind another client", |world, cut| {
        Box::pin(while_held(&world.b, async move {
            and_back(cut.off(world.a.mutex("x").lock_detached()).await).await
        }))
    });
    // Every grant comes with less than this left, and is renewed before it is handed out, or given back.
    at_every_await_point("lock_detached with a renewal", |world, cut| {
        Box::pin(async move {
            let mutex = world.a.mutex("x").ttl(secs(1)).min_validity(ms(988));
            and_back(cut.off(mutex.lock_detached()).await).await
        })
    });
}

#[test]
fn the_release_of_a_detached_lease() {
    at_every_await_point("release of a detached lease", |world, cut| {
        Box::pin(async move {
            let lease = world.a.mutex("x").lock_detached().await.unwrap();
            let again = world.b.detached("x", lease.token().clone()).unwrap();
            let finished = cut.off(lease.release()).await;
            if matches!(cut, Cut::Polls(0)) {
                again.release().await.expect("nothing was sent, so nothing has happened");
            }
            finished.is_some()
        })
    });
}

#[test]
fn the_first_of_two_waiters_and_the_second_is_still_served() {
    at_every_await_point("the first of two waiters", |world, cut| {
        Box::pin(while_held(&world.b, async move {
            let (mutex, other) = (world.a.mutex("x"), world.a.mutex("x"));
            let (first, second) = tokio::join!(
                async {
                    let lease = cut.off(mutex.lock()).await;
                    lease.is_some()
                },
                async {
                    let lease =
                        tokio::time::timeout(secs(5), other.lock()).await.expect("the second is served");
                    lease.unwrap().release().await.unwrap();
                }
            );
            let () = second;
            first
        }))
    });
}

#[test]
fn an_extension() {
    at_every_await_point("extend", |world, cut| {
        Box::pin(async move {
            let lease = world.a.mutex("x").lock().await.unwrap();
            let finished = cut.off(lease.extend(secs(60))).await;
            assert!(lease.is_valid());
            finished.is_some()
        })
    });
}

#[test]
fn a_release() {
    at_every_await_point("release", |world, cut| {
        Box::pin(async move {
            let lease = world.a.mutex("x").lock().await.unwrap();
            let proof = lease.proof();
            let finished = cut.off(lease.release()).await;
            assert_eq!(proof.loss(), Some(Loss::Released));
            finished.is_some()
        })
    });
}

#[test]
fn a_run() {
    at_every_await_point("run", |world, cut| {
        Box::pin(async move {
            let work = world.a.mutex("x").run(|lease| async move {
                for _ in 0..3 {
                    tokio::time::sleep(ms(1)).await;
                }
                lease.fence()
            });
            cut.off(work).await.is_some()
        })
    });
}

#[test]
fn a_run_whose_lease_is_lost_and_whose_rollback_is_cancelled_too() {
    at_every_await_point("run_or_rollback", |world, cut| {
        Box::pin(async move {
            let mutex = world.a.mutex("x").ttl(ms(300));
            let work = mutex.run_or_rollback(
                |_| async {
                    world.store.evict(&"x".parse().unwrap()).await.unwrap();
                    tokio::time::sleep(secs(60)).await
                },
                |_| tokio::time::sleep(ms(3)),
            );
            match cut.off(work).await {
                Some(end) => end.is_err(),
                None => false,
            }
        })
    });
}

#[test]
fn a_close() {
    at_every_await_point("close", |world, cut| {
        Box::pin(async move {
            let lease: Lease = world.a.mutex("x").lock().await.unwrap();
            let finished = cut.off(world.a.close()).await.is_some();
            if !matches!(cut, Cut::Polls(0)) {
                assert_eq!(lease.loss(), Some(Loss::Closed));
            }
            finished
        })
    });
}

#[test]
fn a_panic_while_holding_while_waiting_and_in_guarded_work() {
    paused_runtime().block_on(async {
        let world = World::new(1);
        let holding = AssertUnwindSafe(async {
            let _lease = world.a.mutex("x").lock().await.unwrap();
            panic!("on purpose");
        });
        assert!(holding.catch_unwind().await.is_err());

        let guarded = AssertUnwindSafe(world.a.mutex("y").run(|_| async { panic!("on purpose") }));
        assert!(guarded.catch_unwind().await.is_err());

        let _held = world.b.mutex("z").lock().await.unwrap();
        let waiting = AssertUnwindSafe(async {
            tokio::join!(world.a.mutex("z").lock(), async {
                tokio::time::sleep(ms(50)).await;
                panic!("on purpose");
            })
        });
        assert!(waiting.catch_unwind().await.is_err());
        drop(_held);
        world.nothing_is_left().await;
    });
}

#[test]
fn a_dropped_lease_in_a_task_that_is_aborted() {
    paused_runtime().block_on(async {
        let world = World::new(1);
        let mutex = world.a.mutex("x");
        let task = tokio::spawn(async move {
            let _lease = mutex.lock().await.unwrap();
            std::future::pending::<()>().await
        });
        tokio::time::sleep(ms(100)).await;
        assert!(world.b.mutex("x").try_lock().await.unwrap().is_none());
        task.abort();
        let _ = task.await;
        world.nothing_is_left().await;
    });
}

#[test]
fn a_forgotten_lease_ends_with_its_hold_limit_or_when_the_client_is_closed() {
    paused_runtime().block_on(async {
        let world = World::new(1);
        std::mem::forget(world.a.mutex("x").max_hold(secs(60)).lock().await.unwrap());
        std::mem::forget(world.a.mutex("y").lock().await.unwrap());
        std::mem::forget(world.a.mutex("z").no_renewal().lock().await.unwrap());
        tokio::time::sleep(secs(90)).await;
        assert!(world.b.mutex("x").try_lock().await.unwrap().is_some(), "past its hold limit");
        assert!(world.b.mutex("z").try_lock().await.unwrap().is_some(), "past its TTL");
        assert!(world.b.mutex("y").try_lock().await.unwrap().is_none(), "nothing tells it from one in use");
        world.a.close().await;
        assert!(world.b.mutex("y").try_lock().await.unwrap().is_some(), "closing gives it back");
        // Only the claims are asked about here: what was forgotten keeps its memory.
        world.b.settled().await;
        tokio::time::sleep(ms(50)).await;
        assert!(world.store.list("", 100).await.unwrap().is_empty());
    });
}

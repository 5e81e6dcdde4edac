//! Cancelled at every await point, panicking, dropped, forgotten: no claim, no place in a queue, no task stays.

use leasehold_testkit as common;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use common::cancel_points::{Actors, OPERATIONS, at_every_await_point};
use common::{client, in_parallel, ms, paused_runtime, secs};
use futures_util::FutureExt;
use leasehold::Clock;
use leasehold::store::faulty::{Faulty, Plan};
use leasehold::store::memory::Memory;

/// Two clients of a memory store, behind lines that delay each request and each reply, so that every call has several
/// awaits, and what was sent before a cancel arrives after it.
fn actors(seed: u64) -> Actors {
    let store = Arc::new(Memory::new(Clock::tokio()));
    let line = |seed| Arc::new(Faulty::new(store.clone(), Plan { delay_max: ms(5), ..Plan::calm(seed) }));
    let (a, b) = (client(&line(seed), "a"), client(&line(seed + 1_000), "b"));
    Actors { store, a, b, held_for: ms(100), ttl: ms(300) }
}

/// Nothing is held, nobody waits, and no task is left but those of a client that lives.
async fn nothing_is_left(actors: Actors) {
    actors.a.settled().await;
    actors.b.settled().await;
    tokio::time::sleep(ms(50)).await;
    let left = actors.store.list("", 100).await.unwrap();
    assert!(left.is_empty(), "left in the store: {left:#?}");
    drop(actors);
    // The tasks see that nobody needs them any more.
    tokio::time::sleep(ms(1)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "tasks are left");
}

#[test]
fn nothing_stays_of_an_operation_that_is_cancelled_at_any_await_point() {
    in_parallel(OPERATIONS.len() as u64, |i| {
        let (what, operation) = OPERATIONS[i as usize];
        let points = |seed| {
            at_every_await_point(
                what,
                |point| ms(point as u64),
                |cut| {
                    // Each time from the start.
                    paused_runtime().block_on(async {
                        let actors = actors(seed);
                        let finished = operation(&actors, cut).await;
                        nothing_is_left(actors).await;
                        finished
                    })
                },
            )
        };
        println!("{what}: cancelled at {} points", (0..10).map(points).sum::<usize>());
    });
}

#[test]
fn a_panic_while_holding_while_waiting_and_in_guarded_work() {
    paused_runtime().block_on(async {
        let world = actors(1);
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
        nothing_is_left(world).await;
    });
}

#[test]
fn a_dropped_lease_in_a_task_that_is_aborted() {
    paused_runtime().block_on(async {
        let world = actors(1);
        let mutex = world.a.mutex("x");
        let task = tokio::spawn(async move {
            let _lease = mutex.lock().await.unwrap();
            std::future::pending::<()>().await
        });
        tokio::time::sleep(ms(100)).await;
        assert!(world.b.mutex("x").try_lock().await.unwrap().is_none());
        task.abort();
        let _ = task.await;
        nothing_is_left(world).await;
    });
}

#[test]
fn a_forgotten_lease_ends_with_its_hold_limit_or_when_the_client_is_closed() {
    paused_runtime().block_on(async {
        let world = actors(1);
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

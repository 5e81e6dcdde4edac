//! `redis:`, cancelled at every await point: no key, no queue entry, no task is left.

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::cancel_points::{Actors, OPERATIONS, at_every_await_point};
use common::{client, ms, opened, scaled, secs};
use leasehold::store::redis::Redis;
use leasehold_lab::{Kind, Server};

async fn open(url: &str) -> Arc<Redis> {
    Arc::new(opened(|| Redis::open(url)).await)
}

/// One operation of one client, with another client of the same server, cut off; and all that must be so after it. Each
/// has keys of its own.
///
/// In company, the client has other requests under way all the time, so that what is cut off goes together with them.
async fn leaves_nothing(server: &Server, in_company: bool, attempt: impl AsyncFn(&Actors) -> bool) -> bool {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("cut{}:", ATTEMPTS.fetch_add(1, Ordering::Relaxed));
    // Of what is cut off the outcome is unknown for as long as a request may take. The other has all the time in the world.
    let (hasty, patient) = (format!("timeout=50&prefix={prefix}"), format!("timeout=5000&prefix={prefix}"));
    let [first, second] = [hasty, patient].map(|parameters| format!("{}?{parameters}", server.url()));
    let (first, second) = (open(&first).await, open(&second).await);
    let (a, b) = (client(&first, "a"), client(&second, "b"));
    let actors = Actors { store: first, a, b, held_for: ms(4), ttl: ms(150) };
    let company = in_company.then(|| {
        let mutex = actors.a.mutex("company");
        tokio::spawn(async move {
            // Until it is cut off, or the client is closed.
            while let Ok(lease) = mutex.lock().await {
                let _ = lease.release().await;
            }
        })
    });
    let finished = attempt(&actors).await;
    if let Some(company) = company {
        company.abort();
        let _ = company.await;
    }
    actors.a.settled().await;
    actors.b.settled().await;
    let fence = format!("{{{prefix}}}:fence");
    let start = Instant::now();
    loop {
        // The one that stays: there is one for all names.
        let mut keys = Vec::new();
        for pattern in [format!("{prefix}*"), format!("{{{prefix}*")] {
            match server.command(&["KEYS", &pattern]).unwrap() {
                leasehold_lab::Reply::Array(found) => {
                    keys.extend(found.iter().filter_map(|key| key.text().map(str::to_owned)))
                }
                other => panic!("{other:?}"),
            }
        }
        keys.retain(|key| *key != fence);
        if keys.is_empty() {
            break;
        }
        assert!(start.elapsed() < secs(10), "left: {keys:?}");
        tokio::time::sleep(ms(2)).await;
    }
    server.command(&["DEL", &fence]).unwrap();
    drop((actors, second));
    let start = Instant::now();
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
        assert!(start.elapsed() < secs(10), "tasks are left");
        tokio::time::sleep(ms(1)).await;
    }
    finished
}

/// Steps of 40 µs at first, and longer ones where an operation does little but wait.
fn delay(point: usize) -> Duration {
    Duration::from_micros(40) * (point + point * point / 4) as u32
}

#[test]
fn nothing_stays_of_an_operation_that_is_cancelled_at_any_await_point() {
    let server = Server::start(Kind::Redis).unwrap();
    let total = AtomicUsize::new(0);
    // Each waits most of the time, so they do it side by side; but not so many that one has no answer in time.
    for some in OPERATIONS.chunks(OPERATIONS.len().div_ceil(2)) {
        std::thread::scope(|scope| {
            for (what, operation) in some {
                let (server, total) = (&server, &total);
                scope.spawn(move || {
                    for round in 0..scaled(30) {
                        let points = at_every_await_point(what, delay, |cut| {
                            let runtime =
                                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                            runtime.block_on(leaves_nothing(server, round % 2 == 1, async |actors| {
                                operation(actors, cut).await
                            }))
                        });
                        total.fetch_add(points, Ordering::Relaxed);
                    }
                });
            }
        });
    }
    println!("cancelled at {} points", total.into_inner());
}

//! A server's clock that is set, forward by an hour and back: it is noticed, fences rise, and locks are to be had.
//!
//! The clock is moved by the shared library of `wall.rs` in the testkit, for a child process and the server it starts. The
//! child's own wall clock moves with it, which changes nothing for a client.
#![cfg(target_os = "linux")]

use leasehold_testkit as common;

use std::sync::Arc;

use common::child_test;
use common::clock_shim::WallClock;
use common::secs;
use leasehold::store::redis::Redis;
use leasehold::{Loss, Options};
use leasehold_lab::{Kind, Server};

#[test]
fn a_server_clock_that_is_set_is_noticed_and_fences_rise() {
    let said = WallClock::new().test(child_test!(child_with_a_moved_server));
    assert!(said.contains("the server's clock leapt 2 times"), "{said}");
}

/// Does its work only as the child of the test above.
#[test]
fn child_with_a_moved_server() {
    let Some(clock) = WallClock::mine() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(Kind::Redis).unwrap();
        let now = || match server.command(&["TIME"]).unwrap() {
            leasehold_lab::Reply::Array(time) => time[0].text().unwrap().parse::<i64>().unwrap(),
            other => panic!("{other:?}"),
        };
        let store = Arc::new(Redis::open(&format!("{}?timeout=500", server.url())).await.unwrap());
        let other = Arc::new(Redis::open(&format!("{}?timeout=500", server.url())).await.unwrap());
        let locks = Options::default().owner("a").over(store.clone()).unwrap();
        let others = Options::default().owner("b").over(other).unwrap();
        let mut leaps = 0;
        let (ttl, patience) = (secs(3), secs(20));

        // Forward: what it held is over by its clock, and whoever waits gets it.
        let held = locks.mutex("x").ttl(ttl).lock().await.unwrap();
        let waiter = tokio::spawn(others.mutex("x").ttl(ttl).lock());
        let in_line = async {
            while locks.inspect("x").await.unwrap().is_none_or(|status| status.waiters.is_empty()) {}
        };
        tokio::time::timeout(patience, in_line).await.unwrap();
        let before = now();
        clock.set(3_600);
        leaps += usize::from(now() - before > 3_000);
        let next = tokio::time::timeout(patience, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fence() > held.fence());
        let loss = tokio::time::timeout(ttl, held.lost()).await.unwrap();
        assert!(matches!(loss, Loss::Taken | Loss::Deleted), "{loss}");
        // A request on a connection from before the leap, which does not wait, is not too late.
        let asked = tokio::time::timeout(patience, locks.mutex("y").try_lock()).await.unwrap().unwrap();
        asked.expect("nobody else holds it").release().await.unwrap();

        // Back: what it holds lasts, and is let go all the same.
        clock.set(0);
        leaps += usize::from(now() - before < 3_000);
        next.extend(ttl).await.unwrap();
        let fence = next.fence();
        next.release().await.unwrap();
        let lease = tokio::time::timeout(patience, locks.mutex("x").lock()).await.unwrap().unwrap();
        assert!(lease.fence() > fence, "{} is not above {fence}", lease.fence());
        lease.release().await.unwrap();
        // Whoever saw a fence asks for one above it, also of a server that has forgotten it.
        server.command(&["FLUSHALL"]).unwrap();
        let lease = locks.mutex("x").lock().await.unwrap();
        assert!(lease.fence() > fence);
        lease.release().await.unwrap();
        println!("the server's clock leapt {leaps} times");
    });
}

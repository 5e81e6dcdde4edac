//! A server's clock that is set, forward by an hour and back: it is noticed, fences rise, and locks are to be had.
//!
//! The clock is moved by the shared library of `tests/wall_clock.c`, for a child process and the server it starts. The
//! child's own wall clock moves with it, which changes nothing for a client.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::store::redis::Redis;
use leasehold::{Loss, Options};
use leasehold_lab::{Kind, Server};

const OFFSET_FILE: &str = "LEASEHOLD_TEST_WALL_OFFSET_FILE";

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Builds the library that moves the clock.
fn shim() -> PathBuf {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("redis_wall_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wall_clock.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler").success(), "the clock shim does not compile");
    library
}

#[test]
fn a_server_clock_that_is_set_is_noticed_and_fences_rise() {
    if std::env::var_os(OFFSET_FILE).is_some() {
        return; // This is the child; its part is below.
    }
    let offset =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("redis_wall_offset_{}", std::process::id()));
    std::fs::write(&offset, "0").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_a_moved_server", "--nocapture"])
        .env(OFFSET_FILE, &offset)
        .env("LD_PRELOAD", shim())
        .output()
        .unwrap();
    std::fs::remove_file(&offset).unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("the server's clock leapt 2 times"), "{said}");
}

/// Does its work only as the child of the test above.
#[test]
fn child_with_a_moved_server() {
    let Some(offset) = std::env::var_os(OFFSET_FILE) else { return };
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
        std::fs::write(&offset, "3600").unwrap();
        leaps += usize::from(now() - before > 3_000);
        let next = tokio::time::timeout(patience, waiter).await.unwrap().unwrap().unwrap();
        assert!(next.fence() > held.fence());
        let loss = tokio::time::timeout(ttl, held.lost()).await.unwrap();
        assert!(matches!(loss, Loss::Taken | Loss::Deleted), "{loss}");
        // A request on a connection from before the leap, which does not wait, is not too late.
        let asked = tokio::time::timeout(patience, locks.mutex("y").try_lock()).await.unwrap().unwrap();
        asked.expect("nobody else holds it").release().await.unwrap();

        // Back: what it holds lasts, and is let go all the same.
        std::fs::write(&offset, "0").unwrap();
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

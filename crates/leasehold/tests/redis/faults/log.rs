//! The log tells of a lost connection to `redis:`, and never shows a secret.
//!
//! In a process of its own: `tracing` remembers for the whole process whether a subscriber listens.
#![cfg(target_os = "linux")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::time::Duration;

use common::child_test;
use common::log_capture::LogCapture;
use leasehold::store::redis::Redis;
use leasehold::{Options, Store};
use leasehold_lab::{Cut, Kind, Proxy, Setup};

#[test]
fn the_log_tells_of_a_lost_connection_and_never_shows_a_secret() {
    child_test!(the_log_tells_of_a_lost_connection_and_never_shows_a_secret)
        .in_own_process(tells_of_a_lost_connection);
}

fn tells_of_a_lost_connection() {
    let capture = LogCapture::of_process();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Setup::new(Kind::Redis).password("pass-word").start().unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let url = format!("redis://:pass-word@{}?timeout=500", proxy.addr());
        let store = Arc::new(Redis::open(&url).await.unwrap());
        let locks = Options::default().owner("the-owner").over(store.clone()).unwrap();
        let lease = locks.mutex("x").ttl(Duration::from_secs(60)).lock().await.unwrap();
        // Another password from now on: the next connection is refused.
        server.command(&["CONFIG", "SET", "requirepass", "other-word"]).unwrap();
        proxy.cut(Cut::Reset).unwrap();
        let said = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let error = store.inspect(&"x".parse().unwrap()).await.unwrap_err().to_string();
                if error.contains("password") {
                    return error;
                }
            }
        });
        let said = said.await.unwrap();
        assert!(!said.contains("-word"), "{said}");
        server.command(&["CONFIG", "SET", "requirepass", "pass-word"]).unwrap();
        let reached = async { while store.inspect(&"x".parse().unwrap()).await.is_err() {} };
        tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap();
        lease.release().await.unwrap();
        let shown = capture.text();
        let refused = format!("refused: {}: WRONGPASS", proxy.addr());
        assert!(shown.contains(&refused), "the log names the server that refuses: {shown}");
    });
    let log = capture.text();
    assert!(log.contains("WARN") && log.contains("the connection to the redis store is lost"), "{log}");
    assert!(log.contains("connected to the redis store again"), "{log}");
    assert!(!log.contains("-word"), "{log}");
    // 32 hex digits in a row would be the secret part of a token.
    let longest = log.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap();
    assert!(longest < 20, "{log}");
}

//! A server that may throw locks away is warned about, once, when a client connects.
//!
//! In a process of its own: the log subscriber is that of the whole process.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use common::child_test;
use common::log_capture::LogCapture;
use leasehold_lab::{Kind, Setup};

#[test]
fn a_server_that_may_throw_locks_away_is_warned_about_once() {
    child_test!(a_server_that_may_throw_locks_away_is_warned_about_once).in_own_process(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(warns_once());
    });
}

async fn warns_once() {
    let log = LogCapture::of_process();
    let warnings = || {
        let said = log.taken();
        said.lines().filter(|line| line.contains("WARN") && line.contains("throw locks away")).count()
    };
    const LIMIT: u64 = 100 << 20;
    for kind in Kind::ALL {
        for (bytes, policy, expected) in [
            (LIMIT, "noeviction", 0),
            (LIMIT, "volatile-ttl", 1),
            (LIMIT, "allkeys-lru", 1),
            // Without a limit nothing is thrown away; the doctor says more.
            (0, "allkeys-lru", 0),
        ] {
            let server = Setup::new(kind).memory(bytes, policy).start().unwrap();
            let locks = leasehold::connect(&server.url()).await.unwrap();
            assert_eq!(warnings(), expected, "{kind:?}, {bytes}, {policy}");
            server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
            while locks.mutex("x").try_lock().await.is_err() {}
            assert_eq!(warnings(), 0, "{kind:?}: once");
            let client = redis::Client::open(server.url()).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            leasehold::store::redis::Redis::with_connection(connection, "").await.unwrap();
            assert_eq!(warnings(), expected, "{kind:?}, {bytes}, {policy}, over a connection of one's own");
        }
        // One who may not look is let in all the same.
        let server = Setup::new(kind)
            .memory(LIMIT, "allkeys-lru")
            .user("default", "on nopass ~* &* +@all -info")
            .start()
            .unwrap();
        let locks = leasehold::connect(&server.url()).await.unwrap();
        assert!(locks.mutex("x").try_lock().await.unwrap().is_some());
        assert_eq!(warnings(), 0);
    }
}

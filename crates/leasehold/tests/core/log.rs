//! The log tells of a loss, and never shows a secret.
//!
//! In a process of its own: `tracing` remembers for the whole process whether a subscriber listens.
//! A test beside this one has no subscriber, and could be the first to reach a log statement.

use leasehold_testkit as common;

use common::child_test;
use common::log_capture::LogCapture;
use common::{client, everything, failing_cleanup, paused_runtime};

#[test]
fn the_log_tells_of_a_loss_and_never_shows_a_secret() {
    child_test!(the_log_tells_of_a_loss_and_never_shows_a_secret).in_own_process(tells_of_a_loss);
}

fn tells_of_a_loss() {
    let capture = LogCapture::of_process();
    paused_runtime().block_on(async {
        let store = failing_cleanup();
        everything(store.clone(), client(&store, "the-owner")).await;
    });
    let log = capture.text();
    assert!(
        log.contains("ERROR") && log.contains("lease lost") && log.contains("reason=\"deleted\""),
        "{log}"
    );
    assert!(log.contains("WARN") && log.contains("a renewal got no answer; trying again"), "{log}");
    capture.taken();
    paused_runtime().block_on(async {
        let (locks, _) = common::two_clients();
        let lease = locks.mutex("x").lock().await.unwrap();
        locks.close().await;
        assert!(!lease.is_valid());
    });
    let closed = capture.text();
    assert!(closed.contains("INFO") && closed.contains("since the client was closed"), "{closed}");
    assert!(!closed.contains("ERROR"), "closing is no error: {closed}");
    // 32 hex digits in a row would be the secret part of a token.
    let longest = log.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap();
    assert!(longest < 20, "{log}");
}

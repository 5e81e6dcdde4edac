//! A wall clock that is moved changes nothing: leases are counted on a clock that nobody sets.
//!
//! The clock is moved for one child process by a small shared library between it and the system (`tests/wall_clock.c`):
//! the child sees its wall clock leap, and holds its lease all the same.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::ms;
use leasehold::Loss;

const OFFSET_FILE: &str = "LEASEHOLD_TEST_WALL_OFFSET_FILE";

/// Builds the library that moves the clock.
fn shim() -> PathBuf {
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("wall_clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wall_clock.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler").success(), "the clock shim does not compile");
    library
}

#[test]
fn a_wall_clock_step_changes_nothing() {
    if std::env::var_os(OFFSET_FILE).is_some() {
        return; // This is the child; its part is below.
    }
    let offset =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("wall_offset_{}", std::process::id()));
    std::fs::write(&offset, "0").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_a_moved_clock", "--nocapture"])
        .env(OFFSET_FILE, &offset)
        .env("LD_PRELOAD", shim())
        .output()
        .unwrap();
    std::fs::remove_file(&offset).unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("the wall clock leapt 3 times"), "{said}");
}

/// Does its work only as the child of the test above.
#[test]
fn child_with_a_moved_clock() {
    let Some(offset) = std::env::var_os(OFFSET_FILE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = leasehold::connect("memory:").await.unwrap();
        let renewed = locks.mutex("x").ttl(ms(1_000)).lock().await.unwrap();
        let mut leaps = 0;
        for step_s in [3_600i64, -7_200, 86_400] {
            let unrenewed = locks.mutex("y").ttl(ms(1_500)).no_renewal().lock().await.unwrap();
            let wall = SystemTime::now();
            std::fs::write(&offset, step_s.to_string()).unwrap();
            let leapt = match SystemTime::now().duration_since(wall) {
                Ok(forward) => forward > Duration::from_secs(1_000),
                Err(back) => back.duration() > Duration::from_secs(1_000),
            };
            leaps += usize::from(leapt);
            assert!(renewed.is_valid() && unrenewed.is_valid(), "a leap of the wall clock ended a lease");
            let left = unrenewed.remaining();
            assert!(
                left > ms(100) && left <= ms(1_500),
                "a leap of the wall clock changed what is left: {left:?}"
            );
            // It ends when it should, by the clock that nobody moved.
            assert_eq!(unrenewed.lost().await, Loss::Expired);
            assert!(renewed.is_valid(), "not renewed past a leap: {:?}", renewed.loss());
            assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
        }
        renewed.release().await.unwrap();
        println!("the wall clock leapt {leaps} times");
    });
}

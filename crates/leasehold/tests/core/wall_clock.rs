//! A wall clock that is moved changes nothing: leases are counted on a clock that nobody sets.
//!
//! The clock is moved for one child process by a small shared library between it and the system (`wall.rs` in the testkit):
//! the child sees its wall clock leap, and holds its lease all the same.

use leasehold_testkit as common;

use std::time::{Duration, SystemTime};

use common::child_test;
use common::clock_shim::WallClock;
use common::ms;
use leasehold::Loss;

#[test]
fn a_wall_clock_step_changes_nothing() {
    let said = WallClock::new().test(child_test!(child_with_a_moved_clock));
    assert!(said.contains("the wall clock leapt 3 times"), "{said}");
}

/// Does its work only as the child of the test above.
#[test]
fn child_with_a_moved_clock() {
    let Some(clock) = WallClock::mine() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = leasehold::connect("memory:").await.unwrap();
        let renewed = locks.mutex("x").ttl(ms(1_000)).lock().await.unwrap();
        let mut leaps = 0;
        for step_s in [3_600i64, -7_200, 86_400] {
            let unrenewed = locks.mutex("y").ttl(ms(1_500)).no_renewal().lock().await.unwrap();
            let wall = SystemTime::now();
            clock.set(step_s);
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

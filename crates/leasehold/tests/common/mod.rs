//! What the tests share: the scale of the long proofs.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

/// So many at full scale; fewer where `LEASEHOLD_SCALE` says so (a tenth if nothing is said).
pub(crate) fn scaled(full: u64) -> u64 {
    let scale: f64 = match std::env::var("LEASEHOLD_SCALE") {
        Ok(text) => text.parse().expect("LEASEHOLD_SCALE is a number such as 0.1"),
        Err(_) => 0.1,
    };
    ((full as f64 * scale) as u64).max(1)
}

/// Runs `work` for 0..count, on as many threads as there are cores.
pub(crate) fn in_parallel(count: u64, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return;
                    }
                    work(i);
                }
            });
        }
    });
}

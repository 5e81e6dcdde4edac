//! Random pauses, so that clients that fail together do not retry together.

use std::time::Duration;

/// Returns a random duration between `least` and `most`; the middle without a random source.
pub(crate) fn jitter(least: Duration, most: Duration) -> Duration {
    let random = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    least + most.saturating_sub(least).mul_f64(random)
}

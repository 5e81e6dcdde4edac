//! Random pauses: clients that fail at the same moment must not try again at the same moment.

use std::time::Duration;

/// Returns a duration between `least` and `most`, evenly distributed. It is the middle if the operating system gives no
/// random bytes.
pub(crate) fn jitter(least: Duration, most: Duration) -> Duration {
    let random = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    least + most.saturating_sub(least).mul_f64(random)
}

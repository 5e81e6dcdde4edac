//! `Ttl`, the time that a lease lasts without renewal.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Exact, Result};

/// The time that a lease lasts in the store after its last renewal.
///
/// Invariants:
/// - whole milliseconds (a fraction is cut off, so client and store count the same);
/// - at least 10 ms (below that the drift allowance uses it up) and at most 366 days.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Ttl;
///
/// let ttl = Ttl::new(Duration::from_secs(10))?;
/// assert_eq!(ttl.drift(), Duration::from_millis(102));
/// assert!(Ttl::new(Duration::ZERO).is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    ms: u64,
}

impl Ttl {
    /// The shortest TTL.
    pub const MIN: Ttl = Ttl { ms: 10 };
    /// The longest TTL.
    pub const MAX: Ttl = Ttl { ms: 366 * 24 * 3_600 * 1_000 };
    /// The default TTL: 30 s.
    pub const DEFAULT: Ttl = Ttl { ms: 30_000 };

    /// Checks the duration and makes it a TTL.
    pub fn new(duration: Duration) -> Result<Self> {
        let ms = duration.as_millis();
        if (u128::from(Ttl::MIN.ms)..=u128::from(Ttl::MAX.ms)).contains(&ms) {
            Ok(Ttl { ms: ms as u64 })
        } else {
            let why = "a TTL lies between 10 ms and 366 days (to hold longer, let the lease be renewed)";
            Err(Error::invalid("TTL", Exact(duration).to_string(), why))
        }
    }

    /// Returns the TTL of a number from [`as_ms`](Ttl::as_ms). It raises a number below the
    /// minimum: for the time left of a claim use [`validity_of`](Ttl::validity_of).
    pub(crate) fn from_ms(ms: u64) -> Self {
        Ttl { ms: ms.clamp(Ttl::MIN.ms, Ttl::MAX.ms) }
    }

    /// Returns the TTL in milliseconds.
    pub fn as_ms(self) -> u64 {
        self.ms
    }

    /// Returns the TTL as a duration.
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }

    /// Returns the allowed difference of clocks over one TTL: 1 % of it, and 2 ms.
    pub fn drift(self) -> Duration {
        drift(self.as_duration())
    }

    /// Returns the time, from before the request, that a grant is reliable: the TTL less drift.
    pub fn validity(self) -> Duration {
        Ttl::validity_of(self.as_duration())
    }

    /// Like [`validity`](Ttl::validity), for a claim that the store keeps for another `remaining`.
    /// Nothing is rounded up: a claim near its end has less left than the shortest TTL.
    pub(crate) fn validity_of(remaining: Duration) -> Duration {
        remaining.saturating_sub(drift(remaining))
    }

    /// Returns a third of the TTL: the interval of renewals, and of a waiter's signs of life.
    pub fn third(self) -> Duration {
        self.as_duration() / 3
    }
}

fn drift(time: Duration) -> Duration {
    time / 100 + Duration::from_millis(2)
}

impl Default for Ttl {
    fn default() -> Self {
        Ttl::DEFAULT
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Exact(self.as_duration()).fmt(f)
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ttl({} ms)", self.ms)
    }
}

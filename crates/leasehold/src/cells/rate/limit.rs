//! `Limit`: an amount per period, and `Taken`: the answer of a store.

use std::fmt;
use std::time::Duration;

use crate::cells::store::Key;
use crate::error::{Error, Result, Short};
use crate::ttl::Ttl;

/// An amount per period, counted by an [`Algorithm`].
///
/// Invariants, checked once, here:
/// - `max` and a burst are at least 1;
/// - the period is whole milliseconds, at least 10 ms and at most 366 days;
/// - with GCRA, a whole burst runs off within 100 days.
///
/// ```
/// use std::time::Duration;
/// use leasehold::cells::rate::{Algorithm, Limit};
///
/// let limit = Limit::new(Algorithm::SlidingWindow, 100, Duration::from_secs(60))?;
/// assert!(limit.check(100).is_ok());
/// assert!(limit.check(101).is_err()); // never to be had
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    algorithm: Algorithm,
    max: u32,
    period: Ttl,
}

/// The algorithm that counts takes. `docs/rates.md` compares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// A count that starts from zero in each window. A window begins with the first take after the
    /// last one ended. The cheapest; allows twice the maximum around the end of a window.
    FixedWindow,
    /// At most the maximum in any period.
    #[default]
    SlidingWindow,
    /// At most `burst` at once, one per period / maximum, and maximum + `burst` − 1 in any period.
    Gcra {
        /// The most takes at once; 1 is the strictest.
        burst: u32,
    },
}

/// The result of a take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it may have been refused"]
pub struct Taken {
    /// Set if the take was allowed. A refused take uses nothing.
    pub allowed: bool,
    /// The amount that could still be taken now.
    pub remaining: u32,
    /// The time until the same take is allowed, without other takes; zero if it was allowed.
    pub retry_after: Duration,
    /// The time until the whole limit is free, without other takes.
    pub reset_after: Duration,
}

/// The longest time in which a burst runs off. Numbers in a server's scripts have 53 bits.
const RUN_OFF_NS_MAX: u64 = 100 * 24 * 3_600 * 1_000_000_000;

/// Above this maximum, takes close to each other are stored as one.
const APART_MAX: u32 = 100;

impl Limit {
    /// Checks the limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an invariant of the type does not hold.
    pub fn new(algorithm: Algorithm, max: u32, period: Duration) -> Result<Self> {
        if max == 0 {
            return Err(Error::invalid(
                "maximum of a rate limit",
                "0",
                "say how much is allowed in a period; at least 1",
            ));
        }
        if algorithm == (Algorithm::Gcra { burst: 0 }) {
            let why = "with none at once there is never any; 1 is the strictest";
            return Err(Error::invalid("burst of a rate limit", "0", why));
        }
        let Ok(ttl) = Ttl::new(period) else {
            let why = "it lies between 10 ms and 366 days";
            return Err(Error::invalid("period of a rate limit", Short(period).to_string(), why));
        };
        let limit = Limit { algorithm, max, period: ttl };
        if let Algorithm::Gcra { burst } = algorithm
            && limit.cost_ns(burst) > RUN_OFF_NS_MAX
        {
            let why = "it would take more than 100 days to run off; choose less, or a window";
            return Err(Error::invalid("burst of a rate limit", burst.to_string(), why));
        }
        Ok(limit)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the amount per period.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Returns the period.
    pub fn period(&self) -> Duration {
        self.period.as_duration()
    }

    /// Returns the most that one take may ask for.
    pub fn most(&self) -> u32 {
        match self.algorithm {
            Algorithm::Gcra { burst } => burst,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.max,
        }
    }

    /// Checks that the limit can ever allow this weight.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0, and for more than [`most`](Limit::most).
    pub fn check(&self, weight: u32) -> Result<()> {
        let invalid = |why: String| Err(Error::invalid("weight for a rate limit", weight.to_string(), why));
        match self.algorithm {
            _ if weight == 0 => invalid("at least 1 is taken".to_owned()),
            Algorithm::Gcra { burst } if weight > burst => invalid(format!(
                "at most {burst} may come at once, so that it would never be allowed; raise the burst"
            )),
            _ if weight > self.most() => {
                invalid(format!("at most {} are allowed in a period, so that it never would be", self.max))
            }
            _ => Ok(()),
        }
    }

    /// Returns where a store keeps the takes: the key, the algorithm and the period. Limits that
    /// differ in one of these count apart, and the stored format is always known.
    pub fn place(&self, key: &Key) -> String {
        let rule = match self.algorithm {
            Algorithm::FixedWindow => "fixed",
            Algorithm::SlidingWindow => "sliding",
            Algorithm::Gcra { .. } => "gcra",
        };
        format!("{key}:{rule}:{}", self.period.as_ms())
    }

    pub(crate) fn period_us(&self) -> u64 {
        self.period.as_ms() * 1_000
    }

    /// The length of a group of a sliding window, whose takes are stored together as if all were
    /// the last. So the value stays small, and nothing is forgotten too early.
    pub(crate) fn apart_us(&self) -> u64 {
        if self.max <= APART_MAX { 0 } else { self.period_us() / u64::from(APART_MAX) }
    }

    /// The time in which this weight runs off, with GCRA: a multiple of that of one, rounded up.
    pub(crate) fn cost_ns(&self, weight: u32) -> u64 {
        let one = (self.period_us() * 1_000).div_ceil(u64::from(self.max));
        one.saturating_mul(u64::from(weight))
    }

    /// Builds the answer. `used` is the amount in use; with GCRA, the ns until all has run off.
    pub(crate) fn taken(&self, allowed: bool, used: u64, retry_us: u64, reset_us: u64) -> Taken {
        let remaining = match self.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => u64::from(self.max).saturating_sub(used),
            Algorithm::Gcra { burst } => self.cost_ns(burst).saturating_sub(used) / self.cost_ns(1),
        };
        Taken {
            allowed,
            remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            retry_after: Duration::from_micros(retry_us),
            reset_after: Duration::from_micros(reset_us),
        }
    }
}

/// `100 in 60 s`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.max, Short(self.period()))
    }
}

//! `Limit`: how much of what in which time; and `Taken`, what a store answers.

use std::fmt;
use std::time::Duration;

use crate::cells::store::Key;
use crate::error::{Error, Result, Short};
use crate::ttl::Ttl;

/// So much in such a time, by such a rule.
///
/// Invariants, checked once, here:
/// - `max` and a burst are at least 1;
/// - the period is whole milliseconds, at least 10 ms and at most 366 days;
/// - of GCRA, a whole burst has run off within 100 days.
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

/// By which rule takes are counted. `docs/rates.md` puts them side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// A number that starts anew with each window; a window begins with the first take after the last one ended. The cheapest,
    /// and the one that lets through twice its maximum around the end of a window.
    FixedWindow,
    /// What was taken in the period before now: at most the maximum, wherever the period begins.
    #[default]
    SlidingWindow,
    /// Evenly: one each period / maximum, and at most `burst` at once. In any period at most the maximum + `burst` − 1.
    Gcra {
        /// How many may come at once; 1 is the strictest.
        burst: u32,
    },
}

/// What came of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it may have been refused"]
pub struct Taken {
    /// Whether it was taken. What was refused has used nothing.
    pub allowed: bool,
    /// How much more could be taken at this moment.
    pub remaining: u32,
    /// When the same may be taken if nobody else takes anything meanwhile; zero where it was.
    pub retry_after: Duration,
    /// When all of it may be taken again if nobody takes anything meanwhile.
    pub reset_after: Duration,
}

/// So long at the most does a burst run off. Numbers of a server's scripts have 53 bits.
const RUN_OFF_NS_MAX: u64 = 100 * 24 * 3_600 * 1_000_000_000;

/// Above this, takes that are close to each other are remembered as one.
const APART_MAX: u32 = 100;

impl Limit {
    /// Checks it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a maximum or a burst of 0, and for a period that is shorter than 10 ms or longer than 366
    /// days.
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

    /// By which rule.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How much in a period.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// In which time.
    pub fn period(&self) -> Duration {
        self.period.as_duration()
    }

    /// The most that may be taken at once.
    pub fn most(&self) -> u32 {
        match self.algorithm {
            Algorithm::Gcra { burst } => burst,
            Algorithm::FixedWindow | Algorithm::SlidingWindow => self.max,
        }
    }

    /// Whether so much can be taken at all.
    ///
    /// # Errors
    /// [`Error::Invalid`] for nothing, and for more than there ever is at once.
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

    /// Where a store keeps what was taken: by name, rule and period. So limits that differ in one of these count apart, and
    /// what is there is always to be read in one way.
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

    /// Of a sliding window: how long after the first of them takes are remembered together, as if all were the last. So that what is
    /// remembered stays small, and nothing is forgotten too early.
    pub(crate) fn apart_us(&self) -> u64 {
        if self.max <= APART_MAX { 0 } else { self.period_us() / u64::from(APART_MAX) }
    }

    /// Of GCRA: how long it takes until so much has run off. That of one is rounded up, so that they add up.
    pub(crate) fn cost_ns(&self, weight: u32) -> u64 {
        let one = (self.period_us() * 1_000).div_ceil(u64::from(self.max));
        one.saturating_mul(u64::from(weight))
    }

    /// From what a store found: `used` is how much is used now, or, of GCRA, how long it takes until all has run off, in ns.
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

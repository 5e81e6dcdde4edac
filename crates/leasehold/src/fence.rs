//! `Fence`, the number by which a resource rejects a stale holder.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A number that only rises, one per grant: the protected resource rejects a write whose fence is
/// below one it has seen.
///
/// Invariants:
/// - between 1 and 2⁶³ − 1, so that databases can store it as a signed 64-bit integer;
/// - a later grant of the same name has a higher fence.
///
/// ```
/// use leasehold::Fence;
///
/// let fence = Fence::new(7)?;
/// assert!(fence < fence.plus(1)?);
/// assert_eq!("7".parse::<Fence>()?, fence);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// The highest fence.
    pub const MAX: u64 = i64::MAX as u64;

    /// Checks the number and makes it a fence.
    pub fn new(number: u64) -> Result<Self> {
        match NonZeroU64::new(number) {
            Some(inner) if number <= Fence::MAX => Ok(Fence(inner)),
            _ => Err(Error::invalid("fence", number.to_string(), "a fence lies between 1 and 2^63 - 1")),
        }
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the fence `steps` above this one; an error at the limit, never a wrap.
    pub fn plus(self, steps: u64) -> Result<Self> {
        Fence::new(self.get().saturating_add(steps))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({})", self.0)
    }
}

impl FromStr for Fence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(number) => Fence::new(number),
            Err(_) => Err(Error::invalid("fence", text, "a fence is a whole number")),
        }
    }
}

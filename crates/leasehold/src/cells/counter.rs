//! `Counter`: a number to which a call adds in one step.

use std::fmt;
use std::time::Duration;

use super::store::Write;
use super::{Place, unknown};
use crate::error::{Error, Result};

/// A number that many clients add to, from [`Cells::counter`](super::Cells::counter).
///
/// A counter that does not exist is 0. Its [TTL](Counter::ttl) starts when it is created, and later
/// adds do not extend it: a count per hour, for example, starts from zero by itself.
///
/// An add is not idempotent: if no answer came ([`Error::Unknown`]), it may have happened, and a
/// second add may add twice. The library never repeats one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::connect("memory:").await?;
/// let visits = locks.cells().counter("visits").ttl(std::time::Duration::from_secs(3_600));
/// assert_eq!(visits.add(1).await?, 1);
/// assert_eq!(visits.add(-3).await?, -2);
/// assert_eq!(visits.get().await?, -2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a counter does nothing until it is added to or read"]
pub struct Counter {
    place: Place,
}

impl Counter {
    pub(crate) fn new(place: Place) -> Self {
        Counter { place }
    }

    /// Sets how long the counter lasts. By default it never expires.
    pub fn ttl(mut self, time: Duration) -> Self {
        self.place.ttl(time);
        self
    }

    /// Adds to the counter, and returns the sum. A negative number subtracts.
    ///
    /// # Errors
    /// [`Error::Refused`] if the sum does not fit in an `i64`, or if the stored value is no number:
    /// nothing changes then. [`Error::Unknown`] if no answer came; [`Error::Unsupported`] if the
    /// store keeps no values.
    ///
    /// # Cancel safety
    /// If dropped, the add may or may not have happened.
    pub async fn add(&self, by: i64) -> Result<i64> {
        let (terms, store) = self.place.open()?;
        let sum = self.place.client.in_time(store.add(&terms.key, by, terms.ttl)).await;
        sum.map_err(|error| unknown(terms.key.name(), error))
    }

    /// Returns the value.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn get(&self) -> Result<i64> {
        let Some(kept) = self.place.read().await? else { return Ok(0) };
        let number = std::str::from_utf8(&kept.value).ok().and_then(|text| text.parse().ok());
        let why = "what is kept under its name is no number; remove that, or choose another name";
        number.ok_or(Error::invalid("counter", self.place.terms()?.key.name(), why))
    }

    /// Removes the counter: the next add creates it again.
    ///
    /// # Cancel safety
    /// If dropped, the removal may or may not have happened; it can be repeated.
    pub async fn reset(&self) -> Result<()> {
        self.place.write(&Write::REMOVE).await.map(drop)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.show("Counter", f)
    }
}

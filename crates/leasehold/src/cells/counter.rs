//! `Counter`: a number that is added to, in one step.

use std::fmt;
use std::time::Duration;

use super::store::Write;
use super::{Place, unknown};
use crate::error::{Error, Result};

/// A number that many add to, from [`Cells::counter`](super::Cells::counter).
///
/// It is 0 where there is none. With a [TTL](Counter::ttl) it gets its end in the step that makes it, and keeps that end
/// however often it is added to: a count per hour, say, starts anew by itself.
///
/// Adding is not idempotent: where no answer came ([`Error::Unknown`]), it may have been added, and adding again may add
/// twice. Nothing here does that by itself.
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

    /// How long it lasts from when it is made. Without this it stays.
    pub fn ttl(mut self, time: Duration) -> Self {
        self.place.ttl(time);
        self
    }

    /// Adds, and says what it comes to. Less than 0 takes away.
    ///
    /// # Errors
    /// [`Error::Refused`] where the sum is more than an `i64` holds, or what is kept under this name is no number: nothing
    /// changes then. [`Error::Unknown`] where no answer came; [`Error::Unsupported`] where the store keeps no values.
    ///
    /// # Cancel safety
    /// Dropped before its end, it has been added or it has not.
    pub async fn add(&self, by: i64) -> Result<i64> {
        let (terms, store) = self.place.open()?;
        let sum = self.place.client.in_time(store.add(&terms.key, by, terms.ttl)).await;
        sum.map_err(|error| unknown(terms.key.name(), error))
    }

    /// What it comes to now.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn get(&self) -> Result<i64> {
        let Some(kept) = self.place.read().await? else { return Ok(0) };
        let number = std::str::from_utf8(&kept.value).ok().and_then(|text| text.parse().ok());
        let why = "what is kept under its name is no number; remove that, or choose another name";
        number.ok_or(Error::invalid("counter", self.place.terms()?.key.name(), why))
    }

    /// Removes it: the next who adds makes it anew.
    ///
    /// # Cancel safety
    /// Dropped before its end, it has happened or it has not; it can be repeated.
    pub async fn reset(&self) -> Result<()> {
        self.place.write(&Write::REMOVE).await.map(drop)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.show("Counter", f)
    }
}

//! `Cell`: a value that is read, compared and set in one step.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use super::Place;
use super::codec::Codec;
use super::store::{When, Write, Written};
use crate::error::{Error, Result, change_valid};
use crate::fence::Fence;
use crate::ttl::Ttl;

const FENCE_KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);

const TRIES: u32 = 32;

/// A value that changes without a lock: any serde type, as JSON
/// ([`Cells::cell`](super::Cells::cell)), or bytes ([`Cells::bytes`](super::Cells::bytes)).
///
/// Each call is one step of the store. A value lasts for its [`ttl`](Cell::ttl), counted from each
/// write. Every write fails as [`set`](Cell::set) or [`set_fenced`](Cell::set_fenced) does.
///
/// JSON is compared by value: spaces and the order of fields do not matter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::connect("memory:").await?;
/// let leader = locks.cells().cell::<String>("leader").ttl(std::time::Duration::from_secs(30));
/// assert!(leader.set_if_absent(&"a".into()).await?);
/// assert!(!leader.set_if_absent(&"b".into()).await?);
/// assert!(leader.compare_and_set(&"a".into(), &"b".into()).await?);
/// assert!(!leader.compare_and_delete(&"a".into()).await?); // it is another's by now
/// assert_eq!(leader.get().await?.as_deref(), Some("b"));
/// # Ok(()) }
/// ```
#[must_use = "a cell does nothing until it is read or written"]
pub struct Cell<T> {
    pub(super) place: Place,
    codec: Codec<T>,
    pub(super) tries: u32,
    fence_kept_for: Duration,
}

impl<T> Cell<T> {
    fn new(place: Place, codec: Codec<T>) -> Self {
        Cell { place, codec, tries: TRIES, fence_kept_for: FENCE_KEPT_FOR }
    }

    /// Sets how long a value lasts. By default it never expires.
    pub fn ttl(mut self, time: Duration) -> Self {
        self.place.ttl(time);
        self
    }

    /// Sets how often an [`update`](Cell::update) is tried: 32 times by default.
    pub fn tries(mut self, tries: u32) -> Self {
        change_valid(&mut self.place.terms, |_| match tries {
            0 => Err(Error::invalid("tries", "0", "an update is tried once at least")),
            _ => Ok(()),
        });
        self.tries = tries;
        self
    }

    /// Sets how long the fence of [`set_fenced`](Cell::set_fenced) is remembered after the value is
    /// gone: a day by default. No holder of an older fence may be suspended for longer.
    pub fn fence_kept_for(mut self, time: Duration) -> Self {
        self.fence_kept_for = time;
        self
    }

    /// Returns the value, if there is one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stored bytes are no such value; [`Error::Unreachable`] if the
    /// store does not answer; [`Error::Unsupported`] if it keeps no values.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn get(&self) -> Result<Option<T>> {
        let kept = self.place.read().await?;
        kept.map(|kept| self.read(kept.value.into())).transpose()
    }

    /// Writes the value.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no answer came: the write may have happened. [`Error::Unsupported`] if
    /// the store keeps no values; [`Error::Invalid`] if the value is too large.
    ///
    /// # Cancel safety
    /// If dropped, the write may or may not have happened; it can be repeated.
    pub async fn set(&self, value: &T) -> Result<()> {
        self.put(When::Always, Some(value)).await.map(drop)
    }

    /// Writes the value if there is none; returns whether it did.
    ///
    /// # Cancel safety
    /// If dropped, the write may or may not have happened.
    pub async fn set_if_absent(&self, value: &T) -> Result<bool> {
        self.put(When::Absent, Some(value)).await
    }

    /// Writes `new` if the value is `current`; returns whether it did.
    ///
    /// # Cancel safety
    /// If dropped, the write may or may not have happened.
    pub async fn compare_and_set(&self, current: &T, new: &T) -> Result<bool> {
        self.put_where(current, Some(new)).await
    }

    /// Removes the value if it is `current`; returns whether it did.
    ///
    /// # Cancel safety
    /// If dropped, the removal may or may not have happened.
    pub async fn compare_and_delete(&self, current: &T) -> Result<bool> {
        self.put_where(current, None).await
    }

    /// Removes the value.
    ///
    /// # Cancel safety
    /// As [`set`](Cell::set).
    pub async fn delete(&self) -> Result<()> {
        self.put(When::Always, None).await.map(drop)
    }

    /// Writes the value unless there was a write under a higher fence: a client that has lost its
    /// lease and does not know it yet cannot overwrite what its successor wrote.
    ///
    /// The store compares and remembers the fence in the same step, for as long as there is a value
    /// and [a day longer](Cell::fence_kept_for). The same fence may write again. Writes without a
    /// fence are not checked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let locks = leasehold::connect("memory:").await?;
    /// let report = locks.cells().cell::<String>("report");
    /// let lease = locks.mutex("report").lock().await?;
    /// report.set_fenced(lease.fence(), &"done".into()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Stale`], which names the higher fence; else as [`set`](Cell::set).
    ///
    /// # Cancel safety
    /// As [`set`](Cell::set).
    pub async fn set_fenced(&self, fence: Fence, value: &T) -> Result<()> {
        self.put(self.fenced(fence)?, Some(value)).await.map(drop)
    }

    /// Removes the value unless there was a write under a higher fence. The fence stays remembered.
    ///
    /// # Cancel safety
    /// As [`set`](Cell::set).
    pub async fn delete_fenced(&self, fence: Fence) -> Result<()> {
        self.put(self.fenced(fence)?, None).await.map(drop)
    }

    fn fenced(&self, fence: Fence) -> Result<When> {
        Ok(When::Fenced { fence, kept_for: Ttl::new(self.fence_kept_for)? })
    }

    async fn put(&self, when: When, value: Option<&T>) -> Result<bool> {
        let terms = self.place.terms()?;
        let value = value.map(|value| self.encoded(value)).transpose()?;
        let write = Write { when, value, ttl: terms.ttl };
        match self.place.write(&write).await? {
            Written::Written => Ok(true),
            Written::Not => Ok(false),
            Written::Stale(newer) => {
                // The store answers this only to a write under a fence.
                let When::Fenced { fence, .. } = write.when else { return Ok(false) };
                Err(Error::Stale { name: terms.key.name().clone(), fence, newer })
            }
        }
    }

    async fn put_where(&self, current: &T, new: Option<&T>) -> Result<bool> {
        self.place.terms()?;
        let mut as_written = (self.codec.encode)(current)?.into_owned();
        loop {
            if self.put(When::Is(as_written.clone()), new).await? {
                return Ok(true);
            }
            // Another program may encode an equal value in other bytes.
            match self.place.read().await? {
                Some(kept) if kept.value != as_written && (self.codec.is_equal)(&kept.value, current) => {
                    as_written = kept.value;
                }
                _ => return Ok(false),
            }
        }
    }

    /// Encodes the value; refuses one that is too large.
    pub(super) fn encoded(&self, value: &T) -> Result<Vec<u8>> {
        let value = (self.codec.encode)(value)?;
        self.place.client.check_value(&value)?;
        Ok(value.into_owned())
    }

    pub(super) fn read(&self, kept: Cow<'_, [u8]>) -> Result<T> {
        (self.codec.decode)(kept).map_err(|error| match (error, &self.place.terms) {
            (Error::Invalid { what, why, .. }, Ok(terms)) => Error::invalid(what, terms.key.name(), why),
            (error, _) => error,
        })
    }
}

impl Cell<Vec<u8>> {
    pub(crate) fn bytes(place: Place) -> Self {
        Cell::new(place, Codec::bytes())
    }
}

#[cfg(feature = "json")]
impl<T: Serialize + DeserializeOwned> Cell<T> {
    pub(crate) fn json(place: Place) -> Self {
        Cell::new(place, Codec::json())
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        Cell { place: self.place.clone(), ..*self }
    }
}

impl<T> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.show("Cell", f)
    }
}

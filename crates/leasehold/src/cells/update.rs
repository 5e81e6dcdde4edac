//! `Cell::update`: read, compute, write; repeated if there was a write in between.

use std::time::Duration;

use super::cell::Cell;
use super::store::{Changed, Put};
use super::unknown;
use crate::error::{Error, Result};
use crate::jitter::jitter;

/// The random pause before the next try is at most this long; the limit doubles each time.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The result of the function that [`update`](Cell::update) calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<T> {
    /// Writes this value.
    Set(T),
    /// Removes the value.
    Delete,
    /// Leaves the value unchanged.
    Leave,
}

impl<T> From<T> for Next<T> {
    fn from(value: T) -> Self {
        Next::Set(value)
    }
}

/// The result of an [`update`](Cell::update).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated<T> {
    /// The value that was written; `None` if it was removed or left unchanged.
    pub value: Option<T>,
    /// The number of tries; 1 without contention. If it is often higher, use a lock.
    pub tries: u32,
}

impl<T: Send> Cell<T> {
    /// Reads the value, computes the next one, and writes that if there was no write in between.
    /// Otherwise it tries again after a random pause, at most [`tries`](Cell::tries) times.
    ///
    /// `next` gets the value, if there is one, and returns a new value or a [`Next`]. It is called
    /// once per try, so it should only compute. It blocks no other client.
    ///
    /// A Redis store uses `WATCH` and `EXEC` on a separate connection; others compare the value.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let locks = leasehold::connect("memory:").await?;
    /// use leasehold::Next;
    ///
    /// let stock = locks.cells().cell::<u32>("stock");
    /// stock.update(|stock| stock.unwrap_or(0) + 3).await?;
    /// let taken = stock.update(|stock| match stock {
    ///     Some(1) => Next::Delete,
    ///     Some(stock) => Next::Set(stock - 1),
    ///     None => Next::Leave,
    /// });
    /// assert_eq!(taken.await?.value, Some(2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Contended`] if there was a write in between each time: use a
    /// [lock](crate::Locks::mutex) then. [`Error::Unknown`] if no answer came to a write: it may
    /// have happened, and is not repeated. [`Error::Unreachable`] if the store did not answer
    /// before: nothing was written. Otherwise as [`get`](Cell::get) and [`set`](Cell::set).
    ///
    /// # Cancel safety
    /// If dropped, the update has happened or not; nothing is left in the store or on a connection.
    pub async fn update<R: Into<Next<T>>>(
        &self,
        mut next: impl FnMut(Option<T>) -> R + Send,
    ) -> Result<Updated<T>> {
        let terms = self.place.terms()?;
        let (key, ttl) = (&terms.key, terms.ttl);
        let mut pause = PAUSE_MIN;
        for tries in 1..=self.tries {
            let (_, store) = self.place.open()?;
            let mut planned = None;
            let mut plan = |there: Option<&[u8]>| {
                let made = there.map(|kept| self.read(kept.into())).transpose().and_then(|there| {
                    let next = next(there).into();
                    let put = match &next {
                        Next::Set(value) => Some(Put { value: Some(self.encoded(value)?), ttl }),
                        Next::Delete => Some(Put { value: None, ttl: None }),
                        Next::Leave => None,
                    };
                    Ok((next, put))
                });
                let (next, put) = made.map_or_else(|error| (Err(error), None), |(next, put)| (Ok(next), put));
                planned = Some((next, put.is_some()));
                put
            };
            let changed = self.place.client.in_time(store.change(key, &mut plan)).await;
            match (changed, planned) {
                // An error changed nothing before there was something to write, and may have after.
                (Err(error), Some((_, true))) => return Err(unknown(key.name(), error)),
                (Err(error), _) => return Err(error),
                (_, Some((Err(error), _))) => return Err(error),
                (Ok(Changed::Overtaken), _) => {}
                (Ok(_), Some((Ok(Next::Set(value)), _))) => {
                    return Ok(Updated { value: Some(value), tries });
                }
                (Ok(_), _) => return Ok(Updated { value: None, tries }),
            }
            if tries < self.tries {
                let clock = self.place.client.clock();
                clock.sleep_until(clock.now().plus(jitter(Duration::ZERO, pause))).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        Err(Error::Contended { name: key.name().clone(), tries: self.tries })
    }
}

//! `Cell::update`: read, think, write; and again where somebody was faster.

use std::time::Duration;

use super::cell::Cell;
use super::store::{Changed, Put};
use super::unknown;
use crate::error::{Error, Result};
use crate::jitter::jitter;

/// Before an update that was overtaken is tried again: at most so long, by chance, and longer each time.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// What an [`update`](Cell::update) makes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<T> {
    /// This is written.
    Set(T),
    /// It is removed.
    Delete,
    /// It stays as it is.
    Leave,
}

impl<T> From<T> for Next<T> {
    fn from(value: T) -> Self {
        Next::Set(value)
    }
}

/// What came of an [`update`](Cell::update).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated<T> {
    /// What was written; `None` where it was removed or left as it is.
    pub value: Option<T>,
    /// How often it was tried: 1 where nobody was in the way. Where it is often more, a lock serves better.
    pub tries: u32,
}

impl<T: Send> Cell<T> {
    /// Reads the value, asks what to make of it, and writes that if nobody has written in between; else all of it again,
    /// after a pause of random length, as often as [`tries`](Cell::tries) says.
    ///
    /// `next` gets what is there and gives what is to be there: a value, or [`Next`] to delete it or to leave it. It is called
    /// once for each try, so it should do nothing but compute. While it does, nothing is kept from others.
    ///
    /// On a Redis store this is `WATCH`, `MULTI` and `EXEC` on a connection of its own; elsewhere the value is compared.
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
    /// [`Error::Contended`] where others were faster each time: then a [lock](crate::Locks::mutex) is what serves.
    /// [`Error::Unknown`] where no answer came to a write: it may have happened, and is not repeated. [`Error::Invalid`] where
    /// what is kept is no such value; [`Error::Unreachable`] where the store does not answer, and nothing was written;
    /// [`Error::Unsupported`] where it keeps no values.
    ///
    /// # Cancel safety
    /// Dropped before its end, it has happened or it has not, all of it; nothing stays behind, neither in the store nor on a
    /// connection.
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
                // What failed before anything was to be written has changed nothing, and what failed then may have.
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

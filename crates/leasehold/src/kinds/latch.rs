//! `Latch`, which is closed until a number of counts arrived, and open from then on.

use std::fmt;
use std::time::Duration;

use crate::cells::store::{CellStore, Kind, When, Write, Written};
use crate::cells::{Place, Terms};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::token::{Owner, Token};

/// The time that a latch is remembered after the last count.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);

/// The pause between two requests to a store that does not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The time for which a count with an unknown outcome is retried.
const PERSISTENCE: Duration = Duration::from_secs(10);

/// A gate that is closed until a number of counts arrived, and open from then on. Workers count
/// down when they are ready or done, and waiters wait for all of them.
///
/// A waiter that dies leaves nothing behind, and a count outlives its worker. If a worker dies
/// before its count, the latch stays closed until another worker counts in its place. A worker that
/// may be restarted counts [under its own name](Latch::count_down_as), and so only once.
///
/// The first count sets the number, and the other clients must use the same one. A day after the
/// last count ([`kept_for`](Latch::kept_for)) it is forgotten, and so closed again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::connect("memory:").await?;
/// let ready = locks.latch("shards:ready", 2);
/// assert_eq!(ready.count_down_as("shard-1").await?, 1);
/// assert_eq!(ready.count_down_as("shard-1").await?, 1); // it was there already
/// assert_eq!(ready.count_down_as("shard-2").await?, 0);
/// ready.wait().await?; // open
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a latch does nothing until it is counted down or waited for"]
pub struct Latch {
    place: Place,
    count: u32,
}

/// The stored value: the needed number of counts and the ids counted, one per line.
struct Tally {
    count: u32,
    ids: Vec<String>,
}

impl Latch {
    /// The highest number of counts.
    pub const COUNT_MAX: u32 = 10_000;

    pub(crate) fn new(client: Arc<Client>, name: Result<Name>, count: u32) -> Self {
        let name = name.and_then(|name| match count {
            1..=Latch::COUNT_MAX => Ok(name),
            _ => {
                let why = "a latch waits for 1 to 10,000 counts";
                Err(Error::invalid("count of a latch", count.to_string(), why))
            }
        });
        Latch { place: Place::new(&client, "a latch", Kind::Latch, name), count }.kept_for(KEPT_FOR)
    }

    /// Sets the time, longer than any wait, that the latch is remembered after the last count.
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.place.ttl(time);
        self
    }

    /// Counts down by one, and returns the number of missing counts.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the store does not answer for 10 s: the count may have happened,
    /// and is safe to repeat only under [an own name](Latch::count_down_as). [`Error::Invalid`] if
    /// others use another number; [`Error::Unsupported`] if the store has no values.
    ///
    /// # Cancel safety
    /// Dropped before its end, the count has happened or not; nothing else is left behind.
    pub async fn count_down(&self) -> Result<u32> {
        let token = Token::fresh(&self.place.client.defaults.owner)?;
        let (id, _) = token.expose().split_once('@').unwrap_or_default();
        self.count(id).await
    }

    /// Counts down under a name: repeats from any process count once.
    ///
    /// # Errors
    /// As [`count_down`](Latch::count_down); [`Error::Invalid`] also for an invalid owner's label.
    ///
    /// # Cancel safety
    /// As [`count_down`](Latch::count_down); it can be repeated.
    pub async fn count_down_as(&self, id: impl AsRef<str>) -> Result<u32> {
        // A name equal to the random id of another count would not count.
        self.count(&format!("@{}", Owner::new(id)?)).await
    }

    /// Returns the number of missing counts; zero if the latch is open.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn missing(&self) -> Result<u32> {
        let (terms, store) = self.place.open()?;
        let (tally, _) = self.place.client.in_time(self.read(terms, store)).await?;
        Ok(tally.missing())
    }

    /// Waits until the latch is open, without a limit and through any outage of the store.
    ///
    /// # Errors
    /// [`Error::Invalid`] if others use another number; [`Error::Refused`] if the store refuses;
    /// [`Error::Unsupported`] if it has no values; [`Error::Closed`] when the client is closed.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn wait(&self) -> Result<()> {
        self.wait_until(Deadline::FAR).await.map(drop)
    }

    /// Waits until the latch is open, at most for `time`; returns whether it is.
    ///
    /// # Errors
    /// As [`wait`](Latch::wait); [`Error::Unreachable`] if the store did not answer at the end.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn wait_for(&self, time: Duration) -> Result<bool> {
        self.wait_until(self.place.client.clock().now().plus(time)).await
    }

    /// Forgets all counts: the next count starts a new latch. Waiters go on to wait for that one.
    ///
    /// # Cancel safety
    /// Dropped before the answer, the reset may or may not have happened; it can be repeated.
    pub async fn reset(&self) -> Result<()> {
        let (terms, store) = self.place.open()?;
        self.place.client.in_time(store.write(&terms.key, &Write::REMOVE)).await.map(drop)
    }

    async fn count(&self, id: &str) -> Result<u32> {
        let client = &self.place.client;
        let clock = client.clock();
        let give_up = clock.now().plus(PERSISTENCE);
        loop {
            let (terms, store) = self.place.open()?;
            match client.in_time(self.try_count(terms, store, id)).await {
                Ok(Some(missing)) => return Ok(missing),
                // Another client was faster.
                Ok(None) => {}
                Err(error) if error.is_outcome_unknown() && clock.now() < give_up => {
                    clock.sleep_until(clock.now().plus(PAUSE)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn wait_until(&self, until: Deadline) -> Result<bool> {
        let client = &self.place.client;
        let clock = client.clock();
        loop {
            let (terms, store) = self.place.open()?;
            let looked = match client.in_time(self.read(terms, store)).await {
                Ok((tally, _)) if tally.missing() == 0 => return Ok(true),
                Ok(_) if clock.now() >= until => return Ok(false),
                Ok((_, value)) => client.while_open(store.changed(&terms.key, value.as_deref(), until)).await,
                Err(error) => Err(error),
            };
            match looked {
                Ok(()) => {}
                Err(error) if error.is_outcome_unknown() && clock.now() < until => {
                    clock.sleep_until(clock.now().plus(PAUSE).min(until)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the counts, and the value as stored.
    async fn read(&self, terms: &Terms, store: &dyn CellStore) -> Result<(Tally, Option<Vec<u8>>)> {
        let key = &terms.key;
        let Some(kept) = store.read(key).await? else {
            return Ok((Tally { count: self.count, ids: Vec::new() }, None));
        };
        let tally = Tally::parse(&kept.value).ok_or_else(|| {
            let why = "something else is kept under its name; remove that, or choose another name";
            Error::invalid("latch", key.to_string(), why)
        })?;
        if tally.count != self.count {
            let why =
                format!("`{}` was made for {}; all who use it have to say the same", key.name(), tally.count);
            return Err(Error::invalid("count of a latch", self.count.to_string(), why));
        }
        Ok((tally, Some(kept.value)))
    }

    /// Returns the number of missing counts, or `None` if another client wrote in between.
    async fn try_count(&self, terms: &Terms, store: &dyn CellStore, id: &str) -> Result<Option<u32>> {
        let (mut tally, before) = self.read(terms, store).await?;
        // Finds a count whose answer was lost, and a repeated count.
        if tally.missing() == 0 || tally.ids.iter().any(|known| known == id) {
            return Ok(Some(tally.missing()));
        }
        tally.ids.push(id.to_owned());
        let when = before.map_or(When::Absent, When::Is);
        let write = Write { when, value: Some(tally.to_string().into_bytes()), ttl: terms.ttl };
        Ok(match store.write(&terms.key, &write).await? {
            Written::Written => Some(tally.missing()),
            Written::Not | Written::Stale(_) => None,
        })
    }
}

impl Tally {
    fn parse(value: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(value).ok()?.lines();
        let count = lines.next()?.parse().ok()?;
        Some(Tally { count, ids: lines.map(str::to_owned).collect() })
    }

    fn missing(&self) -> u32 {
        self.count.saturating_sub(u32::try_from(self.ids.len()).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        self.ids.iter().try_for_each(|id| write!(f, "\n{id}"))
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Latch");
        match &self.place.terms {
            Ok(terms) => out.field("name", terms.key.name()).field("count", &self.count),
            Err(error) => out.field("invalid", error),
        };
        out.finish_non_exhaustive()
    }
}

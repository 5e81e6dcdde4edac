//! `RateLimit`: so much in such a time, for all who use the name.

pub(crate) mod decide;
pub(crate) mod limit;
pub(crate) mod line;

use std::time::Duration;

use crate::cells::store::{Key, Kind};
use crate::clock::Deadline;
use crate::debug::debug_parts;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::jitter::jitter;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;

pub use limit::{Algorithm, Limit, Taken};

/// What a store is asked for, in errors.
const WHAT: &str = "a rate limit";

/// The most by which one who waits comes later than it was told, so that not all come at once.
const SPREAD_MAX: Duration = Duration::from_millis(250);

/// So much in such a time, for all who use the name, on whichever machine: decided in the store in one step, by the store's
/// clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # use std::time::Duration;
/// # let locks = leasehold::connect("memory:").await?;
/// let mails = locks.rate_limit("mails").max(2).per(Duration::from_secs(60));
/// assert!(mails.take(1).await?.allowed);
/// let taken = mails.take(1).await?;
/// assert_eq!((taken.allowed, taken.remaining), (true, 0));
/// let taken = mails.take(1).await?;
/// assert!(!taken.allowed);
/// println!("come back in {:?}", taken.retry_after);
/// # Ok(()) }
/// ```
///
/// **Which rule.** [A window that slides](RateLimit::sliding_window) if nothing is said: in no period, wherever it begins, is more
/// taken than the maximum. [`fixed_window`](RateLimit::fixed_window) is cheaper and lets through twice as much around the end of a
/// window; [`gcra`](RateLimit::gcra) spreads what it lets through.
///
/// **Whose limit.** What is counted belongs to the name, the rule and the period together: limits that differ in one of these count
/// apart. A maximum or a burst may differ, as while a new one is rolled out: each attempt is judged by its own, against what all
/// have taken. What was taken under a higher one stays taken.
///
/// **Whose time.** The store's, never a client's. Should the store's clock be set back, the time that a limit counts stands still
/// until it goes on: nothing is let through for it, and nobody waits more than another period. Set forward, time has passed.
///
/// **What is left.** Nothing: what is kept of a limit ends by itself when it does not matter any more, a period after the last
/// take at the latest. What was refused uses nothing.
///
/// A take is not idempotent: one whose answer was lost may have counted. So a limit may let through less than it could, never more.
#[derive(Clone)]
#[must_use = "a rate limit does nothing until something is taken"]
pub struct RateLimit {
    client: Arc<Client>,
    name: Result<Name>,
    max: u32,
    period: Duration,
    algorithm: Algorithm,
}

impl RateLimit {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        let (max, period, algorithm) = (0, Duration::ZERO, Algorithm::default());
        RateLimit { client, name, max, period, algorithm }
    }

    /// How much in a [period](RateLimit::per). It has to be said.
    pub fn max(mut self, max: u32) -> Self {
        self.max = max;
        self
    }

    /// In which time. It has to be said; whole milliseconds, from 10 ms to 366 days.
    pub fn per(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// By this rule.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// A number that starts anew with each window: [`Algorithm::FixedWindow`].
    pub fn fixed_window(self) -> Self {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// At most the maximum in any period, as it is if nothing is said: [`Algorithm::SlidingWindow`].
    pub fn sliding_window(self) -> Self {
        self.algorithm(Algorithm::SlidingWindow)
    }

    /// Evenly, with so many at once at most: [`Algorithm::Gcra`].
    pub fn gcra(self, burst: u32) -> Self {
        self.algorithm(Algorithm::Gcra { burst })
    }

    /// Takes so much if it may be had now. Whoever [waits](RateLimit::wait) may be passed by it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit without a maximum or a period, and for a weight that is never to be had;
    /// [`Error::Unsupported`] where the store keeps no values; [`Error::Unreachable`] where it does not answer: it may have been
    /// taken then.
    ///
    /// # Cancel safety
    /// Dropped before its end, it may have been taken; nothing else stays behind.
    pub async fn take(&self, weight: u32) -> Result<Taken> {
        let (key, limit) = self.checked(weight)?;
        self.client.in_time(self.client.open_cells(WHAT)?.take(&key, &limit, weight)).await
    }

    /// Waits until so much may be had, however long that takes, and takes it.
    ///
    /// Tasks of one client that wait for the same limit are served in their order of arrival, heavy ones as well as light ones. A
    /// background task asks the store for the first of them: when it was told that there may be something, and a little later by
    /// chance, more so the more often it was refused. So a future that is kept and not polled blocks no other: in its turn
    /// it is taken for. Between clients there is no order; whoever asks for much may go short beside
    /// others who ask for little.
    ///
    /// # Errors
    /// As [`take`](RateLimit::take), without trying again; [`Error::Closed`] when the client is closed.
    ///
    /// # Cancel safety
    /// As [`take`](RateLimit::take): nothing is taken while it waits, and its place among the tasks of this client is free at once.
    pub async fn wait(&self, weight: u32) -> Result<()> {
        self.wait_until(weight, Deadline::FAR).await.map(drop)
    }

    /// The same, at most so long. Where it cannot be had in that time it is not waited for: it says so at once.
    ///
    /// Behind other tasks of this client it is refused when its time is over; `retry_after` is then what the first of them was
    /// told.
    ///
    /// # Errors
    /// As [`wait`](RateLimit::wait). To be refused is none.
    ///
    /// # Cancel safety
    /// As [`wait`](RateLimit::wait).
    pub async fn wait_for(&self, weight: u32, time: Duration) -> Result<Taken> {
        self.wait_until(weight, self.client.clock().now().plus(time)).await
    }

    async fn wait_until(&self, weight: u32, until: Deadline) -> Result<Taken> {
        let (key, limit) = self.checked(weight)?;
        let clock = self.client.clock();
        self.client.open_cells(WHAT)?;
        let mut stand = self.client.lines.join(&self.client, key, limit, weight, until);
        let answer = clock.until(until, stand.answer());
        if let Some(taken) = self.client.while_open(async { Ok(answer.await) }).await? {
            return taken;
        }
        match stand.leave(clock.now()) {
            Some(refused) => Ok(refused),
            None => stand.answer().await,
        }
    }

    fn checked(&self, weight: u32) -> Result<(Key, Limit)> {
        let key = Key::new(Kind::Rate, self.name.clone()?);
        let limit = Limit::new(self.algorithm, self.max, self.period)?;
        limit.check(weight)?;
        Ok((key, limit))
    }
}

/// By chance, up to a tenth of what it has to wait in any case, and twice as much with each time that others were faster.
fn spread(retry_after: Duration, refused: u32) -> Duration {
    let most = retry_after / 10 + Duration::from_millis(1) * 2_u32.pow(refused.min(8));
    jitter(Duration::ZERO, most.min(SPREAD_MAX))
}

debug_parts!(RateLimit: name max period algorithm);

//! `RateLimit`: an amount per period, for all clients that use the name.

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

/// The name of the feature, for errors.
const WHAT: &str = "a rate limit";

/// The most that a waiter adds to its wait, so that not all retry at once.
const SPREAD_MAX: Duration = Duration::from_millis(250);

/// An amount per period, for all clients of a name. The store decides in one step, by its clock.
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
/// **Algorithm.** [`sliding_window`](RateLimit::sliding_window) by default; see [`Algorithm`].
/// [`gcra`](RateLimit::gcra) spaces takes evenly.
///
/// **Scope.** The name, the algorithm and the period identify what is counted. A maximum or a burst
/// may differ, as while a new one is rolled out: each take is judged by its own, against what all
/// clients have taken. What was taken under a higher maximum stays taken.
///
/// **Time.** If the store's clock is set back, the limit's time goes on from its last write: that
/// allows no take, and no client waits for more than another period. If the clock is set forward,
/// time has passed.
///
/// **Storage.** The stored value expires by itself: a period after the last take at the latest, or,
/// with [`gcra`](RateLimit::gcra), once the takes have run off.
///
/// A take is not idempotent: an unanswered one may have counted. So a limit may allow less, never
/// more.
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

    /// Sets the amount per [period](RateLimit::per). It is required.
    pub fn max(mut self, max: u32) -> Self {
        self.max = max;
        self
    }

    /// Sets the period. It is required; whole milliseconds, from 10 ms to 366 days.
    pub fn per(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Sets the algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Counts in windows: [`Algorithm::FixedWindow`].
    pub fn fixed_window(self) -> Self {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// Allows at most the maximum in any period, the default: [`Algorithm::SlidingWindow`].
    pub fn sliding_window(self) -> Self {
        self.algorithm(Algorithm::SlidingWindow)
    }

    /// Spaces takes evenly, with at most this burst: [`Algorithm::Gcra`].
    pub fn gcra(self, burst: u32) -> Self {
        self.algorithm(Algorithm::Gcra { burst })
    }

    /// Takes this weight if the limit allows it now, even if tasks [wait](RateLimit::wait).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit without a maximum or a period, and for a weight that it never
    /// allows; [`Error::Unsupported`] if the store keeps no values; [`Error::Unreachable`] if it
    /// does not answer: the take may have counted then.
    ///
    /// # Cancel safety
    /// If dropped, the take may have counted; nothing else is left behind.
    pub async fn take(&self, weight: u32) -> Result<Taken> {
        let (key, limit) = self.checked(weight)?;
        self.client.in_time(self.client.open_cells(WHAT)?.take(&key, &limit, weight)).await
    }

    /// Waits without a time limit until the limit allows this weight, and takes it.
    ///
    /// Waiting tasks of one client are served in their order of arrival, not by weight. A
    /// background task asks the store for the first of them at the time that the store has told,
    /// plus a random delay that grows with each refusal. A future that is kept and not polled
    /// blocks no other: the task takes for it in its turn. Between clients there is no order: a
    /// client that needs a large weight may starve beside clients that need small ones.
    ///
    /// # Errors
    /// As [`take`](RateLimit::take), without a retry; [`Error::Closed`] when the client is closed.
    ///
    /// # Cancel safety
    /// As [`take`](RateLimit::take). The place in the queue is free at once.
    pub async fn wait(&self, weight: u32) -> Result<()> {
        self.wait_until(weight, Deadline::FAR).await.map(drop)
    }

    /// Waits for at most `time`. Refuses at once if the limit cannot allow the weight in that time.
    ///
    /// Behind other tasks it is refused after `time`, with the `retry_after` of the first of them.
    ///
    /// # Errors
    /// As [`wait`](RateLimit::wait). A refusal is not an error.
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

/// Returns a random delay of up to a tenth of the wait, plus a part that doubles with each refusal.
fn spread(retry_after: Duration, refused: u32) -> Duration {
    let most = retry_after / 10 + Duration::from_millis(1) * 2_u32.pow(refused.min(8));
    jitter(Duration::ZERO, most.min(SPREAD_MAX))
}

debug_parts!(RateLimit: name max period algorithm);

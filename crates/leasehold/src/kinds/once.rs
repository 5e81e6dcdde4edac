//! `Once`, which allows at most one run per period.

use std::time::Duration;

use super::options::{LockOptions, lock_options};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::lease::{Lease, Proof, deref_to_proof};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// At most one run per period, across all clients, made by [`Locks::once`](crate::Locks::once).
///
/// For jobs that every machine starts by its own clock. The first caller runs. After its run the
/// name stays taken for the rest of the period, counted from the start of the run, so that a caller
/// that is late or has a fast clock finds it taken. The clocks of two machines are never compared.
///
/// **The period** should be shorter than the interval between two starts by more than the clocks
/// and starts differ, and longer than that difference: 23 hours for a daily job. With a period of a
/// whole day, a run that starts a moment earlier than the day before is skipped.
///
/// **A run counts** if it [ends](Turn::done), successful or not, unless its holder [gives it
/// back](Turn::give_back). A run does not count if it does not end: the process dies, the future is
/// dropped or panics, the lease is lost, or [`at_most_for`](Once::at_most_for) is over. Then
/// another run may begin at once, or when the TTL is over.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`per`](Once::per) | required | the period |
/// | [`at_most_for`](Once::at_most_for) | no limit | past this a run is lost, and cancelled |
/// | [`at_least_for`](Once::at_least_for) | 0 | the time that the name stays taken after a run is given back |
/// | [`ttl`](Once::ttl) | 30 s | the time that the name outlives a process that dies in its run |
/// | [`owner`](Once::owner) | `host:pid` | the label of the runner, for people |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// let locks = leasehold::connect("memory:").await?;
/// let nightly = locks.once("nightly").per(Duration::from_secs(23 * 3600));
/// assert_eq!(nightly.run(async |_| "done").await?, Some("done"));
/// assert_eq!(nightly.run(async |_| "done").await?, None, "not again in this period");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is run before `run` or `take` is awaited"]
pub struct Once {
    options: LockOptions,
    period: Result<Ttl>,
    at_least_for: Duration,
}

lock_options!(Once: ttl owner);

impl Once {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        // A run is not passed on to another task.
        let options = LockOptions::new(client, name.map(Into::into)).strict_order();
        let period = Err(Error::invalid("period", "none", "say with `per` in which time it runs once"));
        Once { options, period, at_least_for: Duration::ZERO }
    }

    /// Sets the period: the time from the start of one run to the earliest start of the next.
    pub fn per(self, period: Duration) -> Self {
        Once { period: Ttl::new(period), ..self }
    }

    /// Limits a run, in case it hangs: past this it is lost
    /// ([`Loss::HoldLimit`](crate::Loss::HoldLimit)).
    pub fn at_most_for(self, at_most_for: Duration) -> Self {
        Once { options: self.options.max_hold(at_most_for), ..self }
    }

    /// Sets the time from its start that a run [given back](Turn::give_back) keeps the name.
    pub fn at_least_for(self, at_least_for: Duration) -> Self {
        Once { at_least_for, ..self }
    }

    /// Begins a run, or returns `None` if one is under way or has counted in this period.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock); [`Error::Invalid`] also for a period that is
    /// missing, invalid, or above [`Capabilities::max_ttl`](crate::Capabilities::max_ttl).
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind.
    pub fn take(&self) -> impl Future<Output = Result<Option<Turn>>> + Send + use<> {
        let Once { options, period, at_least_for } = self.clone();
        async move {
            let (client, period) = (&options.client, period?);
            client.check_ttl("period", period)?;
            if !at_least_for.is_zero() {
                let at_least_for = Ttl::new(at_least_for.max(Ttl::MIN.as_duration()))?;
                client.check_ttl("at_least_for", at_least_for)?;
            }
            let lease = options.try_acquire().await?;
            let since = client.clock().now();
            Ok(lease.map(|lease| Turn {
                kept_until: since.plus(period.as_duration()),
                at_least_until: since.plus(at_least_for),
                lease,
            }))
        }
    }

    /// Runs the work, or returns `None` if a run is under way or has counted in this period. A loss
    /// cancels the work. Any output counts; to retry failed work use [`take`](Once::take).
    ///
    /// # Errors
    /// As [`take`](Once::take); [`Error::Lost`] if the lease was lost during the work;
    /// [`Error::Unknown`] as [`Turn::done`]: the work was protected to its end.
    ///
    /// # Cancel safety
    /// Dropped before the work has ended, the work is cancelled and does not count; nothing is left
    /// behind. Dropped later, it counts if the store got the request.
    pub fn run<T, F, W>(&self, work: F) -> impl Future<Output = Result<Option<T>>> + use<T, F, W>
    where
        F: FnOnce(Proof) -> W,
        W: Future<Output = T>,
    {
        let taking = self.take();
        async {
            let Some(turn) = taking.await? else { return Ok(None) };
            let output = turn.lease.proof().run(work).await;
            turn.done().await?;
            Ok(output)
        }
    }
}

/// The run of this period, from [`Once::take`]. It derefs to a [`Proof`]. Dropping it gives the run
/// back in the background, without regard to [`at_least_for`](Once::at_least_for).
#[derive(Debug)]
#[must_use = "the run is given back as soon as its turn is dropped"]
pub struct Turn {
    lease: Lease,
    kept_until: Deadline,
    at_least_until: Deadline,
}

impl Turn {
    /// Returns a proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// Records that the run counts: no other run begins in the rest of the period. It retries until
    /// the store answers or the lease's deadline passes, and never gives the run back.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease was lost before: the run does not count. [`Error::Unknown`] if
    /// the store did not confirm the record: another run may begin after the TTL.
    ///
    /// # Cancel safety
    /// Dropped before a poll, it is given back. Later, it counts if the store got the request.
    pub async fn done(self) -> Result<()> {
        self.lease.keep_until(self.kept_until).await
    }

    /// Gives the run back: it does not count, and another run may begin once
    /// [`at_least_for`](Once::at_least_for) is over.
    ///
    /// # Errors
    /// As [`Lease::keep_for`].
    ///
    /// # Cancel safety
    /// As [`Lease::keep_for`].
    pub async fn give_back(self) -> Result<()> {
        self.lease.keep_until(self.at_least_until).await
    }
}

deref_to_proof!(Turn: lease);

//! `Once`: at most one run per period, whoever comes first.

use std::time::Duration;

use super::options::{LockOptions, lock_options};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::lease::{Lease, Proof, deref_to_proof};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// At most one run per period, in the whole fleet: what [`Locks::once`](crate::Locks::once) gives.
///
/// For jobs that every machine starts at its own time. Whoever comes first runs; when it is done, the name stays taken for
/// what is left of the period, counted from when the run began, so that whoever is late, or has a clock that is fast, finds it
/// taken and has nothing to do. No clock of any two machines is compared.
///
/// **How long a period?** Shorter than the time between two starts by more than clocks and starts may differ, and longer than
/// they differ: for a job that is started every day, say 23 hours. A period of a whole day would have the next day's run
/// skipped where it starts a moment earlier than the one before.
///
/// **What counts.** A run that [ends](Turn::done), well or not: its period is kept unless its holder
/// [gives it back](Turn::give_back). A run that does not end (the process dies, the future is dropped or panics, the
/// lease is lost, [`at_most_for`](Once::at_most_for) is over) does not count: somebody else may run, at once or when the TTL is
/// over.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`per`](Once::per) | to be said | the period |
/// | [`at_most_for`](Once::at_most_for) | no limit | past this a run is lost, and cancelled |
/// | [`at_least_for`](Once::at_least_for) | 0 | how long the name stays taken even where a run is given back |
/// | [`ttl`](Once::ttl) | 30 s | how long the name outlives a process that dies in its run |
/// | [`owner`](Once::owner) | `host:pid` | who runs it, for people |
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
        // A run is nothing to be passed on.
        let options = LockOptions::new(client, name.map(Into::into)).strict_order();
        let period = Err(Error::invalid("period", "none", "say with `per` in which time it runs once"));
        Once { options, period, at_least_for: Duration::ZERO }
    }

    /// The period: from the beginning of one run to where the next may begin.
    pub fn per(self, period: Duration) -> Self {
        Once { period: Ttl::new(period), ..self }
    }

    /// A cap on a run: past this it is lost ([`Loss::HoldLimit`](crate::Loss::HoldLimit)), so that one that hangs does not keep
    /// the name for ever. It does not count then.
    pub fn at_most_for(self, at_most_for: Duration) -> Self {
        Once { options: self.options.max_hold(at_most_for), ..self }
    }

    /// How long the name stays taken, from the beginning of the run, where the run is [given back](Turn::give_back).
    pub fn at_least_for(self, at_least_for: Duration) -> Self {
        Once { at_least_for, ..self }
    }

    /// Begins a run, if there has been none in this period and there is none now; `None` where there is nothing to do. It does
    /// not wait.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock); [`Error::Invalid`] also for a bad period or none, and for one that is
    /// longer than the store keeps a lock ([`Capabilities::max_ttl`](crate::Capabilities::max_ttl)).
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

    /// Does the work, if there has been no run in this period and there is none now; `None` where there is nothing to do. Where
    /// the lease is lost, the work is cancelled. Whatever the work returns, the period is kept; for work that may fail
    /// and is to be tried again, [`take`](Once::take) a turn.
    ///
    /// # Errors
    /// As [`take`](Once::take); [`Error::Lost`] where the lease was lost under the work; [`Error::Unknown`] where the store
    /// did not confirm, until the lease's deadline, that it recorded the run: the work was protected to its end, and another
    /// run may begin before the period is over, but not before the TTL is.
    ///
    /// # Cancel safety
    /// Dropped before the work has ended, the work is cancelled, and nothing is left behind: it does not count. Dropped after
    /// that, the run counts if the store has received the request to record it.
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

/// The run of this period: what [`Once::take`] gives. It has everything a [`Proof`] has.
///
/// Dropped, it is given back in the background, as if it had not been taken.
#[derive(Debug)]
#[must_use = "the run is given back as soon as its turn is dropped"]
pub struct Turn {
    lease: Lease,
    kept_until: Deadline,
    at_least_until: Deadline,
}

impl Turn {
    /// A proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// Records that the run is over and counts: no other run begins for what is left of the period. The store is asked again
    /// until it answers or the lease's deadline passes, and the run is never given back on an unknown outcome.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lease was lost before: the run does not count. [`Error::Unknown`] where the store did not
    /// confirm the record: another run may begin before the period is over, but not before the TTL is.
    ///
    /// # Cancel safety
    /// Dropped before it is polled, the run is given back. Dropped later, it counts if the store has received the request.
    pub async fn done(self) -> Result<()> {
        self.lease.keep_until(self.kept_until).await
    }

    /// The run does not count: somebody else may run, once [`at_least_for`](Once::at_least_for) is over.
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

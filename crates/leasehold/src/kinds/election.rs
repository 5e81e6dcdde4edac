//! `Election`, with one leader at a time, for a term.

use std::time::Duration;

use super::options::{LockOptions, lock_options};
use crate::clock::Deadline;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::fence::Fence;
use crate::lease::{Lease, Proof, deref_to_proof};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::token::Owner;

/// One leader at a time among the candidates, made by [`Locks::election`](crate::Locks::election).
///
/// A leader holds the name on a lease, and has to stop leading when it is [lost](Proof::lost). The
/// fence of the lease is the **term**: it only rises, and a resource can reject an earlier leader's
/// writes. Candidates wait in a queue: the next one leads at once, or within the TTL after a death.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`ttl`](Election::ttl) | 30 s | the time until a dead leader is replaced |
/// | [`owner`](Election::owner) | `host:pid` | the label of the candidate, as others observe it |
/// | [`wait`](Election::wait) | for ever | the time that [`campaign`](Election::campaign) waits |
/// | [`look_every`](Election::look_every) | 1 s | the longest delay until a change of leader is observed |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::connect("memory:").await?;
/// let every = std::time::Duration::from_millis(10);
/// let election = locks.election("scheduler").owner("web-3").look_every(every);
/// let mut changes = election.leader_changed();
/// assert!(changes.next().await?.is_none(), "nobody leads yet");
///
/// let leadership = election.campaign().await?;
/// let leader = changes.next().await?.expect("somebody leads now");
/// assert_eq!((leader.owner.as_str(), leader.term), ("web-3", Some(leadership.term())));
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nobody campaigns before `campaign` is awaited"]
pub struct Election {
    name: Result<Name>,
    options: LockOptions,
    look_every: Duration,
}

/// The default of `look_every`, and its minimum.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(10);

lock_options!(Election: ttl wait owner);

impl Election {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        // Each term is a grant of the store, so that all clients see the same one.
        let options = LockOptions::new(client, name.clone().map(Into::into)).strict_order();
        Election { name, options, look_every: LOOK_EVERY }
    }

    /// Sets how often observers ask the store for the leader; at least 10 ms apart.
    pub fn look_every(self, look_every: Duration) -> Self {
        Election { look_every: look_every.max(LOOK_EVERY_MIN), ..self }
    }

    /// Waits until this candidate leads: for ever, unless [`wait`](Election::wait) is set.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in any queue, no task.
    pub fn campaign(&self) -> impl Future<Output = Result<Leadership>> + Send + use<> {
        let lease = self.options.acquire();
        async move { Ok(Leadership { lease: lease.await? }) }
    }

    /// Returns the leader, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the store does not answer; [`Error::Invalid`] for an invalid name.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let name = self.name.clone()?;
        let client = &self.options.client;
        let status = client.in_time(client.store.inspect(&name)).await?;
        let holder = status.and_then(|status| status.holders.into_iter().next());
        Ok(holder.map(|holder| Leader { owner: holder.owner, term: holder.fence }))
    }

    /// Returns the changes of leader, beginning with the current one. A leader of less than
    /// [`look_every`](Election::look_every) may be missed.
    pub fn leader_changed(&self) -> Changes {
        Changes { election: self.clone(), seen: None, next_look: None }
    }
}

/// The leader, as observers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The label of the leader.
    pub owner: Owner,
    /// Its term; `None` on a store without fences.
    pub term: Option<Fence>,
}

/// The changes of leader, from [`Election::leader_changed`].
#[derive(Debug)]
pub struct Changes {
    election: Election,
    /// The leader returned last.
    seen: Option<Option<Leader>>,
    /// The earliest time of the next request.
    next_look: Option<Deadline>,
}

impl Changes {
    /// Returns the leader; after the first call, waits for another leader, another term or none.
    ///
    /// # Errors
    /// As [`Election::leader`]. After an error it can be called again.
    ///
    /// # Cancel safety
    /// No change is missed by dropping it: the next call returns it.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        let clock = self.election.options.client.clock().clone();
        loop {
            if let Some(next_look) = self.next_look {
                clock.sleep_until(next_look).await;
            }
            self.next_look = Some(clock.now().plus(self.election.look_every));
            let leader = self.election.leader().await?;
            if self.seen.as_ref() != Some(&leader) {
                self.seen = Some(leader.clone());
                return Ok(leader);
            }
        }
    }
}

/// A term of office, from [`Election::campaign`]. It derefs to a [`Proof`]; when it is
/// [lost](Proof::lost), the leader must stop. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "the leader resigns as soon as this is dropped"]
pub struct Leadership {
    lease: Lease,
}

impl Leadership {
    /// Returns the term: the fence for every write of the leader.
    pub fn term(&self) -> Fence {
        self.lease.fence()
    }

    /// Returns a proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// Resigns, so that the next candidate leads at once.
    ///
    /// # Errors
    /// As [`Lease::release`].
    ///
    /// # Cancel safety
    /// Dropped before the answer, the leader resigns in the background.
    pub async fn resign(self) -> Result<()> {
        self.lease.release().await
    }

    /// Returns the lease, to run work under it or to detach it.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

deref_to_proof!(Leadership: lease);

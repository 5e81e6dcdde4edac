//! `Election`: one leader at a time, for a term; and who it is.

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

/// One leader at a time among those who campaign: what [`Locks::election`](crate::Locks::election) gives.
///
/// A leader holds the name as a [`Mutex`](crate::Mutex) does, on a lease, and has to stop leading when it is
/// [lost](Proof::lost). The fence of the lease is the **term**: it only rises, and whatever the leader writes to can refuse
/// what an earlier leader sends late. Those who campaign wait in line; when a leader resigns or dies, the next one leads: at
/// once, or within the TTL.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`ttl`](Election::ttl) | 30 s | how long a dead leader is not replaced |
/// | [`owner`](Election::owner) | `host:pid` | who campaigns and leads: what others observe |
/// | [`wait`](Election::wait) | for ever | how long [`campaign`](Election::campaign) waits |
/// | [`look_every`](Election::look_every) | 1 s | how late a change of leader is observed at most |
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

/// How often a change of leader is looked for, if nothing is said; and at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(10);

lock_options!(Election: ttl wait owner);

impl Election {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        // Each term is a grant of the store, so that all see the same one.
        let options = LockOptions::new(client, name.clone().map(Into::into)).strict_order();
        Election { name, options, look_every: LOOK_EVERY }
    }

    /// How often those who observe ask the store who leads; not more often than every 10 ms.
    pub fn look_every(self, look_every: Duration) -> Self {
        Election { look_every: look_every.max(LOOK_EVERY_MIN), ..self }
    }

    /// Waits in line until this one leads: for ever, unless [`wait`](Election::wait) says otherwise.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// Dropped anywhere, it leaves nothing behind: no claim, no place in line, no task.
    pub fn campaign(&self) -> impl Future<Output = Result<Leadership>> + Send + use<> {
        let lease = self.options.acquire();
        async move { Ok(Leadership { lease: lease.await? }) }
    }

    /// Who leads now; `None` where nobody does.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where the store does not answer; [`Error::Invalid`] for a bad name.
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

    /// Every change of leader from now on, beginning with who leads now. Whoever leads for less than
    /// [`look_every`](Election::look_every) may go unseen.
    pub fn leader_changed(&self) -> Changes {
        Changes { election: self.clone(), seen: None, next_look: None }
    }
}

/// Who leads, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The label of the leader.
    pub owner: Owner,
    /// Its term; `None` where the store has no fences.
    pub term: Option<Fence>,
}

/// The changes of leader: what [`Election::leader_changed`] gives.
#[derive(Debug)]
pub struct Changes {
    election: Election,
    /// What was told last.
    seen: Option<Option<Leader>>,
    /// Not before then.
    next_look: Option<Deadline>,
}

impl Changes {
    /// Who leads now, at once; after that, whenever it is somebody else, or a new term, or nobody.
    ///
    /// # Errors
    /// As [`Election::leader`]. An error ends nothing: it can be called again.
    ///
    /// # Cancel safety
    /// No change is missed by dropping it: the next call tells.
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

/// A term of office: what [`Election::campaign`] gives. It has everything a [`Proof`] has; where it is
/// [lost](Proof::lost), this one leads no more.
///
/// Dropped, it is given up in the background.
#[derive(Debug)]
#[must_use = "the leader resigns as soon as this is dropped"]
pub struct Leadership {
    lease: Lease,
}

impl Leadership {
    /// The term: the fence, to be given to whatever the leader writes to.
    pub fn term(&self) -> Fence {
        self.lease.fence()
    }

    /// A proof for other tasks to watch.
    pub fn proof(&self) -> Proof {
        self.lease.proof()
    }

    /// Leads no more, and lets the next one lead at once.
    ///
    /// # Errors
    /// As [`Lease::release`].
    ///
    /// # Cancel safety
    /// Dropped before the answer, it is given up in the background.
    pub async fn resign(self) -> Result<()> {
        self.lease.release().await
    }

    /// The lease itself: to run work under it, or to detach it.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

deref_to_proof!(Leadership: lease);

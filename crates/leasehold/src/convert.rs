//! Conversions: a writer's lease becomes a reader's, or a reader's a writer's, without a gap in between.
//!
//! A converted claim is a new grant with a new fence, so it becomes a new tenancy. The old one lasts until the store has
//! answered: its keeper still ends it at its deadline, but does not renew it meanwhile, since a renewal that arrives behind
//! the conversion proves a fence that is no more.

use crate::claim::{Converted, Grant, Share};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::lease::Lease;
use crate::locks::{ANSWER_MAX, Client};
use crate::meeting::Baton;
use crate::sync::Arc;
use crate::tenancy::{Held, Tenancy};

/// What came of an attempt to become a writer: see [`Lease::upgrade`].
#[derive(Debug)]
#[must_use = "a lease is in it, and is let go as soon as it is dropped"]
pub enum Upgrade {
    /// It is a writer's now, with a new fence.
    Granted(Lease),
    /// Others hold the name too: this is the reader's lease, as it was.
    Refused(Lease),
}

impl Upgrade {
    /// The writer's lease, where it was granted; else the reader's is let go.
    pub fn granted(self) -> Option<Lease> {
        match self {
            Upgrade::Granted(lease) => Some(lease),
            Upgrade::Refused(_) => None,
        }
    }
}

impl Lease {
    /// Makes a reader's lease of a writer's, without a gap: nobody else writes in between. Those readers who wait first in line
    /// are let in.
    ///
    /// It is a new grant: it has a new fence, and the proofs of the old one say [`Loss::Released`]. A limit on holding
    /// (`max_hold`) goes on counting from where the old one was taken. A reader's lease comes back as it is.
    ///
    /// # Errors
    /// Whatever the error, the lock is held no more, and what may be left of it is given back. [`Error::Lost`] where the lease
    /// had ended before; [`Error::Unknown`] where no answer came within 5 s, or before the lease's deadline;
    /// [`Error::Unsupported`] on a store that cannot; [`Error::Invalid`] for permits; [`Error::Refused`] when the store says so.
    ///
    /// # Cancel safety
    /// Dropped before its end, the lock is given back in the background.
    pub async fn downgrade(self) -> Result<Lease> {
        match Box::pin(self.convert(Share::Shared, "downgrade")).await? {
            Upgrade::Granted(lease) => Ok(lease),
            Upgrade::Refused(lease) => {
                let store = lease.client().store.capabilities().store;
                Err(Error::Refused { store, why: "it does not let a writer become a reader".into() })
            }
        }
    }

    /// Tries to make a writer's lease of a reader's, without a gap. It never waits: where anybody else holds the name, it is
    /// refused at once and the reader's lease comes back as it was. So two readers who both want to write do not wait for
    /// each other: both are refused, and one of them has to let go.
    ///
    /// Whoever waits in line for the name is passed: this one holds it already.
    ///
    /// Where it is granted, it is a new grant, as after [`downgrade`](Lease::downgrade). A writer's lease comes back as it is,
    /// granted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// use leasehold::Upgrade;
    ///
    /// let locks = leasehold::connect("memory:").await?;
    /// let (one, two) = (locks.rwlock("prices").read().await?, locks.rwlock("prices").read().await?);
    /// let Upgrade::Refused(one) = one.upgrade().await? else { panic!("beside another reader") };
    /// two.release().await?;
    /// let Upgrade::Granted(writer) = one.upgrade().await? else { panic!("alone") };
    /// let reader = writer.downgrade().await?;
    /// reader.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`downgrade`](Lease::downgrade): whatever the error, the lock is held no more.
    ///
    /// # Cancel safety
    /// Dropped before its end, the lock is given back in the background, reader's or writer's.
    pub async fn upgrade(self) -> Result<Upgrade> {
        Box::pin(self.convert(Share::Exclusive, "upgrade")).await
    }

    async fn convert(mut self, to: Share, what: &'static str) -> Result<Upgrade> {
        let client = self.client().clone();
        if let Some(reason) = self.loss() {
            return Err(Error::Lost { names: self.names().clone(), reason });
        }
        match self.share() {
            share if share == to => return Ok(Upgrade::Granted(self)),
            Share::Exclusive | Share::Shared => {}
            Share::Permits(_) => {
                return Err(Error::invalid(what, "permits", "only readers and writers become each other"));
            }
        }
        let can = client.store.capabilities();
        if !can.conversions {
            let why = "it cannot change a claim without a gap; let go, and ask again";
            return Err(Error::Unsupported { store: can.store, what, why });
        }
        let since = self.since();
        let Some(baton) = self.take_baton() else { return Err(self.lost_as(Loss::Released)) };
        let conversion = Conversion::new(baton, since);
        let answer = conversion.ask(&client, to).await;
        conversion.settle(&client, to, what, answer)
    }
}

/// A lease whose conversion has been asked for: wherever it is dropped, the claim is withdrawn.
///
/// Invariants:
/// - as long as it lives, its tenancy is not renewed, and only its deadline or a closed client end it;
/// - what comes out of it has one owner: the old tenancy, where nothing changed, or a new one.
struct Conversion {
    baton: Option<Baton>,
    since: Deadline,
}

impl Conversion {
    fn new(baton: Baton, since: Deadline) -> Self {
        baton.held.tenancy().set_converting(true);
        Conversion { baton: Some(baton), since }
    }

    /// `None` where no answer came in time.
    async fn ask(&self, client: &Client, to: Share) -> Option<Result<Converted>> {
        let tenancy = self.baton.as_ref()?.held.tenancy();
        let enough = client.clock().now().plus(ANSWER_MAX).min(tenancy.valid_until());
        client.clock().until(enough, client.store.convert(&tenancy.ticket, to)).await
    }

    fn settle(
        mut self,
        client: &Arc<Client>,
        to: Share,
        what: &'static str,
        answer: Option<Result<Converted>>,
    ) -> Result<Upgrade> {
        let Some(baton) = self.baton.take() else { return Err(Error::Closed) };
        let tenancy = baton.held.tenancy().clone();
        // First of all the deadline: an answer that comes after it comes too late, and the claim is being withdrawn.
        if let Some(reason) = tenancy.loss() {
            return Err(tenancy.lost(reason));
        }
        match answer {
            Some(Ok(Converted::Converted(grant))) => self.converted(client, baton, grant, to),
            Some(Ok(Converted::Refused)) => {
                tenancy.set_converting(false);
                // It has not been renewed meanwhile.
                client.keeper.keep(&tenancy);
                Ok(Upgrade::Refused(Lease::again(baton, self.since)))
            }
            Some(Ok(Converted::NotHeld)) => {
                client.keeper.declare(&tenancy, Loss::Deleted);
                Err(tenancy.lost(tenancy.end().unwrap_or(Loss::Deleted)))
            }
            Some(Err(error)) if !error.is_outcome_unknown() => {
                give_back(baton, self.since);
                Err(error)
            }
            unknown => {
                give_back(baton, self.since);
                let error = unknown.and_then(Result::err).unwrap_or_else(|| client.no_answer());
                Err(Error::Unknown { names: tenancy.names().clone(), what, why: error.to_string() })
            }
        }
    }

    /// The old tenancy ends, and the new one begins.
    fn converted(&self, client: &Arc<Client>, baton: Baton, grant: Grant, to: Share) -> Result<Upgrade> {
        let old = baton.held.tenancy().clone();
        let now = client.clock().now();
        // The deadline is the one that this answer proves: conversions may each cost a millisecond of the claim, so an older
        // proof is not carried over.
        if grant.valid_until <= now {
            client.keeper.declare(&old, Loss::Expired);
            return Err(old.lost(old.end().unwrap_or(Loss::Expired)));
        }
        old.let_go();
        // From here on the claim is the new owner's: what the old one leaves behind withdraws nothing.
        let Some(held) = baton.held.converted(grant, to) else {
            return Err(old.lost(old.end().unwrap_or(Loss::Expired)));
        };
        client.events.released(old.names(), baton.fence, now.since(self.since));
        client.events.acquired(old.names(), grant.fence, std::time::Duration::ZERO, false);
        let baton = Baton { held, fence: grant.fence, fences_left: 0 };
        Ok(Upgrade::Granted(Lease::new(baton, now)))
    }
}

impl Drop for Conversion {
    fn drop(&mut self) {
        if let Some(baton) = self.baton.take() {
            give_back(baton, self.since);
        }
    }
}

/// To the store, and to nobody else: which share it is by now is not known.
fn give_back(baton: Baton, since: Deadline) {
    let (tenancy, fence): (Arc<Tenancy>, _) = (baton.held.tenancy().clone(), baton.fence);
    let Client { events, .. } = &*tenancy.client;
    tenancy.let_go();
    let held: Held = baton.held;
    if held.abandon() {
        events.released(tenancy.names(), fence, tenancy.client.clock().now().since(since));
    }
}

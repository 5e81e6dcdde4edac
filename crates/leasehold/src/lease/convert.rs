//! Conversions: a writer's lease becomes a reader's, or a reader's a writer's, without a gap in between.
//!
//! A converted claim is a new grant with a new fence, so it gets a new `LeaseState`. The old one lasts until the store has
//! answered. It still ends at its deadline, but is not renewed meanwhile: a renewal that arrives behind the conversion proves
//! a fence that was replaced.

use super::state::LeaseState;
use super::{Lease, Proof};
use crate::acquire::Request;
use crate::claim::{Converted, Grant, Share, Ticket};
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::locks::ANSWER_MAX;
use crate::loss::Then;
use crate::sync::Arc;

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

    async fn convert(self, to: Share, what: &'static str) -> Result<Upgrade> {
        let (client, state) = (self.client().clone(), self.proof.state.clone());
        self.check_held(client.clock().now())?;
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
        // From here on the lease is not renewed. If it is dropped, the claim goes back to the store, and not to another task
        // of this client: its share is not known until the answer.
        state.set_converting(true);
        let enough = client.clock().now().plus(ANSWER_MAX).min(state.valid_until());
        let answer = client.clock().until(enough, client.store.convert(&state.ticket, to)).await;
        // An answer that comes after the deadline comes too late, and the claim is being withdrawn.
        state.check_held()?;
        match answer {
            Some(Ok(Converted::Converted(grant))) => self.converted(grant, to),
            Some(Ok(Converted::Refused)) => {
                state.set_converting(false);
                // It was not renewed meanwhile.
                client.renewer.schedule(&state);
                Ok(Upgrade::Refused(self))
            }
            Some(Ok(Converted::NotHeld)) => {
                state.end(Loss::Deleted, Then::Withdraw);
                Err(state.lost_before())
            }
            Some(Err(error)) => Err(error.or_unknown(self.names(), what)),
            None => Err(client.no_answer().or_unknown(self.names(), what)),
        }
    }

    /// Ends the old lease, and begins the new one.
    ///
    /// The new grant has no local queue: its options may differ from those of the queue, and it is not passed on.
    fn converted(self, grant: Grant, to: Share) -> Result<Upgrade> {
        let (client, old) = (self.client().clone(), self.proof.state.clone());
        let now = client.clock().now();
        // The deadline is the one that this answer proves. Each conversion may cost a millisecond of the claim, so the old
        // deadline is not carried over.
        if grant.valid_until <= now {
            old.end(Loss::Expired, Then::Withdraw);
            return Err(old.lost_before());
        }
        let _in_use = client.closing.in_use();
        self.end_and_keep()?;
        let ticket = Ticket { share: to, ..old.ticket.clone() };
        let request = Request { share: to, ttl: old.ttl(), strict_order: true, ..(*old.request).clone() };
        let state = LeaseState::new(&client, Arc::new(request), ticket, grant, now, old.hold_end);
        state.asked_for(old.longest_ttl());
        client.events.released(old.names(), self.fence(), now.since(self.proof.since));
        client.events.acquired(old.names(), grant.fence, std::time::Duration::ZERO, false);
        let proof = Proof { state, fence: grant.fence, since: now };
        Ok(Upgrade::Granted(Lease { proof, spare_fences: 0, is_owner: true }.hand_over(now)))
    }
}

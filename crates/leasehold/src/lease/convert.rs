//! Conversions between a writer's and a reader's lease, without a gap.
//!
//! A converted claim is a new grant with a new fence, and so a new `LeaseState`. The old one lasts
//! until the store has answered or its deadline passes. It is not renewed meanwhile: a renewal that
//! arrives after the conversion proves a fence that was replaced.

use super::state::LeaseState;
use super::{Lease, Proof};
use crate::acquire::Request;
use crate::claim::{Converted, Grant, Share, Ticket};
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::locks::ANSWER_MAX;
use crate::loss::Then;
use crate::sync::Arc;

/// The result of [`Lease::upgrade`].
#[derive(Debug)]
#[must_use = "a lease is in it, and is let go as soon as it is dropped"]
pub enum Upgrade {
    /// The writer's lease, with a new fence.
    Granted(Lease),
    /// The unchanged reader's lease: other holders have the name too.
    Refused(Lease),
}

impl Upgrade {
    /// Returns the writer's lease if it was granted; else releases the reader's.
    pub fn granted(self) -> Option<Lease> {
        match self {
            Upgrade::Granted(lease) => Some(lease),
            Upgrade::Refused(_) => None,
        }
    }
}

impl Lease {
    /// Makes a reader's lease of a writer's, without a gap: no other writer comes in between. The
    /// readers at the front of the queue are granted, too.
    ///
    /// The result is a new grant with a new fence, and proofs of the old lease report
    /// [`Loss::Released`]. A `max_hold` counts on. A reader's lease is returned unchanged.
    ///
    /// # Errors
    /// After any error the lock is not held any more, and the rest of it is given back.
    /// [`Error::Lost`] if the lease had ended before; [`Error::Unknown`] if no answer came within 5
    /// s, or before the lease's deadline; [`Error::Unsupported`] on a store without conversions;
    /// [`Error::Invalid`] for permits; [`Error::Refused`] if the store refuses.
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

    /// Tries to make a writer's lease of a reader's, without a gap. It does not wait: beside
    /// another holder it is refused at once and returns the reader's lease unchanged. So two
    /// readers that both upgrade do not wait for each other: one of them must release.
    ///
    /// It passes the queue, because it holds the name already. A granted upgrade is a new grant, as
    /// after [`downgrade`](Lease::downgrade). A writer's lease is returned unchanged, as granted.
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
    /// As [`downgrade`](Lease::downgrade): after any error the lock is not held any more.
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
        // From here on the lease is not renewed. If it is dropped, the claim goes back to the store
        // and not to another task of this client: its share is unknown until the answer.
        state.set_converting(true);
        let enough = client.clock().now().plus(ANSWER_MAX).min(state.valid_until());
        let answer = client.clock().until(enough, client.store.convert(&state.ticket, to)).await;
        // An answer after the deadline comes too late, and the claim is withdrawn.
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
    /// The new grant has no local queue: its options may differ, and it is not passed on.
    fn converted(self, grant: Grant, to: Share) -> Result<Upgrade> {
        let (client, old) = (self.client().clone(), self.proof.state.clone());
        let now = client.clock().now();
        // The deadline is from this answer: each conversion may cost 1 ms of the claim.
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

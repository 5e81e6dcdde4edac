//! The state of one grant, from the store's answer to the end.
//!
//! A [`Lease`](crate::Lease) owns it. Tasks of one client may have one lease after the other under
//! the same grant (see `acquire/local_queue`). `loss.rs` ends it.

use std::time::Duration;

use tokio::sync::Notify;

use crate::acquire::Request;
use crate::claim::{Grant, Names, Renewed, Ticket};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::event::{Event, Loss};
use crate::fence::Fence;
use crate::locks::Client;
use crate::loss::Then;
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::ttl::Ttl;

/// Invariants:
/// - `end` is set once, by `LeaseState::end`;
/// - `valid_until` never moves back, and never beyond `hold_end`;
/// - nothing is valid at or past `valid_until`, whether or not a loss was declared.
pub(crate) struct LeaseState {
    pub(crate) id: u64,
    pub(crate) client: Arc<Client>,
    /// The request that was granted, which is also the key of its local queue.
    pub(crate) request: Arc<Request>,
    pub(crate) ticket: Ticket,
    /// The first fence of the grant.
    pub(crate) fence: Fence,
    pub(crate) granted_at: Deadline,
    /// The end of `max_hold`: past this the lease is lost.
    pub(crate) hold_end: Deadline,
    ttl_ms: AtomicU64,
    /// The longest TTL ever asked for: the store may keep the claim for that long.
    longest_ttl_ms: AtomicU64,
    valid_until_ns: AtomicU64,
    /// 0 while the lease lasts, then the code of a `Loss`.
    pub(crate) end: AtomicU8,
    /// A renewal was sent and not answered.
    pub(crate) unanswered: AtomicBool,
    /// A conversion was sent and not answered. A renewal might prove a fence that it replaces.
    converting: AtomicBool,
    /// The fence of the lease that a user has; 0 without a user. A lease that was passed on and not
    /// picked up is not renewed: if its new task is never polled again, the TTL must end it.
    pub(crate) fence_in_hand: AtomicU64,
    /// Its key in the renewal schedule; only accessed under the lock of the schedule.
    pub(crate) due_ns: AtomicU64,
    pub(crate) times_jittered: AtomicU64,
    /// The number of renewals in a row without an answer.
    failures: AtomicU64,
    pub(crate) is_loss_reported: AtomicBool,
    /// Notified when the grant ends, and when a user releases a lease under it.
    pub(crate) ended: Notify,
}

impl LeaseState {
    /// Makes the state of a new grant, and schedules its renewal.
    pub(crate) fn new(
        client: &Arc<Client>,
        request: Arc<Request>,
        ticket: Ticket,
        grant: Grant,
        now: Deadline,
        hold_end: Deadline,
    ) -> Arc<Self> {
        client.closing.begun();
        let ttl_ms = request.ttl.as_ms();
        let state = Arc::new(LeaseState {
            id: client.renewer.next_id(),
            client: client.clone(),
            request,
            ticket: Ticket { fence: Some(grant.fence), ..ticket },
            fence: grant.fence,
            granted_at: now,
            hold_end,
            ttl_ms: AtomicU64::new(ttl_ms),
            longest_ttl_ms: AtomicU64::new(ttl_ms),
            valid_until_ns: AtomicU64::new(grant.valid_until.min(hold_end).as_ns()),
            end: AtomicU8::new(0),
            unanswered: AtomicBool::new(false),
            converting: AtomicBool::new(false),
            fence_in_hand: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            times_jittered: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_loss_reported: AtomicBool::new(false),
            ended: Notify::new(),
        });
        client.renewer.schedule(&state);
        state
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.client.clock()
    }

    pub(crate) fn names(&self) -> &Names {
        &self.ticket.names
    }

    pub(crate) fn ttl(&self) -> Ttl {
        Ttl::from_ms(self.ttl_ms.load(Ordering::Acquire))
    }

    pub(crate) fn longest_ttl(&self) -> Ttl {
        Ttl::from_ms(self.longest_ttl_ms.load(Ordering::Acquire))
    }

    /// Records that the store may have been asked for this TTL.
    pub(crate) fn asked_for(&self, ttl: Ttl) {
        self.longest_ttl_ms.fetch_max(ttl.as_ms(), Ordering::AcqRel);
    }

    /// Returns what a renewal sends. From now on it is unanswered.
    pub(crate) fn to_renew(&self) -> (Ticket, Ttl) {
        self.unanswered.store(true, Ordering::Release);
        (self.ticket.clone(), self.ttl())
    }

    pub(crate) fn valid_until(&self) -> Deadline {
        Deadline::from_ns(self.valid_until_ns.load(Ordering::Acquire))
    }

    pub(crate) fn remaining(&self, now: Deadline) -> Duration {
        match self.end_reason() {
            None => self.valid_until().since(now),
            Some(_) => Duration::ZERO,
        }
    }

    pub(crate) fn max_hold(&self) -> Option<Duration> {
        (self.hold_end < Deadline::FAR).then(|| self.hold_end.since(self.granted_at))
    }

    pub(crate) fn is_capped(&self) -> bool {
        self.valid_until() >= self.hold_end
    }

    /// Returns why the lease ended, if that was declared. It does not read the clock.
    pub(crate) fn end_reason(&self) -> Option<Loss> {
        Loss::from_code(self.end.load(Ordering::SeqCst))
    }

    pub(crate) fn is_in_hand(&self) -> bool {
        self.fence_in_hand.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn is_converting(&self) -> bool {
        self.converting.load(Ordering::SeqCst)
    }

    pub(crate) fn set_converting(&self, converting: bool) {
        self.converting.store(converting, Ordering::SeqCst);
    }

    /// Returns whether a user has the lease with this fence.
    pub(crate) fn has_in_hand(&self, fence: Fence) -> bool {
        self.fence_in_hand.load(Ordering::SeqCst) == fence.get()
    }

    /// Returns the fence of the lease that a user has, or else of the grant.
    pub(crate) fn fence_shown(&self) -> Fence {
        Fence::new(self.fence_in_hand.load(Ordering::Acquire)).unwrap_or(self.fence)
    }

    pub(crate) fn count_failure(&self) -> u64 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn let_go(&self) {
        self.fence_in_hand.store(0, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    pub(crate) fn renewed(self: &Arc<Self>, answer: Renewed) {
        match answer {
            Renewed::Until(deadline) => {
                self.unanswered.store(false, Ordering::Release);
                self.valid_until_ns.fetch_max(deadline.min(self.hold_end).as_ns(), Ordering::AcqRel);
                let failures = self.failures.swap(0, Ordering::Relaxed);
                if failures > 0 {
                    self.client.events.emit(Event::RenewalRecovered {
                        names: self.names().clone(),
                        fence: self.fence_shown(),
                        failures,
                        remaining: self.remaining(self.clock().now()),
                    });
                }
            }
            // The renewal arrived after a conversion, whose answer tells what the client holds.
            Renewed::Lost(_) if self.is_converting() => {}
            Renewed::Lost(reason) => {
                self.end(reason, Then::Withdraw);
            }
        }
    }

    pub(crate) async fn extend(self: &Arc<Self>, ttl: Ttl) -> Result<()> {
        self.check_held()?;
        let answer = self.renew_now(ttl).await;
        self.check_held()?;
        answer.map_err(|error| error.or_unknown(self.names(), "extend"))
    }

    /// Renews in the store, and applies an answer that comes before the deadline.
    pub(crate) async fn renew_now(self: &Arc<Self>, ttl: Ttl) -> Result<()> {
        self.asked_for(ttl);
        let due = [(self.ticket.clone(), ttl)];
        let answers = self.clock().until(self.valid_until(), self.client.store.renew(&due)).await;
        let answer = answers.into_iter().flatten().next().unwrap_or_else(|| Err(self.client.no_answer()))?;
        // If the deadline passed meanwhile, the lease is lost with any answer.
        if self.loss().is_none() {
            self.renewed(answer);
            self.ttl_ms.store(ttl.as_ms(), Ordering::Release);
            self.client.renewer.schedule(self);
        }
        Ok(())
    }

    pub(crate) fn check_held(self: &Arc<Self>) -> Result<()> {
        self.loss().map_or(Ok(()), |reason| Err(Error::lost(self.names(), reason)))
    }

    /// Returns the error of a caller that could not end the lease because it had ended already.
    pub(crate) fn lost_before(&self) -> Error {
        Error::lost(self.names(), self.end_reason().unwrap_or(Loss::Expired))
    }
}

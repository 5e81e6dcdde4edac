//! The reasons for which a lease ends, and the one place that ends it.

use std::fmt;

use crate::cleanup::Withdrawal;
use crate::clock::Deadline;
use crate::event::Event;
use crate::fence::Fence;
use crate::lease::state::LeaseState;
use crate::sync::{Arc, Ordering};

/// Why a lease is held no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its deadline passed without a renewal: the process or the machine was paused, or renewal was off.
    Expired,
    /// Another holder has the lock.
    Taken,
    /// It is gone from the store: deleted, evicted or flushed.
    Deleted,
    /// Renewals got no answer until the deadline.
    Unreachable,
    /// The `max_hold` the holder had set is over.
    HoldLimit,
    /// A clock leapt.
    Clock,
    /// The client was closed, or its runtime shut down.
    Closed,
    /// Its own holder let it go.
    Released,
    /// It is not in the store any more, and no client watched how it went: a [`Detached`](crate::Detached) lease whose TTL is
    /// over, or that was released or evicted.
    Gone,
}

impl Loss {
    const ALL: [Loss; 9] = [
        Loss::Expired,
        Loss::Taken,
        Loss::Deleted,
        Loss::Unreachable,
        Loss::HoldLimit,
        Loss::Clock,
        Loss::Closed,
        Loss::Released,
        Loss::Gone,
    ];

    /// A word for logs, metrics and machines.
    pub fn as_str(self) -> &'static str {
        self.texts().0
    }

    /// A word for machines, and the reason for people.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Loss::Expired => ("expired", "its deadline passed without renewal"),
            Loss::Taken => ("taken", "somebody else holds it"),
            Loss::Deleted => ("deleted", "it was deleted or evicted from the store"),
            Loss::Unreachable => ("unreachable", "the store gave no answer until the deadline"),
            Loss::HoldLimit => ("hold_limit", "it was held for as long as max_hold allows"),
            Loss::Clock => ("clock", "a clock leapt"),
            Loss::Closed => ("closed", "the client was closed"),
            Loss::Released => ("released", "its holder let it go"),
            Loss::Gone => {
                ("gone", "it is not in the store any more: its TTL was over, or it was let go or evicted")
            }
        }
    }

    /// 1 and up; 0 is left for "not lost".
    pub(crate) fn code(self) -> u8 {
        Loss::ALL.iter().position(|loss| *loss == self).map_or(0, |i| i as u8 + 1)
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Loss::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}

/// What happens to the claim in the store when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The cleanup task releases it.
    Withdraw,
    /// The caller releases it, and calls [`vacate`](crate::acquire::LocalQueues::vacate) after that.
    Release,
    /// The caller goes on as its owner.
    Keep,
}

impl LeaseState {
    /// Returns why the lease has ended, if it has. Past the deadline the first call declares the loss, so that no later call
    /// can find the lease valid again.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        self.loss_at(self.clock().now())
    }

    /// As [`loss`](LeaseState::loss), for a caller that has just read the clock.
    pub(crate) fn loss_at(self: &Arc<Self>, now: Deadline) -> Option<Loss> {
        if let Some(loss) = self.end_reason() {
            return Some(loss);
        }
        if now < self.valid_until() {
            return None;
        }
        let reason = if now >= self.hold_end {
            Loss::HoldLimit
        } else if self.unanswered.load(Ordering::Acquire) {
            Loss::Unreachable
        } else {
            Loss::Expired
        };
        self.end(reason, Then::Withdraw);
        self.end_reason()
    }

    /// Ends the lease, once. Returns true to the one caller whose reason counts. No other function ends a lease.
    pub(crate) fn end(self: &Arc<Self>, reason: Loss, then: Then) -> bool {
        // A drain that sees no lease must find the withdrawal with the cleanup task.
        let _in_use = (then != Then::Release).then(|| self.client.closing.in_use());
        if self.end.compare_exchange(0, reason.code(), Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        self.client.closing.ended();
        self.client.renewer.forget(self);
        if then == Then::Withdraw {
            self.client.cleanup.withdraw(self.withdrawal(reason == Loss::Released));
        }
        if then != Then::Release {
            self.client.queues.vacate(self);
        }
        if reason != Loss::Released {
            self.ended.notify_waiters();
            // A late grant, or a lease that is being passed, is no user's loss.
            if self.is_in_hand() {
                self.report_loss(reason, self.fence_shown());
            }
        }
        true
    }

    /// A lease that ended with a loss just before this call has become this user's loss, too.
    pub(crate) fn take_in_hand(&self, fence: Fence) {
        self.fence_in_hand.store(fence.get(), Ordering::SeqCst);
        if let Some(reason) = self.end_reason() {
            self.report_loss(reason, fence);
        }
    }

    /// Emits the event of a loss, once.
    pub(crate) fn report_loss(&self, reason: Loss, fence: Fence) {
        if !self.is_loss_reported.swap(true, Ordering::AcqRel) {
            let held = self.clock().now().since(self.granted_at);
            let event = Event::Lost { names: self.names().clone(), fence, reason, held };
            self.client.events.emit_from(event, self.client.closing.is_closed());
        }
    }

    /// What the cleanup task needs to release the claim. `has_ended` says whether the user has let go of the lease.
    pub(crate) fn withdrawal(&self, has_ended: bool) -> Withdrawal {
        // On a quorum, a renewal that is still on its way may put the claim back on a node that had lost it.
        let late = self.unanswered.load(Ordering::Acquire);
        Withdrawal { ticket: self.ticket.clone(), ttl: self.longest_ttl(), late, has_ended }
    }
}

//! The reasons for which a lease ends, and the one function that ends it.

use std::fmt;

use crate::cleanup::Withdrawal;
use crate::clock::Deadline;
use crate::event::Event;
use crate::fence::Fence;
use crate::lease::state::LeaseState;
use crate::sync::{Arc, Ordering};

/// The reason for which a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The deadline passed without renewal: the process or machine was paused, or renewal was off.
    Expired,
    /// Another holder has the lock.
    Taken,
    /// The lock was deleted, evicted or flushed from the store.
    Deleted,
    /// Renewals got no answer until the deadline.
    Unreachable,
    /// The `max_hold` of the request is over.
    HoldLimit,
    /// A clock leapt.
    Clock,
    /// The client was closed, or its runtime shut down.
    Closed,
    /// The holder released it.
    Released,
    /// A [`Detached`](crate::Detached) lease is not in the store any more: its TTL is over, or it
    /// was released or evicted. No client watched it.
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

    /// Returns a word for logs, metrics and machines.
    pub fn as_str(self) -> &'static str {
        self.texts().0
    }

    /// The word of [`as_str`](Loss::as_str), and the reason for people.
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

    /// Returns 1 and up; 0 means "not lost".
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

/// The next step for the claim in the store when its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The cleanup task releases it.
    Withdraw,
    /// The caller releases it and then calls [`vacate`](crate::acquire::LocalQueues::vacate).
    Release,
    /// The caller goes on as its owner.
    Keep,
}

impl LeaseState {
    /// Returns why the lease has ended, if it has. After the deadline the first call declares the
    /// loss, so that no later call finds the lease valid again.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        self.loss_at(self.clock().now())
    }

    /// Like [`loss`](LeaseState::loss), for a caller that has just read the clock.
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

    /// Ends the lease; no other function does. Returns true to the one caller whose reason counts.
    pub(crate) fn end(self: &Arc<Self>, reason: Loss, then: Then) -> bool {
        // A drain that sees no lease must find the withdrawal in the cleanup task.
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
            // A late grant, or a lease that is being passed on, is no user's loss.
            if self.is_in_hand() {
                self.report_loss(reason, self.fence_shown());
            }
        }
        true
    }

    /// Records that a user has the lease. A loss just before this call is this user's, too.
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

    /// Returns the job of the cleanup task. `has_ended`: the user has released the lease.
    pub(crate) fn withdrawal(&self, has_ended: bool) -> Withdrawal {
        // On a quorum, a renewal still on its way may restore the claim on a node that had lost it.
        let late = self.unanswered.load(Ordering::Acquire);
        Withdrawal { ticket: self.ticket.clone(), ttl: self.longest_ttl(), late, has_ended }
    }
}

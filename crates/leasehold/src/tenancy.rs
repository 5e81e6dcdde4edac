//! `Tenancy`: one grant of the store as this client keeps it, through renewals and local passes, to its end.
//!
//! A [`Lease`](crate::Lease) is what a *user* holds; a tenancy is what the *client* holds. Tasks of one client
//! may have one lease after the other under the same tenancy (see `meeting.rs`). `Held` is its one owner: where
//! it is dropped, the claim is withdrawn. Everything else only watches.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::claim::{Grant, Names, Released, Renewed, Share, Ticket};
use crate::clock::{Clock, Deadline};
use crate::detached::Detached;
use crate::error::{Error, Result};
use crate::event::{Event, Loss};
use crate::fence::Fence;
use crate::janitor::Errand;
use crate::locks::Client;
use crate::meeting::Key;
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::ttl::Ttl;

/// How long a release waits for its answer before the janitor takes over.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// Invariants:
/// - `end` is set once, and then for ever; whoever sets it has what follows from it to do;
/// - `valid_until` never moves back, and never beyond `hold_end`;
/// - nothing is valid at or past `valid_until`, whether or not anybody has noticed.
pub(crate) struct Tenancy {
    pub(crate) id: u64,
    pub(crate) client: Arc<Client>,
    pub(crate) ticket: Ticket,
    pub(crate) fence: Fence,
    pub(crate) granted_at: Deadline,
    /// The room at the meeting whose seat this tenancy takes, if it does.
    pub(crate) room: Option<Key>,
    /// Whether the keeper renews it.
    pub(crate) renews: bool,
    /// `max_hold` in force: past this it is lost.
    hold_end: Deadline,
    ttl_ms: AtomicU64,
    /// The longest TTL ever asked for.
    longest_ttl_ms: AtomicU64,
    valid_until_ns: AtomicU64,
    /// 0 while it lasts, then the code of a `Loss`.
    end: AtomicU8,
    /// A renewal has been sent and not answered.
    unanswered: AtomicBool,
    /// A conversion has been sent and not answered: a renewal would prove a fence that may be no more.
    converting: AtomicBool,
    /// The fence of the lease that some user has in hand; 0 where none is. What was passed on but not yet picked up is
    /// not renewed: if its taker is never polled again, the TTL must end it.
    fence_in_hand: AtomicU64,
    /// Where it stands in the keeper's book; only touched under the book's lock.
    pub(crate) due_ns: AtomicU64,
    /// How often the keeper has drawn a jitter for it.
    pub(crate) times_jittered: AtomicU64,
    /// How many renewals in a row got no answer.
    failures: AtomicU64,
    /// The event of its loss has gone out.
    told: AtomicBool,
    /// Whether anybody ever listened for its end: most leases are let go unheard.
    listened_to: AtomicBool,
    pub(crate) over: Notify,
}

/// How a tenancy is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
}

impl Tenancy {
    fn clock(&self) -> &Clock {
        self.client.clock()
    }

    pub(crate) fn names(&self) -> &Names {
        &self.ticket.names
    }

    pub(crate) fn ttl(&self) -> Ttl {
        Ttl::from_ms(self.ttl_ms.load(Ordering::Acquire))
    }

    /// What a renewal sends, from now on unanswered.
    pub(crate) fn to_renew(&self) -> (Ticket, Ttl) {
        self.unanswered.store(true, Ordering::Release);
        (self.ticket.clone(), self.ttl())
    }

    pub(crate) fn valid_until(&self) -> Deadline {
        Deadline::from_ns(self.valid_until_ns.load(Ordering::Acquire))
    }

    pub(crate) fn remaining(&self, now: Deadline) -> Duration {
        match self.end() {
            None => self.valid_until().since(now),
            Some(_) => Duration::ZERO,
        }
    }

    /// The cap on holding, where there is one.
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        (self.hold_end < Deadline::FAR).then(|| self.hold_end.since(self.granted_at))
    }

    pub(crate) fn is_capped(&self) -> bool {
        self.valid_until() >= self.hold_end
    }

    /// How it ended, if anybody has said so.
    pub(crate) fn end(&self) -> Option<Loss> {
        Loss::from_code(self.end.load(Ordering::SeqCst))
    }

    /// How it ended, if it has. Looking is enough to notice: past the deadline the first look declares the
    /// loss, so that no later look can find it valid again.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        self.loss_at(self.clock().now())
    }

    /// The same, for one who has just read the clock.
    pub(crate) fn loss_at(self: &Arc<Self>, now: Deadline) -> Option<Loss> {
        if let Some(loss) = self.end() {
            return Some(loss);
        }
        if now < self.valid_until() {
            return None;
        }
        let loss = if now >= self.hold_end {
            Loss::HoldLimit
        } else if self.unanswered.load(Ordering::Acquire) {
            Loss::Unreachable
        } else {
            Loss::Expired
        };
        self.client.keeper.declare(self, loss);
        self.end()
    }

    /// Ends it. True for the one caller whose reason counts.
    pub(crate) fn finish(&self, loss: Loss) -> bool {
        let ends = self.end.compare_exchange(0, loss.code(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if ends {
            self.client.closing.ended();
        }
        ends
    }

    pub(crate) fn is_in_hand(&self) -> bool {
        self.fence_in_hand.load(Ordering::SeqCst) != 0
    }

    /// Whether a renewal may be sent.
    pub(crate) fn may_be_renewed(&self) -> bool {
        self.is_in_hand() && !self.converting.load(Ordering::SeqCst)
    }

    pub(crate) fn set_converting(&self, converting: bool) {
        self.converting.store(converting, Ordering::SeqCst);
    }

    /// Whether the lease with this fence is the one in hand.
    pub(crate) fn has_in_hand(&self, fence: Fence) -> bool {
        self.fence_in_hand.load(Ordering::SeqCst) == fence.get()
    }

    /// The fence of the lease in hand, or else of the grant.
    pub(crate) fn fence_shown(&self) -> Fence {
        Fence::new(self.fence_in_hand.load(Ordering::Acquire)).unwrap_or(self.fence)
    }

    /// Some user has it now. A loss that was declared a moment before has become that user's.
    pub(crate) fn take_in_hand(&self, fence: Fence) {
        self.fence_in_hand.store(fence.get(), Ordering::SeqCst);
        if let Some(reason) = self.end() {
            self.client.keeper.tell(self, reason);
        }
    }

    /// Whether its loss has not been told yet; it counts as told from here on.
    pub(crate) fn is_told_first(&self) -> bool {
        !self.told.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn count_failure(&self) -> u64 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// No user has it any more, and whoever watched is told.
    pub(crate) fn let_go(&self) {
        // In one order for all, here and in `listen`: either this sees the listener, or it sees this.
        self.fence_in_hand.store(0, Ordering::SeqCst);
        if self.listened_to.load(Ordering::SeqCst) {
            self.over.notify_waiters();
        }
    }

    /// Rings at the end of the tenancy, and of each lease under it, from now on.
    pub(crate) fn listen(&self) -> Notified<'_> {
        self.listened_to.store(true, Ordering::SeqCst);
        self.over.notified()
    }

    /// Takes the store's answer to a renewal.
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
                        remaining: self.remaining(self.client.clock().now()),
                    });
                }
            }
            // One that was on its way arrived behind the conversion, whose answer will tell what is so.
            Renewed::Lost(_) if self.converting.load(Ordering::SeqCst) => {}
            Renewed::Lost(loss) => self.client.keeper.declare(self, loss),
        }
    }

    /// Renews now, for this TTL from now on.
    pub(crate) async fn extend(self: &Arc<Self>, ttl: Ttl) -> Result<()> {
        if let Some(reason) = self.loss() {
            return Err(self.lost(reason));
        }
        let answer = self.renew_now(ttl).await;
        if let Some(reason) = self.loss() {
            return Err(self.lost(reason));
        }
        answer.map_err(|error| match error.is_outcome_unknown() {
            true => Error::Unknown { names: self.names().clone(), what: "extend", why: error.to_string() },
            false => error,
        })
    }

    /// Asks the store to renew, and takes its answer if it comes before the deadline.
    pub(crate) async fn renew_now(self: &Arc<Self>, ttl: Ttl) -> Result<()> {
        self.longest_ttl_ms.fetch_max(ttl.as_ms(), Ordering::AcqRel);
        let due = [(self.ticket.clone(), ttl)];
        let answers = self.clock().until(self.valid_until(), self.client.store.renew(&due)).await;
        let answer = answers.into_iter().flatten().next().unwrap_or_else(|| Err(self.client.no_answer()))?;
        // A deadline that passed meanwhile is a loss, however kind the answer.
        if self.loss().is_none() {
            self.renewed(answer);
            self.ttl_ms.store(ttl.as_ms(), Ordering::Release);
            self.client.keeper.keep(self);
        }
        Ok(())
    }

    pub(crate) fn lost(&self, reason: Loss) -> Error {
        Error::Lost { names: self.names().clone(), reason }
    }

    /// So long the store may remember it, whatever was answered.
    pub(crate) fn longest_ttl(&self) -> Ttl {
        Ttl::from_ms(self.longest_ttl_ms.load(Ordering::Acquire))
    }

    fn errand(&self, late: bool, has_ended: bool) -> Errand {
        Errand { ticket: self.ticket.clone(), ttl: self.longest_ttl(), late, has_ended }
    }

    /// Has the claim withdrawn in the background. `has_ended` says whether the user has let go of it.
    pub(crate) fn withdraw(&self, has_ended: bool) {
        let late = self.unanswered.load(Ordering::Acquire);
        self.client.janitor.withdraw(self.errand(late, has_ended));
    }
}

/// The one owner of a tenancy.
pub(crate) struct Held {
    tenancy: Arc<Tenancy>,
}

impl Held {
    /// Takes a grant into the keeper's care.
    pub(crate) fn new(
        client: &Arc<Client>,
        ticket: Ticket,
        grant: Grant,
        terms: Terms,
        room: Option<Key>,
    ) -> Self {
        let hold_end = terms.max_hold.map_or(Deadline::FAR, |max_hold| client.clock().now().plus(max_hold));
        Held::until(client, ticket, grant, terms, room, hold_end)
    }

    fn until(
        client: &Arc<Client>,
        ticket: Ticket,
        grant: Grant,
        terms: Terms,
        room: Option<Key>,
        hold_end: Deadline,
    ) -> Self {
        client.closing.begun();
        let tenancy = Arc::new(Tenancy {
            id: client.next_id(),
            client: client.clone(),
            ticket: Ticket { fence: Some(grant.fence), ..ticket },
            fence: grant.fence,
            granted_at: client.clock().now(),
            room,
            renews: terms.renews,
            hold_end,
            ttl_ms: AtomicU64::new(terms.ttl.as_ms()),
            longest_ttl_ms: AtomicU64::new(terms.ttl.as_ms()),
            valid_until_ns: AtomicU64::new(grant.valid_until.min(hold_end).as_ns()),
            end: AtomicU8::new(0),
            unanswered: AtomicBool::new(false),
            converting: AtomicBool::new(false),
            fence_in_hand: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            times_jittered: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            told: AtomicBool::new(false),
            listened_to: AtomicBool::new(false),
            over: Notify::new(),
        });
        client.keeper.keep(&tenancy);
        Held { tenancy }
    }

    pub(crate) fn tenancy(&self) -> &Arc<Tenancy> {
        &self.tenancy
    }

    /// Has the claim given back in the background; false where it had ended already.
    pub(crate) fn abandon(self) -> bool {
        self.withdraw()
    }

    fn withdraw(&self) -> bool {
        // A drain that sees no lease must find the withdrawal with the janitor.
        let _in_use = self.tenancy.client.closing.in_use();
        let ends = self.tenancy.finish(Loss::Released);
        if ends {
            self.tenancy.client.keeper.forget(&self.tenancy);
            self.tenancy.withdraw(true);
            self.tenancy.client.hall.vacate(&self.tenancy);
        }
        ends
    }

    /// Gives the claim out of the keeper's hands. What comes back has it to take care of from here on.
    pub(crate) fn set_loose(self, fence: Fence, since: Deadline) -> Result<Detached> {
        let tenancy = &self.tenancy;
        if !tenancy.finish(Loss::Released) {
            return Err(tenancy.lost(tenancy.end().unwrap_or(Loss::Expired)));
        }
        tenancy.client.keeper.forget(tenancy);
        let leaving = Detached::leaving_its_keeper(tenancy, fence, since);
        // The next local task waits for it in the store, as everybody else does.
        tenancy.client.hall.vacate(tenancy);
        Ok(leaving)
    }

    /// Goes on as the owner of what the store has made of the claim. Nothing where the old tenancy had ended already: then
    /// the claim is being withdrawn.
    ///
    /// It has no room at the meeting: its terms may be another's, and it is not passed on.
    pub(crate) fn converted(self, grant: Grant, to: Share) -> Option<Held> {
        let old = &self.tenancy;
        let _in_use = old.client.closing.in_use();
        if !old.finish(Loss::Released) {
            return None;
        }
        let ticket = Ticket { share: to, ..old.ticket.clone() };
        let terms = Terms { ttl: old.ttl(), renews: old.renews, max_hold: None };
        let held = Held::until(&old.client, ticket, grant, terms, None, old.hold_end);
        held.tenancy.longest_ttl_ms.fetch_max(old.longest_ttl().as_ms(), Ordering::AcqRel);
        old.client.keeper.forget(old);
        // The next local task asks the store, as everybody else does.
        old.client.hall.vacate(old);
        Some(held)
    }

    /// Gives the claim back to the store.
    pub(crate) async fn release(self, fence: Fence) -> Result<()> {
        let tenancy = self.tenancy.clone();
        let _in_use = tenancy.client.closing.in_use();
        if !tenancy.finish(Loss::Released) {
            let reason = tenancy.end().unwrap_or(Loss::Expired);
            return Err(tenancy.lost(reason));
        }
        tenancy.client.keeper.forget(&tenancy);
        let unsettled = Unsettled { tenancy: &tenancy, fence, vacated: false, answered: false };
        unsettled.release().await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.withdraw() {
            return;
        }
        // The user has let go of a lease that was taken away: whoever took it may wait for this.
        let Tenancy { client, ticket, fence, .. } = &*self.tenancy;
        if let Some(Loss::Deleted | Loss::Taken | Loss::Gone) = self.tenancy.end() {
            client.janitor.confirm_end(ticket.names.clone(), *fence);
        }
    }
}

/// A release on its way: wherever it is dropped, the janitor finishes it and the seat is free.
struct Unsettled<'a> {
    tenancy: &'a Tenancy,
    fence: Fence,
    vacated: bool,
    answered: bool,
}

impl Unsettled<'_> {
    async fn release(mut self) -> Result<()> {
        let tenancy = self.tenancy;
        let mut call = pin!(tenancy.client.store.release(&tenancy.ticket));
        let first = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        // The next local task may ask now: its request follows ours.
        self.vacate();
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let _pending = tenancy.client.closing.pending(tenancy.errand(false, true));
                let enough = tenancy.clock().now().plus(tenancy.ttl().third().min(PATIENCE_MAX));
                let answer = tenancy.clock().until(enough, call).await;
                answer.unwrap_or_else(|| Err(tenancy.client.no_answer()))
            }
        };
        match answer {
            Ok(Released::Released) => {
                self.answered = true;
                Ok(())
            }
            Ok(Released::NotHeld) => {
                self.answered = true;
                tenancy.client.janitor.confirm_end(tenancy.names().clone(), tenancy.fence);
                let now = tenancy.clock().now();
                let why = if tenancy.client.closing.is_closed() {
                    // Whoever closed the client had it released too, and that may have come first.
                    Some("the client was closed meanwhile")
                } else if now >= tenancy.valid_until() {
                    // It was valid when its holder let go, and may have expired on the way: good work is kept.
                    Some("it was answered after the deadline")
                } else {
                    None
                };
                if let Some(why) = why.map(str::to_owned) {
                    return Err(Error::Unknown { names: tenancy.names().clone(), what: "release", why });
                }
                let (names, fence, reason) = (tenancy.names().clone(), self.fence, Loss::Deleted);
                let held = now.since(tenancy.granted_at);
                tenancy.client.events.emit(Event::Lost { names, fence, reason, held });
                Err(tenancy.lost(Loss::Deleted))
            }
            Err(error) => Err(Error::Unknown {
                names: tenancy.names().clone(),
                what: "release",
                why: error.to_string(),
            }),
        }
    }

    fn vacate(&mut self) {
        if !std::mem::replace(&mut self.vacated, true) {
            self.tenancy.client.hall.vacate(self.tenancy);
        }
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.tenancy.withdraw(true);
        }
        self.vacate();
    }
}

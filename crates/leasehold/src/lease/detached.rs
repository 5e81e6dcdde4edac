//! `Detached`, a lease that outlives its process: its token suffices to extend or release it.

use std::time::Duration;

use super::state::LeaseState;
use crate::claim::{Grant, Names, Released, Renewed, Ticket};
use crate::cleanup::{Owed, Withdrawal};
use crate::clock::Deadline;
use crate::debug::debug_parts;
use crate::error::{Error, Result, Short};
use crate::event::{Event, Loss};
use crate::fence::Fence;
use crate::locks::Client;
use crate::sync::Arc;
use crate::token::Token;
use crate::ttl::Ttl;

/// The first pause between requests to a store that does not answer; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A lease that is not renewed, for a script that acquires it in one process, extends it in a
/// second and releases it in a third. [`Mutex::lock_detached`](crate::Mutex::lock_detached)
/// acquires one, and [`Lease::detach`](crate::Lease::detach) makes one of a lease. In one process
/// use a [`Lease`](crate::Lease).
///
/// It ends with its TTL unless it is [extended](Detached::extend) or [released](Detached::release),
/// by any process with its name and its [token](Detached::token). No task watches it: the next
/// `extend` or `release` reports a loss, and no event does.
///
/// Dropping it does nothing. [Closing](crate::Locks::close) the client does not end it: calls
/// through it then fail with [`Error::Closed`], and another client can take it up.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::Token;
///
/// let locks = leasehold::connect("memory:").await?;
/// let lease = locks.mutex("nightly").ttl(Duration::from_secs(600)).lock_detached().await?;
/// let note = lease.token().expose().to_owned(); // a secret: into a file that only its user reads
/// drop(lease);
/// assert!(locks.mutex("nightly").try_lock().await?.is_none(), "still held");
///
/// // Later, in another process:
/// let mut lease = locks.detached("nightly", Token::parse(&note)?)?;
/// lease.extend(Duration::from_secs(600)).await?;
/// lease.release().await?; // an error if it was no longer held: roll back
/// # Ok(()) }
/// ```
///
/// Invariants:
/// - `valid_until` is what the store has proven to *this* value: the claim may last longer, never
///   less, unless it is released or evicted;
/// - dropping it withdraws the claim only before its taker has it, or while it is given back.
#[must_use = "it stays taken until its TTL is over: keep its token, or release it"]
pub struct Detached {
    client: Arc<Client>,
    ticket: Ticket,
    /// The time of the grant, if this client acquired it.
    since: Option<Deadline>,
    /// `None` if unknown.
    valid_until: Option<Deadline>,
    /// The longest TTL asked for here. A release without an answer is repeated for that long.
    longest_ttl: Ttl,
    /// Present while dropping this value withdraws the claim.
    owed: Option<Owed>,
    /// A user had it, and it is going back to the store.
    is_leaving: bool,
}

impl Detached {
    /// A grant that its taker does not have yet.
    pub(crate) fn arriving(client: &Arc<Client>, ticket: Ticket, grant: Grant, ttl: Ttl) -> Self {
        let ticket = Ticket { fence: Some(grant.fence), ..ticket };
        let mut arriving = Detached::found(client, ticket);
        arriving.valid_until = Some(grant.valid_until);
        arriving.longest_ttl = ttl;
        arriving.owing()
    }

    /// The claim of a lease that ended here, withdrawn unless it [settles](Detached::settle).
    pub(crate) fn of_lease(state: &LeaseState, fence: Fence, since: Deadline) -> Self {
        // The one of the grant's fences that its holder had.
        let ticket = Ticket { fence: Some(fence), ..state.ticket.clone() };
        let mut leaving = Detached::found(&state.client, ticket);
        leaving.since = Some(since);
        leaving.valid_until = Some(state.valid_until());
        leaving.longest_ttl = state.longest_ttl();
        leaving.is_leaving = true;
        leaving.owing()
    }

    /// A claim that another process may have made.
    pub(crate) fn found(client: &Arc<Client>, ticket: Ticket) -> Self {
        Detached {
            client: client.clone(),
            ticket,
            since: None,
            valid_until: None,
            longest_ttl: client.defaults.ttl,
            owed: None,
            is_leaving: false,
        }
    }

    fn owing(mut self) -> Self {
        // Its acquire was answered, and a late renewal makes no claim.
        let (ticket, ttl) = (self.ticket.clone(), self.longest_ttl);
        self.owed = Some(self.client.cleanup.owe(Withdrawal { ticket, ttl, late: false, has_ended: false }));
        self
    }

    /// Makes dropping this value do nothing from now on.
    fn let_live(&mut self) {
        self.owed.take().into_iter().for_each(Owed::settle);
        self.is_leaving = false;
    }

    /// Returns the names held.
    pub fn names(&self) -> &Names {
        &self.ticket.names
    }

    /// Returns the token, which with the name is enough to [take it up](crate::Locks::detached)
    /// again. It is a secret: any process with its [text](Token::expose) can release the lock.
    pub fn token(&self) -> &Token {
        &self.ticket.token
    }

    /// Returns the fence for the protected resource; `None` if it was taken up by its token alone.
    pub fn fence(&self) -> Option<Fence> {
        self.ticket.fence
    }

    /// Sets the fence that was saved beside the token. [`extend`](Detached::extend) then proves
    /// both, and reports a loss if the fence is wrong.
    pub fn with_fence(mut self, fence: Fence) -> Self {
        self.ticket.fence = Some(fence);
        self
    }

    /// Returns the time that it lasts at least, unless it is released or evicted, as far as *this*
    /// value knows from the grant or its own last extension. Zero if that is over or unknown.
    pub fn remaining(&self) -> Duration {
        let now = self.client.clock().now();
        self.valid_until.map_or(Duration::ZERO, |valid_until| valid_until.since(now))
    }

    /// Makes it last for this TTL from now. Never shortens the time left or revives a lost lock.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is too late: [`Loss::Taken`] if another holder has it, [`Loss::Gone`]
    /// if none has. [`Error::Unknown`] if no answer came within 5 s: it lasts at least as long as
    /// before. [`Error::Refused`] if the store refuses; [`Error::Invalid`] for an invalid TTL;
    /// [`Error::Closed`] on a closed client.
    ///
    /// # Cancel safety
    /// Dropped before the answer, it lasts at least as long as before.
    pub async fn extend(&mut self, ttl: Duration) -> Result<()> {
        let ttl = Ttl::new(ttl)?;
        self.client.check_open()?;
        self.client.check_ttl("TTL", ttl)?;
        match self.renew(ttl).await {
            Ok(()) if self.remaining().is_zero() => {
                Err(Error::unknown(self.names(), "extend", "it was answered after the new deadline"))
            }
            answer => answer.map_err(|error| error.or_unknown(self.names(), "extend")),
        }
    }

    /// Releases it, and returns an error if the lock was not held to the end. It always asks the
    /// store: another process may have extended the lease.
    ///
    /// # Errors
    /// [`Error::Lost`] with [`Loss::Gone`] if it was not held any more: other holders may have
    /// changed what it protected, so roll back. [`Error::Unknown`] if no answer came within 5 s, or
    /// one after the deadline: it is given back in the background, for as long as its TTL (the
    /// client's, if it was taken up again) may last, and a process that takes it up later may find
    /// it gone. [`Error::Refused`] if the store refuses, and [`Error::Closed`] on a closed client:
    /// nothing has changed, and it can be taken up again.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the lock is given back in the background; before, it stays.
    pub async fn release(mut self) -> Result<()> {
        self.client.check_open()?;
        let lasted = !self.remaining().is_zero();
        let client = self.client.clone();
        let _in_use = client.closing.in_use();
        self.is_leaving = true;
        self = self.owing();
        self.owed.iter_mut().for_each(Owed::list);
        let answer = client.in_time(client.store.release(&self.ticket)).await;
        let unknown = |names: &Names, why| Err(Error::unknown(names, "release detached", why));
        // If the outcome is unknown, dropping `self` withdraws the claim.
        match answer {
            Ok(Released::Released) => {
                self.let_live();
                self.report_released();
                Ok(())
            }
            // Closing the client releases the claim too, and may have done so first.
            Ok(Released::NotHeld) if client.closing.is_closed() => {
                unknown(self.names(), "the client was closed meanwhile")
            }
            // It was valid when released, and may have expired on the way: good work is kept.
            Ok(Released::NotHeld) if lasted && self.remaining().is_zero() => {
                unknown(self.names(), "it was answered after the deadline")
            }
            Ok(Released::NotHeld) => {
                self.let_live();
                Err(Error::lost(self.names(), Loss::Gone))
            }
            Err(error) => {
                if !error.is_outcome_unknown() {
                    self.let_live();
                }
                Err(error.or_unknown(self.names(), "release detached"))
            }
        }
    }

    /// Renews a grant that arrived with less time left than its taker needs, or gives it back.
    pub(crate) async fn ensure_validity(&mut self, needed: Duration) -> Result<()> {
        if self.remaining() >= needed {
            return Ok(());
        }
        self.owed.iter_mut().for_each(Owed::list);
        let renewed = self.renew(self.longest_ttl).await;
        self.owed.iter_mut().for_each(Owed::unlist);
        let left = self.remaining();
        if left >= needed {
            return Ok(());
        }
        // The caller drops it, which withdraws the claim.
        self.client.check_open()?;
        match renewed {
            Ok(()) | Err(Error::Lost { .. }) => {
                Err(Error::Late { names: self.names().clone(), left, needed })
            }
            // An outage is not a TTL that is too short.
            Err(error) => Err(error),
        }
    }

    /// Gives it to its taker: from now on it outlives this process.
    pub(crate) fn let_loose(mut self, asked: Deadline) -> Result<Self> {
        // Closing the client may have withdrawn it meanwhile.
        self.client.check_open()?;
        let now = self.client.clock().now();
        self.let_live();
        self.since = Some(now);
        if let Some(fence) = self.fence() {
            self.client.events.acquired(self.names(), fence, now.since(asked), false);
        }
        Ok(self)
    }

    /// Makes the store keep it without its client, for this TTL from now.
    pub(crate) async fn settle(mut self, ttl: Ttl) -> Result<Self> {
        self.longest_ttl = self.longest_ttl.max(ttl);
        if let Some(owed) = &mut self.owed {
            owed.at_least(ttl);
            owed.list();
        }
        let answer = self.client.in_time(self.client.store.detach(&self.ticket, ttl)).await;
        self.owed.iter_mut().for_each(Owed::unlist);
        // Closing the client may have withdrawn it.
        self.client.check_open()?;
        // Until `let_live`, dropping `self` withdraws the claim.
        match answer {
            Ok(Renewed::Until(deadline)) if deadline <= self.client.clock().now() => {
                Err(Error::unknown(self.names(), "detach", "it was answered after the new deadline"))
            }
            Ok(Renewed::Until(deadline)) => {
                self.valid_until = Some(deadline);
                self.let_live();
                Ok(self)
            }
            Ok(Renewed::Lost(reason)) => {
                let reason = if self.remaining().is_zero() { Loss::Expired } else { reason };
                self.let_live();
                Err(self.report_lost(reason))
            }
            Err(error) => Err(error.or_unknown(self.names(), "detach")),
        }
    }

    /// Makes the store keep the claim without its client until this deadline. It retries until the
    /// store answers or the lease's own deadline passes, and never gives the claim back: a request
    /// without an answer may have been executed.
    pub(crate) async fn keep_until(mut self, until: Deadline) -> Result<()> {
        self.let_live();
        let lease_end = self.valid_until.unwrap_or(until);
        let mut pause = FIRST_PAUSE;
        loop {
            let now = self.client.clock().now();
            let ttl = Ttl::new(until.since(now).max(Ttl::MIN.as_duration()))?;
            let answer = self.client.in_time(self.client.store.detach(&self.ticket, ttl)).await;
            let now = self.client.clock().now();
            let why = match answer {
                Ok(Renewed::Until(_)) => return Ok(()),
                // It lasted to the end of the work, and may have expired since.
                Ok(Renewed::Lost(_)) if now >= lease_end => "it was answered after the deadline".to_owned(),
                Ok(Renewed::Lost(reason)) => return Err(self.report_lost(reason)),
                Err(error) if error.is_outcome_unknown() || matches!(error, Error::Refused { .. }) => {
                    error.to_string()
                }
                Err(error) => return Err(error),
            };
            if now >= lease_end || self.client.closing.is_closed() {
                return Err(Error::unknown(self.names(), "keep", why));
            }
            self.client.clock().sleep_until(now.plus(pause).min(lease_end)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A detached lease is not watched, so no client could enforce a `max_hold`.
    pub(crate) fn refuse_max_hold(max_hold: Option<Duration>) -> Result<()> {
        let Some(max_hold) = max_hold else { return Ok(()) };
        let why =
            "nobody keeps a detached lease, so nobody could end it then; it ends with its TTL, so set that";
        Err(Error::invalid("max_hold", Short(max_hold).to_string(), why))
    }

    async fn renew(&mut self, ttl: Ttl) -> Result<()> {
        self.longest_ttl = self.longest_ttl.max(ttl);
        let due = [(self.ticket.clone(), ttl)];
        let client = &self.client;
        let call = async {
            let answers = client.store.renew(&due).await;
            answers.into_iter().next().unwrap_or_else(|| Err(client.no_answer()))
        };
        match client.in_time(call).await? {
            Renewed::Until(deadline) => {
                self.valid_until = self.valid_until.max(Some(deadline));
                Ok(())
            }
            Renewed::Lost(reason) => {
                self.valid_until = None;
                // Without a watch, an expiry or a release by another process looks like a deletion.
                Err(Error::lost(self.names(), if reason == Loss::Deleted { Loss::Gone } else { reason }))
            }
        }
    }

    /// Reports the loss of a lease that this client acquired as an event, too.
    fn report_lost(&self, reason: Loss) -> Error {
        if let (Some(fence), Some(since)) = (self.fence(), self.since) {
            let held = self.client.clock().now().since(since);
            self.client.events.emit(Event::Lost { names: self.names().clone(), fence, reason, held });
        }
        Error::lost(self.names(), reason)
    }

    fn report_released(&self) {
        let Client { events, .. } = &*self.client;
        match (self.fence(), self.since) {
            (Some(fence), Some(since)) => {
                events.released(self.names(), fence, self.client.clock().now().since(since));
            }
            _ => events.released_for_another(self.names()),
        }
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        if self.is_leaving {
            self.report_released();
        }
    }
}

debug_parts!(Detached: names() token() fence());

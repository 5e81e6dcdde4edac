//! How a request becomes a lease: inline, at the meeting, or straight at the store, as a detached one always does; and
//! what is done with a grant that comes late.

use std::time::Duration;

use crate::attempt::Attempt;
use crate::claim::{Acquired, Busy, Claim, Grant, Holder, Names, Share, Ticket, Wait};
use crate::clock::Deadline;
use crate::detached::Detached;
use crate::error::{Error, Result};
use crate::event::{Event, Loss};
use crate::lease::Lease;
use crate::locks::{ANSWER_MAX, Client};
use crate::meeting::{Baton, Key, Met, Visit};
use crate::sync::Arc;
use crate::tenancy::{Held, Terms};
use crate::token::{Owner, Token};

/// What a lock type asks for: the names, the share and the options.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) names: Names,
    pub(crate) share: Share,
    pub(crate) terms: Terms,
    pub(crate) owner: Owner,
    /// `None` waits for ever; zero does not wait.
    pub(crate) acquire_timeout: Option<Duration>,
    /// As the user set it; see [`Request::min_validity`].
    pub(crate) min_validity: Option<Duration>,
    /// Each task takes its own place in the store's queue.
    pub(crate) strict_order: bool,
    /// Running work needs it, such as a value that is being loaded: a drain does not refuse it. It has no room.
    pub(crate) is_internal: bool,
    /// Where tasks with the same request meet; `None` for one that takes its own place in the store's queue.
    /// It follows from the other fields: see [`Request::find_room`].
    pub(crate) room: Option<Key>,
}

impl Request {
    /// The room has one seat: requests that can be granted side by side would only wait for each other there.
    pub(crate) fn find_room(&self, client: &Client) -> Option<Key> {
        let name = self.names.only().filter(|_| self.share == Share::Exclusive && !self.strict_order)?;
        Some(client.hall.key(name.clone(), self.owner.clone(), self.terms))
    }

    /// A grant with less time left than this is renewed or given back.
    pub(crate) fn min_validity(&self) -> Duration {
        let min_validity = self.min_validity.unwrap_or(self.terms.ttl.as_duration() / 2);
        // A `max_hold` that is shorter is the user's own choice, and no reason to give the lock back.
        min_validity.min(self.terms.max_hold.unwrap_or(Duration::MAX))
    }

    /// Refuses a `min_validity` that no grant with this TTL has.
    pub(crate) fn check_min_validity(&self) -> Result<()> {
        let (ttl, min_validity) = (self.terms.ttl, self.min_validity());
        if min_validity <= ttl.validity() {
            return Ok(());
        }
        let why = format!("a lease of {ttl} is never valid for longer than {:?}", ttl.validity());
        Err(Error::invalid("min_validity", format!("{min_validity:?}"), why))
    }
}

/// How long a store may take, once the wait is over, to say who is in the way.
const LAST_WORD: Duration = Duration::from_millis(250);

/// What is off the beaten track is boxed, so that the future of a lock stays small.
///
/// # Cancel safety
/// Dropped anywhere, it leaves nothing behind: a request is withdrawn, a place in line given up, a grant
/// passed on or released.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    request: &Request,
    timeout: Option<Duration>,
) -> Result<Lease> {
    // A loop that takes and releases a free lock would otherwise never let other tasks run.
    tokio::task::coop::consume_budget().await;
    client.check(request)?;
    let start = client.clock().now();
    let wait = wait_from(start, timeout);
    loop {
        let met = match &request.room {
            Some(key) => match Visit::new(client, key, wait).await? {
                Met::Occupied => match client.hall.held_here(key) {
                    Some(busy) => Met::Busy(busy),
                    // Others of this client are asking; whether that means busy, only the store knows.
                    None => Box::pin(ask_directly(client, request, wait)).await?,
                },
                met => met,
            },
            None => Box::pin(ask_directly(client, request, wait)).await?,
        };
        let (baton, passed) = match met {
            Met::Granted(baton) => (baton, false),
            Met::Passed(baton) => (baton, true),
            Met::Busy(busy) => return Err(busy_error(client, request, busy, start, wait)),
            Met::TimedOut | Met::Occupied => {
                let busy = Box::pin(who_is_in_the_way(client, request)).await?;
                return Err(busy_error(client, request, busy, start, wait));
            }
        };
        let mut now = client.clock().now();
        let tenancy = baton.held.tenancy();
        // One that is capped by its `max_hold` has as much as its caller wants.
        let is_short = tenancy.remaining(now) < request.min_validity() && !tenancy.is_capped();
        if is_short || tenancy.loss_at(now).is_some() {
            if let Err(error) = Box::pin(ensure_validity(&baton, request.min_validity())).await {
                // What was passed on and turned out to be lost was another's; this one's turn is still to come.
                match tenancy.end() {
                    Some(loss) if passed && loss != Loss::Closed => continue,
                    _ => return Err(error),
                }
            }
            now = client.clock().now();
        }
        client.events.acquired(&request.names, baton.fence, now.since(start), passed);
        return Ok(Lease::new(baton, now));
    }
}

/// The same for a lease that nobody keeps. It does not go through the meeting: what is passed on needs a keeper.
///
/// # Cancel safety
/// As [`acquire`]; it ends in the same poll in which the lease is let loose.
pub(crate) async fn acquire_detached(
    client: &Arc<Client>,
    request: &Request,
    timeout: Option<Duration>,
) -> Result<Detached> {
    Detached::refuse_max_hold(request.terms.max_hold)?;
    tokio::task::coop::consume_budget().await;
    client.check(request)?;
    let start = client.clock().now();
    let wait = wait_from(start, timeout);
    let mut arriving = match ask(client, request, wait, true).await? {
        Asked::Granted(ticket, grant) => Detached::arriving(client, ticket, grant, request.terms.ttl),
        Asked::Busy(busy) => return Err(busy_error(client, request, busy, start, wait)),
        Asked::TimedOut => {
            let busy = who_is_in_the_way(client, request).await?;
            return Err(busy_error(client, request, busy, start, wait));
        }
    };
    arriving.ensure_validity(request.min_validity()).await?;
    arriving.let_loose(start)
}

fn wait_from(start: Deadline, timeout: Option<Duration>) -> Wait {
    match timeout {
        None | Some(Duration::MAX) => Wait::Forever,
        Some(Duration::ZERO) => Wait::Never,
        Some(timeout) => Wait::Until(start.plus(timeout)),
    }
}

/// Tells the hook, and makes the error.
fn busy_error(client: &Client, request: &Request, busy: Busy, start: Deadline, wait: Wait) -> Error {
    let waited = match wait {
        Wait::Never => Duration::ZERO,
        _ => client.clock().now().since(start),
    };
    client.events.emit(Event::Busy { names: request.names.clone(), waited });
    Error::Busy { names: request.names.clone(), busy, waited }
}

/// Asks the store for this task alone, and takes what it grants into the keeper's care.
async fn ask_directly(client: &Arc<Client>, request: &Request, wait: Wait) -> Result<Met> {
    Ok(match ask(client, request, wait, false).await? {
        Asked::Busy(busy) => Met::Busy(busy),
        Asked::TimedOut => Met::TimedOut,
        Asked::Granted(ticket, grant) => {
            let held = Held::new(client, ticket, grant, request.terms, None);
            Met::Granted(Baton { held, fence: grant.fence, fences_left: 0 })
        }
    })
}

/// What a store said to one task.
enum Asked {
    /// Whoever is told this has a claim to take care of, before the next await.
    Granted(Ticket, Grant),
    Busy(Busy),
    TimedOut,
}

async fn ask(client: &Client, request: &Request, wait: Wait, detached: bool) -> Result<Asked> {
    let Request { names, share, terms, owner, .. } = request;
    let token = Token::fresh(owner)?;
    let ticket = Ticket { names: names.clone(), token, share: *share, fence: None };
    let claim = Claim { ticket: ticket.clone(), ttl: terms.ttl, wait, fences: 1, detached };
    let attempt = Attempt::new(client, claim).internal(request.is_internal);
    // The store ends the wait by itself and says who is in the way; this is for one that hangs.
    let enough = match wait {
        Wait::Never => client.clock().now().plus(ANSWER_MAX),
        Wait::Until(deadline) => deadline.plus(LAST_WORD),
        Wait::Forever => Deadline::FAR,
    };
    let answer = tokio::select! {
        biased;
        answer = attempt => answer?,
        () = client.clock().sleep_until(enough) => return Ok(Asked::TimedOut),
    };
    Ok(match answer {
        Acquired::Busy(busy) => Asked::Busy(busy),
        Acquired::Granted(grant) => Asked::Granted(ticket, grant),
    })
}

/// The wait is over: who is in the way? A store that cannot say so within a moment is not busy but
/// unreachable, and an outage must not look like contention.
async fn who_is_in_the_way(client: &Client, request: &Request) -> Result<Busy> {
    let silent = || Error::Unreachable {
        store: client.store.capabilities().store,
        why: "it was silent to the end of the wait, and asked who holds the lock it still was".into(),
    };
    let holder = tokio::select! {
        biased;
        holder = first_holder(client, request) => holder?,
        () = client.clock().sleep_until(client.clock().now().plus(LAST_WORD)) => return Err(silent()),
    };
    Ok(Busy {
        remaining: holder.as_ref().map(|holder| holder.remaining),
        holder: holder.map(|holder| holder.owner),
        // Our own place in line may still be among them.
        waiters: 0,
    })
}

async fn first_holder(client: &Client, request: &Request) -> Result<Option<Holder>> {
    for name in &request.names {
        let status = client.store.inspect(name).await?;
        if let Some(holder) = status.and_then(|status| status.holders.into_iter().next()) {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// A grant with less left than the caller needs is renewed, or else given back.
async fn ensure_validity(baton: &Baton, needed: Duration) -> Result<()> {
    let tenancy = baton.held.tenancy();
    let mut left = Duration::ZERO;
    if tenancy.loss().is_none() {
        let renewed = tenancy.renew_now(tenancy.ttl()).await;
        let now = tenancy.client.clock().now();
        left = tenancy.remaining(now);
        if tenancy.loss_at(now).is_none() {
            if left >= needed || tenancy.is_capped() {
                return Ok(());
            }
            // An outage is not a TTL that is too short.
            renewed?;
        }
    }
    // The caller drops the baton, and with it goes the claim.
    if tenancy.end() == Some(Loss::Closed) {
        return Err(Error::Closed);
    }
    Err(Error::Late { names: tenancy.names().clone(), left, needed })
}

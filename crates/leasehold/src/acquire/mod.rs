//! The way of a request to a lease: through a local queue, or directly at the store.

pub(crate) mod local_queue;
pub(crate) mod pending;

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use self::local_queue::LocalQueues;
use self::local_queue::LocalWait;
use self::pending::PendingAcquire;
use crate::claim::{Acquired, Busy, Claim, Grant, Holder, Names, Share, Ticket, Wait};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::event::{Event, Loss};
use crate::lease::Lease;
use crate::lease::detached::Detached;
use crate::lease::state::LeaseState;
use crate::locks::{ANSWER_MAX, Client};
use crate::sync::Arc;
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// The request of a lock type: the names, the share and the options.
///
/// Requests are equal if one grant can serve both: they belong to one local queue.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) names: Names,
    pub(crate) share: Share,
    pub(crate) owner: Owner,
    pub(crate) ttl: Ttl,
    pub(crate) renews: bool,
    pub(crate) max_hold: Option<Duration>,
    /// `None` waits for ever; zero does not wait.
    pub(crate) acquire_timeout: Option<Duration>,
    /// The user's value; see [`Request::min_validity`].
    pub(crate) min_validity: Option<Duration>,
    /// Each task takes its own place in the store's queue.
    pub(crate) strict_order: bool,
    /// Running work needs it (such as a cache): a drain does not refuse it. No local queue.
    pub(crate) is_internal: bool,
    /// The hash of [`shared_parts`](Request::shared_parts), set at the first entry into a queue.
    pub(crate) queue_hash: OnceLock<u64>,
}

impl Request {
    /// Returns whether it goes through a local queue. A queue has one head: requests that can be
    /// granted side by side would only wait for each other.
    pub(crate) fn has_queue(&self) -> bool {
        self.share == Share::Exclusive && !self.strict_order && self.names.only().is_some()
    }

    pub(crate) fn shared_parts(&self) -> impl Hash + Eq {
        (&self.names, &self.owner, self.ttl, self.renews, self.max_hold)
    }

    fn claim(&self, wait: Wait, fences: u16, detached: bool) -> Result<Claim> {
        let token = Token::fresh(&self.owner)?;
        let ticket = Ticket { names: self.names.clone(), token, share: self.share, fence: None };
        Ok(Claim { ticket, ttl: self.ttl, wait, fences, detached })
    }

    /// Returns the time that a grant must have left, or it is renewed or given back.
    pub(crate) fn min_validity(&self) -> Duration {
        let min_validity = self.min_validity.unwrap_or(self.ttl.as_duration() / 2);
        // A shorter `max_hold` is the user's own choice, and no reason to give the lock back.
        min_validity.min(self.max_hold.unwrap_or(Duration::MAX))
    }

    /// Refuses a `min_validity` that no grant with this TTL has.
    pub(crate) fn check_min_validity(&self) -> Result<()> {
        let (ttl, min_validity) = (self.ttl, self.min_validity());
        if min_validity <= ttl.validity() {
            return Ok(());
        }
        let why = format!("a lease of {ttl} is never valid for longer than {:?}", ttl.validity());
        Err(Error::invalid("min_validity", format!("{min_validity:?}"), why))
    }
}

impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.queue_hash == other.queue_hash && self.shared_parts() == other.shared_parts()
    }
}

impl Eq for Request {}

impl Hash for Request {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.queue_hash.get().copied().unwrap_or_default());
    }
}

/// The reason why a task got no grant.
pub(crate) enum Refusal {
    /// Other holders are in the way of a request that does not wait.
    Busy(Busy),
    /// The request has no local queue. Or it does not wait, and other tasks of this client ask for
    /// the name: only the store knows whether it is busy.
    AskDirectly,
    TimedOut,
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Failed(error)
    }
}

/// The time that a store has, once the wait is over, to tell which holder is in the way.
const LAST_WORD: Duration = Duration::from_millis(250);

/// Acquires a lease. Rare paths are boxed, so that the future of a lock stays small.
///
/// # Cancel safety
/// Dropped anywhere, it leaves nothing behind: a request is withdrawn, a place in the queue given
/// up, a grant passed on or released.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    request: &Arc<Request>,
    timeout: Option<Duration>,
) -> Result<Lease> {
    // A loop that acquires and releases a free lock would otherwise never let other tasks run.
    tokio::task::coop::consume_budget().await;
    client.check(request)?;
    let start = client.clock().now();
    let wait = wait_from(start, timeout);
    loop {
        let mut answer = match request.has_queue() {
            true => LocalWait::new(client, request, wait).await,
            false => Err(Refusal::AskDirectly),
        };
        if let Err(Refusal::AskDirectly) = answer {
            answer = Box::pin(ask(client, request, wait, false))
                .await
                .map(|(ticket, grant)| Lease::granted(client, request, ticket, grant));
        }
        let lease = match answer {
            Ok(lease) => lease,
            Err(refusal) => return Err(Box::pin(refused(client, request, refusal, start, wait)).await),
        };
        let mut now = client.clock().now();
        let state = lease.state();
        // A lease that is capped by its `max_hold` has as much time as its caller wants.
        let is_short = state.remaining(now) < request.min_validity() && !state.is_capped();
        if is_short || state.loss_at(now).is_some() {
            if let Err(error) = Box::pin(ensure_validity(state, request.min_validity())).await {
                // A passed grant was lost under another task. This task still has its turn to come.
                match state.end_reason() {
                    Some(loss) if lease.is_passed() && loss != Loss::Closed => continue,
                    _ => return Err(error),
                }
            }
            now = client.clock().now();
        }
        client.events.acquired(&request.names, lease.fence(), now.since(start), lease.is_passed());
        return Ok(lease.hand_over(now));
    }
}

/// Like [`acquire`], for a lease without renewal, which is not passed on: no local queue.
///
/// # Cancel safety
/// As [`acquire`]; it ends in the same poll in which the lease is let loose.
pub(crate) async fn acquire_detached(
    client: &Arc<Client>,
    request: &Request,
    timeout: Option<Duration>,
) -> Result<Detached> {
    Detached::refuse_max_hold(request.max_hold)?;
    tokio::task::coop::consume_budget().await;
    client.check(request)?;
    let start = client.clock().now();
    let wait = wait_from(start, timeout);
    let mut arriving = match ask(client, request, wait, true).await {
        Ok((ticket, grant)) => Detached::arriving(client, ticket, grant, request.ttl),
        Err(refusal) => return Err(refused(client, request, refusal, start, wait).await),
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

async fn refused(client: &Client, request: &Request, refusal: Refusal, start: Deadline, wait: Wait) -> Error {
    let busy = match refusal {
        Refusal::Busy(busy) => Ok(busy),
        Refusal::TimedOut | Refusal::AskDirectly => who_is_in_the_way(client, request).await,
        Refusal::Failed(error) => Err(error),
    };
    let busy = match busy {
        Ok(busy) => busy,
        Err(error) => return error,
    };
    let waited = match wait {
        Wait::Never => Duration::ZERO,
        _ => client.clock().now().since(start),
    };
    client.events.emit(Event::Busy { names: request.names.clone(), waited });
    Error::Busy { names: request.names.clone(), busy, waited }
}

/// Asks the store for this task alone. The caller has to take over the claim before the next await.
async fn ask(
    client: &Arc<Client>,
    request: &Request,
    wait: Wait,
    detached: bool,
) -> Result<(Ticket, Grant), Refusal> {
    let mut pending = PendingAcquire::new(client, request, request.claim(wait, 1, detached)?);
    // The store ends the wait by itself and names the holder. This limit is for a store that hangs.
    let enough = match wait {
        Wait::Never => client.clock().now().plus(ANSWER_MAX),
        Wait::Until(deadline) => deadline.plus(LAST_WORD),
        Wait::Forever => Deadline::FAR,
    };
    match client.clock().until(enough, &mut pending).await {
        Some(Ok(Acquired::Granted(grant))) => Ok((pending.into_ticket(), grant)),
        Some(Ok(Acquired::Busy(busy))) => Err(Refusal::Busy(busy)),
        Some(Err(error)) => Err(error.into()),
        None => Err(Refusal::TimedOut),
    }
}

/// Asks which holder is in the way after the wait. A store that does not answer in time is not busy
/// but unreachable: an outage must not look like contention.
async fn who_is_in_the_way(client: &Client, request: &Request) -> Result<Busy> {
    let silent = || Error::Unreachable {
        store: client.store.capabilities().store,
        why: "it was silent to the end of the wait, and asked who holds the lock it still was".into(),
    };
    let enough = client.clock().now().plus(LAST_WORD);
    let holder = client.clock().until(enough, first_holder(client, request)).await.ok_or_else(silent)??;
    Ok(Busy {
        remaining: holder.as_ref().map(|holder| holder.remaining),
        holder: holder.map(|holder| holder.owner),
        // The place of this task in the store's queue may still be among them.
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

/// Renews a lease with less time left than needed. After a failure the caller drops (withdraws) it.
async fn ensure_validity(state: &Arc<LeaseState>, needed: Duration) -> Result<()> {
    let mut left = Duration::ZERO;
    if state.loss().is_none() {
        let renewed = state.renew_now(state.ttl()).await;
        let now = state.clock().now();
        left = state.remaining(now);
        if state.loss_at(now).is_none() {
            if left >= needed || state.is_capped() {
                return Ok(());
            }
            // An outage is not a TTL that is too short.
            renewed?;
        }
    }
    if state.end_reason() == Some(Loss::Closed) {
        return Err(Error::Closed);
    }
    Err(Error::Late { names: state.names().clone(), left, needed })
}

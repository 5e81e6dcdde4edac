//! One request for a claim, under a guard: dropped before its answer, it is withdrawn.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::futures::OwnedNotified;

use crate::claim::{Acquired, Claim, Ticket};
use crate::closing::{Closing, Pending};
use crate::error::{Error, Result};
use crate::janitor::{Errand, Janitor};
use crate::locks::Client;
use crate::sync::Arc;

/// Invariants:
/// - whoever polls it to `Granted` has a claim to take care of, before the next await;
/// - in every other case nothing of it stays in the store, or the janitor knows of it.
pub(crate) struct Attempt {
    claim: Arc<Claim>,
    call: Pin<Box<dyn Future<Output = Result<Acquired>> + Send>>,
    janitor: Janitor,
    closing: Arc<Closing>,
    /// Listens for the client to be closed, and is known to whoever closes it, once there is something to wait for.
    waiting: Option<(Pin<Box<OwnedNotified>>, Pending)>,
    /// Running work needs it: see [`Closing::refuses`].
    is_internal: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing has been sent: there is nothing to withdraw.
    Unsent,
    Sent,
    Answered,
}

impl Attempt {
    pub(crate) fn new(client: &Client, claim: Claim) -> Self {
        let claim = Arc::new(claim);
        let (store, asked) = (client.store.clone(), claim.clone());
        // Owns what it needs, so that it can change hands at the meeting.
        let call = Box::pin(async move { store.acquire(&asked).await });
        let (janitor, closing) = (client.janitor.clone(), client.closing.clone());
        Attempt { claim, call, janitor, closing, waiting: None, is_internal: false, stage: Stage::Unsent }
    }

    /// The same for a lock that running work needs, which a drain does not refuse.
    pub(crate) fn internal(mut self, is_internal: bool) -> Self {
        self.is_internal = is_internal;
        self
    }

    fn is_refused(&self) -> bool {
        self.closing.refuses(self.is_internal)
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.claim.ticket
    }

    fn errand(&self) -> Errand {
        Errand { ticket: self.claim.ticket.clone(), ttl: self.claim.ttl, late: true, has_ended: false }
    }

    fn withdraw(&self) {
        self.janitor.withdraw(self.errand());
    }
}

impl Future for Attempt {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_refused() {
            // Its token may have been released by whoever closed the client, and a token is never used after that.
            if self.stage == Stage::Sent {
                self.withdraw();
            }
            self.stage = Stage::Answered;
            return Poll::Ready(Err(Error::Closed));
        }
        self.stage = Stage::Sent;
        let answer = match self.call.as_mut().poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending if self.poll_closed(cx) => {
                self.withdraw();
                Err(Error::Closed)
            }
            Poll::Pending => return Poll::Pending,
        };
        self.stage = Stage::Answered;
        // Out of the list first, then looked: whoever closed the client before that had it withdrawn, and whoever closes
        // it after that finds what becomes of the grant.
        self.waiting = None;
        if matches!(answer, Ok(Acquired::Granted(_))) && self.is_refused() {
            self.withdraw();
            return Poll::Ready(Err(Error::Closed));
        }
        if answer.as_ref().is_err_and(|error| error.is_outcome_unknown()) {
            self.withdraw();
        }
        Poll::Ready(answer)
    }
}

impl Attempt {
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> bool {
        if self.waiting.is_none() {
            let rung = Box::pin(self.closing.rung_for(self.is_internal).clone().notified_owned());
            self.waiting = Some((rung, self.closing.pending(self.errand())));
        }
        // Listens first and looks then, or a closing in between would go unheard.
        let rung = self.waiting.as_mut().is_some_and(|(rung, _)| rung.as_mut().poll(cx).is_ready());
        rung || self.is_refused()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.stage == Stage::Sent {
            self.withdraw();
        }
    }
}

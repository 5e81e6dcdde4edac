//! One request for a claim, under a guard: dropped before its answer, it is withdrawn.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::claim::{Acquired, Claim, Ticket};
use crate::error::Result;
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
        Attempt { claim, call, janitor: client.janitor.clone(), stage: Stage::Unsent }
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.claim.ticket
    }

    fn withdraw(&self) {
        let Claim { ticket, ttl, .. } = &*self.claim;
        self.janitor.withdraw(Errand { ticket: ticket.clone(), ttl: *ttl, late: true });
    }
}

impl Future for Attempt {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.stage = Stage::Sent;
        let Poll::Ready(answer) = self.call.as_mut().poll(cx) else { return Poll::Pending };
        self.stage = Stage::Answered;
        if answer.as_ref().is_err_and(|error| error.is_outcome_unknown()) {
            self.withdraw();
        }
        Poll::Ready(answer)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.stage == Stage::Sent {
            self.withdraw();
        }
    }
}

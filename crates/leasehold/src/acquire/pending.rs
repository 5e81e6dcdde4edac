//! One request for a claim, which is withdrawn if it is dropped before its answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::futures::OwnedNotified;

use super::Request;
use crate::claim::{Acquired, Claim, Ticket, Wait};
use crate::cleanup::{Owed, Withdrawal};
use crate::error::{Error, Result};
use crate::locks::Client;
use crate::sync::Arc;

/// Invariants:
/// - the caller that polls it to `Granted` must take over the claim before the next await;
/// - in every other case nothing of it stays in the store, or the cleanup task withdraws it.
pub(crate) struct PendingAcquire {
    /// Set from the first poll to the answer. Dropped before `call`.
    owed: Option<Owed>,
    claim: Arc<Claim>,
    call: Pin<Box<dyn Future<Output = Result<Acquired>> + Send>>,
    client: Arc<Client>,
    /// Notified when the client is closed; set once the request has to wait.
    closed: Option<Pin<Box<OwnedNotified>>>,
    /// Running work needs it: see [`Closing::refuses`](crate::closing::Closing::refuses).
    is_internal: bool,
}

impl PendingAcquire {
    pub(crate) fn new(client: &Arc<Client>, request: &Request, claim: Claim) -> Self {
        let claim = Arc::new(claim);
        let (asked_client, asked) = (client.clone(), claim.clone());
        PendingAcquire {
            owed: None,
            claim,
            // It owns its data, so that the next task in a local queue can go on with it.
            call: Box::pin(async move { asked_client.store.acquire(&asked).await }),
            client: client.clone(),
            closed: None,
            is_internal: request.is_internal,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        self.claim.wait != Wait::Never
    }

    pub(crate) fn into_ticket(self) -> Ticket {
        self.claim.ticket.clone()
    }

    fn is_refused(&self) -> bool {
        self.client.closing.refuses(self.is_internal)
    }

    fn poll_closed(&mut self, cx: &mut Context<'_>) -> bool {
        let closed = self.closed.get_or_insert_with(|| {
            Box::pin(self.client.closing.rung_for(self.is_internal).clone().notified_owned())
        });
        // Registers before it checks, or it would miss a closing in between.
        closed.as_mut().poll(cx).is_ready() || self.is_refused()
    }
}

impl Future for PendingAcquire {
    type Output = Result<Acquired>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_refused() {
            // Closing the client may have released the token, and a token is never used after that.
            self.owed = None;
            return Poll::Ready(Err(Error::Closed));
        }
        if self.owed.is_none() {
            let withdrawal = Withdrawal {
                ticket: self.claim.ticket.clone(),
                ttl: self.claim.ttl,
                late: true,
                has_ended: false,
            };
            self.owed = Some(self.client.cleanup.owe(withdrawal));
        }
        let answer = match self.call.as_mut().poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                // Listed before the check, so that a client that closes meanwhile withdraws it.
                self.owed.iter_mut().for_each(Owed::list);
                if !self.poll_closed(cx) {
                    return Poll::Pending;
                }
                self.owed = None;
                return Poll::Ready(Err(Error::Closed));
            }
        };
        let mut owed = self.owed.take();
        // Unlisted before the check: a client that was closed before this has withdrawn the claim,
        // and one that is closed after this finds the lease.
        owed.iter_mut().for_each(Owed::unlist);
        match answer {
            Ok(Acquired::Granted(_)) if self.is_refused() => Poll::Ready(Err(Error::Closed)),
            Err(error) if error.is_outcome_unknown() => Poll::Ready(Err(error)),
            answer => {
                owed.into_iter().for_each(Owed::settle);
                Poll::Ready(answer)
            }
        }
    }
}

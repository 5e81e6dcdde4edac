//! The wait of one task in a local queue.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::queues::Turn;
use crate::acquire::pending::PendingAcquire;
use crate::acquire::{Refusal, Request};
use crate::claim::{Acquired, Wait};
use crate::clock::Sleep;
use crate::error::Result;
use crate::lease::Lease;
use crate::locks::{ANSWER_MAX, Client};
use crate::sync::Arc;

/// The most fences asked for with one grant, and so the most tasks served under it.
const BLOCK_MAX: usize = 16;

/// A future that waits in a local queue for a grant. Dropping it leaves the queue.
pub(crate) struct LocalWait<'a> {
    client: &'a Arc<Client>,
    request: &'a Arc<Request>,
    wait: Wait,
    time_limit: Option<Sleep>,
    /// Its id while it is in the queue.
    id: Option<u64>,
}

impl<'a> LocalWait<'a> {
    pub(crate) fn new(client: &'a Arc<Client>, request: &'a Arc<Request>, wait: Wait) -> Self {
        client.queues.hash(request);
        let deadline = match wait {
            Wait::Never => Some(client.clock().now().plus(ANSWER_MAX)),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let time_limit = deadline.map(|deadline| client.clock().sleep_until(deadline));
        LocalWait { client, request, wait, time_limit, id: None }
    }

    fn waits(&self) -> bool {
        self.wait != Wait::Never
    }

    /// Makes the request of the queue. It waits for ever: its place outlives each task's wait.
    ///
    /// It asks for one fence for itself and one for each waiter. A task that had to wait asks for
    /// at least two: the task before it is likely to come back, and both pass the lease locally.
    fn ask(&self, had_to_wait: bool, waiters: usize) -> Result<PendingAcquire> {
        let wait = if self.waits() { Wait::Forever } else { Wait::Never };
        let fences = (1 + waiters.max(had_to_wait.into())).min(BLOCK_MAX) as u16;
        Ok(PendingAcquire::new(self.client, self.request, self.request.claim(wait, fences, false)?))
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<Lease, Refusal>> {
        let (client, request) = (self.client, self.request);
        let queues = &client.queues;
        loop {
            let had_to_wait = self.id.is_some();
            let turn = match self.id {
                None => queues.enter(request, self.waits(), cx.waker(), &mut self.id),
                Some(id) => queues.look(request, id, cx.waker()),
            };
            match turn {
                Turn::Wait { to_check: false } => return Poll::Pending,
                Turn::Wait { to_check: true } => {
                    client.renewer.check_queue(request);
                    return Poll::Pending;
                }
                Turn::Ask { pending, waiters } => {
                    let pending = pending.map_or_else(|| self.ask(had_to_wait, waiters), Ok);
                    return self.poll_pending(pending?, cx);
                }
                // It enters again, at the end of the queue.
                Turn::Revoked => self.id = None,
                Turn::Granted(lease) => {
                    self.id = None;
                    return Poll::Ready(Ok(lease));
                }
                Turn::Refused(refusal) => {
                    self.id = None;
                    return Poll::Ready(Err(refusal));
                }
            }
        }
    }

    /// Polls the request outside of the lock. After a panic the next waiter makes its own.
    fn poll_pending(
        &mut self,
        mut pending: PendingAcquire,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Lease, Refusal>> {
        let (client, request, id) = (self.client, self.request, self.id.unwrap_or_default());
        let Poll::Ready(answer) = Pin::new(&mut pending).poll(cx) else {
            client.queues.put_back(request, id, pending, cx.waker());
            return Poll::Pending;
        };
        Poll::Ready(match answer {
            Ok(Acquired::Busy(busy)) => Err(Refusal::Busy(busy)),
            Ok(Acquired::Granted(grant)) => {
                let lease = Lease::granted(client, request, pending.into_ticket(), grant);
                client.queues.granted(request, id, lease.state());
                self.id = None;
                Ok(lease)
            }
            Err(error) => {
                if error.is_outcome_unknown() && self.waits() {
                    client.queues.fail(request, id, &error);
                }
                Err(error.into())
            }
        })
    }

    fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.queues.leave(self.request, id);
        }
    }
}

impl Future for LocalWait<'_> {
    type Output = Result<Lease, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.poll_turn(cx);
        if outcome.is_pending()
            && let Some(time_limit) = &mut self.time_limit
            && Pin::new(time_limit).poll(cx).is_ready()
        {
            outcome = Poll::Ready(Err(Refusal::TimedOut));
        }
        if outcome.is_ready() {
            self.leave();
        }
        outcome
    }
}

impl Drop for LocalWait<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

//! One task's visit to a room.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::hall::{Baton, Turn};
use super::key::Key;
use crate::attempt::Attempt;
use crate::claim::{Acquired, Busy, Claim, Share, Ticket, Wait};
use crate::clock::Sleep;
use crate::error::Result;
use crate::locks::{ANSWER_MAX, Client};
use crate::sync::Arc;
use crate::tenancy::Held;
use crate::token::Token;

/// The most fences asked for with one grant, and so the most tasks served under it.
const BLOCK_MAX: usize = 16;

/// What came of waiting at the meeting.
pub(crate) enum Met {
    /// The store granted the lease to this task.
    Granted(Baton),
    /// Another task of this client passed it on.
    Passed(Baton),
    /// The store said no, to a request that does not wait.
    Busy(Busy),
    /// The wait is over.
    TimedOut,
    /// Others of this client are there, and this one does not wait.
    Occupied,
}

/// One task's visit to a room: a future that ends with a lease or without, and that can be dropped anywhere.
pub(crate) struct Visit<'a> {
    client: &'a Arc<Client>,
    key: &'a Key,
    /// Its number, once it is inside.
    me: u64,
    wait: Wait,
    /// The room's request, while this guest polls it.
    request: Option<Attempt>,
    deadline: Option<Sleep>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has not been polled, and nobody knows of it.
    Outside,
    Inside,
    Gone,
}

impl<'a> Visit<'a> {
    pub(crate) fn new(client: &'a Arc<Client>, key: &'a Key, wait: Wait) -> Self {
        let deadline = match wait {
            Wait::Never => Some(client.clock().now().plus(ANSWER_MAX)),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let deadline = deadline.map(|deadline| client.clock().sleep_until(deadline));
        Visit { client, key, me: 0, wait, request: None, deadline, stage: Stage::Outside }
    }

    /// A request for the room. It waits for ever: the place in the store's queue is the room's, and outlives
    /// the patience of each guest.
    fn ask(&self, in_line: usize) -> Result<Attempt> {
        let ticket = Ticket {
            names: self.key.name.clone().into(),
            token: Token::fresh(&self.key.owner)?,
            share: Share::Exclusive,
            fence: None,
        };
        let wait = match self.wait {
            Wait::Never => Wait::Never,
            Wait::Until(_) | Wait::Forever => Wait::Forever,
        };
        let fences = (in_line + 1).min(BLOCK_MAX) as u16;
        let claim = Claim { ticket, ttl: self.key.terms.ttl, wait, fences, detached: false };
        Ok(Attempt::new(self.client, claim))
    }

    fn leave(&mut self) {
        if std::mem::replace(&mut self.stage, Stage::Gone) == Stage::Inside {
            // A request that does not wait is nothing to wait with: the next makes its own.
            let request = self.request.take().filter(|_| self.wait != Wait::Never);
            self.client.hall.leave(self.key, self.me, request);
        }
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Met>> {
        // Taken out while it is polled: one that panics is not for the next to go on with.
        let Some(mut request) = self.request.take() else { return Poll::Pending };
        let Poll::Ready(answer) = Pin::new(&mut request).poll(cx) else {
            self.request = Some(request);
            self.client.hall.show(self.key, self.me, cx.waker());
            return Poll::Pending;
        };
        let ticket = request.ticket().clone();
        let answer = answer.inspect_err(|error| {
            if error.is_outcome_unknown() && self.wait != Wait::Never {
                self.client.hall.fail(self.key, self.me, error);
            }
        });
        Poll::Ready(match answer? {
            Acquired::Busy(busy) => Ok(Met::Busy(busy)),
            Acquired::Granted(grant) => {
                let room = Some(self.key.clone());
                let held = Held::new(self.client, ticket, grant, self.key.terms, room);
                self.client.hall.granted(self.key, self.me, held.tenancy());
                if held.tenancy().end().is_some() {
                    // Lost before it had the seat, so nobody has vacated it.
                    self.client.hall.vacate(held.tenancy());
                }
                self.stage = Stage::Gone;
                let (fence, fences_left) = (grant.fence, grant.fences.saturating_sub(1));
                Ok(Met::Granted(Baton { held, fence, fences_left }))
            }
        })
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<Met>> {
        if self.request.is_some() {
            return self.poll_request(cx);
        }
        loop {
            let hall = &self.client.hall;
            let turn = match std::mem::replace(&mut self.stage, Stage::Inside) {
                Stage::Outside => hall.enter(self.key, &mut self.me, self.wait != Wait::Never, cx.waker()),
                Stage::Inside | Stage::Gone => hall.look(self.key, self.me, cx.waker()),
            };
            match turn {
                Turn::NotYet { watch } => {
                    if watch {
                        self.client.keeper.watch(self.key);
                    }
                    return Poll::Pending;
                }
                Turn::Ask { left, in_line } => {
                    self.request = Some(match left {
                        Some(request) => request,
                        None => self.ask(in_line)?,
                    });
                    return self.poll_request(cx);
                }
                Turn::Passed(baton) => {
                    self.stage = Stage::Gone;
                    return Poll::Ready(Ok(Met::Passed(baton)));
                }
                Turn::Missed => {
                    // To the end of the line, as somebody new.
                    self.stage = Stage::Outside;
                }
                Turn::Occupied => {
                    self.stage = Stage::Gone;
                    return Poll::Ready(Ok(Met::Occupied));
                }
                Turn::Failed(error) => {
                    self.stage = Stage::Gone;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl Future for Visit<'_> {
    type Output = Result<Met>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(met) = self.poll_turn(cx) {
            self.leave();
            return Poll::Ready(met);
        }
        if let Some(deadline) = &mut self.deadline
            && Pin::new(deadline).poll(cx).is_ready()
        {
            self.leave();
            return Poll::Ready(Ok(Met::TimedOut));
        }
        Poll::Pending
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

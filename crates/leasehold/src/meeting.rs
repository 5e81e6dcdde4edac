//! Where tasks of one client that want one name meet, so that one place in the store serves them all.
//!
//! Each contended name has a *room* with one *seat* and a *line*. Whoever has the seat either *asks* the store
//! (it polls the one request of this room), *holds* the lease, or is being *passed* it by the holder before. The
//! request belongs to the room, not to the task that polls it: a task that is cancelled while asking leaves the
//! request, and with it the place in the store's queue, to the next in line. No task is spawned for any of this,
//! and dropping a future settles everything on the spot.
//!
//! A pass costs no request: the next lease has the next fence of the grant's block and inherits the deadline. So
//! that other clients are served, a grant is passed on at most 15 times and for at most 10 ms.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::attempt::Attempt;
use crate::claim::{Acquired, Busy, Claim, Share, Ticket, Wait};
use crate::clock::{Deadline, Sleep};
use crate::error::Result;
use crate::fence::Fence;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::{Arc, Mutex, lock};
use crate::tenancy::{Held, Tenancy, Terms};
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// The most fences asked for with one grant, and so the most tasks served under it.
const BLOCK_MAX: usize = 16;
/// For how long a grant is passed on.
const PASS_FOR: Duration = Duration::from_millis(10);

/// A room: only tasks that want the same name, exclusively, for the same TTL can be served by one grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: Name,
    pub(crate) ttl: Ttl,
}

/// All rooms of a client.
#[derive(Default)]
pub(crate) struct Hall {
    rooms: Mutex<HashMap<Key, Room>>,
}

/// Invariants:
/// - a room exists as long as its seat is taken;
/// - the one in the seat does not stand in line;
/// - whoever moves from the line to the seat is woken.
struct Room {
    seat: Seat,
    line: BTreeMap<u64, Waker>,
}

enum Seat {
    /// A guest polls the room's request; or is about to, and `left` is the one to go on with.
    Asking { guest: u64, left: Option<Attempt> },
    /// The lease is on its way to a guest who has not picked it up yet.
    Passing { guest: u64, baton: Option<Baton> },
    /// A task of this client holds the lease.
    Taken { tenancy: Arc<Tenancy> },
}

/// What is passed: the claim, and the fences that are left of its block.
pub(crate) struct Baton {
    pub(crate) held: Held,
    pub(crate) fence: Fence,
    pub(crate) fences_left: u16,
}

/// What a guest finds when it looks.
enum Turn {
    /// The room is taken, and the guest does not wait.
    Occupied,
    NotYet,
    Ask {
        left: Option<Attempt>,
        in_line: usize,
    },
    Passed(Baton),
}

impl Hall {
    /// Where a task of this client holds the name now: who, and for how long.
    pub(crate) fn held_here(&self, key: &Key) -> Option<Busy> {
        let rooms = lock(&self.rooms);
        let room = rooms.get(key)?;
        let Seat::Taken { tenancy } = &room.seat else { return None };
        let (tenancy, waiters) = (tenancy.clone(), room.line.len());
        drop(rooms);
        let now = tenancy.client.clock().now();
        if tenancy.loss_at(now).is_some() {
            return None;
        }
        let remaining = Some(tenancy.remaining(now));
        Some(Busy { holder: Some(tenancy.ticket.token.owner()), remaining, waiters })
    }

    /// Takes the seat of a free room, or else (if the guest waits at all) a place in line.
    fn enter(&self, key: &Key, guest: u64, waits: bool, waker: &Waker) -> Turn {
        let mut rooms = lock(&self.rooms);
        match rooms.get_mut(key) {
            Some(room) if waits => {
                room.line.insert(guest, waker.clone());
                Turn::NotYet
            }
            Some(_) => Turn::Occupied,
            None => {
                let seat = Seat::Asking { guest, left: None };
                rooms.insert(key.clone(), Room { seat, line: BTreeMap::new() });
                Turn::Ask { left: None, in_line: 0 }
            }
        }
    }

    fn look(&self, key: &Key, me: u64, waker: &Waker) -> Turn {
        let mut rooms = lock(&self.rooms);
        let Some(room) = rooms.get_mut(key) else { return Turn::NotYet };
        match &mut room.seat {
            Seat::Asking { guest, left } if *guest == me => {
                Turn::Ask { left: left.take(), in_line: room.line.len() }
            }
            Seat::Passing { guest, baton } if *guest == me => match baton.take() {
                Some(baton) => {
                    room.seat = Seat::Taken { tenancy: baton.held.tenancy().clone() };
                    Turn::Passed(baton)
                }
                None => Turn::NotYet,
            },
            _ => {
                if let Some(place) = room.line.get_mut(&me) {
                    place.clone_from(waker);
                }
                Turn::NotYet
            }
        }
    }

    /// The guest in the seat has been granted the lease.
    fn granted(&self, key: &Key, me: u64, tenancy: &Arc<Tenancy>) {
        let mut rooms = lock(&self.rooms);
        if let Some(room) = rooms.get_mut(key)
            && matches!(room.seat, Seat::Asking { guest, .. } if guest == me)
        {
            room.seat = Seat::Taken { tenancy: tenancy.clone() };
        }
    }

    /// A guest goes without a lease, and leaves the request it polled, if any, to the next.
    fn leave(&self, key: &Key, me: u64, request: Option<Attempt>) {
        let mut rooms = lock(&self.rooms);
        let Some(room) = rooms.get_mut(key) else { return };
        let request = match &mut room.seat {
            Seat::Asking { guest, left } if *guest == me => request.or_else(|| left.take()),
            Seat::Passing { guest, baton } if *guest == me => {
                // It leaves as if it had held the lease: to the next in line, or else to the store.
                let Some(baton) = baton.take() else { return };
                room.seat = Seat::Taken { tenancy: baton.held.tenancy().clone() };
                drop(rooms);
                let now = baton.held.tenancy().client.clock().now();
                drop(self.pass(key, baton, now));
                return;
            }
            _ => {
                room.line.remove(&me);
                return;
            }
        };
        let (waker, request) = next_asks(&mut rooms, key, request);
        drop(rooms);
        // Outside the lock: a request that nobody goes on with is withdrawn where it is dropped.
        drop(request);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Hands the lease to the next in line; gives it back where there is none, or where it is time that other
    /// clients get their turn.
    pub(crate) fn pass(&self, key: &Key, baton: Baton, now: Deadline) -> Result<(), Held> {
        let tenancy = baton.held.tenancy();
        let may_pass = baton.fences_left > 0
            && now.since(tenancy.granted_at) < PASS_FOR
            && tenancy.ttl() == key.ttl
            && tenancy.valid_until().since(now) >= key.ttl.third();
        let Ok(fence) = baton.fence.plus(1) else { return Err(baton.held) };
        if !may_pass {
            return Err(baton.held);
        }
        let mut rooms = lock(&self.rooms);
        let next = rooms.get_mut(key).and_then(|room| {
            // Looked at under the lock: whoever declares a loss says so first and vacates the seat then.
            let ours = matches!(&room.seat, Seat::Taken { tenancy: seated } if seated.id == tenancy.id);
            if !ours || tenancy.end().is_some() {
                return None;
            }
            let (guest, waker) = room.line.pop_first()?;
            Some((room, guest, waker))
        });
        let Some((room, guest, waker)) = next else { return Err(baton.held) };
        tenancy.set_in_hand(false);
        let baton = Baton { held: baton.held, fence, fences_left: baton.fences_left - 1 };
        room.seat = Seat::Passing { guest, baton: Some(baton) };
        drop(rooms);
        waker.wake();
        Ok(())
    }

    /// A tenancy has ended: whoever is next may ask. What was on its way to a guest is on its way no more.
    pub(crate) fn vacate(&self, tenancy: &Tenancy) {
        let Some(key) = &tenancy.room else { return };
        let mut rooms = lock(&self.rooms);
        let Some(room) = rooms.get_mut(key) else { return };
        let (baton, waker) = match &mut room.seat {
            Seat::Taken { tenancy: seated } if seated.id == tenancy.id => {
                (None, next_asks(&mut rooms, key, None).0)
            }
            Seat::Passing { guest, baton }
                if baton.as_ref().is_some_and(|it| it.held.tenancy().id == tenancy.id) =>
            {
                // Its taker was woken when it was passed, and asks the store instead.
                let (guest, baton) = (*guest, baton.take());
                room.seat = Seat::Asking { guest, left: None };
                (baton, None)
            }
            _ => return,
        };
        drop(rooms);
        drop(baton);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The first in line takes the seat and asks, with the request of the one before, if it left one. Without a
/// line the room goes, and the request comes back, for the caller to drop outside the lock.
fn next_asks(
    rooms: &mut HashMap<Key, Room>,
    key: &Key,
    request: Option<Attempt>,
) -> (Option<Waker>, Option<Attempt>) {
    let next = rooms.get_mut(key).and_then(|room| {
        let (guest, waker) = room.line.pop_first()?;
        Some((room, guest, waker))
    });
    match next {
        Some((room, guest, waker)) => {
            room.seat = Seat::Asking { guest, left: request };
            (Some(waker), None)
        }
        None => {
            rooms.remove(key);
            (None, request)
        }
    }
}

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
    key: Key,
    me: u64,
    owner: &'a Owner,
    terms: Terms,
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
    pub(crate) fn new(client: &'a Arc<Client>, key: Key, owner: &'a Owner, terms: Terms, wait: Wait) -> Self {
        let deadline = match wait {
            Wait::Until(deadline) => Some(client.clock().sleep_until(deadline)),
            Wait::Never | Wait::Forever => None,
        };
        let (me, stage) = (client.next_id(), Stage::Outside);
        Visit { client, key, me, owner, terms, wait, request: None, deadline, stage }
    }

    /// A request for the room. It waits for ever: the place in the store's queue is the room's, and outlives
    /// the patience of each guest.
    fn ask(&self, in_line: usize) -> Result<Attempt> {
        let ticket = Ticket {
            names: self.key.name.clone().into(),
            token: Token::fresh(self.owner)?,
            share: Share::Exclusive,
            fence: None,
        };
        let wait = match self.wait {
            Wait::Never => Wait::Never,
            Wait::Until(_) | Wait::Forever => Wait::Forever,
        };
        let fences = (in_line + 1).min(BLOCK_MAX) as u16;
        Ok(Attempt::new(self.client, Claim { ticket, ttl: self.key.ttl, wait, fences }))
    }

    fn leave(&mut self) {
        if std::mem::replace(&mut self.stage, Stage::Gone) == Stage::Inside {
            self.client.hall.leave(&self.key, self.me, self.request.take());
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<Met>> {
        loop {
            if let Some(request) = &mut self.request {
                let Poll::Ready(answer) = Pin::new(&mut *request).poll(cx) else { return Poll::Pending };
                let ticket = request.ticket().clone();
                self.request = None;
                return Poll::Ready(match answer? {
                    Acquired::Busy(busy) => Ok(Met::Busy(busy)),
                    Acquired::Granted(grant) => {
                        let room = Some(self.key.clone());
                        let held = Held::new(self.client, ticket, grant, self.terms, room);
                        self.client.hall.granted(&self.key, self.me, held.tenancy());
                        if held.tenancy().end().is_some() {
                            // Lost before it had the seat, so nobody has vacated it.
                            self.client.hall.vacate(held.tenancy());
                        }
                        self.stage = Stage::Gone;
                        let (fence, fences_left) = (grant.fence, grant.fences.saturating_sub(1));
                        Ok(Met::Granted(Baton { held, fence, fences_left }))
                    }
                });
            }
            let turn = match std::mem::replace(&mut self.stage, Stage::Inside) {
                Stage::Outside => {
                    self.client.hall.enter(&self.key, self.me, self.wait != Wait::Never, cx.waker())
                }
                Stage::Inside | Stage::Gone => self.client.hall.look(&self.key, self.me, cx.waker()),
            };
            match turn {
                Turn::Occupied => {
                    self.stage = Stage::Gone;
                    return Poll::Ready(Ok(Met::Occupied));
                }
                Turn::NotYet => return Poll::Pending,
                Turn::Ask { left, in_line } => {
                    self.request = Some(match left {
                        Some(request) => request,
                        None => self.ask(in_line)?,
                    });
                }
                Turn::Passed(baton) => {
                    self.stage = Stage::Gone;
                    baton.held.tenancy().set_in_hand(true);
                    return Poll::Ready(Ok(Met::Passed(baton)));
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

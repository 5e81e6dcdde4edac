//! All rooms of a client: who asks, who holds, who waits, and how a lease is passed on.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::task::Waker;
use std::time::Duration;

use super::key::{ByHash, Key};
use super::line::Line;
use crate::attempt::Attempt;
use crate::claim::Busy;
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::{Arc, Mutex, lock};
use crate::tenancy::{Held, Tenancy, Terms};
use crate::token::Owner;

/// For how long a grant is passed on.
const PASS_FOR: Duration = Duration::from_millis(10);

/// All rooms of a client.
pub(crate) struct Hall {
    clock: Clock,
    /// Keyed at random, so that nobody can choose names that fall on each other.
    hasher: RandomState,
    floor: Mutex<Floor>,
}

#[derive(Default)]
struct Floor {
    rooms: HashMap<Key, Room, ByHash>,
    /// Guests who have to be told that there is nothing to wait for any more.
    failed: HashMap<u64, Error>,
    /// Rooms the keeper is going to look into; they may have closed by then.
    watched: HashSet<Key, ByHash>,
    /// How many guests there have been.
    guests: u64,
    closed: bool,
}

/// Invariants:
/// - a room exists as long as its seat is taken;
/// - the one in the seat does not stand in line;
/// - whoever moves from the line to the seat is woken.
struct Room {
    seat: Seat,
    line: Line,
    watched: bool,
}

enum Seat {
    /// A guest polls the room's request; or is about to, and `left` is the one to go on with.
    Asking { guest: u64, seen: Seen, left: Option<Attempt> },
    /// A task of this client holds the lease; or it is on its way to a guest who has not picked it up yet.
    Taken { tenancy: Arc<Tenancy>, on_its_way: Option<(u64, Baton)> },
}

/// When a guest in the seat was last polled, and how to have it polled again.
struct Seen {
    at: Deadline,
    waker: Option<Waker>,
}

/// What is passed: the claim, and the fences that are left of its block.
pub(crate) struct Baton {
    pub(crate) held: Held,
    pub(crate) fence: Fence,
    pub(crate) fences_left: u16,
}

/// What a guest finds when it looks.
pub(super) enum Turn {
    /// The room is taken, and the guest does not wait.
    Occupied,
    /// In line. The flag is set for the one whose room the keeper is to look after from now on.
    NotYet {
        watch: bool,
    },
    Ask {
        left: Option<Attempt>,
        in_line: usize,
    },
    Passed(Baton),
    /// It was not polled for so long that it lost its place.
    Missed,
    Failed(Error),
}

impl Hall {
    pub(crate) fn new(clock: Clock) -> Self {
        Hall { clock, hasher: RandomState::new(), floor: Mutex::default() }
    }

    /// The key to the room for this name on these terms.
    pub(crate) fn key(&self, name: Name, owner: Owner, terms: Terms) -> Key {
        Key { hash: self.hasher.hash_one((&name, &owner, terms)), name, owner, terms }
    }

    /// Where a task of this client holds the name now: who, and for how long.
    pub(crate) fn held_here(&self, key: &Key) -> Option<Busy> {
        let floor = lock(&self.floor);
        let room = floor.rooms.get(key)?;
        let Seat::Taken { tenancy, .. } = &room.seat else { return None };
        let (tenancy, waiters) = (tenancy.clone(), room.line.len());
        drop(floor);
        let now = self.clock.now();
        if tenancy.loss_at(now).is_some() {
            return None;
        }
        let remaining = Some(tenancy.remaining(now));
        Some(Busy { holder: Some(tenancy.ticket.token.owner()), remaining, waiters })
    }

    /// Takes the seat of a free room, or else (if the guest waits at all) a place in line.
    pub(super) fn enter(&self, key: &Key, me: &mut u64, waits: bool, waker: &Waker) -> Turn {
        let mut floor = lock(&self.floor);
        let Floor { rooms, watched, guests, closed, .. } = &mut *floor;
        if *closed {
            return Turn::Failed(Error::Closed);
        }
        *guests += 1;
        *me = *guests;
        match rooms.get_mut(key) {
            Some(room) if waits => {
                room.line.push(*me, waker.clone());
                let watch = !std::mem::replace(&mut room.watched, true) && watched.insert(key.clone());
                Turn::NotYet { watch }
            }
            Some(_) => Turn::Occupied,
            None => {
                let seen = Seen { at: self.clock.now(), waker: None };
                let seat = Seat::Asking { guest: *me, seen, left: None };
                rooms.insert(key.clone(), Room { seat, line: Line::default(), watched: false });
                Turn::Ask { left: None, in_line: 0 }
            }
        }
    }

    pub(super) fn look(&self, key: &Key, me: u64, waker: &Waker) -> Turn {
        let mut _old = None;
        let mut floor = lock(&self.floor);
        if let Some(room) = floor.rooms.get_mut(key) {
            match &mut room.seat {
                Seat::Asking { guest, seen, left } if *guest == me => {
                    seen.at = self.clock.now();
                    return Turn::Ask { left: left.take(), in_line: room.line.len() };
                }
                Seat::Taken { on_its_way, .. } => {
                    if let Some((_, baton)) = on_its_way.take_if(|(guest, _)| *guest == me) {
                        return Turn::Passed(baton);
                    }
                }
                Seat::Asking { .. } => {}
            }
            if let Some(place) = room.line.get_mut(me) {
                if !place.will_wake(waker) {
                    _old = Some(std::mem::replace(place, waker.clone()));
                }
                return Turn::NotYet { watch: false };
            }
        }
        floor.failed.remove(&me).map_or(Turn::Missed, Turn::Failed)
    }

    /// The guest in the seat shows that it still polls its request.
    pub(super) fn show(&self, key: &Key, me: u64, waker: &Waker) {
        // Dropped after the lock, here and below: a waker may be the last to know its task.
        let mut _old = None;
        let mut floor = lock(&self.floor);
        if let Some(Room { seat: Seat::Asking { guest, seen, .. }, .. }) = floor.rooms.get_mut(key)
            && *guest == me
        {
            _old = seen.waker.replace(waker.clone());
            seen.at = self.clock.now();
        }
    }

    /// The guest in the seat has been granted the lease.
    pub(super) fn granted(&self, key: &Key, me: u64, tenancy: &Arc<Tenancy>) {
        let mut floor = lock(&self.floor);
        if let Some(room) = floor.rooms.get_mut(key)
            && matches!(room.seat, Seat::Asking { guest, .. } if guest == me)
        {
            room.seat = Seat::Taken { tenancy: tenancy.clone(), on_its_way: None };
        }
    }

    /// A guest goes without a lease, and leaves the request it polled, if it is one to go on with, to the next.
    pub(super) fn leave(&self, key: &Key, me: u64, request: Option<Attempt>) {
        let mut floor = lock(&self.floor);
        floor.failed.remove(&me);
        let Some(room) = floor.rooms.get_mut(key) else {
            drop(floor);
            // Outside the lock, here and below: a request that nobody goes on with is withdrawn where it is dropped.
            drop(request);
            return;
        };
        let place = room.line.remove(me);
        let (waker, unwanted) = match &mut room.seat {
            Seat::Asking { guest, left, .. } if *guest == me => {
                let request = request.or_else(|| left.take());
                floor.next_asks(key, request, self.clock.now())
            }
            Seat::Taken { on_its_way, .. } => {
                let baton = on_its_way.take_if(|(guest, _)| *guest == me);
                drop(floor);
                // It leaves as if it had held the lease: to the next in line, or else to the store.
                if let Some((_, baton)) = baton {
                    drop(self.pass(key, baton, self.clock.now()));
                }
                drop((place, request));
                return;
            }
            Seat::Asking { .. } => (None, request),
        };
        drop(floor);
        drop((place, unwanted));
        waker.into_iter().for_each(Waker::wake);
    }

    /// The room's request came to nothing, and so did the wait of everybody in line: each is told. One after the
    /// other they would only find out the same again.
    pub(super) fn fail(&self, key: &Key, me: u64, error: &Error) {
        let mut floor = lock(&self.floor);
        let Floor { rooms, failed, .. } = &mut *floor;
        let ours = |room: &Room| matches!(room.seat, Seat::Asking { guest, .. } if guest == me);
        if !rooms.get(key).is_some_and(ours) {
            return;
        }
        let line = rooms.remove(key).map(|room| room.line).unwrap_or_default();
        let mut wakers = Vec::with_capacity(line.len());
        for (guest, waker) in line.into_guests() {
            failed.insert(guest, error.clone());
            wakers.push(waker);
        }
        drop(floor);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Everybody in line is told that the client is closed, and so is whoever comes. Those who poll a request are
    /// told by it.
    pub(crate) fn close(&self) {
        let mut floor = lock(&self.floor);
        floor.closed = true;
        let Floor { rooms, failed, .. } = &mut *floor;
        let mut wakers = Vec::new();
        for room in rooms.values_mut() {
            for (guest, waker) in std::mem::take(&mut room.line).into_guests() {
                failed.insert(guest, Error::Closed);
                wakers.push(waker);
            }
        }
        drop(floor);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Hands the lease to the next in line; gives it back where there is none, or where it is time that other
    /// clients get their turn.
    pub(crate) fn pass(&self, key: &Key, baton: Baton, now: Deadline) -> Result<(), Held> {
        let tenancy = baton.held.tenancy();
        let ttl = key.terms.ttl;
        let may_pass = baton.fences_left > 0
            && now.since(tenancy.granted_at) < PASS_FOR
            && key.terms.max_hold.is_none()
            && tenancy.ttl() == ttl
            && tenancy.valid_until().since(now) >= ttl.third();
        let Ok(fence) = baton.fence.plus(1) else { return Err(baton.held) };
        if !may_pass {
            return Err(baton.held);
        }
        let mut floor = lock(&self.floor);
        let next = floor.rooms.get_mut(key).and_then(|room| {
            // Looked at under the lock: whoever declares a loss says so first and vacates the seat then.
            let ours = matches!(&room.seat, Seat::Taken { tenancy: seated, .. } if seated.id == tenancy.id);
            if !ours || tenancy.end().is_some() {
                return None;
            }
            let (guest, waker) = room.line.pop_first()?;
            Some((room, guest, waker))
        });
        let Some((room, guest, waker)) = next else { return Err(baton.held) };
        let baton = Baton { held: baton.held, fence, fences_left: baton.fences_left - 1 };
        if let Seat::Taken { on_its_way, .. } = &mut room.seat {
            *on_its_way = Some((guest, baton));
        }
        drop(floor);
        waker.wake();
        Ok(())
    }

    /// A tenancy has ended: whoever is next may ask. What was on its way to a guest is on its way no more.
    pub(crate) fn vacate(&self, tenancy: &Tenancy) {
        let Some(key) = &tenancy.room else { return };
        let mut floor = lock(&self.floor);
        let baton = match floor.rooms.get_mut(key).map(|room| &mut room.seat) {
            // The taker, if there is one, was woken when it was passed; when it looks, it has missed its turn.
            Some(Seat::Taken { tenancy: seated, on_its_way }) if seated.id == tenancy.id => on_its_way.take(),
            _ => return,
        };
        let (waker, _) = floor.next_asks(key, None, self.clock.now());
        drop(floor);
        drop(baton);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The keeper looks into a room with a line: a guest who has had the seat for a TTL without polling loses it.
    /// Says when to look again, if at all.
    pub(crate) fn look_after(&self, key: &Key, now: Deadline) -> Option<Deadline> {
        let ttl = key.terms.ttl.as_duration();
        let mut floor = lock(&self.floor);
        let Some(room) = floor.rooms.get_mut(key).filter(|room| !room.line.is_empty()) else {
            floor.watched.remove(key);
            if let Some(room) = floor.rooms.get_mut(key) {
                room.watched = false;
            }
            return None;
        };
        let Seat::Asking { seen, left, .. } = &mut room.seat else { return Some(now.plus(ttl)) };
        if now < seen.at.plus(ttl) {
            return Some(seen.at.plus(ttl));
        }
        // It may be polled and only not woken, by a store that is slow: it is woken first, and loses the seat if that
        // does not help.
        if let Some(waker) = seen.waker.take() {
            drop(floor);
            waker.wake();
            return Some(now.plus(ttl / 3));
        }
        let left = left.take();
        let (waker, unwanted) = floor.next_asks(key, left, now);
        drop(floor);
        drop(unwanted);
        waker.into_iter().for_each(Waker::wake);
        Some(now.plus(ttl))
    }
}

impl Floor {
    fn seat(&mut self, key: &Key, seat: Seat) {
        if let Some(room) = self.rooms.get_mut(key) {
            room.seat = seat;
        }
    }

    /// The first in line takes the seat and asks, with the request of the one before, if it left one. Without a
    /// line the room goes, and the request comes back, for the caller to drop outside the lock.
    fn next_asks(
        &mut self,
        key: &Key,
        request: Option<Attempt>,
        now: Deadline,
    ) -> (Option<Waker>, Option<Attempt>) {
        match self.rooms.get_mut(key).and_then(|room| room.line.pop_first()) {
            Some((guest, waker)) => {
                let seen = Seen { at: now, waker: None };
                self.seat(key, Seat::Asking { guest, seen, left: request });
                (Some(waker), None)
            }
            None => {
                self.rooms.remove(key);
                (None, request)
            }
        }
    }
}

//! Where tasks of one client meet that want one key: they share looks at the store, and one of them loads.
//!
//! Invariant: whoever comes in is only told of what was asked of the store after that. So a value that was invalidated before a
//! call began is not given to that call, whoever else is being told of it at that moment.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::sync::Notify;

use super::entry::Look;
use super::turn::Turn;
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::registry::{Entry, Registry};
use crate::sync::{Arc, Mutex, lock};

/// How long somebody who wants to look waits for another's look to end, to go together with others: a task that looks and is not
/// polled must not hold up the rest.
const GATHER_MAX: Duration = Duration::from_millis(50);

/// The rooms of a client, by place.
#[derive(Default)]
pub(crate) struct Rooms(Registry<Name, Room>);

/// What those who want one key share.
#[derive(Default)]
pub(super) struct Room {
    state: Mutex<State>,
    /// Rings for everybody inside when there is something to be told.
    bell: Notify,
    /// Rings for the clerk.
    desk: Notify,
}

#[derive(Default)]
struct State {
    ids: u64,
    /// Looks that have begun; each has its number.
    begun: u64,
    /// How many of them are under way, asked for by those who do not wait.
    under_way: usize,
    /// How many of them wait to look together.
    gathering: usize,
    /// What the newest look saw, for those.
    seen: Option<Told>,
    /// Those who wait for a value, with the number of looks that had begun when they came.
    waiting: HashMap<u64, u64>,
    /// What they are told.
    told: Option<Told>,
    /// Somebody asks the store for all who wait.
    has_clerk: bool,
    /// A turn to load, for whoever of them takes it first.
    turn: Option<Turn>,
    /// One of them loads.
    is_loading: bool,
    /// Somebody loads anew what is still good.
    is_refreshing: bool,
}

#[derive(Clone)]
struct Told {
    look: u64,
    what: Result<Arc<Look>>,
}

impl State {
    /// Nobody waits, but for those who are about to go.
    fn all_told(&self) -> bool {
        let look = self.told.as_ref().map_or(0, |told| told.look);
        self.waiting.values().all(|since| look > *since)
    }
}

impl Rooms {
    pub(super) fn enter(&self, name: &Name) -> Seat {
        Seat(self.0.join(name.clone()))
    }
}

/// A place in a room, which is there as long as anybody is inside.
pub(super) struct Seat(Entry<Name, Room>);

/// What comes of waiting.
pub(super) enum Waited {
    /// There is something: what was seen.
    Told(Result<Arc<Look>>),
    /// There is nothing, and it is this one's turn to load.
    Turn(Turn),
    /// The time is over.
    Over,
}

impl Seat {
    pub(super) fn room(&self) -> &Room {
        &self.0
    }

    pub(super) fn again(&self) -> Seat {
        Seat(self.0.clone())
    }

    /// The right to load anew what is still good: one at a time in this client.
    pub(super) fn refresh(&self) -> Option<TurnEnd> {
        let is_free = !std::mem::replace(&mut lock(&self.room().state).is_refreshing, true);
        is_free.then(|| TurnEnd { seat: self.again(), is_refresh: true })
    }

    /// What is told when the turn that is offered has been used.
    pub(super) fn turn_end(&self) -> TurnEnd {
        TurnEnd { seat: self.again(), is_refresh: false }
    }
}

impl Room {
    /// Whether others wait here for a value to be loaded: then whoever comes joins them.
    pub(super) fn is_attended(&self) -> bool {
        lock(&self.state).has_clerk
    }

    /// A look at the store, or the share of one that another has asked for since this was called.
    ///
    /// Whoever comes while somebody looks waits for that to end, and goes together with all who came meanwhile: a key that
    /// thousands want at the same moment is asked for twice.
    pub(super) async fn look(
        &self,
        clock: &Clock,
        read: impl Future<Output = Result<Look>>,
    ) -> Result<Arc<Look>> {
        let mut end = match self.look_alone() {
            Ok(end) => end,
            Err(gathering) => match gathering.end(clock).await {
                Ok(end) => end,
                Err(seen) => return seen,
            },
        };
        let what = read.await.map(Arc::new);
        end.what = Some(what.clone());
        what
    }

    fn look_alone(&self) -> Result<LookEnd<'_>, Gathering<'_>> {
        let mut state = lock(&self.state);
        if state.under_way == 0 {
            return Ok(self.begin_look(&mut state));
        }
        state.gathering += 1;
        Err(Gathering { room: self, since: state.begun })
    }

    fn begin_look(&self, state: &mut State) -> LookEnd<'_> {
        state.under_way += 1;
        state.begun += 1;
        LookEnd { room: self, look: state.begun, what: None }
    }

    /// Waits for a value, or for the turn to load it. `attend` has somebody ask the store, and is called where nobody does.
    pub(super) async fn wait(&self, clock: &Clock, until: Deadline, attend: impl Fn()) -> Waited {
        let guest = self.join();
        loop {
            let mut rung = std::pin::pin!(self.bell.notified());
            let is_unattended = {
                let mut state = lock(&self.state);
                if let Some(told) = state.told.as_ref().filter(|told| told.look > guest.since) {
                    return Waited::Told(told.what.clone());
                }
                if let Some(turn) = state.turn.take() {
                    state.is_loading = true;
                    return Waited::Turn(turn);
                }
                rung.as_mut().enable();
                !std::mem::replace(&mut state.has_clerk, true)
            };
            if is_unattended {
                attend();
            }
            if clock.until(until, rung).await.is_none() {
                return Waited::Over;
            }
        }
    }

    fn join(&self) -> Guest<'_> {
        let mut state = lock(&self.state);
        state.ids += 1;
        let (id, since) = (state.ids, state.begun);
        state.waiting.insert(id, since);
        Guest { room: self, id, since }
    }

    /// Before a look or a write that settles what those who wait are told: its number.
    pub(super) fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.begun
    }

    /// Tells those who came before this look began.
    pub(super) fn tell(&self, look: u64, what: Result<Arc<Look>>) {
        let _before;
        {
            let mut state = lock(&self.state);
            if state.told.as_ref().is_some_and(|told| told.look > look) {
                return;
            }
            _before = state.told.replace(Told { look, what });
        }
        self.bell.notify_waiters();
    }

    /// Tells everybody who waits.
    pub(super) fn tell_all(&self, error: Error) {
        let look = self.begin();
        self.tell(look, Err(error));
    }

    /// Offers the turn to load to whoever of those who wait is there first.
    pub(super) fn offer(&self, turn: Turn) {
        lock(&self.state).turn = Some(turn);
        self.bell.notify_waiters();
    }

    /// Ends when the turn that was offered is over: taken and used, or left by everybody.
    pub(super) async fn turn_over(&self) {
        loop {
            let mut rung = std::pin::pin!(self.desk.notified());
            let (is_over, left) = {
                let mut state = lock(&self.state);
                rung.as_mut().enable();
                match state.all_told() {
                    true => (true, state.turn.take()),
                    false => (state.turn.is_none() && !state.is_loading, None),
                }
            };
            drop(left);
            if is_over {
                return;
            }
            rung.await;
        }
    }

    /// Ends when nobody waits any more who has not been told.
    pub(super) async fn deserted(&self) {
        loop {
            let mut rung = std::pin::pin!(self.desk.notified());
            rung.as_mut().enable();
            if self.is_deserted() {
                return;
            }
            rung.await;
        }
    }

    pub(super) fn is_deserted(&self) -> bool {
        lock(&self.state).all_told()
    }

    /// The clerk goes, for whatever reason: whoever still waits finds another.
    pub(super) fn clerk_leaves(&self) {
        let left = {
            let mut state = lock(&self.state);
            state.has_clerk = false;
            state.turn.take()
        };
        drop(left);
        self.bell.notify_waiters();
    }
}

/// One look of those who do not wait. Dropped before its answer, others look for themselves.
struct LookEnd<'a> {
    room: &'a Room,
    look: u64,
    what: Option<Result<Arc<Look>>>,
}

impl Drop for LookEnd<'_> {
    fn drop(&mut self) {
        let _before;
        let is_waited_for = {
            let mut state = lock(&self.room.state);
            state.under_way -= 1;
            if state.gathering > 0
                && let Some(what) = self.what.take()
                && state.seen.as_ref().is_none_or(|seen| seen.look < self.look)
            {
                _before = state.seen.replace(Told { look: self.look, what });
            }
            state.gathering > 0
        };
        if is_waited_for {
            self.room.bell.notify_waiters();
        }
    }
}

/// One who waits for another's look to end.
struct Gathering<'a> {
    room: &'a Room,
    since: u64,
}

impl<'a> Gathering<'a> {
    /// What another saw who began to look after this one came; or else the right to look.
    async fn end(self, clock: &Clock) -> Result<LookEnd<'a>, Result<Arc<Look>>> {
        let enough = clock.now().plus(GATHER_MAX);
        loop {
            let mut rung = std::pin::pin!(self.room.bell.notified());
            let is_enough = clock.now() >= enough;
            {
                let mut state = lock(&self.room.state);
                if let Some(seen) = state.seen.as_ref().filter(|seen| seen.look > self.since) {
                    return Err(seen.what.clone());
                }
                if state.under_way == 0 || is_enough {
                    return Ok(self.room.begin_look(&mut state));
                }
                // Under the lock: nothing is told in between.
                rung.as_mut().enable();
            }
            clock.until(enough, rung).await;
        }
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        let _seen;
        let mut state = lock(&self.room.state);
        state.gathering -= 1;
        if state.gathering == 0 {
            _seen = state.seen.take();
        }
    }
}

/// One who waits.
struct Guest<'a> {
    room: &'a Room,
    id: u64,
    since: u64,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = lock(&self.room.state);
            state.waiting.remove(&self.id);
            state.waiting.is_empty()
        };
        if is_last {
            self.room.desk.notify_waiters();
        }
    }
}

/// The end of a turn, told when it is dropped.
pub(super) struct TurnEnd {
    seat: Seat,
    is_refresh: bool,
}

impl TurnEnd {
    pub(super) fn room(&self) -> &Room {
        self.seat.room()
    }
}

impl Drop for TurnEnd {
    fn drop(&mut self) {
        let room = self.seat.room();
        {
            let mut state = lock(&room.state);
            match self.is_refresh {
                true => state.is_refreshing = false,
                false => state.is_loading = false,
            }
        }
        room.desk.notify_waiters();
    }
}

impl fmt::Debug for Rooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rooms").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::future::poll_immediate;
    use tokio::sync::oneshot;

    use super::*;

    fn seat() -> (Rooms, Seat) {
        let rooms = Rooms::default();
        let seat = rooms.enter(&Name::new("x").unwrap());
        (rooms, seat)
    }

    /// A look that is answered when the test says so, with the time it was asked at to tell it by.
    fn look(number: u64) -> Look {
        let place = super::super::place::Place::new(&Name::new("x").unwrap(), b"k").unwrap();
        Look::new(None, &place, Deadline::from_ns(number)).unwrap()
    }

    async fn read(answer: oneshot::Receiver<u64>) -> Result<Look> {
        Ok(look(answer.await.unwrap()))
    }

    /// Whoever comes while somebody looks may know of something newer than that look.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_what_was_asked_before_it_came() {
        let (_rooms, seat) = seat();
        let (room, clock) = (seat.room(), Clock::tokio());
        let channels = || oneshot::channel::<u64>();
        let ((answer_1, read_1), (answer_2, read_2), (_answer_3, read_3)) =
            (channels(), channels(), channels());
        let mut first = Box::pin(room.look(&clock, read(read_1)));
        assert!(poll_immediate(&mut first).await.is_none());
        // Two more come; they share the next one.
        let mut second = Box::pin(room.look(&clock, read(read_2)));
        let mut third = Box::pin(room.look(&clock, read(read_3)));
        assert!(poll_immediate(&mut second).await.is_none() && poll_immediate(&mut third).await.is_none());
        answer_1.send(1).unwrap();
        assert_eq!(first.await.unwrap().asked.as_ns(), 1);
        assert!(poll_immediate(&mut second).await.is_none(), "that was asked before it came");
        assert!(poll_immediate(&mut third).await.is_none(), "that was asked before it came");
        answer_2.send(2).unwrap();
        assert_eq!(second.await.unwrap().asked.as_ns(), 2);
        assert_eq!(third.await.unwrap().asked.as_ns(), 2, "shared");
    }

    /// The same for those who wait, and for what is written.
    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_not_told_what_began_before_it_came() {
        let (_rooms, seat) = seat();
        let (room, clock) = (seat.room(), Clock::tokio());
        let mut early = Box::pin(room.wait(&clock, Deadline::FAR, || {}));
        assert!(poll_immediate(&mut early).await.is_none());
        let number = room.begin();
        let mut late = Box::pin(room.wait(&clock, Deadline::FAR, || {}));
        assert!(poll_immediate(&mut late).await.is_none());
        room.tell(number, Ok(Arc::new(look(1))));
        assert!(matches!(early.await, Waited::Told(Ok(_))));
        assert!(poll_immediate(&mut late).await.is_none(), "it began before");
        assert!(!room.is_deserted());
        let number = room.begin();
        room.tell(number, Ok(Arc::new(look(2))));
        assert!(matches!(late.await, Waited::Told(Ok(look)) if look.asked.as_ns() == 2));
        assert!(room.is_deserted());
    }

    /// One that looks and is dropped, or never polled again, holds nobody up.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_given_up_is_another_ones_to_take() {
        let (_rooms, seat) = seat();
        let (room, clock) = (seat.room(), Clock::tokio());
        for is_dropped in [true, false] {
            let (_never, unanswered) = oneshot::channel();
            let (answer, answered) = oneshot::channel();
            let mut stuck = Some(Box::pin(room.look(&clock, read(unanswered))));
            assert!(poll_immediate(stuck.as_mut().unwrap()).await.is_none());
            let mut next = Box::pin(room.look(&clock, read(answered)));
            assert!(poll_immediate(&mut next).await.is_none());
            answer.send(7).unwrap();
            if is_dropped {
                stuck = None;
            }
            assert_eq!(next.await.unwrap().asked.as_ns(), 7);
            drop(stuck);
        }
    }

    #[test]
    fn a_room_is_gone_with_the_last_who_leaves_it() {
        let (rooms, seat) = seat();
        let (again, end) = (seat.again(), seat.turn_end());
        drop(seat);
        drop(again);
        assert_eq!(rooms.0.len(), 1);
        drop(end);
        assert_eq!(rooms.0.len(), 0);
    }
}

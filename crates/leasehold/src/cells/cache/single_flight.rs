//! The state that a client's tasks for one key share: reads, and the wait for a value or a turn.
//!
//! Invariant: a caller only gets a value that was read or written after its call began. So no call
//! returns a value that was invalidated before it.

use std::sync::Weak;

use tokio::sync::{oneshot, watch};

use super::entry::Snapshot;
use super::load::LoadTurn;
use super::shared_reads::SharedReads;
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::name::Name;
use crate::store::registry::{Entry, Registry};
use crate::sync::{Arc, Mutex, lock};

/// The keys in use by tasks of a client, by the name of their lease.
pub(crate) type SingleFlights = Registry<Name, SingleFlight>;

/// A guard of the shared state of one key. The last guard removes the state.
pub(super) type Flight = Entry<Name, SingleFlight>;

#[derive(Default)]
pub(crate) struct SingleFlight {
    pub(super) reads: SharedReads,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of reads and writes that have begun whose value waiting callers may get.
    begun: u64,
    /// The channel of the [coordinator](super::coordinator), which owns it. Dead if none runs.
    coordinator: Weak<watch::Sender<News>>,
    /// Alive while a task of this client loads a stale value again.
    refreshing: Weak<Refreshing>,
}

/// The message of a coordinator to the waiting callers.
#[derive(Default)]
pub(super) enum News {
    #[default]
    Nothing,
    /// The right to load, which the first caller that is polled takes.
    Turn(Mutex<Option<LoadTurn>>),
    /// The end of the coordinator: a value, or the error of its request.
    Ended(Result<Told>),
}

/// A value for waiting callers.
#[derive(Clone)]
pub(super) struct Told {
    /// The number of the read or write. Callers that came later do not accept it.
    pub(super) number: u64,
    pub(super) snapshot: Arc<Snapshot>,
}

pub(super) enum Waited {
    Value(Arc<Snapshot>),
    /// There is no value, and the caller has to load it.
    Turn(LoadTurn),
    TimedOut,
}

impl SingleFlight {
    pub(super) fn is_waited_for(&self) -> bool {
        lock(&self.state).coordinator.strong_count() > 0
    }

    /// Waits for a value, or for the right to load it. `start` starts a coordinator if none runs.
    ///
    /// # Cancel safety
    /// Can be dropped at any time. A coordinator ends when the last waiting caller has gone.
    pub(super) async fn wait(
        &self,
        clock: &Clock,
        until: Deadline,
        start: impl Fn(Arc<watch::Sender<News>>),
    ) -> Result<Waited> {
        let since = lock(&self.state).begun;
        loop {
            let (mut news, started) = self.subscribe();
            started.into_iter().for_each(&start);
            let mut waited = None;
            let told = news.wait_for(|news| {
                waited = news.accept(since);
                waited.is_some()
            });
            if clock.until(until, told).await.is_none() {
                return Ok(Waited::TimedOut);
            }
            // Otherwise the coordinator has ended with its runtime, or with an old value.
            if let Some(waited) = waited {
                return waited;
            }
        }
    }

    /// Joins the callers of the coordinator. Returns the sender if a coordinator has to be started.
    fn subscribe(&self) -> (watch::Receiver<News>, Option<Arc<watch::Sender<News>>>) {
        let mut state = lock(&self.state);
        if let Some(sender) = state.coordinator.upgrade() {
            return (sender.subscribe(), None);
        }
        let (sender, receiver) = watch::channel(News::default());
        let sender = Arc::new(sender);
        state.coordinator = Arc::downgrade(&sender);
        (receiver, Some(sender))
    }

    /// Returns the number of a read or write that begins now.
    pub(super) fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.begun
    }

    /// Ends a coordinator without callers, unless one has come meanwhile. Returns whether it ends.
    pub(super) fn end_if_unused(&self, sender: &watch::Sender<News>) -> bool {
        let mut state = lock(&self.state);
        let is_unused = sender.receiver_count() == 0;
        if is_unused {
            state.coordinator = Weak::new();
        }
        is_unused
    }

    /// Ends the coordinator. Later callers start another.
    pub(super) fn end(&self, sender: &watch::Sender<News>, told: Result<Told>) {
        lock(&self.state).coordinator = Weak::new();
        sender.send_replace(News::Ended(told));
    }

    /// Returns the right to load a stale value again, if no task of this client has it.
    pub(super) fn try_refresh(&self) -> Option<Arc<Refreshing>> {
        let mut state = lock(&self.state);
        let is_free = state.refreshing.strong_count() == 0;
        is_free.then(|| {
            let refreshing = Arc::new(Refreshing);
            state.refreshing = Arc::downgrade(&refreshing);
            refreshing
        })
    }
}

impl News {
    /// Takes the part for a caller that came when `since` reads and writes had begun.
    fn accept(&self, since: u64) -> Option<Result<Waited>> {
        match self {
            News::Nothing => None,
            News::Turn(turn) => lock(turn).take().map(|turn| Ok(Waited::Turn(turn))),
            News::Ended(Ok(told)) => (told.number > since).then(|| Ok(Waited::Value(told.snapshot.clone()))),
            News::Ended(Err(error)) => Some(Err(error.clone())),
        }
    }
}

/// See [`SingleFlight::try_refresh`].
pub(super) struct Refreshing;

/// Tells the coordinator how the load ended. A drop means that there is no value.
pub(super) struct LoadEnd {
    pub(super) flight: Flight,
    pub(super) told: oneshot::Sender<Told>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::future::poll_immediate;

    use super::*;

    fn flight() -> (SingleFlights, Flight) {
        let flights = SingleFlights::default();
        let flight = flights.join(Name::new("x").unwrap());
        (flights, flight)
    }

    fn told(number: u64) -> Result<Told> {
        Ok(Told { number, snapshot: Arc::new(Snapshot::numbered(number)) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_not_told_of_what_began_before_it_came() {
        let (_flights, flight) = flight();
        let (clock, senders) = (Clock::tokio(), Mutex::new(Vec::new()));
        let start = |sender| lock(&senders).push(sender);
        let mut early = Box::pin(flight.wait(&clock, Deadline::FAR, start));
        assert!(poll_immediate(&mut early).await.is_none());
        let number = flight.begin();
        let mut late = Box::pin(flight.wait(&clock, Deadline::FAR, start));
        assert!(poll_immediate(&mut late).await.is_none());
        let sender = lock(&senders).pop().unwrap();
        flight.end(&sender, told(number));
        assert!(matches!(early.await, Ok(Waited::Value(_))));
        assert!(poll_immediate(&mut late).await.is_none(), "it began before");
        assert_eq!(sender.receiver_count(), 1);
        drop(sender);
        // The caller starts another coordinator.
        assert!(poll_immediate(&mut late).await.is_none());
        let sender = lock(&senders).pop().unwrap();
        assert!(!flight.end_if_unused(&sender));
        flight.end(&sender, told(flight.begin()));
        assert!(matches!(late.await, Ok(Waited::Value(snapshot)) if snapshot.number() == 2));
        assert_eq!(sender.receiver_count(), 0);
        assert!(lock(&senders).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_ends_when_the_last_caller_has_gone() {
        let (_flights, flight) = flight();
        let (clock, senders) = (Clock::tokio(), Mutex::new(Vec::new()));
        let start = |sender| lock(&senders).push(sender);
        let mut first = Box::pin(flight.wait(&clock, Deadline::FAR, start));
        assert!(poll_immediate(&mut first).await.is_none());
        let sender = lock(&senders).pop().unwrap();
        drop(first);
        // A caller that comes before the coordinator has ended keeps it alive.
        let mut second = Box::pin(flight.wait(&clock, Deadline::FAR, start));
        assert!(poll_immediate(&mut second).await.is_none());
        assert!(!flight.end_if_unused(&sender) && flight.is_waited_for());
        drop(second);
        assert!(flight.end_if_unused(&sender) && !flight.is_waited_for());
        assert!(lock(&senders).is_empty());
    }

    #[test]
    fn a_key_is_forgotten_with_its_last_guard() {
        let (flights, flight) = flight();
        let (again, (told, _ended)) = (flight.clone(), oneshot::channel());
        let end = LoadEnd { flight: flight.clone(), told };
        drop(flight);
        drop(again);
        assert_eq!(flights.len(), 1);
        drop(end);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn one_task_at_a_time_refreshes() {
        let (_flights, flight) = flight();
        let refreshing = flight.try_refresh();
        assert!(refreshing.is_some() && flight.try_refresh().is_none());
        drop(refreshing);
        assert!(flight.try_refresh().is_some());
    }
}

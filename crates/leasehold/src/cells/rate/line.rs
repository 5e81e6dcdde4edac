//! The queue of a client's tasks that wait for one limit, and the background task that serves it.
//!
//! The background task asks the store for the first in the queue, then for the next, and ends with
//! the queue. No waiter asks itself: a future that is kept unpolled would block all behind it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::oneshot;

use super::limit::{Limit, Taken};
use super::spread;
use crate::cells::store::Key;
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::locks::Client;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, spawn};

#[derive(Default)]
pub(crate) struct Lines {
    /// By [`Limit::place`].
    lines: Mutex<HashMap<String, Line>>,
    /// The next number of a waiter in any queue: a forgotten queue shares none with its successor.
    arrivals: AtomicU64,
}

/// Invariants:
/// - it is in the table exactly as long as a task serves it;
/// - the waiter that is being served is not in it any more.
#[derive(Default)]
struct Line {
    /// By order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    /// The last answer to the waiter being served: when to retry, and when all is free.
    told: Option<(Deadline, Deadline)>,
}

/// The request of a waiter, and the channel for its answer.
pub(super) struct Waiter {
    key: Key,
    limit: Limit,
    weight: u32,
    until: Deadline,
    answer: oneshot::Sender<Result<Taken>>,
}

/// A place in a queue, which a drop frees at once.
pub(super) struct Stand<'a> {
    lines: &'a Lines,
    place: String,
    number: u64,
    answer: oneshot::Receiver<Result<Taken>>,
}

impl Lines {
    /// Takes the last place, and starts the task that serves the queue if none runs.
    pub(super) fn join<'a>(
        &'a self,
        client: &Arc<Client>,
        key: Key,
        limit: Limit,
        weight: u32,
        until: Deadline,
    ) -> Stand<'a> {
        let place = limit.place(&key);
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { key, limit, weight, until, answer: sender };
        let mut lines = lock(&self.lines);
        let is_new = !lines.contains_key(&place);
        let line = lines.entry(place.clone()).or_default();
        let number = self.arrivals.fetch_add(1, Ordering::Relaxed);
        line.waiters.insert(number, waiter);
        drop(lines);
        if is_new {
            spawn(serve(Served { client: client.clone(), place: place.clone(), is_over: false }));
        }
        Stand { lines: self, place, number, answer }
    }

    /// Takes the first waiter out of the queue; forgets an empty queue.
    fn next(&self, place: &str) -> Option<Waiter> {
        let mut lines = lock(&self.lines);
        let next = lines.get_mut(place)?.waiters.pop_first();
        if next.is_none() {
            lines.remove(place);
        }
        next.map(|(_, waiter)| waiter)
    }

    fn tell(&self, place: &str, now: Deadline, taken: &Taken) {
        if let Some(line) = lock(&self.lines).get_mut(place) {
            line.told = Some((now.plus(taken.retry_after), now.plus(taken.reset_after)));
        }
    }
}

impl Stand<'_> {
    /// Waits for the answer. In this waiter's turn, the serving task keeps the deadline.
    pub(super) async fn answer(&mut self) -> Result<Taken> {
        (&mut self.answer).await.unwrap_or_else(|_| {
            let (what, why) = ("task that waits for a rate limit", "its runtime has ended".to_owned());
            Err(Error::System { what, why })
        })
    }

    /// Leaves the queue, refused; `None` if the waiter is being served and the answer comes soon.
    pub(super) fn leave(&self, now: Deadline) -> Option<Taken> {
        let mut lines = lock(&self.lines.lines);
        let line = lines.get_mut(&self.place)?;
        line.waiters.remove(&self.number)?;
        let (retry_after, reset_after) = line
            .told
            .map_or((Duration::ZERO, Duration::ZERO), |(retry, reset)| (retry.since(now), reset.since(now)));
        Some(Taken { allowed: false, remaining: 0, retry_after, reset_after })
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        // Dropped after the lock: its sender wakes the receiver.
        let _waiter =
            lock(&self.lines.lines).get_mut(&self.place).and_then(|line| line.waiters.remove(&self.number));
    }
}

/// A queue that a task serves. If its runtime drops the task, the rest of the waiters get an error.
struct Served {
    client: Arc<Client>,
    place: String,
    /// Set once the queue is forgotten: there may be a new one at that place, with its own task.
    is_over: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.is_over {
            let _left = lock(&self.client.lines.lines).remove(&self.place);
        }
    }
}

async fn serve(mut served: Served) {
    let Served { client, place, .. } = &served;
    while let Some(mut waiter) = client.lines.next(place) {
        let answer = client.while_open(ask(client, place, &mut waiter)).await.transpose();
        if let Some(answer) = answer {
            let _ = waiter.answer.send(answer);
        }
    }
    served.is_over = true;
}

/// Asks until the limit allows the take, its time is over, or its future was dropped (`None`).
async fn ask(client: &Client, place: &str, waiter: &mut Waiter) -> Result<Option<Taken>> {
    let clock = client.clock();
    let store = client.cells(super::WHAT)?;
    let mut refused = 0;
    while !waiter.answer.is_closed() {
        let taken = client.in_time(store.take(&waiter.key, &waiter.limit, waiter.weight)).await?;
        let now = clock.now();
        let again = now.plus(taken.retry_after);
        if taken.allowed || again > waiter.until {
            return Ok(Some(taken));
        }
        client.lines.tell(place, now, &taken);
        let asks_at = again.plus(spread(taken.retry_after, refused)).min(waiter.until);
        clock.until(asks_at, waiter.answer.closed()).await;
        refused += 1;
    }
    Ok(None)
}

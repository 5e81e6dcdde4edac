//! The one task per client that renews its leases, and the only place that declares a loss.
//!
//! A book lists every tenancy under the moment it next wants attention. The task sleeps until the first of
//! them; what is due for renewal goes to the store in batches; what has passed its deadline is lost. An error
//! from the store is *unknown*, not lost: the renewal is tried again until the deadline.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::claim::{Renewed, Ticket};
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::event::{Event, Loss};
use crate::store::Store;
use crate::sync::{Arc, Mutex, Ordering, lock, spawn};
use crate::tenancy::Tenancy;
use crate::ttl::Ttl;

/// The way to the keeper.
pub(crate) struct Keeper {
    desk: Arc<Desk>,
}

struct Desk {
    clock: Clock,
    book: Mutex<Book>,
    /// Rings when the book has something earlier than the task sleeps for.
    bell: Notify,
}

/// Invariants:
/// - a tenancy stands in it at most once, under its `due_ns`; 0 means it does not;
/// - one that has ended is not put in (its end is set before it is taken out).
struct Book {
    due: BTreeMap<(Deadline, u64), Arc<Tenancy>>,
    /// The task is awake by then at the latest.
    wakes_at: Deadline,
    closed: bool,
}

/// The most leases in one renewal.
const BATCH_MAX: usize = 256;
/// The most renewals under way at once.
const BATCHES_MAX: usize = 2;

impl Keeper {
    /// Starts the keeper's task. It ends when the keeper is closed.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let clock = store.clock().clone();
        let book = Book { due: BTreeMap::new(), wakes_at: Deadline::FAR, closed: false };
        let desk = Arc::new(Desk { clock, book: Mutex::new(book), bell: Notify::new() });
        spawn(work(store, Farewell(desk.clone())));
        Keeper { desk }
    }

    /// Takes a tenancy into the book.
    pub(crate) fn keep(&self, tenancy: &Arc<Tenancy>) {
        self.desk.put(tenancy, next_attention(tenancy));
    }

    /// Moves a tenancy whose deadline has moved.
    pub(crate) fn reschedule(&self, tenancy: &Arc<Tenancy>) {
        self.desk.put(tenancy, next_attention(tenancy));
    }

    /// Takes a tenancy out of the book. Its end is set already.
    pub(crate) fn forget(&self, tenancy: &Tenancy) {
        lock(&self.desk.book).take_out(tenancy);
    }

    /// Declares a loss, once: the book forgets it, the janitor withdraws what may be left of it, its seat at
    /// the meeting is free, whoever watches is woken, and the event goes out.
    pub(crate) fn declare(&self, tenancy: &Arc<Tenancy>, reason: Loss) {
        if !tenancy.finish(reason) {
            return;
        }
        self.forget(tenancy);
        tenancy.withdraw();
        tenancy.client.hall.vacate(tenancy);
        tenancy.over.notify_waiters();
        tenancy.client.events.emit(Event::Lost {
            names: tenancy.names().clone(),
            fence: tenancy.fence,
            reason,
            held: self.desk.clock.now().since(tenancy.granted_at),
        });
    }

    /// Ends the task, and declares every lease still kept lost.
    pub(crate) fn close(&self) {
        self.desk.close();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.close();
    }
}

impl Desk {
    fn put(&self, tenancy: &Arc<Tenancy>, when: Deadline) {
        let mut book = lock(&self.book);
        book.take_out(tenancy);
        if book.closed {
            drop(book);
            tenancy.client.keeper.declare(tenancy, Loss::Closed);
            return;
        }
        // Whoever ends a tenancy sets its end first and takes it out then, so this look cannot miss it.
        if tenancy.end().is_some() {
            return;
        }
        tenancy.due_ns.store(when.as_ns(), Ordering::Relaxed);
        book.due.insert((when, tenancy.id), tenancy.clone());
        if when < book.wakes_at {
            book.wakes_at = when;
            self.bell.notify_one();
        }
    }

    fn close(&self) {
        let kept = {
            let mut book = lock(&self.book);
            book.closed = true;
            book.due.values().for_each(|tenancy| tenancy.due_ns.store(0, Ordering::Relaxed));
            std::mem::take(&mut book.due)
        };
        self.bell.notify_one();
        for tenancy in kept.into_values() {
            tenancy.client.keeper.declare(&tenancy, Loss::Closed);
        }
    }

    /// Takes out what is due by now; `None` when closed.
    fn take_due(&self) -> Option<Vec<Arc<Tenancy>>> {
        let mut book = lock(&self.book);
        if book.closed {
            return None;
        }
        let later = book.due.split_off(&(self.clock.now().plus(Duration::from_nanos(1)), 0));
        let due = std::mem::replace(&mut book.due, later);
        due.values().for_each(|tenancy| tenancy.due_ns.store(0, Ordering::Relaxed));
        Some(due.into_values().collect())
    }

    /// When to wake next, as promised to those who put things in.
    fn wakes_at(&self) -> Deadline {
        let mut book = lock(&self.book);
        book.wakes_at = book.due.first_key_value().map_or(Deadline::FAR, |((when, _), _)| *when);
        book.wakes_at
    }
}

impl Book {
    fn take_out(&mut self, tenancy: &Tenancy) {
        let due_ns = tenancy.due_ns.swap(0, Ordering::Relaxed);
        if due_ns != 0 {
            self.due.remove(&(Deadline::from_ns(due_ns), tenancy.id));
        }
    }
}

/// Where the task goes, be it by a runtime that shuts down, nothing is renewed any more: whoever relies on a
/// lease must hear of it now.
struct Farewell(Arc<Desk>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn work(store: Arc<dyn Store>, farewell: Farewell) {
    let desk = &*farewell.0;
    let mut to_renew = VecDeque::new();
    let mut under_way = FuturesUnordered::new();
    while let Some(due) = desk.take_due() {
        for tenancy in due {
            if tenancy.loss().is_some() {
                continue;
            }
            // From here until the answer, what it waits for in the book is its own deadline.
            desk.put(&tenancy, tenancy.valid_until());
            if tenancy.renews && !tenancy.is_capped() {
                to_renew.push_back(tenancy);
            }
        }
        while under_way.len() < BATCHES_MAX && !to_renew.is_empty() {
            let batch: Vec<_> = to_renew.drain(..to_renew.len().min(BATCH_MAX)).collect();
            under_way.push(renew(desk, &*store, batch));
        }
        let wakes_at = desk.wakes_at();
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = desk.bell.notified() => {}
            () = desk.clock.sleep_until(wakes_at) => {}
        }
    }
}

/// Renews one batch, and puts each of its tenancies where it belongs next.
async fn renew(desk: &Desk, store: &dyn Store, batch: Vec<Arc<Tenancy>>) {
    let (batch, waiting): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(|tenancy| tenancy.loss().is_none())
        .partition(|tenancy| tenancy.is_in_hand());
    for tenancy in waiting {
        desk.put(&tenancy, try_again_at(&tenancy, desk.clock.now()));
    }
    let Some(shortest) = batch.iter().map(|tenancy| tenancy.ttl()).min() else { return };
    let due: Vec<(Ticket, Ttl)> = batch
        .iter()
        .map(|tenancy| {
            tenancy.set_unanswered(true);
            (tenancy.ticket.clone(), tenancy.ttl())
        })
        .collect();
    // A sixth of the shortest TTL leaves room to try again several times before the deadline.
    let enough = desk.clock.now().plus(shortest.as_duration() / 6);
    let answers = tokio::select! {
        biased;
        answers = store.renew(&due) => answers,
        () = desk.clock.sleep_until(enough) => Vec::new(),
    };
    let mut answers = answers.into_iter();
    for tenancy in &batch {
        settle(desk, tenancy, answers.next().unwrap_or_else(|| Err(tenancy.client.no_answer())));
    }
}

fn settle(desk: &Desk, tenancy: &Arc<Tenancy>, answer: Result<Renewed>) {
    // First of all the deadline: an answer that comes after it comes too late.
    if tenancy.loss().is_some() {
        return;
    }
    match answer {
        Ok(answer) => {
            tenancy.renewed(answer);
            desk.put(tenancy, next_attention(tenancy));
        }
        Err(error) => {
            tenancy.client.events.emit(Event::RenewalFailed {
                names: tenancy.names().clone(),
                fence: tenancy.fence,
                why: error.to_string(),
                remaining: tenancy.remaining(desk.clock.now()),
            });
            desk.put(tenancy, try_again_at(tenancy, desk.clock.now()));
        }
    }
}

/// A third of the TTL (± 10 %) after the request that the present deadline counts from; or the deadline, where
/// nothing is renewed.
fn next_attention(tenancy: &Tenancy) -> Deadline {
    let deadline = tenancy.valid_until();
    if !tenancy.renews || tenancy.is_capped() {
        return deadline;
    }
    let ttl = tenancy.ttl();
    deadline.minus(ttl.validity()).plus(jittered(ttl.third(), tenancy)).min(deadline)
}

/// Soon, and in any case before the deadline.
fn try_again_at(tenancy: &Tenancy, now: Deadline) -> Deadline {
    let pause = (tenancy.ttl().as_duration() / 20).min(Duration::from_secs(1));
    now.plus(jittered(pause, tenancy)).min(tenancy.valid_until())
}

/// ± 10 %, different for each lease and each time, without a random source: the same run gives the same times, and
/// 100,000 leases taken together still spread out.
fn jittered(duration: Duration, tenancy: &Tenancy) -> Duration {
    let times = tenancy.times_jittered.fetch_add(1, Ordering::Relaxed);
    let mut x = tenancy.fence.get() ^ times.rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let per_mille = 900 + ((x ^ (x >> 31)) % 201) as u32;
    duration * per_mille / 1_000
}

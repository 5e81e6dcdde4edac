//! The one task per client that renews its leases, and the only place that declares a loss.
//!
//! A book lists every tenancy under the moment it next wants attention. The task sleeps until the first of
//! them; what is due for renewal goes to the store in batches; what has passed its deadline is lost. An error
//! from the store is *unknown*, not lost: the renewal is tried again until the deadline. A batch that is slow is sent
//! again too, while its answer is still waited for: a slow store is not a dead one.
//!
//! Leases of about the same TTL go together, so that the patience a long lease can afford never costs a short one its
//! life.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::claim::{Renewed, Ticket};
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::event::{Event, Loss};
use crate::meeting::{Hall, Key};
use crate::store::{Notice, NoticeReceiver, Store};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock, spawn};
use crate::tenancy::Tenancy;
use crate::ttl::Ttl;

/// The way to the keeper.
pub(crate) struct Keeper {
    desk: Arc<Desk>,
}

struct Desk {
    clock: Clock,
    /// What the moments of renewals are counted from, so that they fall together within a client and not between clients.
    since: Deadline,
    hall: Arc<Hall>,
    rooms_watched: AtomicU64,
    book: Mutex<Book>,
    /// Rings when the book has something earlier than the task sleeps for.
    bell: Notify,
    /// Set and rung when the task is over.
    ended: AtomicBool,
    end: Notify,
}

/// Invariants:
/// - a tenancy stands in it at most once, under its `due_ns`; 0 means it does not;
/// - one that has ended is not put in (its end is set before it is taken out).
struct Book {
    due: BTreeMap<(Deadline, u64), Arc<Tenancy>>,
    /// Rooms at the meeting to look into.
    rooms: BTreeMap<(Deadline, u64), Key>,
    /// The task is awake by then at the latest.
    wakes_at: Deadline,
    closed: bool,
}

/// The most leases in one renewal.
const BATCH_MAX: usize = 256;
/// The most renewals of one class of TTLs under way at once, slow ones apart.
const BATCHES_MAX: u64 = 2;
/// Into how many steps the time until a renewal is divided; all that fall into one go together.
const STEPS: u32 = 100;
/// How long an answer may take before the batch counts as slow.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// For how many times that a slow batch is still listened to.
const SLOW_FOR: u32 = 12;

impl Keeper {
    /// Starts the keeper's task. It ends when the keeper is closed.
    pub(crate) fn start(store: Arc<dyn Store>, hall: Arc<Hall>) -> Self {
        let clock = store.clock().clone();
        let notices = store.notices();
        let book =
            Book { due: BTreeMap::new(), rooms: BTreeMap::new(), wakes_at: Deadline::FAR, closed: false };
        let desk = Arc::new(Desk {
            since: clock.now(),
            clock,
            hall,
            rooms_watched: AtomicU64::new(0),
            book: Mutex::new(book),
            bell: Notify::new(),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        });
        spawn(work(store, notices, Farewell(desk.clone())));
        Keeper { desk }
    }

    /// Takes a tenancy into the book, or moves it there when its deadline has moved.
    pub(crate) fn keep(&self, tenancy: &Arc<Tenancy>) {
        self.desk.put(tenancy, self.desk.next_attention(tenancy, self.desk.clock.now()));
    }

    /// Takes a tenancy out of the book. Its end is set already.
    pub(crate) fn forget(&self, tenancy: &Tenancy) {
        lock(&self.desk.book).take_out(tenancy);
    }

    /// Looks into a room of the meeting from time to time, as long as it has a line.
    pub(crate) fn watch(&self, key: &Key) {
        let when = self.desk.clock.now().plus(key.ttl().as_duration());
        self.desk.watch(key.clone(), when);
    }

    /// Declares a loss, once: the book forgets it, the janitor withdraws what may be left of it, its seat at
    /// the meeting is free, whoever watches is woken, and the event goes out.
    pub(crate) fn declare(&self, tenancy: &Arc<Tenancy>, reason: Loss) {
        let _in_use = tenancy.client.closing.in_use();
        if !tenancy.finish(reason) {
            return;
        }
        self.forget(tenancy);
        tenancy.withdraw(false);
        tenancy.client.hall.vacate(tenancy);
        tenancy.over.notify_waiters();
        // What no user has in hand is nobody's loss: a late grant, or a lease on its way.
        if tenancy.is_in_hand() {
            self.tell(tenancy, reason);
        }
    }

    /// Tells of a loss, once.
    pub(crate) fn tell(&self, tenancy: &Tenancy, reason: Loss) {
        if tenancy.is_told_first() {
            let client = &tenancy.client;
            let held = self.desk.clock.now().since(tenancy.granted_at);
            let is_closed = client.closing.is_closed();
            client.events.lost(tenancy.names(), tenancy.fence_shown(), reason, held, is_closed);
        }
    }

    /// Ends the task, and declares every lease still kept lost.
    pub(crate) fn close(&self) {
        self.desk.close();
    }

    /// Ends when the closed task has: then no loss is still about to be declared.
    pub(crate) async fn ended(&self) {
        let mut end = std::pin::pin!(self.desk.end.notified());
        end.as_mut().enable();
        if !self.desk.ended.load(Ordering::Acquire) {
            end.await;
        }
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
        self.wake_by(book, when);
    }

    /// Has the leases renewed at once that a notice says were evicted; all of them where a notice was missed. The notice
    /// itself proves nothing: the renewal finds out whether a lease is lost.
    fn heed(&self, notice: Option<Notice>) {
        let is_meant = |tenancy: &Tenancy| match &notice {
            Some(Notice::Evicted { name }) => tenancy.names().as_slice().contains(name),
            Some(_) => false,
            None => true,
        };
        let kept: Vec<Arc<Tenancy>> = lock(&self.book).due.values().cloned().collect();
        let now = self.clock.now();
        for tenancy in kept.iter().filter(|tenancy| tenancy.renews && is_meant(tenancy)) {
            self.put(tenancy, now);
        }
    }

    fn watch(&self, key: Key, when: Deadline) {
        let number = self.rooms_watched.fetch_add(1, Ordering::Relaxed);
        let mut book = lock(&self.book);
        if book.closed {
            return;
        }
        book.rooms.insert((when, number), key);
        self.wake_by(book, when);
    }

    fn wake_by(&self, mut book: MutexGuard<'_, Book>, when: Deadline) {
        if when < book.wakes_at {
            book.wakes_at = when;
            drop(book);
            self.bell.notify_one();
        }
    }

    fn close(&self) {
        let kept = {
            let mut book = lock(&self.book);
            book.closed = true;
            book.rooms.clear();
            book.due.values().for_each(|tenancy| tenancy.due_ns.store(0, Ordering::Relaxed));
            std::mem::take(&mut book.due)
        };
        self.bell.notify_one();
        for tenancy in kept.into_values() {
            tenancy.client.keeper.declare(&tenancy, Loss::Closed);
        }
    }

    /// Takes out what is due by now; `None` when closed.
    fn take_due(&self) -> Option<(Vec<Arc<Tenancy>>, Vec<Key>)> {
        let mut book = lock(&self.book);
        if book.closed {
            return None;
        }
        let first_later = (self.clock.now().plus(Duration::from_nanos(1)), 0);
        let later = book.due.split_off(&first_later);
        let due = std::mem::replace(&mut book.due, later);
        due.values().for_each(|tenancy| tenancy.due_ns.store(0, Ordering::Relaxed));
        let later = book.rooms.split_off(&first_later);
        let rooms = std::mem::replace(&mut book.rooms, later);
        Some((due.into_values().collect(), rooms.into_values().collect()))
    }

    /// A third of the TTL (± 10 %) after the request that the present deadline counts from, and at most that from now; or
    /// the deadline, where nothing is renewed. A little earlier where that lets it go together with others: to wake up for
    /// each costs more than to renew it.
    fn next_attention(&self, tenancy: &Tenancy, now: Deadline) -> Deadline {
        let deadline = tenancy.valid_until();
        if !tenancy.renews {
            return deadline;
        }
        let ttl = tenancy.ttl();
        let third = jittered(ttl.third(), tenancy);
        // A deadline capped by `max_hold` counts from nothing; it is renewed all the same, to hear of an eviction.
        let sent = if tenancy.is_capped() { now } else { deadline.minus(ttl.validity()) };
        let due = sent.plus(third).min(now.plus(third)).min(deadline);
        let step = (ttl.third() / STEPS).as_nanos().max(1) as u64;
        due.minus(Duration::from_nanos(due.since(self.since).as_nanos() as u64 % step))
    }

    /// When to wake next, as promised to those who put things in. A promise for a lease that is gone by now is kept all the
    /// same: to wake up once for nothing is cheaper than to be called for each of the leases that come and go till then.
    fn wakes_at(&self) -> Deadline {
        let mut book = lock(&self.book);
        let lease = book.due.first_key_value().map(|((when, _), _)| *when);
        let room = book.rooms.first_key_value().map(|((when, _), _)| *when);
        let next = lease.into_iter().chain(room).min().unwrap_or(Deadline::FAR);
        if next < book.wakes_at || book.wakes_at <= self.clock.now() {
            book.wakes_at = next;
        }
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
        self.0.ended.store(true, Ordering::Release);
        self.0.end.notify_waiters();
    }
}

async fn work(store: Arc<dyn Store>, mut notices: Option<NoticeReceiver>, farewell: Farewell) {
    let desk = &*farewell.0;
    let mut classes: BTreeMap<u32, Class> = BTreeMap::new();
    let mut under_way = FuturesUnordered::new();
    while let Some((due, rooms)) = desk.take_due() {
        for key in rooms {
            if let Some(when) = desk.hall.look_after(&key, desk.clock.now()) {
                desk.watch(key, when);
            }
        }
        for tenancy in due {
            if tenancy.loss().is_some() {
                continue;
            }
            // From here until the answer, what it waits for in the book is its own deadline.
            desk.put(&tenancy, tenancy.valid_until());
            if tenancy.renews {
                let class = tenancy.ttl().as_ms().ilog2();
                classes.entry(class).or_default().to_renew.push_back(tenancy);
            }
        }
        for class in classes.values_mut() {
            while class.under_way.load(Ordering::Relaxed) < BATCHES_MAX && !class.to_renew.is_empty() {
                let slot = Slot::take(desk, class);
                let batch = class.to_renew.drain(..class.to_renew.len().min(BATCH_MAX)).collect();
                under_way.push(renew(desk, &*store, batch, slot));
            }
        }
        classes.retain(|_, class| !class.to_renew.is_empty() || class.under_way.load(Ordering::Relaxed) > 0);
        let wakes_at = desk.wakes_at();
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = desk.bell.notified() => {}
            notice = next_notice(&mut notices) => desk.heed(notice),
            () = desk.clock.sleep_until(wakes_at) => {}
        }
    }
}

async fn next_notice(notices: &mut Option<NoticeReceiver>) -> Option<Notice> {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

/// Leases whose TTLs are within a factor of two.
#[derive(Default)]
struct Class {
    to_renew: VecDeque<Arc<Tenancy>>,
    under_way: Arc<AtomicU64>,
}

/// A batch's place among those of its class. Where it is given up, the keeper looks what else there is to send.
struct Slot<'a> {
    desk: &'a Desk,
    under_way: Arc<AtomicU64>,
}

impl<'a> Slot<'a> {
    fn take(desk: &'a Desk, class: &Class) -> Self {
        class.under_way.fetch_add(1, Ordering::Relaxed);
        Slot { desk, under_way: class.under_way.clone() }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.desk.bell.notify_one();
    }
}

/// Renews one batch, and puts each of its tenancies where it belongs next.
async fn renew(desk: &Desk, store: &dyn Store, batch: Vec<Arc<Tenancy>>, slot: Slot<'_>) {
    let (batch, waiting): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(|tenancy| tenancy.loss().is_none())
        .partition(|tenancy| tenancy.may_be_renewed());
    for tenancy in waiting {
        desk.put(&tenancy, try_again_at(&tenancy, desk.clock.now()));
    }
    let Some(shortest) = batch.iter().map(|tenancy| tenancy.ttl()).min() else { return };
    let due: Vec<(Ticket, Ttl)> = batch.iter().map(|tenancy| tenancy.to_renew()).collect();
    // A sixth of the TTL leaves room to try again several times before the deadline.
    let patience = (shortest.as_duration() / 6).min(PATIENCE_MAX);
    let slow_from = desk.clock.now().plus(patience);
    let mut call = store.renew(&due);
    if let Some(answers) = desk.clock.until(slow_from, &mut call).await {
        let mut answers = answers.into_iter();
        for tenancy in &batch {
            settle(desk, tenancy, answers.next().unwrap_or_else(|| Err(tenancy.client.no_answer())));
        }
        return;
    }
    for tenancy in &batch {
        settle(desk, tenancy, Err(tenancy.client.no_answer()));
    }
    drop(slot);
    // A slow store is not a dead one: the answer counts as long as it comes before some deadline. But not for ever, or
    // calls that hang would pile up.
    let give_up = slow_from.plus(patience * SLOW_FOR);
    loop {
        let deadlines =
            batch.iter().filter(|tenancy| tenancy.end().is_none()).map(|tenancy| tenancy.valid_until());
        let Some(last) = deadlines.max().map(|last| last.min(give_up)) else { return };
        if desk.clock.now() >= last {
            return;
        }
        // Meanwhile another answer may have moved the deadlines on.
        let Some(answers) = desk.clock.until(last, &mut call).await else { continue };
        for (tenancy, answer) in batch.iter().zip(answers) {
            if answer.is_ok() {
                settle(desk, tenancy, answer);
            }
        }
        return;
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
            // Not at once, however late the answer came: the next one may be on its way already.
            let now = desk.clock.now();
            desk.put(tenancy, desk.next_attention(tenancy, now).max(try_again_at(tenancy, now)));
        }
        Err(error) => {
            tenancy.client.events.emit(Event::RenewalFailed {
                names: tenancy.names().clone(),
                fence: tenancy.fence_shown(),
                why: error.to_string(),
                tries: tenancy.count_failure(),
                remaining: tenancy.remaining(desk.clock.now()),
            });
            desk.put(tenancy, try_again_at(tenancy, desk.clock.now()));
        }
    }
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

//! The one task per client that renews its leases (the watchdog).
//!
//! A schedule lists every lease under the time of its next check. The task sleeps until the first
//! of them, sends due leases to the store in batches, and declares leases past their deadline lost.
//! After an error the state is *unknown*, not lost: the task retries until the deadline. A slow
//! batch is sent again while its answer still counts: a slow store is not a dead one.
//!
//! A batch has leases of similar TTLs: its time limit would be too long for a shorter lease.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::acquire::{LocalQueues, Request};
use crate::claim::{Renewed, Ticket};
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::event::{Event, Loss};
use crate::lease::state::LeaseState;
use crate::loss::Then;
use crate::store::{Notice, NoticeReceiver, Store};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock, notified_until, spawn};
use crate::ttl::Ttl;

/// The state shared by the client and its renewal task.
pub(crate) struct Renewer {
    clock: Clock,
    /// The origin of renewal times: they coincide within a client, and not between clients.
    since: Deadline,
    queues: Arc<LocalQueues>,
    /// The last id of an entry in the schedule.
    last_id: AtomicU64,
    schedule: Mutex<Schedule>,
    /// Notified when the schedule gets an entry earlier than the task sleeps for.
    earlier: Notify,
    /// Set, and `end` notified, when the task has ended.
    ended: AtomicBool,
    end: Notify,
}

/// Invariants:
/// - a lease is in it at most once, under its `due_ns`; 0 means that it is not in it;
/// - a lease that has ended is not inserted (its end is set before it is removed).
struct Schedule {
    due: BTreeMap<(Deadline, u64), Due>,
    /// The task is awake by then at the latest.
    wakes_at: Deadline,
    closed: bool,
}

/// The most leases in one renewal.
const BATCH_MAX: usize = 256;
/// The most batches of one class under way at once, slow ones not counted.
const BATCHES_MAX: u64 = 2;
/// The number of steps until a renewal; the leases of one step go together.
const STEPS: u32 = 100;
/// The most time for an answer before the batch counts as slow.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// The number of such times after which the answer to a slow batch is ignored.
const SLOW_FOR: u32 = 12;

enum Due {
    Lease(Arc<LeaseState>),
    /// The local queue of this request is checked.
    Queue(Arc<Request>),
}

impl Renewer {
    /// Starts the task. It ends when the renewer is closed.
    pub(crate) fn start(store: Arc<dyn Store>, queues: Arc<LocalQueues>) -> Arc<Self> {
        let clock = store.clock().clone();
        let notices = store.notices();
        let schedule = Schedule { due: BTreeMap::new(), wakes_at: Deadline::FAR, closed: false };
        let renewer = Arc::new(Renewer {
            since: clock.now(),
            clock,
            queues,
            last_id: AtomicU64::new(0),
            schedule: Mutex::new(schedule),
            earlier: Notify::new(),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        });
        spawn(work(store, notices, CloseOnDrop(renewer.clone())));
        renewer
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Inserts a lease into the schedule, or moves it if its deadline has moved.
    pub(crate) fn schedule(&self, state: &Arc<LeaseState>) {
        self.put(state, self.next_attention(state, self.clock.now()));
    }

    /// Removes a lease, whose end is set already, from the schedule.
    pub(crate) fn forget(&self, state: &LeaseState) {
        lock(&self.schedule).remove(state);
    }

    /// Checks a local queue from time to time, as long as it has waiters.
    pub(crate) fn check_queue(&self, request: &Arc<Request>) {
        self.check_at(request.clone(), self.clock.now().plus(request.ttl.as_duration()));
    }

    /// Ends the task, and declares every lease in the schedule lost.
    pub(crate) fn close(&self) {
        let scheduled = {
            let mut schedule = lock(&self.schedule);
            schedule.closed = true;
            take_out(&mut schedule.due)
        };
        self.earlier.notify_one();
        for due in scheduled {
            if let Due::Lease(state) = due {
                state.end(Loss::Closed, Then::Withdraw);
            }
        }
    }

    /// Returns when the closed task has ended: from then on it declares no loss.
    pub(crate) async fn ended(&self) {
        notified_until(&self.end, || self.ended.load(Ordering::Acquire).then_some(())).await;
    }

    fn put(&self, state: &Arc<LeaseState>, when: Deadline) {
        let mut schedule = lock(&self.schedule);
        schedule.remove(state);
        if schedule.closed {
            drop(schedule);
            state.end(Loss::Closed, Then::Withdraw);
            return;
        }
        // The end of a lease is set before it leaves the schedule, so this check cannot miss it.
        if state.end_reason().is_some() {
            return;
        }
        state.due_ns.store(when.as_ns(), Ordering::Relaxed);
        self.insert(schedule, when, state.id, Due::Lease(state.clone()));
    }

    /// Renews at once the leases that a notice reports as evicted; all leases if a notice was
    /// missed. The notice proves nothing: the renewal finds out whether a lease is lost.
    fn heed(&self, notice: Option<Notice>) {
        let is_meant = |state: &LeaseState| match &notice {
            Some(Notice::Evicted { name }) => state.names().as_slice().contains(name),
            Some(_) => false,
            None => true,
        };
        let leases = |due: &Due| match due {
            Due::Lease(state) => Some(state.clone()),
            Due::Queue(_) => None,
        };
        let scheduled: Vec<_> = lock(&self.schedule).due.values().filter_map(leases).collect();
        let now = self.clock.now();
        for state in scheduled.iter().filter(|state| state.request.renews && is_meant(state)) {
            self.put(state, now);
        }
    }

    fn check_at(&self, request: Arc<Request>, when: Deadline) {
        let schedule = lock(&self.schedule);
        if !schedule.closed {
            self.insert(schedule, when, self.next_id(), Due::Queue(request));
        }
    }

    fn insert(&self, mut schedule: MutexGuard<'_, Schedule>, when: Deadline, id: u64, due: Due) {
        schedule.due.insert((when, id), due);
        if when < schedule.wakes_at {
            schedule.wakes_at = when;
            drop(schedule);
            self.earlier.notify_one();
        }
    }

    /// Removes and returns the entries due by now; `None` when closed.
    fn take_due(&self) -> Option<Vec<Due>> {
        let mut schedule = lock(&self.schedule);
        if schedule.closed {
            return None;
        }
        let later = schedule.due.split_off(&(self.clock.now().plus(Duration::from_nanos(1)), 0));
        let due = take_out(&mut schedule.due);
        schedule.due = later;
        Some(due)
    }

    /// Returns the time of the next renewal, or the deadline of a lease that is not renewed.
    ///
    /// A renewal is due a third of the TTL (± 10 %) after the request that the deadline counts
    /// from, and at most that from now. It is rounded down to a step shared with other leases: a
    /// wake-up costs more than a renewal.
    fn next_attention(&self, state: &LeaseState, now: Deadline) -> Deadline {
        let deadline = state.valid_until();
        if !state.request.renews {
            return deadline;
        }
        let ttl = state.ttl();
        let third = jittered(ttl.third(), state);
        // A deadline capped by `max_hold` counts from no request. It is renewed to find evictions.
        let sent = if state.is_capped() { now } else { deadline.minus(ttl.validity()) };
        let due = sent.plus(third).min(now.plus(third)).min(deadline);
        let step = (ttl.third() / STEPS).as_nanos().max(1) as u64;
        due.minus(Duration::from_nanos(due.since(self.since).as_nanos() as u64 % step))
    }

    /// Returns the time of the next wake-up. It stays when the lease that set it has ended: one
    /// useless wake-up is cheaper than a notification for each lease that comes and goes.
    fn wakes_at(&self) -> Deadline {
        let mut schedule = lock(&self.schedule);
        let next = schedule.due.first_key_value().map_or(Deadline::FAR, |((when, _), _)| *when);
        if next < schedule.wakes_at || schedule.wakes_at <= self.clock.now() {
            schedule.wakes_at = next;
        }
        schedule.wakes_at
    }
}

impl Schedule {
    fn remove(&mut self, state: &LeaseState) {
        let due_ns = state.due_ns.swap(0, Ordering::Relaxed);
        if due_ns != 0 {
            self.due.remove(&(Deadline::from_ns(due_ns), state.id));
        }
    }
}

fn take_out(due: &mut BTreeMap<(Deadline, u64), Due>) -> Vec<Due> {
    let due: Vec<Due> = std::mem::take(due).into_values().collect();
    for due in &due {
        if let Due::Lease(state) = due {
            state.due_ns.store(0, Ordering::Relaxed);
        }
    }
    due
}

/// Declares all leases lost when the task ends, also because its runtime shuts down: no lease is
/// renewed any more, and the holders must learn it now.
struct CloseOnDrop(Arc<Renewer>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        self.0.ended.store(true, Ordering::Release);
        self.0.end.notify_waiters();
    }
}

async fn work(store: Arc<dyn Store>, mut notices: Option<NoticeReceiver>, close_on_drop: CloseOnDrop) {
    let renewer = &*close_on_drop.0;
    let mut classes: BTreeMap<u32, Class> = BTreeMap::new();
    let mut under_way = FuturesUnordered::new();
    while let Some(due) = renewer.take_due() {
        for due in due {
            let state = match due {
                Due::Lease(state) if state.loss().is_some() => continue,
                Due::Lease(state) => state,
                Due::Queue(request) => {
                    if let Some(when) = renewer.queues.check(&request, renewer.clock.now()) {
                        renewer.check_at(request, when);
                    }
                    continue;
                }
            };
            // Until the answer, the lease is scheduled for its deadline.
            renewer.put(&state, state.valid_until());
            if state.request.renews {
                let class = state.ttl().as_ms().ilog2();
                classes.entry(class).or_default().to_renew.push_back(state);
            }
        }
        for class in classes.values_mut() {
            while class.under_way.load(Ordering::Relaxed) < BATCHES_MAX && !class.to_renew.is_empty() {
                let slot = Slot::take(renewer, class);
                let batch = class.to_renew.drain(..class.to_renew.len().min(BATCH_MAX)).collect();
                under_way.push(renew(renewer, &*store, batch, slot));
            }
        }
        classes.retain(|_, class| !class.to_renew.is_empty() || class.under_way.load(Ordering::Relaxed) > 0);
        let wakes_at = renewer.wakes_at();
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = renewer.earlier.notified() => {}
            notice = next_notice(&mut notices) => renewer.heed(notice),
            () = renewer.clock.sleep_until(wakes_at) => {}
        }
    }
}

/// Returns the next notice; never returns for a store without notices.
pub(crate) async fn next_notice(notices: &mut Option<NoticeReceiver>) -> Option<Notice> {
    match notices {
        Some(notices) => notices.next().await,
        None => std::future::pending().await,
    }
}

/// Leases whose TTLs are within a factor of two.
#[derive(Default)]
struct Class {
    to_renew: VecDeque<Arc<LeaseState>>,
    under_way: Arc<AtomicU64>,
}

/// The slot of a batch in its class. When it is dropped, the task checks what else to send.
struct Slot<'a> {
    renewer: &'a Renewer,
    under_way: Arc<AtomicU64>,
}

impl<'a> Slot<'a> {
    fn take(renewer: &'a Renewer, class: &Class) -> Self {
        class.under_way.fetch_add(1, Ordering::Relaxed);
        Slot { renewer, under_way: class.under_way.clone() }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.renewer.earlier.notify_one();
    }
}

/// Renews one batch, and schedules each of its leases again.
async fn renew(renewer: &Renewer, store: &dyn Store, batch: Vec<Arc<LeaseState>>, slot: Slot<'_>) {
    let (batch, waiting): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(|state| state.loss().is_none())
        .partition(|state| state.is_in_hand() && !state.is_converting());
    for state in waiting {
        renewer.put(&state, try_again_at(&state, renewer.clock.now()));
    }
    let Some(shortest) = batch.iter().map(|state| state.ttl()).min() else { return };
    let due: Vec<(Ticket, Ttl)> = batch.iter().map(|state| state.to_renew()).collect();
    // A sixth of the TTL leaves time for several retries before the deadline.
    let patience = (shortest.as_duration() / 6).min(PATIENCE_MAX);
    let slow_from = renewer.clock.now().plus(patience);
    let mut call = store.renew(&due);
    if let Some(answers) = renewer.clock.until(slow_from, &mut call).await {
        let mut answers = answers.into_iter();
        for state in &batch {
            settle(renewer, state, answers.next().unwrap_or_else(|| Err(state.client.no_answer())));
        }
        return;
    }
    for state in &batch {
        settle(renewer, state, Err(state.client.no_answer()));
    }
    drop(slot);
    // The late answer counts before some deadline, within a limit: calls that hang would pile up.
    let give_up = slow_from.plus(patience * SLOW_FOR);
    loop {
        let deadlines =
            batch.iter().filter(|state| state.end_reason().is_none()).map(|state| state.valid_until());
        let Some(last) = deadlines.max().map(|last| last.min(give_up)) else { return };
        if renewer.clock.now() >= last {
            return;
        }
        // Meanwhile another answer may have moved the deadlines.
        let Some(answers) = renewer.clock.until(last, &mut call).await else { continue };
        for (state, answer) in batch.iter().zip(answers) {
            if answer.is_ok() {
                settle(renewer, state, answer);
            }
        }
        return;
    }
}

fn settle(renewer: &Renewer, state: &Arc<LeaseState>, answer: Result<Renewed>) {
    // An answer after the deadline comes too late.
    if state.loss().is_some() {
        return;
    }
    match answer {
        Ok(answer) => {
            state.renewed(answer);
            // Not at once, even after a late answer: that to a later renewal may be on its way.
            let now = renewer.clock.now();
            renewer.put(state, renewer.next_attention(state, now).max(try_again_at(state, now)));
        }
        Err(error) => {
            state.client.events.emit(Event::RenewalFailed {
                names: state.names().clone(),
                fence: state.fence_shown(),
                why: error.to_string(),
                tries: state.count_failure(),
                remaining: state.remaining(renewer.clock.now()),
            });
            renewer.put(state, try_again_at(state, renewer.clock.now()));
        }
    }
}

/// Soon, and in any case before the deadline.
fn try_again_at(state: &LeaseState, now: Deadline) -> Deadline {
    let pause = (state.ttl().as_duration() / 20).min(Duration::from_secs(1));
    now.plus(jittered(pause, state)).min(state.valid_until())
}

/// Varies a duration by ± 10 %, for each lease and each time, without a random source: a run is
/// repeatable, and 100,000 leases acquired together still spread out.
fn jittered(duration: Duration, state: &LeaseState) -> Duration {
    let times = state.times_jittered.fetch_add(1, Ordering::Relaxed);
    let mut x = state.fence.get() ^ times.rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let per_mille = 900 + ((x ^ (x >> 31)) % 201) as u32;
    duration * per_mille / 1_000
}

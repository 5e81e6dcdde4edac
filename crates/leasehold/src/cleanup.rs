//! The one task per client that withdraws claims without an owner: after a cancel, a panic, a
//! dropped lease, a loss, or a request whose outcome is unknown.
//!
//! A drop only sends a message to the task: it never blocks and needs no runtime. A withdrawal is
//! repeated until the store answers or the TTL is over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::claim::{Names, Released, Ticket};
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::event::{Event, Events};
use crate::fence::Fence;
use crate::store::Store;
use crate::sync::{Arc, Mutex, lock, spawn};
use crate::ttl::Ttl;

#[derive(Debug, Clone)]
pub(crate) struct Withdrawal {
    pub(crate) ticket: Ticket,
    /// The longest TTL that the store may have given to it.
    pub(crate) ttl: Ttl,
    /// A request for this ticket may still be on its way. The ticket is then withdrawn at once and
    /// again when none can arrive any more: a release that overtakes its acquire leaves an orphan.
    pub(crate) late: bool,
    /// The user has released the lease. If the store then answers that it is not held, it was taken
    /// away, and the end of the work is confirmed.
    pub(crate) has_ended: bool,
}

/// A ticket that the store may know of. Dropping it withdraws the ticket.
pub(crate) struct Owed {
    cleanup: Cleanup,
    /// `None` once it is settled.
    withdrawal: Option<Withdrawal>,
    /// Its key in the list of withdrawals for closing the client.
    listed: Option<u64>,
}

impl Owed {
    /// Lists the ticket, so that closing the client withdraws it even if its future is not polled.
    pub(crate) fn list(&mut self) {
        if let (Some(withdrawal), None) = (&self.withdrawal, self.listed) {
            let mut list = lock(&self.cleanup.0.list);
            list.last += 1;
            self.listed = Some(list.last);
            let number = list.last;
            list.owed.insert(number, withdrawal.clone());
        }
    }

    pub(crate) fn unlist(&mut self) {
        if let Some(number) = self.listed.take() {
            lock(&self.cleanup.0.list).owed.remove(&number);
        }
    }

    /// Ends the guard: the store has answered, or the ticket has another owner.
    pub(crate) fn settle(mut self) {
        self.withdrawal = None;
    }

    /// Records that the store may have given this TTL to the ticket.
    pub(crate) fn at_least(&mut self, ttl: Ttl) {
        self.withdrawal.iter_mut().for_each(|withdrawal| withdrawal.ttl = withdrawal.ttl.max(ttl));
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.unlist();
        if let Some(withdrawal) = self.withdrawal.take() {
            self.cleanup.withdraw(withdrawal);
        }
    }
}

/// The handle of the cleanup task.
#[derive(Clone)]
pub(crate) struct Cleanup(Arc<Shared>);

struct Shared {
    clock: Clock,
    sender: mpsc::UnboundedSender<Job>,
    list: Mutex<OwedList>,
}

/// The requests under way: closing the client withdraws them.
#[derive(Default)]
struct OwedList {
    last: u64,
    owed: HashMap<u64, Withdrawal>,
}

enum Job {
    Withdraw {
        withdrawal: Withdrawal,
        /// The time of the message: the TTL counts from then, however many jobs are before it.
        since: Deadline,
    },
    /// Tells the other clients that the work under an evicted lease has ended.
    ConfirmEnd {
        names: Names,
        fence: Fence,
    },
    Report(oneshot::Sender<()>),
}

const AT_ONCE_MAX: usize = 64;
/// The time for which a release counts in [`AT_ONCE_MAX`].
const SLOT_FOR: Duration = Duration::from_millis(250);
/// The most time for one release before it is sent again.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Cleanup {
    /// Starts the task. It ends when the last handle is dropped and all is withdrawn.
    pub(crate) fn start(store: Arc<dyn Store>, events: Events) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let clock = store.clock().clone();
        spawn(work(store, events, receiver));
        Cleanup(Arc::new(Shared { clock, sender, list: Mutex::default() }))
    }

    /// Guards a ticket that the store may know of from now on.
    pub(crate) fn owe(&self, withdrawal: Withdrawal) -> Owed {
        Owed { cleanup: self.clone(), withdrawal: Some(withdrawal), listed: None }
    }

    /// Takes a withdrawal, without blocking. If the runtime has ended, the TTL ends the claim.
    pub(crate) fn withdraw(&self, withdrawal: Withdrawal) {
        let _ = self.0.sender.send(Job::Withdraw { withdrawal, since: self.0.clock.now() });
    }

    pub(crate) fn withdraw_listed(&self) {
        let owed = std::mem::take(&mut lock(&self.0.list).owed);
        owed.into_values().for_each(|withdrawal| self.withdraw(withdrawal));
    }

    /// Sends [`Job::ConfirmEnd`], without a retry.
    pub(crate) fn confirm_end(&self, names: Names, fence: Fence) {
        let _ = self.0.sender.send(Job::ConfirmEnd { names, fence });
    }

    /// Returns when every job sent before has ended.
    pub(crate) async fn done(&self) {
        let (report, done) = oneshot::channel();
        if self.0.sender.send(Job::Report(report)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn work(store: Arc<dyn Store>, events: Events, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let worker = Worker { store: &*store, events: &events, at_once: Semaphore::new(AT_ONCE_MAX) };
    let mut under_way = FuturesUnordered::new();
    // Jobs are numbered as they come; a report waits for those with a lower number than its own.
    let mut open = BTreeSet::new();
    let mut reports = VecDeque::new();
    for number in 0u64.. {
        let job = loop {
            tokio::select! {
                biased;
                Some(ended) = under_way.next() => {
                    open.remove(&ended);
                }
                job = jobs.recv() => break job,
            }
            answer(&mut reports, &open);
        };
        match job {
            Some(Job::Withdraw { withdrawal, since }) => {
                open.insert(number);
                under_way.push(worker.run(withdrawal, since).map(move |()| number).boxed());
            }
            Some(Job::ConfirmEnd { names, fence }) => {
                open.insert(number);
                under_way.push(worker.confirm_end(names, fence).map(move |()| number).boxed());
            }
            Some(Job::Report(report)) => {
                reports.push_back((number, report));
                answer(&mut reports, &open);
            }
            None => break,
        }
    }
    while let Some(ended) = under_way.next().await {
        open.remove(&ended);
        answer(&mut reports, &open);
    }
}

/// Answers the reports that wait for no job any more.
fn answer(reports: &mut VecDeque<(u64, oneshot::Sender<()>)>, open: &BTreeSet<u64>) {
    let oldest = open.first().copied().unwrap_or(u64::MAX);
    while reports.front().is_some_and(|(number, _)| *number < oldest) {
        if let Some((_, report)) = reports.pop_front() {
            let _ = report.send(());
        }
    }
}

struct Worker<'a> {
    store: &'a dyn Store,
    events: &'a Events,
    /// Counts releases under way, not withdrawals that wait for their next try.
    at_once: Semaphore,
}

impl Worker<'_> {
    async fn run(&self, withdrawal: Withdrawal, since: Deadline) {
        let late_window = self.store.capabilities().late_window;
        let nothing_arrives_after = since.plus(late_window);
        let expired_by = nothing_arrives_after.plus(withdrawal.ttl.as_duration());
        let released = self.release_until_answered(&withdrawal, expired_by).await;
        if let (Some(Released::NotHeld), true, Some(fence)) =
            (released, withdrawal.has_ended, withdrawal.ticket.fence)
        {
            self.confirm_end(withdrawal.ticket.names.clone(), fence).await;
        }
        if withdrawal.late && !late_window.is_zero() {
            self.store.clock().sleep_until(nothing_arrives_after).await;
            self.release_until_answered(&withdrawal, expired_by).await;
        }
    }

    /// If a confirmation is lost, the operator who waits for it waits until the lease has expired.
    async fn confirm_end(&self, names: Names, fence: Fence) {
        let clock = self.store.clock();
        let enough = clock.now().plus(CONFIRM_MAX);
        if let Some(Err(error)) = clock.until(enough, self.store.confirm_end(&names, fence)).await {
            tracing::debug!(%names, %error, "nobody was told that the evicted lease has ended");
        }
    }

    async fn release_until_answered(
        &self,
        withdrawal: &Withdrawal,
        expired_by: Deadline,
    ) -> Option<Released> {
        let clock = self.store.clock();
        let mut pause = FIRST_PAUSE;
        while clock.now() < expired_by {
            let why = match clock.until(expired_by, self.release(withdrawal)).await? {
                Ok(released) => return Some(released),
                Err(why) => why,
            };
            self.events.emit(Event::CleanupFailed { names: withdrawal.ticket.names.clone(), why });
            clock.sleep_until(clock.now().plus(pause).min(expired_by)).await;
            pause = (pause * 2).min(PATIENCE_MAX);
        }
        None
    }

    async fn release(&self, withdrawal: &Withdrawal) -> Result<Released, String> {
        let slot = self.at_once.acquire().await;
        let clock = self.store.clock();
        let (slow_from, enough) =
            (clock.now().plus(SLOT_FOR), clock.now().plus(withdrawal.ttl.third().min(PATIENCE_MAX)));
        let mut call = self.store.release(&withdrawal.ticket);
        let answer = clock.until(slow_from, &mut call).await;
        // A slow release must not block the others.
        drop(slot);
        let answer = match answer {
            Some(answer) => answer,
            None => clock.until(enough, call).await.ok_or("no answer")?,
        };
        answer.map_err(|error| error.to_string())
    }
}

//! The one task per client that withdraws what was left behind: by a cancel, a panic, a dropped lease, a loss,
//! or a request whose outcome nobody knows.
//!
//! Dropping only sends a message here; it never blocks and never needs a runtime. An errand is repeated until
//! the store has answered, or until the TTL has done the work, so every errand ends.

use std::collections::{BTreeSet, VecDeque};
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
use crate::sync::{Arc, spawn};
use crate::ttl::Ttl;

/// A ticket to withdraw.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) ticket: Ticket,
    /// The longest TTL that may have been given to it.
    pub(crate) ttl: Ttl,
    /// Whether a request for this ticket may still be on its way. Then the ticket is withdrawn at once, and
    /// again when nothing can arrive any more: a release that overtakes its acquire would leave an orphan.
    pub(crate) late: bool,
    /// Whether the user has let go of the lease. If the store says then that it is not held, it was taken away, and the end
    /// of the work is confirmed.
    pub(crate) has_ended: bool,
}

/// The way to the janitor.
#[derive(Clone)]
pub(crate) struct Janitor {
    clock: Clock,
    sender: mpsc::UnboundedSender<Job>,
}

enum Job {
    Withdraw {
        errand: Errand,
        /// When it came up, which is what its TTL counts from, however long the janitor is behind.
        since: Deadline,
    },
    /// Tells the other clients that the work under an evicted lease has ended.
    ConfirmEnd {
        names: Names,
        fence: Fence,
    },
    Report(oneshot::Sender<()>),
}

/// How many releases are under way at once.
const AT_ONCE_MAX: usize = 64;
/// How long a release counts among those.
const SLOT_FOR: Duration = Duration::from_millis(250);
/// How long one release may take before it is sent again.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// How long a confirmation may take.
const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Janitor {
    /// Starts the janitor's task. It ends when the last way to it is gone and all is withdrawn.
    pub(crate) fn start(store: Arc<dyn Store>, events: Events) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let clock = store.clock().clone();
        spawn(work(store, events, receiver));
        Janitor { clock, sender }
    }

    /// Takes an errand, from anywhere, at once. Where the runtime is gone, the TTL does it.
    pub(crate) fn withdraw(&self, errand: Errand) {
        let _ = self.sender.send(Job::Withdraw { errand, since: self.clock.now() });
    }

    /// Tells the other clients, once and without a retry, that the work under an evicted lease has ended.
    pub(crate) fn confirm_end(&self, names: Names, fence: Fence) {
        let _ = self.sender.send(Job::ConfirmEnd { names, fence });
    }

    /// Ends when every errand taken before has ended.
    pub(crate) async fn done(&self) {
        let (report, done) = oneshot::channel();
        if self.sender.send(Job::Report(report)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn work(store: Arc<dyn Store>, events: Events, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let desk = Desk { store: &*store, events: &events, at_once: Semaphore::new(AT_ONCE_MAX) };
    let mut under_way = FuturesUnordered::new();
    // Errands are numbered as they come; a report waits for those with a lower number than its own.
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
            Some(Job::Withdraw { errand, since }) => {
                open.insert(number);
                under_way.push(desk.run(number, errand, since).boxed());
            }
            Some(Job::ConfirmEnd { names, fence }) => {
                open.insert(number);
                under_way.push(desk.confirm_end(number, names, fence).boxed());
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

/// Answers the reports that wait for nothing any more.
fn answer(reports: &mut VecDeque<(u64, oneshot::Sender<()>)>, open: &BTreeSet<u64>) {
    let oldest = open.first().copied().unwrap_or(u64::MAX);
    while reports.front().is_some_and(|(number, _)| *number < oldest) {
        if let Some((_, report)) = reports.pop_front() {
            let _ = report.send(());
        }
    }
}

struct Desk<'a> {
    store: &'a dyn Store,
    events: &'a Events,
    /// Only a release that is under way counts, not an errand that waits for its next one.
    at_once: Semaphore,
}

impl Desk<'_> {
    async fn run(&self, number: u64, errand: Errand, since: Deadline) -> u64 {
        let late_window = self.store.capabilities().late_window;
        let nothing_arrives_after = since.plus(late_window);
        let expired_by = nothing_arrives_after.plus(errand.ttl.as_duration());
        let released = self.release_until_answered(&errand, expired_by).await;
        if let (Some(Released::NotHeld), true, Some(fence)) =
            (released, errand.has_ended, errand.ticket.fence)
        {
            self.confirm_end(number, errand.ticket.names.clone(), fence).await;
        }
        if errand.late && !late_window.is_zero() {
            self.store.clock().sleep_until(nothing_arrives_after).await;
            self.release_until_answered(&errand, expired_by).await;
        }
        number
    }

    /// A confirmation that is lost costs the operator who waits for it the time until the lease has run out.
    async fn confirm_end(&self, number: u64, names: Names, fence: Fence) -> u64 {
        let clock = self.store.clock();
        let enough = clock.now().plus(CONFIRM_MAX);
        if let Some(Err(error)) = clock.until(enough, self.store.confirm_end(&names, fence)).await {
            tracing::debug!(%names, %error, "nobody was told that the evicted lease has ended");
        }
        number
    }

    async fn release_until_answered(&self, errand: &Errand, expired_by: Deadline) -> Option<Released> {
        let clock = self.store.clock();
        let mut pause = FIRST_PAUSE;
        while clock.now() < expired_by {
            let why = match clock.until(expired_by, self.release(errand)).await? {
                Ok(released) => return Some(released),
                Err(why) => why,
            };
            self.events.emit(Event::CleanupFailed { names: errand.ticket.names.clone(), why });
            clock.sleep_until(clock.now().plus(pause).min(expired_by)).await;
            pause = (pause * 2).min(PATIENCE_MAX);
        }
        None
    }

    async fn release(&self, errand: &Errand) -> Result<Released, String> {
        let slot = self.at_once.acquire().await;
        let clock = self.store.clock();
        let (slow_from, enough) =
            (clock.now().plus(SLOT_FOR), clock.now().plus(errand.ttl.third().min(PATIENCE_MAX)));
        let mut call = self.store.release(&errand.ticket);
        let answer = clock.until(slow_from, &mut call).await;
        // One that is slow must not keep the others waiting.
        drop(slot);
        let answer = match answer {
            Some(answer) => answer,
            None => clock.until(enough, call).await.ok_or("no answer")?,
        };
        answer.map_err(|error| error.to_string())
    }
}

//! The one task per client that withdraws what was left behind: by a cancel, a panic, a dropped lease, a loss,
//! or a request whose outcome nobody knows.
//!
//! Dropping only sends a message here; it never blocks and never needs a runtime. An errand is repeated until
//! the store has answered, or until the TTL has done the work, so every errand ends.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::claim::Ticket;
use crate::clock::{Clock, Deadline};
use crate::event::{Event, Events};
use crate::store::Store;
use crate::sync::{Arc, spawn};
use crate::ttl::Ttl;

/// A ticket to withdraw.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) ticket: Ticket,
    pub(crate) ttl: Ttl,
    /// Whether a request for this ticket may still be on its way. Then the ticket is withdrawn at once, and
    /// again when nothing can arrive any more: a release that overtakes its acquire would leave an orphan.
    pub(crate) late: bool,
}

/// The way to the janitor.
#[derive(Clone)]
pub(crate) struct Janitor {
    sender: mpsc::UnboundedSender<Job>,
}

enum Job {
    Withdraw(Errand),
    Report(oneshot::Sender<()>),
}

/// How many withdrawals are under way at once.
const AT_ONCE_MAX: usize = 64;
/// How long one release may take before it is sent again.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Janitor {
    /// Starts the janitor's task. It ends when the last way to it is gone and all is withdrawn.
    pub(crate) fn start(store: Arc<dyn Store>, events: Events) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        spawn(work(store, events, receiver));
        Janitor { sender }
    }

    /// Takes an errand, from anywhere, at once. Where the runtime is gone, the TTL does it.
    pub(crate) fn withdraw(&self, errand: Errand) {
        let _ = self.sender.send(Job::Withdraw(errand));
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
    let mut under_way = FuturesUnordered::new();
    loop {
        let job = tokio::select! {
            biased;
            Some(()) = under_way.next() => continue,
            job = jobs.recv(), if under_way.len() < AT_ONCE_MAX => job,
        };
        match job {
            Some(Job::Withdraw(errand)) => under_way.push(withdraw(&*store, &events, errand)),
            Some(Job::Report(report)) => {
                while under_way.next().await.is_some() {}
                let _ = report.send(());
            }
            None => {
                while under_way.next().await.is_some() {}
                return;
            }
        }
    }
}

async fn withdraw(store: &dyn Store, events: &Events, errand: Errand) {
    let clock = store.clock();
    let late_window = store.capabilities().late_window;
    let nothing_arrives_after = clock.now().plus(late_window);
    let expired_by = nothing_arrives_after.plus(errand.ttl.as_duration());
    release_until_answered(store, events, &errand, expired_by).await;
    if errand.late && !late_window.is_zero() {
        clock.sleep_until(nothing_arrives_after).await;
        release_until_answered(store, events, &errand, expired_by).await;
    }
}

async fn release_until_answered(store: &dyn Store, events: &Events, errand: &Errand, expired_by: Deadline) {
    let clock: &Clock = store.clock();
    let mut pause = FIRST_PAUSE;
    while clock.now() < expired_by {
        let enough = clock.now().plus(errand.ttl.third().min(PATIENCE_MAX));
        let failure = tokio::select! {
            biased;
            answer = store.release(&errand.ticket) => match answer {
                Ok(_) => return,
                Err(error) => error.to_string(),
            },
            () = clock.sleep_until(enough) => "no answer".to_owned(),
        };
        events.emit(Event::CleanupFailed { names: errand.ticket.names.clone(), why: failure });
        clock.sleep_until(clock.now().plus(pause).min(expired_by)).await;
        pause = (pause * 2).min(PATIENCE_MAX);
    }
}

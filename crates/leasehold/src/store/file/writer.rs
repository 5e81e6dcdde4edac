//! The writer: runs transactions on the caller's thread, or in batches on a blocking thread.
//!
//! A transaction takes about ten microseconds, less than a hand-over to another thread costs. If
//! this process or another one is writing, the transaction is queued, and one blocking thread runs
//! the whole queue, many entries in one SQLite transaction.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::TryLockError;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::checkpoint::{Checkpointer, checkpoint};
use super::db::{Db, TxnError, connect};
use super::directory::Directory;
use super::gate::{GATE_TIMEOUT, Gate, RETRY_MAX, gate_timeout_error};
use super::liveness::{ClientId, LivenessLock};
use super::notify::Notifier;
use super::txn::{Notifications, Txn};
use crate::clock::{Clock, Deadline};
use crate::error::Error;
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// The time to wait for a program that has locked the database without taking the gate. It is
/// shorter than [`GATE_TIMEOUT`], so that the caller gets this error first.
const SQLITE_BUSY_TIMEOUT: Duration = Duration::from_millis(1_700);

/// The most queued transactions that run in one SQLite transaction.
const BATCH_MAX: usize = 64;

pub(super) struct Writer {
    clock: Clock,
    me: ClientId,
    /// Shows others that this client is alive while a transaction can run in its name.
    liveness: LivenessLock,
    runtime: Handle,
    pub(super) notifier: Arc<Notifier>,
    directory: Arc<Directory>,
    gate_inode: u64,
    gated: Mutex<GatedDb>,
    queue: Mutex<Queue>,
    checkpointer: Checkpointer,
}

struct GatedDb {
    db: Db,
    gate: Gate,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Box<dyn QueuedTxn>>,
    /// A blocking thread runs the queue, or is about to.
    has_thread: bool,
}

/// A queued transaction that has run, and whether it was committed.
type Finished = (Box<dyn QueuedTxn>, Result<(), TxnError>);

/// A transaction in the queue, without the type of its result.
trait QueuedTxn: Send {
    /// The caller was dropped, so the transaction must not run any more.
    fn is_abandoned(&self) -> bool;
    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), TxnError>;
    fn reply(self: Box<Self>, committed: Result<(), TxnError>);
}

struct PendingTxn<T, F> {
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, TxnError>>,
}

impl<T, F> QueuedTxn for PendingTxn<T, F>
where
    T: Send,
    F: FnMut(&mut Txn<'_>) -> Result<T, TxnError> + Send,
{
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn run(&mut self, txn: &mut Txn<'_>) -> Result<(), TxnError> {
        self.result = Some((self.work)(txn)?);
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<(), TxnError>) {
        let PendingTxn { result, reply, .. } = *self;
        let answer = committed.and_then(|()| result.ok_or_else(interrupted));
        // If the caller was dropped, the client releases the ticket, and that runs after this.
        let _ = reply.send(answer);
    }
}

/// The blocking thread panicked, or the runtime has ended: the outcome is unknown.
fn interrupted() -> TxnError {
    TxnError::Other(Error::Unreachable { store: "file", why: "the call was cut short".into() })
}

impl Writer {
    pub(super) fn new(
        db: Db,
        gate: Gate,
        clock: Clock,
        liveness: LivenessLock,
        notifier: Arc<Notifier>,
        opened_alone: bool,
    ) -> Self {
        Writer {
            clock,
            me: liveness.id,
            liveness,
            runtime: Handle::current(),
            notifier,
            directory: db.directory.clone(),
            gate_inode: gate.inode,
            gated: Mutex::new(GatedDb { db, gate }),
            queue: Mutex::default(),
            checkpointer: Checkpointer::new(opened_alone),
        }
    }

    pub(super) fn lifeline(&self) -> Result<OwnedFd, Error> {
        self.liveness
            .lifeline()
            .map_err(|error| Error::System { what: "descriptor for the lifeline", why: error.to_string() })
    }

    /// Runs one transaction; a long one always runs on a blocking thread. If the future is dropped,
    /// the transaction runs either not at all or before every later call.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        mut work: impl FnMut(&mut Txn<'_>) -> Result<T, TxnError> + Send + 'static,
        is_long: bool,
    ) -> Result<T, TxnError> {
        if !is_long && let Some(outcome) = self.try_run_inline(&mut work) {
            return outcome;
        }
        let (reply, answer) = oneshot::channel();
        self.enqueue(Box::new(PendingTxn { work, result: None, reply }));
        match self.clock.until(self.clock.now().plus(GATE_TIMEOUT), answer).await {
            Some(answer) => answer.unwrap_or_else(|_| Err(interrupted())),
            None => Err(self.timeout_error()),
        }
    }

    fn timeout_error(&self) -> TxnError {
        TxnError::Other(gate_timeout_error(self.gate_inode))
    }

    /// Fast path: runs the transaction on this thread, or returns `None` if the database is in use.
    fn try_run_inline<T>(
        self: &Arc<Self>,
        work: &mut impl FnMut(&mut Txn<'_>) -> Result<T, TxnError>,
    ) -> Option<Result<T, TxnError>> {
        let mut gated = match self.gated.try_lock() {
            Ok(gated) => gated,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let GatedDb { db, gate } = &mut *gated;
        let guard = gate.try_enter()?;
        // Queued transactions run first: their thread may start late if the runtime's pool is full.
        let earlier = take_batch(&mut lock(&self.queue));
        let (mut finished, mut notifications) = self.run_batch(db, earlier, self.clock.now());
        // The blocking thread can wait for a program that locks the database. This thread must not.
        let is_busy = |(_, committed): &mut Finished| committed.as_ref().is_err_and(TxnError::is_busy);
        let busy: Vec<Finished> = finished.extract_if(.., is_busy).collect();
        for (queued, _) in busy.into_iter().rev() {
            lock(&self.queue).pending.push_front(queued);
        }
        let outcome = db.transact(&self.clock, self.me, work);
        drop(guard);
        let outcome = match outcome {
            Err(error) if error.is_busy() => None,
            Err(error) => Some(Err(error)),
            Ok((value, more)) => {
                notifications.extend(more);
                Some(Ok(value))
            }
        };
        self.after_commit(gated, notifications, finished);
        outcome
    }

    /// Notifies and replies when the mutex and the gate are free, so that no transaction waits.
    fn after_commit(
        self: &Arc<Self>,
        gated: MutexGuard<'_, GatedDb>,
        notifications: Notifications,
        finished: Vec<Finished>,
    ) {
        let is_due = self.checkpointer.is_due(gated.db.wal_frames());
        drop(gated);
        self.notifier.send(notifications);
        if is_due {
            self.start_checkpoint();
        }
        finished.into_iter().for_each(|(queued, committed)| queued.reply(committed));
    }

    fn enqueue(self: &Arc<Self>, queued: Box<dyn QueuedTxn>) {
        let mut queue = lock(&self.queue);
        queue.pending.push_back(queued);
        if !std::mem::replace(&mut queue.has_thread, true) {
            let writer = self.clone();
            self.runtime.spawn_blocking(move || writer.run_queue());
        }
    }

    fn run_queue(self: Arc<Self>) {
        let _reset = ResetOnPanic(&self.queue);
        loop {
            let mut gated = lock(&self.gated);
            let (finished, notifications) = {
                let GatedDb { db, gate } = &mut *gated;
                let guard = gate.enter(&self.clock);
                // Taken after the gate, so that the batch is large and has no dropped callers.
                let batch = {
                    let mut queue = lock(&self.queue);
                    let batch = take_batch(&mut queue);
                    queue.has_thread = !batch.is_empty();
                    batch
                };
                if batch.is_empty() {
                    return;
                }
                match guard {
                    Some(_) => self.run_batch(db, batch, self.clock.now().plus(SQLITE_BUSY_TIMEOUT)),
                    None => (
                        batch.into_iter().map(|queued| (queued, Err(self.timeout_error()))).collect(),
                        Notifications::default(),
                    ),
                }
            };
            self.after_commit(gated, notifications, finished);
        }
    }

    /// Runs the batch in one SQLite transaction. If that fails, runs each entry in its own, so that
    /// the failure of one does not affect the others. Retries until `busy_until` while a program
    /// that does not use the gate has locked the database.
    fn run_batch(
        &self,
        db: &mut Db,
        mut batch: Vec<Box<dyn QueuedTxn>>,
        busy_until: Deadline,
    ) -> (Vec<Finished>, Notifications) {
        if batch.is_empty() {
            return Default::default();
        }
        let all =
            db.transact(&self.clock, self.me, |txn| batch.iter_mut().try_for_each(|queued| queued.run(txn)));
        match all {
            Ok(((), notifications)) => {
                return (batch.into_iter().map(|queued| (queued, Ok(()))).collect(), notifications);
            }
            // The commit may have happened: a release that runs again would report a loss.
            Err(error @ TxnError::Commit(_)) => {
                let error = error.into_error(&self.directory);
                let failed = |queued| (queued, Err(TxnError::Other(error.clone())));
                return (batch.into_iter().map(failed).collect(), Notifications::default());
            }
            Err(_) => {}
        }
        let mut notifications = Notifications::default();
        let each = batch.into_iter().map(|mut queued| {
            loop {
                match db.transact(&self.clock, self.me, |txn| queued.run(txn)) {
                    Ok(((), more)) => {
                        notifications.extend(more);
                        return (queued, Ok(()));
                    }
                    Err(error) if error.is_busy() && self.clock.now() < busy_until => Clock::rest(RETRY_MAX),
                    Err(error) => return (queued, Err(error)),
                }
            }
        });
        let finished = each.collect();
        (finished, notifications)
    }

    /// Starts a checkpoint on a blocking thread, unless one is running.
    fn start_checkpoint(self: &Arc<Self>) {
        if !self.checkpointer.start() {
            return;
        }
        let writer = self.clone();
        self.runtime.spawn_blocking(move || {
            // A failed checkpoint loses nothing. The next one is due after as many frames again.
            if let Err(error) = writer.run_checkpoint() {
                tracing::debug!(%error, "the WAL was not written back");
            }
            writer.checkpointer.finish();
        });
    }

    fn run_checkpoint(&self) -> Result<(), rusqlite::Error> {
        let connection = connect(&self.directory)?;
        if self.checkpointer.run(&connection)? {
            // Under steady writes the WAL never starts again from its beginning. Only a very long
            // WAL is worth keeping all writers out, because they then wait for the disk.
            let gated = lock(&self.gated);
            if let Some(_guard) = gated.gate.enter(&self.clock) {
                checkpoint(&connection, "PASSIVE")?;
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // If rows remain, the lock file stays, so that other clients see the death and remove them.
        let gated = self.gated.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if gated.db.has_no_rows_of(self.me) {
            self.liveness.remove_files();
        }
    }
}

/// Takes up to [`BATCH_MAX`] transactions from the queue, and drops those whose caller is gone.
fn take_batch(queue: &mut Queue) -> Vec<Box<dyn QueuedTxn>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH_MAX
        && let Some(queued) = queue.pending.pop_front()
    {
        if !queued.is_abandoned() {
            batch.push(queued);
        }
    }
    batch
}

/// If the blocking thread panics, lets the next queued transaction start another one.
struct ResetOnPanic<'a>(&'a Mutex<Queue>);

impl Drop for ResetOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.0).has_thread = false;
        }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("me", &self.me).finish_non_exhaustive()
    }
}

//! How a transaction is run: at once on the caller's thread where nobody is in the way, and otherwise in turn on a
//! thread that may block, together with whatever else this process has to write.
//!
//! One process at a time is let through the *gate*, a kernel lock taken before SQLite is asked. A transaction lasts some
//! ten microseconds, so that on the caller's thread it costs less than the way to another one. And SQLite's own waiting
//! is never needed, which lets the unlucky wait for long.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::TryLockError as Contended;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::book::{Book, News};
use super::db::{Db, Fault, checkpoint, connect};
use super::messenger::Messenger;
use super::place::Place;
use super::presence::{ClientId, Presence};
use crate::clock::{Clock, Deadline};
use crate::error::Error;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// How long an operation waits for its turn.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How long it waits for somebody who has the database without knowing the gate. Shorter, so that whoever asked hears
/// that from us before its own patience ends.
const PATIENCE_WITH_SQLITE: Duration = Duration::from_millis(1_700);

/// The most that is done in one transaction.
const BATCH_MAX: usize = 64;

/// A log of so many frames is written back: some 8 MB.
const LOG_FRAMES: u64 = 8_000;

/// The same for one who came when nobody was there: it had to read all of the log, and so will the next. This is where
/// programs come and go one at a time.
const LOG_FRAMES_READ: u64 = 256;

/// A log of so many frames has to start anew: some 64 MB.
const LOG_FRAMES_MAX: i64 = 64_000;

/// From then on a thread at the gate tries as often as it can.
const IMPATIENT: Duration = Duration::from_millis(100);

/// Between two tries at a gate that is taken; it grows to the second.
const REST: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

pub(super) struct Desk {
    clock: Clock,
    me: ClientId,
    /// Ends after everything that is written in its name.
    presence: Presence,
    runtime: Handle,
    messenger: Arc<Messenger>,
    place: Arc<Place>,
    gate_inode: u64,
    clerk: Mutex<Clerk>,
    queue: Mutex<Queue>,
    /// Nobody else had it open, and nothing has been written since.
    came_alone: AtomicBool,
    is_checkpointing: AtomicBool,
    /// How many frames of the log were written back last.
    written_back: AtomicU64,
}

struct Clerk {
    db: Db,
    gate: Gate,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn Job>>,
    /// A thread is at it.
    is_served: bool,
}

type Answered = (Box<dyn Job>, Result<(), Fault>);

/// Something to be written.
trait Job: Send {
    /// Whoever asked is gone: it must not happen any more.
    fn is_abandoned(&self) -> bool;
    fn run(&mut self, book: &mut Book<'_>) -> Result<(), Fault>;
    fn answer(self: Box<Self>, committed: Result<(), Fault>);
}

struct Order<T, F> {
    work: F,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, Fault>>,
}

impl<T, F> Job for Order<T, F>
where
    T: Send,
    F: FnMut(&mut Book<'_>) -> Result<T, Fault> + Send,
{
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn run(&mut self, book: &mut Book<'_>) -> Result<(), Fault> {
        self.done = Some((self.work)(book)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), Fault>) {
        let Order { done, reply, .. } = *self;
        let answer = match (committed, done) {
            (Ok(()), Some(done)) => Ok(done),
            (Ok(()), None) => Err(cut_short()),
            (Err(fault), _) => Err(fault),
        };
        // Nobody listens any more: the client releases the ticket, and that comes after this.
        let _ = reply.send(answer);
    }
}

/// The gate: one process at a time.
#[derive(Debug)]
pub(super) struct Gate {
    file: File,
    inode: u64,
}

/// Open for us, until this is dropped.
pub(super) struct Inside<'a>(&'a File);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // It cannot fail for a lock that we have; and the kernel opens it when the process ends.
        let _ = self.0.unlock();
    }
}

impl Gate {
    pub(super) fn new(file: File) -> Self {
        let inode = file.metadata().map_or(0, |metadata| metadata.ino());
        Gate { file, inode }
    }

    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    fn try_enter(&self) -> Option<Inside<'_>> {
        match self.file.try_lock() {
            Ok(()) => Some(Inside(&self.file)),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
        }
    }

    /// Tries until its patience ends. Only for a thread that may block; and not by a call that blocks in the kernel, from
    /// which a process that wants to end could not get its thread back.
    pub(super) fn enter(&self, clock: &Clock) -> Option<Inside<'_>> {
        let start = clock.now();
        let mut rest = REST.0;
        loop {
            if let Some(inside) = self.try_enter() {
                return Some(inside);
            }
            let now = clock.now();
            let waited = now.since(start);
            if waited >= PATIENCE {
                return None;
            }
            // Not always the same, so that two who wait do not always come together.
            let jitter = Duration::from_nanos(now.as_ns() % (rest.as_nanos() as u64));
            Clock::rest(rest / 2 + jitter / 2);
            // Whoever has waited for long tries more often than those who have just come.
            rest = if waited < IMPATIENT { (rest * 2).min(REST.1) } else { REST.0 };
        }
    }
}

/// Whoever was at it panicked, or the runtime has ended: it may or may not have happened.
fn cut_short() -> Fault {
    Fault::Other(Error::Unreachable { store: "file", why: "the call was cut short".into() })
}

/// Nobody got through the gate in time; the kernel knows who stands in it.
pub(super) fn out_of_time(gate_inode: u64) -> Error {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (patience, culprit) = (PATIENCE.as_secs(), format!(":{gate_inode}"));
    let holder =
        locks.lines().filter(|line| line.contains("FLOCK") && !line.contains("->")).find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "WRITE").skip(1);
            let (pid, file) = (words.next()?, words.next()?);
            (file.ends_with(&culprit) && pid.parse::<u32>().is_ok_and(|pid| pid > 0)).then(|| pid.to_owned())
        });
    let why = match holder {
        Some(pid) => {
            format!("process {pid} has been in the middle of a change for {patience} s (is it stopped?)")
        }
        None => format!("it was not this process's turn for {patience} s (is another one stopped?)"),
    };
    Error::Unreachable { store: "file", why }
}

impl Desk {
    pub(super) fn new(
        db: Db,
        gate: Gate,
        clock: Clock,
        presence: Presence,
        messenger: Arc<Messenger>,
        came_alone: bool,
    ) -> Self {
        Desk {
            clock,
            me: presence.id(),
            presence,
            runtime: Handle::current(),
            messenger,
            place: db.place().clone(),
            gate_inode: gate.inode(),
            clerk: Mutex::new(Clerk { db, gate }),
            queue: Mutex::default(),
            came_alone: AtomicBool::new(came_alone),
            is_checkpointing: AtomicBool::new(false),
            written_back: AtomicU64::new(0),
        }
    }

    pub(super) fn lifeline(&self) -> Result<OwnedFd, Error> {
        self.presence
            .lifeline()
            .map_err(|error| Error::System { what: "descriptor for the lifeline", why: error.to_string() })
    }

    /// One transaction. Dropped before its answer, it happens either not at all or before whatever is asked for next.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        mut work: impl FnMut(&mut Book<'_>) -> Result<T, Fault> + Send + 'static,
        is_long: bool,
    ) -> Result<T, Fault> {
        if !is_long && let Some(outcome) = self.at_once(&mut work) {
            return outcome;
        }
        let (reply, answer) = oneshot::channel();
        self.queue_up(Box::new(Order { work, done: None, reply }));
        match self.clock.until(self.clock.now().plus(PATIENCE), answer).await {
            Some(answer) => answer.unwrap_or_else(|_| Err(cut_short())),
            None => Err(self.out_of_time()),
        }
    }

    fn out_of_time(&self) -> Fault {
        Fault::Other(out_of_time(self.gate_inode))
    }

    /// On this thread, if nobody is in the way, of this process or another.
    fn at_once<T>(
        self: &Arc<Self>,
        work: &mut impl FnMut(&mut Book<'_>) -> Result<T, Fault>,
    ) -> Option<Result<T, Fault>> {
        let mut clerk = match self.clerk.try_lock() {
            Ok(clerk) => clerk,
            Err(Contended::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(Contended::WouldBlock) => return None,
        };
        let Clerk { db, gate } = &mut *clerk;
        let inside = gate.try_enter()?;
        // Those who came before go first. The thread that was to serve them may not come for long: others have the pool.
        let earlier = self.batch(&mut lock(&self.queue));
        let (mut answers, mut news) = self.run(db, earlier, self.clock.now());
        // But it may wait for a stranger who has the database, and this one may not.
        let is_busy = |(_, committed): &mut Answered| committed.as_ref().is_err_and(Fault::is_busy);
        let waits: Vec<Answered> = answers.extract_if(.., is_busy).collect();
        for (job, _) in waits.into_iter().rev() {
            lock(&self.queue).jobs.push_front(job);
        }
        let outcome = db.transact(&self.clock, self.me, work);
        drop(inside);
        let outcome = match outcome {
            Err(fault) if fault.is_busy() => None,
            Err(fault) => Some(Err(fault)),
            Ok((value, more)) => {
                news.add(more);
                Some(Ok(value))
            }
        };
        self.committed(clerk, news);
        answers.into_iter().for_each(|(job, committed)| job.answer(committed));
        outcome
    }

    pub(super) fn messenger(&self) -> &Messenger {
        &self.messenger
    }

    /// Others are told when nobody has to wait for it any more.
    fn committed(self: &Arc<Self>, clerk: MutexGuard<'_, Clerk>, news: News) {
        let frames = clerk.db.log_frames();
        let had_to_be_read = self.came_alone.swap(false, Ordering::Relaxed) && frames > LOG_FRAMES_READ;
        let is_due = had_to_be_read || self.is_log_long(frames);
        drop(clerk);
        self.messenger.tell(news);
        if is_due {
            self.write_back();
        }
    }

    fn queue_up(self: &Arc<Self>, job: Box<dyn Job>) {
        let mut queue = lock(&self.queue);
        queue.jobs.push_back(job);
        if !std::mem::replace(&mut queue.is_served, true) {
            let desk = self.clone();
            self.runtime.spawn_blocking(move || desk.serve());
        }
    }

    /// On a thread that may block: whatever is in the queue, as much as fits into each transaction.
    fn serve(self: Arc<Self>) {
        let _served = Served(&self.queue);
        loop {
            let mut clerk = lock(&self.clerk);
            let (answers, news) = {
                let Clerk { db, gate } = &mut *clerk;
                let inside = gate.enter(&self.clock);
                let batch = self.next_batch();
                if batch.is_empty() {
                    return;
                }
                match inside {
                    Some(_) => self.run(db, batch, self.clock.now().plus(PATIENCE_WITH_SQLITE)),
                    None => (
                        batch.into_iter().map(|job| (job, Err(self.out_of_time()))).collect(),
                        News::default(),
                    ),
                }
            };
            self.committed(clerk, news);
            answers.into_iter().for_each(|(job, committed)| job.answer(committed));
        }
    }

    /// Taken at the last moment, so that it is large, and without those who have gone meanwhile.
    fn next_batch(&self) -> Vec<Box<dyn Job>> {
        let mut queue = lock(&self.queue);
        let batch = self.batch(&mut queue);
        queue.is_served = !batch.is_empty();
        batch
    }

    fn batch(&self, queue: &mut Queue) -> Vec<Box<dyn Job>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX
            && let Some(job) = queue.jobs.pop_front()
        {
            if !job.is_abandoned() {
                batch.push(job);
            }
        }
        batch
    }

    /// All in one transaction; if that fails, each in its own, so that nobody suffers for another.
    /// Until then it waits for a stranger who has the database.
    fn run(&self, db: &mut Db, mut batch: Vec<Box<dyn Job>>, until: Deadline) -> (Vec<Answered>, News) {
        if batch.is_empty() {
            return Default::default();
        }
        let all =
            db.transact(&self.clock, self.me, |book| batch.iter_mut().try_for_each(|job| job.run(book)));
        match all {
            Ok(((), news)) => return (batch.into_iter().map(|job| (job, Ok(()))).collect(), news),
            // It may have happened: done again, a release would find nothing, and take that for a loss.
            Err(fault @ Fault::AtCommit(_)) => {
                let error = fault.explained(&self.place);
                let answer = |job| (job, Err(Fault::Other(error.clone())));
                return (batch.into_iter().map(answer).collect(), News::default());
            }
            Err(_) => {}
        }
        let mut news = News::default();
        let each = batch.into_iter().map(|mut job| {
            loop {
                match db.transact(&self.clock, self.me, |book| job.run(book)) {
                    Ok(((), more)) => {
                        news.add(more);
                        return (job, Ok(()));
                    }
                    Err(fault) if fault.is_busy() && self.clock.now() < until => Clock::rest(REST.1),
                    Err(fault) => return (job, Err(fault)),
                }
            }
        });
        let answers = each.collect();
        (answers, news)
    }

    /// Whether so much has come since it was last written back. A log that is shorter than then has started anew.
    fn is_log_long(&self, frames: u64) -> bool {
        let written_back = self.written_back.load(Ordering::Relaxed);
        if frames < written_back {
            self.written_back.store(0, Ordering::Relaxed);
            return frames > LOG_FRAMES;
        }
        frames - written_back > LOG_FRAMES
    }

    /// Writes what is in the log back into the database, on a thread that may block, beside those who write. Where they
    /// leave no pause in which it could start anew and it has grown very long, everybody is kept out for that: not
    /// lightly, since they wait for the disk then.
    pub(super) fn write_back(self: &Arc<Self>) {
        if self.is_checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let desk = self.clone();
        self.runtime.spawn_blocking(move || {
            let written = connect(&desk.place).and_then(|connection| {
                let (frames, written) = checkpoint(&connection, "PASSIVE")?;
                desk.written_back.store(u64::try_from(written).unwrap_or(0), Ordering::Relaxed);
                if frames > LOG_FRAMES_MAX {
                    let clerk = lock(&desk.clerk);
                    if let Some(_inside) = clerk.gate.enter(&desk.clock) {
                        checkpoint(&connection, "PASSIVE")?;
                    }
                }
                Ok(())
            });
            // A failure is tried again after the next so many; nothing is lost meanwhile.
            if let Err(error) = written {
                tracing::debug!(%error, "the log was not written back");
            }
            desk.is_checkpointing.store(false, Ordering::Release);
        });
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // Where something is left, the lock stays for others to see that nobody has it.
        let clerk = self.clerk.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if clerk.db.has_nothing_of(self.me) {
            self.presence.clear();
        }
    }
}

/// Whatever happens to the thread, the next job finds one.
struct Served<'a>(&'a Mutex<Queue>);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.0).is_served = false;
        }
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("me", &self.me).finish_non_exhaustive()
    }
}

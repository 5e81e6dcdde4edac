//! Coalesced reads: tasks of one client that read one key at the same time share requests.
//!
//! The answer to a read in flight may be older than the call, so a task that comes meanwhile waits
//! for its end, and shares the next read: a key that thousands of tasks read at once is read twice.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;

use super::entry::Snapshot;
use crate::clock::{Clock, Deadline};
use crate::error::Result;
use crate::sync::{Arc, Mutex, lock};

/// The longest wait for a read in flight: a task that is not polled must block no other.
const WAIT_MAX: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct SharedReads {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// The number of reads that have begun, which is the number of the newest.
    begun: u64,
    in_flight: usize,
    waiting: usize,
    /// The newest read and its answer; only while tasks wait.
    newest: Option<(u64, Result<Arc<Snapshot>>)>,
}

impl SharedReads {
    /// Returns the answer to `read`, or to a read of another task that began after this call.
    ///
    /// # Cancel safety
    /// Can be dropped at any time: a task that waits for this read begins its own.
    pub(super) async fn read(
        &self,
        clock: &Clock,
        read: impl Future<Output = Result<Snapshot>>,
    ) -> Result<Arc<Snapshot>> {
        let mut reading = match self.begin(clock).await {
            Ok(reading) => reading,
            Err(shared) => return shared,
        };
        let answer = read.await.map(Arc::new);
        reading.answer = Some(answer.clone());
        answer
    }

    /// Returns the right to read, or the answer that another task shares.
    async fn begin(&self, clock: &Clock) -> Result<Reading<'_>, Result<Arc<Snapshot>>> {
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            let mut ended = pin!(self.ended.notified());
            let is_over = waiting.as_ref().is_some_and(|waiting| clock.now() >= waiting.until);
            let until = {
                let mut state = lock(&self.state);
                if let (Some(waiting), Some((number, answer))) = (&waiting, &state.newest)
                    && *number > waiting.since
                {
                    return Err(answer.clone());
                }
                if state.in_flight == 0 || is_over {
                    state.in_flight += 1;
                    state.begun += 1;
                    return Ok(Reading { reads: self, number: state.begun, answer: None });
                }
                // Under the lock, so that it does not miss the end of the read.
                ended.as_mut().enable();
                let waiting = waiting.get_or_insert_with(|| {
                    state.waiting += 1;
                    Waiting { reads: self, since: state.begun, until: clock.now().plus(WAIT_MAX) }
                });
                waiting.until
            };
            clock.until(until, ended).await;
        }
    }
}

/// A read in flight. If it is dropped without an answer, the next task reads.
struct Reading<'a> {
    reads: &'a SharedReads,
    number: u64,
    answer: Option<Result<Arc<Snapshot>>>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let _replaced;
        let is_waited_for = {
            let mut state = lock(&self.reads.state);
            state.in_flight -= 1;
            let is_newest = state.newest.as_ref().is_none_or(|(number, _)| *number < self.number);
            if state.waiting > 0
                && is_newest
                && let Some(answer) = self.answer.take()
            {
                _replaced = state.newest.replace((self.number, answer));
            }
            state.waiting > 0
        };
        if is_waited_for {
            self.reads.ended.notify_waiters();
        }
    }
}

struct Waiting<'a> {
    reads: &'a SharedReads,
    /// The number of reads that had begun when it came.
    since: u64,
    until: Deadline,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let _forgotten;
        let mut state = lock(&self.reads.state);
        state.waiting -= 1;
        if state.waiting == 0 {
            _forgotten = state.newest.take();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::future::poll_immediate;
    use tokio::sync::oneshot;

    use super::*;

    async fn answered(answer: oneshot::Receiver<u64>) -> Result<Snapshot> {
        Ok(Snapshot::numbered(answer.await.unwrap()))
    }

    /// The task may know of a value that is newer than that read.
    #[tokio::test(start_paused = true)]
    async fn a_task_does_not_share_a_read_that_began_before_it_came() {
        let (reads, clock) = (SharedReads::default(), Clock::tokio());
        let channels = || oneshot::channel::<u64>();
        let ((answer_1, read_1), (answer_2, read_2), (_answer_3, read_3)) =
            (channels(), channels(), channels());
        let mut first = Box::pin(reads.read(&clock, answered(read_1)));
        assert!(poll_immediate(&mut first).await.is_none());
        let mut second = Box::pin(reads.read(&clock, answered(read_2)));
        let mut third = Box::pin(reads.read(&clock, answered(read_3)));
        assert!(poll_immediate(&mut second).await.is_none() && poll_immediate(&mut third).await.is_none());
        answer_1.send(1).unwrap();
        assert_eq!(first.await.unwrap().number(), 1);
        assert!(poll_immediate(&mut second).await.is_none(), "that read began before it came");
        assert!(poll_immediate(&mut third).await.is_none(), "that read began before it came");
        answer_2.send(2).unwrap();
        assert_eq!(second.await.unwrap().number(), 2);
        assert_eq!(third.await.unwrap().number(), 2, "shared");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_dropped_or_not_polled_blocks_no_other() {
        let (reads, clock) = (SharedReads::default(), Clock::tokio());
        for is_dropped in [true, false] {
            let (_never, unanswered) = oneshot::channel();
            let (answer, answer_2) = oneshot::channel();
            let mut stuck = Some(Box::pin(reads.read(&clock, answered(unanswered))));
            assert!(poll_immediate(stuck.as_mut().unwrap()).await.is_none());
            let mut next = Box::pin(reads.read(&clock, answered(answer_2)));
            assert!(poll_immediate(&mut next).await.is_none());
            answer.send(7).unwrap();
            if is_dropped {
                stuck = None;
            }
            assert_eq!(next.await.unwrap().number(), 7);
            drop(stuck);
        }
    }
}

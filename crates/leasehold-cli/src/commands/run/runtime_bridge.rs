//! The two sides of `run`: the main thread, which minds processes and signals and never blocks on a store, and the
//! runtime, which minds the lease.

use std::future::Future;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use leasehold::{Clock, Deadline};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::event_loop::{CaughtSignal, EventLoop, Waker};
use super::processes::somebody_continues_us;
use crate::exit::Failure;

pub(super) struct RuntimeBridge {
    runtime: Runtime,
    pub(super) ears: EventLoop,
    clock: Clock,
}

/// What came first.
pub(super) enum Outcome<T> {
    Answer(T),
    Signal(CaughtSignal),
}

/// How long what is left on the runtime may take to end.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl RuntimeBridge {
    pub(super) fn open() -> Result<Self, Failure> {
        let ears = EventLoop::new().map_err(Failure::internal)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Failure::internal)?;
        let clock = {
            let _inside = runtime.enter();
            Clock::system()?
        };
        Ok(RuntimeBridge { runtime, ears, clock })
    }

    pub(super) fn now(&self) -> Deadline {
        self.clock.now()
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn bell(&self) -> Waker {
        self.ears.bell()
    }

    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Has this done on the runtime. A signal that ends processes ends the waiting, and what was asked is dropped.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        question: impl Future<Output = T> + Send + 'static,
    ) -> Result<Outcome<T>, Failure> {
        let (task, answers) = self.put(question);
        loop {
            if let Some(answer) = taken(&answers)? {
                return Ok(Outcome::Answer(answer));
            }
            for caught in self.listen(None)? {
                if caught.signal == Signal::TSTP {
                    stop_ourselves().map_err(Failure::internal)?;
                } else if caught.ends() {
                    task.abort();
                    return Ok(Outcome::Signal(caught));
                }
            }
        }
    }

    /// The same for what is to be done whatever comes, but not for longer than this.
    pub(super) fn finish<T: Send + 'static>(
        &mut self,
        question: impl Future<Output = T> + Send + 'static,
        patience: Duration,
    ) -> Result<Option<T>, Failure> {
        self.finish_unless_signalled(question, patience, patience)
    }

    /// [`finish`](RuntimeBridge::finish) where a signal that ends processes shortens the wait to `after_signal` from then.
    pub(super) fn finish_unless_signalled<T: Send + 'static>(
        &mut self,
        question: impl Future<Output = T> + Send + 'static,
        patience: Duration,
        after_signal: Duration,
    ) -> Result<Option<T>, Failure> {
        let mut until = self.now().plus(patience);
        let (_, answers) = self.put(question);
        loop {
            let answer = taken(&answers)?;
            let left = until.since(self.now());
            if answer.is_some() || left.is_zero() {
                return Ok(answer);
            }
            if self.listen(Some(left))?.iter().any(|caught| caught.ends()) {
                until = until.min(self.now().plus(after_signal));
            }
        }
    }

    fn put<T: Send + 'static>(
        &self,
        question: impl Future<Output = T> + Send + 'static,
    ) -> (JoinHandle<()>, Receiver<T>) {
        let (answer, answers) = mpsc::channel();
        let ring = RingOnDrop(self.bell());
        let task = self.runtime.spawn(async move {
            // Dropped after the sender, so that whoever hears it finds the answer, or that there will be none.
            let _ring = ring;
            let _ = { answer }.send(question.await);
        });
        (task, answers)
    }

    pub(super) fn listen(&mut self, at_most: Option<Duration>) -> Result<Vec<CaughtSignal>, Failure> {
        self.ears.listen(at_most).map_err(Failure::internal)
    }

    /// A store that hangs does not keep us.
    pub(super) fn close(self) {
        self.runtime.shutdown_timeout(LAST_WORDS);
    }
}

fn taken<T>(answers: &Receiver<T>) -> Result<Option<T>, Failure> {
    match answers.try_recv() {
        Ok(answer) => Ok(Some(answer)),
        Err(mpsc::TryRecvError::Empty) => Ok(None),
        Err(mpsc::TryRecvError::Disconnected) => {
            Err(Failure::internal("a task of leasehold ended without an answer; please report this"))
        }
    }
}

struct RingOnDrop(Waker);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// As the terminal would, had we asked for it: with everybody in our group, and only if there is somebody to continue us.
pub(super) fn stop_our_group() -> io::Result<()> {
    Ok(kill_current_process_group(Signal::TTIN)?)
}

/// Until somebody continues us, if there is anybody to do so.
pub(super) fn stop_ourselves() -> io::Result<()> {
    match somebody_continues_us() {
        true => Ok(kill_process(getpid(), Signal::STOP)?),
        false => Ok(()),
    }
}

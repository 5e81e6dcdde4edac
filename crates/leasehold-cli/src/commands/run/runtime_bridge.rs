//! The bridge between the main thread, which handles processes and signals and never blocks on a
//! store, and the runtime, which talks to the store.

use std::future::Future;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use leasehold::{Clock, Deadline};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::RELEASE_MAX;
use super::event_loop::{CaughtSignal, EventLoop};
use super::processes::can_be_continued;
use crate::exit::Failure;

pub(super) struct RuntimeBridge {
    runtime: Runtime,
    pub(super) events: EventLoop,
    pub(super) clock: Clock,
}

pub(super) enum Outcome<T> {
    Answer(T),
    Signal(CaughtSignal),
}

const SHUTDOWN_MAX: Duration = Duration::from_secs(1);

impl RuntimeBridge {
    pub(super) fn open() -> Result<Self, Failure> {
        let events = EventLoop::new().map_err(Failure::internal)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(Failure::internal)?;
        let clock = {
            let _inside = runtime.enter();
            Clock::system()?
        };
        Ok(RuntimeBridge { runtime, events, clock })
    }

    pub(super) fn now(&self) -> Deadline {
        self.clock.now()
    }

    /// Runs `work` on the runtime. A fatal signal aborts it.
    pub(super) fn run_until_signal<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<Outcome<T>, Failure> {
        let (task, answers) = self.spawn(work);
        loop {
            if let Some(answer) = received(&answers)? {
                return Ok(Outcome::Answer(answer));
            }
            for caught in self.wait_events(None)? {
                if caught.signal == Signal::TSTP {
                    stop_process().map_err(Failure::internal)?;
                } else if caught.is_fatal() {
                    task.abort();
                    return Ok(Outcome::Signal(caught));
                }
            }
        }
    }

    /// Runs `work` for at most this long, and at most [`RELEASE_MAX`] after a fatal signal.
    pub(super) fn run_for<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
        at_most: Duration,
    ) -> Result<Option<T>, Failure> {
        let mut until = self.now().plus(at_most);
        let (_, answers) = self.spawn(work);
        loop {
            let answer = received(&answers)?;
            let left = until.since(self.now());
            if answer.is_some() || left.is_zero() {
                return Ok(answer);
            }
            if self.wait_events(Some(left))?.iter().any(|caught| caught.is_fatal()) {
                until = until.min(self.now().plus(RELEASE_MAX));
            }
        }
    }

    /// Runs `work` on the runtime. Its end, also by a panic, wakes the main thread.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> (JoinHandle<()>, Receiver<T>) {
        let (answer, answers) = mpsc::channel();
        let wake = self.events.wake_on_drop();
        let task = self.runtime.spawn(async move {
            // Dropped after the sender: the main thread finds the answer, or a closed channel.
            let _wake = wake;
            let _ = { answer }.send(work.await);
        });
        (task, answers)
    }

    pub(super) fn wait_events(&mut self, at_most: Option<Duration>) -> Result<Vec<CaughtSignal>, Failure> {
        self.events.wait(at_most).map_err(Failure::internal)
    }

    /// Shuts the runtime down. A store that hangs delays this for at most [`SHUTDOWN_MAX`].
    pub(super) fn close(self) {
        self.runtime.shutdown_timeout(SHUTDOWN_MAX);
    }
}

fn received<T>(answers: &Receiver<T>) -> Result<Option<T>, Failure> {
    match answers.try_recv() {
        Ok(answer) => Ok(Some(answer)),
        Err(mpsc::TryRecvError::Empty) => Ok(None),
        Err(mpsc::TryRecvError::Disconnected) => {
            Err(Failure::internal("a task of leasehold ended without an answer; please report this"))
        }
    }
}

/// Stops the whole process group, as the terminal does. The kernel ignores the signal in an
/// orphaned group, which no shell could continue.
pub(super) fn stop_process_group() -> io::Result<()> {
    Ok(kill_current_process_group(Signal::TTIN)?)
}

/// Stops this process, if a shell can continue it.
pub(super) fn stop_process() -> io::Result<()> {
    match can_be_continued() {
        true => Ok(kill_process(getpid(), Signal::STOP)?),
        false => Ok(()),
    }
}

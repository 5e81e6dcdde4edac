//! Where tasks of one client stand that wait for one limit: only the first of them asks the store.

use std::collections::HashMap;
use std::time::Duration;

use super::limit::Taken;
use crate::clock::Deadline;
use crate::sync::{Arc, Mutex, lock};

#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// By where the limit is kept.
    lines: Mutex<HashMap<String, Arc<Line>>>,
}

#[derive(Debug, Default)]
struct Line {
    /// Whoever has it is the first; tokio gives it in order of arrival.
    first: tokio::sync::Mutex<()>,
    /// What the first was told last: when to come again, and when all is to be had.
    told: Mutex<Option<(Deadline, Deadline)>>,
}

/// One who stands there; the line is forgotten when the last of them goes.
pub(super) struct Stand<'a> {
    lines: &'a Lines,
    place: String,
    line: Arc<Line>,
}

/// As long as it is kept, nobody else of this client asks for the limit who waits for it.
pub(super) type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl Lines {
    pub(super) fn join(&self, place: String) -> Stand<'_> {
        let line = lock(&self.lines).entry(place.clone()).or_default().clone();
        Stand { lines: self, place, line }
    }
}

impl Stand<'_> {
    /// Ends when this is the first.
    pub(super) async fn turn(&self) -> Turn<'_> {
        self.line.first.lock().await
    }

    /// The first tells those behind it what it was told.
    pub(super) fn tell(&self, now: Deadline, taken: &Taken) {
        let told = (now.plus(taken.retry_after), now.plus(taken.reset_after));
        *lock(&self.line.told) = Some(told);
    }

    /// What one is told whose time ends behind others.
    pub(super) fn refused(&self, now: Deadline) -> Taken {
        let told = *lock(&self.line.told);
        let (retry_after, reset_after) = told
            .map_or((Duration::ZERO, Duration::ZERO), |(retry, reset)| (retry.since(now), reset.since(now)));
        Taken { allowed: false, remaining: 0, retry_after, reset_after }
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.lines);
        // Ours and the table's: nobody else has it, and nobody gets it under this lock.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.place);
        }
    }
}

//! What was taken of rate limits, in this process's memory.

use std::collections::{BTreeSet, HashMap};

use crate::cells::rate::decide::{Decided, There, decide};
use crate::cells::rate::{Limit, Taken};
use crate::clock::Deadline;
use crate::sync::{Mutex, lock};

#[derive(Debug, Default)]
pub(super) struct Limits {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// What is kept, and until when.
    kept: HashMap<String, (Vec<u8>, Deadline)>,
    ends: BTreeSet<(Deadline, String)>,
}

impl Limits {
    /// The clock is read when nobody else decides.
    pub(super) fn take(
        &self,
        place: &str,
        limit: &Limit,
        weight: u32,
        now: impl FnOnce() -> Deadline,
    ) -> Taken {
        let mut table = lock(&self.table);
        let now = now();
        table.expire(now);
        let there = table.kept.get(place);
        let there = there.map(|(value, ends)| There { value, left: Some(ends.since(now)) });
        let decided = decide(limit, weight, there, now.as_ns() / 1_000);
        // Nobody else writes here.
        let Ok(Decided { taken, write }) = decided else { unreachable!("nothing else is kept there") };
        if let Some((value, left)) = write {
            table.keep(place, value, now.plus(left));
        }
        taken
    }
}

impl Table {
    fn expire(&mut self, now: Deadline) {
        while let Some((ends, _)) = self.ends.first()
            && *ends <= now
            && let Some((_, place)) = self.ends.pop_first()
        {
            self.kept.remove(&place);
        }
    }

    fn keep(&mut self, place: &str, value: Vec<u8>, ends: Deadline) {
        if let Some((_, before)) = self.kept.insert(place.to_owned(), (value, ends)) {
            self.ends.remove(&(before, place.to_owned()));
        }
        self.ends.insert((ends, place.to_owned()));
    }
}

//! Values and rate limits in this process's memory.

use std::pin::pin;

use async_trait::async_trait;

use super::expiring::Expiring;
use crate::cells::rate::decide::{Decided, There, decide};
use crate::cells::rate::{Limit, Taken};
use crate::cells::store::{
    Answer, CellStore, Changed, Kept, Key, Plan, ScriptKey, When, Write, Written, change_by_comparison,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::watchers::Watchers;
use crate::sync::{Mutex, lock};
use crate::ttl::Ttl;

#[derive(Debug)]
pub(super) struct Cells {
    clock: Clock,
    table: Mutex<Table>,
    watchers: Watchers,
    limits: Mutex<Expiring<String, Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Table {
    values: Expiring<Key, Vec<u8>>,
    /// The highest fence of each value's writes, and how long it outlives the value.
    fences: Expiring<Key, (Fence, Ttl)>,
}

impl Table {
    /// Keeps the highest fence until its own time after the value's end.
    fn remember(&mut self, key: &Key, when: &When, value_ends: Option<Deadline>) {
        let (fence, kept_for) = match (when, self.fences.get(key)) {
            (When::Fenced { fence, kept_for }, _) => (*fence, *kept_for),
            (_, Some((seen, _))) => *seen,
            _ => return,
        };
        let ends = value_ends.map(|ends| ends.plus(kept_for.as_duration()));
        self.fences.set(key, Some((fence, kept_for)), ends);
    }
}

impl Cells {
    pub(super) fn new(clock: Clock) -> Self {
        Cells { clock, table: Mutex::default(), watchers: Watchers::default(), limits: Mutex::default() }
    }

    /// Runs `work` on the table without expired entries.
    fn with<T>(&self, work: impl FnOnce(&mut Table, Deadline) -> T) -> T {
        let mut table = lock(&self.table);
        let now = self.clock.now();
        table.values.expire(now);
        table.fences.expire(now);
        work(&mut table, now)
    }
}

fn ends(ttl: Option<Ttl>, now: Deadline) -> Option<Deadline> {
    ttl.map(|ttl| now.plus(ttl.as_duration()))
}

#[async_trait]
impl CellStore for Cells {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
        Ok(self.with(|table, now| {
            let (value, ends) = table.values.get(key)?;
            Some(Kept { value: value.clone(), remaining: ends.map(|ends| ends.since(now)) })
        }))
    }

    async fn write(&self, key: &Key, write: &Write) -> Result<Written> {
        let written = self.with(|table, now| {
            let there = table.values.get(key).map(|(value, _)| &**value);
            let written = write.when.judge(there, table.fences.get(key).map(|((fence, _), _)| *fence));
            if written == Written::Written {
                let ends = ends(write.ttl, now);
                table.remember(key, &write.when, if write.value.is_some() { ends } else { Some(now) });
                table.values.set(key, write.value.clone(), ends);
            }
            written
        });
        if written == Written::Written {
            self.watchers.ring(&key.to_string());
        }
        Ok(written)
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        let refused = |why| Error::Refused { store: "memory", why };
        let sum = self.with(|table, now| {
            let there = table.values.get(key);
            let ends = there.map_or_else(|| ends(ttl, now), |(_, ends)| ends);
            let number = match there {
                Some((value, _)) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
                None => Some(0),
            };
            let number = number.ok_or_else(|| refused(format!("`{key}` is no number")))?;
            let sum = number.checked_add(by).ok_or_else(|| {
                refused(format!("`{key}` is {number}; another {by} is more than it can hold"))
            })?;
            table.values.set(key, Some(sum.to_string().into_bytes()), ends);
            Ok(sum)
        });
        if sum.is_ok() {
            self.watchers.ring(&key.to_string());
        }
        sum
    }

    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
        change_by_comparison(self, key, plan).await
    }

    async fn run(&self, _source: &str, _keys: &[ScriptKey], _args: &[Vec<u8>]) -> Result<Answer> {
        let why = "it runs no scripts; `update` does the same in this process, one attempt after the other";
        Err(Error::Unsupported { store: "memory", what: "scripts", why })
    }

    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken> {
        let mut limits = lock(&self.limits);
        // Read under the lock, so that time does not go back between two takes.
        let now = self.clock.now();
        limits.expire(now);
        let place = limit.place(key);
        let there = limits.get(&place);
        let there = there.map(|(value, ends)| There { value, left: ends.map(|ends| ends.since(now)) });
        let decided = decide(limit, weight, there, now.as_ns() / 1_000);
        let Ok(Decided { taken, write }) = decided else { unreachable!("nothing else is kept there") };
        if let Some((value, left)) = write {
            limits.set(&place, Some(value), Some(now.plus(left)));
        }
        Ok(taken)
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let watch = self.watchers.watch(key.to_string());
        loop {
            let mut rung = pin!(watch.notified());
            // Subscribes before it reads, so that no change between the two is missed.
            rung.as_mut().enable();
            let (is_same, ends) = self.with(|table, _| {
                let there = table.values.get(key);
                (there.map(|(value, _)| &**value) == from, there.and_then(|(_, ends)| ends))
            });
            if !is_same || self.clock.now() >= until {
                return Ok(());
            }
            self.clock.until(ends.unwrap_or(Deadline::FAR).min(until), rung).await;
        }
    }
}

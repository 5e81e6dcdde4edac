//! Values in this process's memory.

use std::collections::BTreeMap;
use std::pin::pin;

use async_trait::async_trait;

use super::limits::Limits;
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
    limits: Limits,
}

#[derive(Debug, Default)]
struct Table {
    values: BTreeMap<Key, Value>,
    /// Those that end, by when.
    ends: BTreeMap<(Deadline, Key), ()>,
    /// What was written under a fence, and what of that ends.
    fences: BTreeMap<Key, Remembered>,
    fences_end: BTreeMap<(Deadline, Key), ()>,
}

/// The highest fence a value was written under.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    fence: Fence,
    /// Beyond the value's own end.
    kept_for: Ttl,
    /// `None` where the value has no end either.
    ends: Option<Deadline>,
}

struct Value {
    bytes: Vec<u8>,
    ends: Option<Deadline>,
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Table {
    fn expire(&mut self, now: Deadline) {
        while let Some(((ends, key), ())) = self.ends.first_key_value()
            && *ends <= now
        {
            let at = (*ends, key.clone());
            self.values.remove(&at.1);
            self.ends.remove(&at);
        }
        while let Some(((ends, key), ())) = self.fences_end.first_key_value()
            && *ends <= now
        {
            let at = (*ends, key.clone());
            self.fences.remove(&at.1);
            self.fences_end.remove(&at);
        }
    }

    /// What is remembered lasts as long as this value, which ends then, or has ended now, and its own time longer.
    fn remember(&mut self, key: &Key, when: &When, value_ends: Option<Deadline>) {
        let (fence, kept_for) = match (when, self.fences.get(key)) {
            (When::Fenced { fence, kept_for }, _) => (*fence, *kept_for),
            (_, Some(seen)) => (seen.fence, seen.kept_for),
            _ => return,
        };
        let ends = value_ends.map(|ends| ends.plus(kept_for.as_duration()));
        let before = self.fences.insert(key.clone(), Remembered { fence, kept_for, ends });
        if let Some(before) = before.and_then(|seen| seen.ends) {
            self.fences_end.remove(&(before, key.clone()));
        }
        if let Some(ends) = ends {
            self.fences_end.insert((ends, key.clone()), ());
        }
    }

    fn set(&mut self, key: &Key, value: Option<Value>) {
        let ends = value.as_ref().and_then(|value| value.ends);
        let before = match value {
            Some(value) => self.values.insert(key.clone(), value),
            None => self.values.remove(key),
        };
        if let Some(before) = before.and_then(|value| value.ends) {
            self.ends.remove(&(before, key.clone()));
        }
        if let Some(ends) = ends {
            self.ends.insert((ends, key.clone()), ());
        }
    }
}

impl Cells {
    pub(super) fn new(clock: Clock) -> Self {
        Cells { clock, table: Mutex::default(), watchers: Watchers::default(), limits: Limits::default() }
    }

    /// The table without what has ended by now.
    fn with<T>(&self, work: impl FnOnce(&mut Table, Deadline) -> T) -> T {
        let mut table = lock(&self.table);
        let now = self.clock.now();
        table.expire(now);
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
            let value = table.values.get(key)?;
            let remaining = value.ends.map(|ends| ends.since(now));
            Some(Kept { value: value.bytes.clone(), remaining })
        }))
    }

    async fn write(&self, key: &Key, write: &Write) -> Result<Written> {
        let written = self.with(|table, now| {
            let there = table.values.get(key).map(|value| &*value.bytes);
            let written = write.when.judge(there, table.fences.get(key).map(|seen| seen.fence));
            if written == Written::Written {
                let (bytes, ends) = (write.value.clone(), ends(write.ttl, now));
                table.remember(key, &write.when, if bytes.is_some() { ends } else { Some(now) });
                table.set(key, bytes.map(|bytes| Value { bytes, ends }));
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
            let ends = there.map_or_else(|| ends(ttl, now), |value| value.ends);
            let number = match there {
                Some(value) => {
                    std::str::from_utf8(&value.bytes).ok().and_then(|text| text.parse::<i64>().ok())
                }
                None => Some(0),
            };
            let number = number.ok_or_else(|| refused(format!("`{key}` is no number")))?;
            let sum = number.checked_add(by).ok_or_else(|| {
                refused(format!("`{key}` is {number}; another {by} is more than it can hold"))
            })?;
            table.set(key, Some(Value { bytes: sum.to_string().into_bytes(), ends }));
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
        Ok(self.limits.take(&limit.place(key), limit, weight, || self.clock.now()))
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let watch = self.watchers.watch(key.to_string());
        loop {
            let mut rung = pin!(watch.notified());
            // Listens first and looks then.
            rung.as_mut().enable();
            let (is_same, ends) = self.with(|table, _| {
                let there = table.values.get(key);
                (there.map(|value| &*value.bytes) == from, there.and_then(|value| value.ends))
            });
            if !is_same || self.clock.now() >= until {
                return Ok(());
            }
            self.clock.until(ends.unwrap_or(Deadline::FAR).min(until), rung).await;
        }
    }
}

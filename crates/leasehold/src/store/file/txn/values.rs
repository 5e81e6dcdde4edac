//! The statements for values: reads, conditional writes, watchers and rate limits.

use std::time::Duration;

use rusqlite::params;

use super::{Txn, TxnResult};
use crate::cells::rate::decide::{Decided, There, decide};
use crate::cells::rate::{Limit, Taken};
use crate::cells::store::{When, Write, Written};
use crate::clock::Deadline;
use crate::fence::Fence;
use crate::store::file::directory::refused;
use crate::store::file::liveness::ClientId;
use crate::store::file::rows::{deadline, time};
use crate::ttl::Ttl;

pub(crate) enum WatchOutcome {
    Changed,
    /// The client is notified of the next change. The value expires at this time.
    WatchedUntil(Deadline),
}

impl Txn<'_> {
    /// Returns a value and its expiry.
    pub(crate) fn value(&self, key: &str) -> TxnResult<Option<(Vec<u8>, Option<Deadline>)>> {
        let select = "SELECT value, expires FROM cell WHERE key = ?1 AND (expires IS NULL OR expires > ?2)";
        self.row(select, params![key, time(self.now)], |row| {
            Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?.map(deadline)))
        })
    }

    pub(crate) fn write(&mut self, key: &str, write: &Write) -> TxnResult<Written> {
        let (stored, highest) = (self.value(key)?, self.highest_fence(key)?);
        let stored = stored.as_ref().map(|(value, _)| &**value);
        let written = write.when.judge(stored, highest.map(|(fence, _)| fence));
        if written != Written::Written {
            return Ok(written);
        }
        match (&write.when, highest) {
            (When::Fenced { fence, kept_for }, _) => self.store_fence(key, *fence, *kept_for, write)?,
            (_, Some((fence, kept_for))) => self.store_fence(key, fence, kept_for, write)?,
            _ => {}
        }
        match &write.value {
            Some(value) => {
                let expires = write.ttl.map(|ttl| self.now.plus(ttl.as_duration()));
                self.set(key, value, expires, write.ttl)?;
            }
            None => {
                self.sql("DELETE FROM cell WHERE key = ?1")?.execute([key])?;
            }
        }
        self.notify_watchers(key)?;
        Ok(Written::Written)
    }

    /// The highest fence of the value's writes, and how long it outlives the value.
    fn highest_fence(&self, key: &str) -> TxnResult<Option<(Fence, Ttl)>> {
        let select = "SELECT fence, kept_ms FROM fenced WHERE key = ?1 AND (expires IS NULL OR expires > ?2)";
        let highest = self.row(select, params![key, time(self.now)], |row| {
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()))
        })?;
        match highest {
            Some((fence, kept_ms)) => Ok(Some((Fence::new(fence)?, Ttl::from_ms(kept_ms)))),
            None => Ok(None),
        }
    }

    /// Stores the fence until `kept_for` after the value ends or is removed.
    fn store_fence(&mut self, key: &str, fence: Fence, kept_for: Ttl, write: &Write) -> TxnResult<()> {
        self.sql("DELETE FROM fenced WHERE key IN (SELECT key FROM fenced WHERE expires <= ?1 LIMIT 16)")?
            .execute([time(self.now)])?;
        let ttl_ms = match (&write.value, write.ttl) {
            (Some(_), None) => None,
            (Some(_), Some(ttl)) => Some(ttl.as_ms() + kept_for.as_ms()),
            (None, _) => Some(kept_for.as_ms()),
        };
        let expires = ttl_ms.map(|ms| time(self.now.plus(Duration::from_millis(ms))));
        let mut insert = self.sql("INSERT OR REPLACE INTO fenced VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let (fence, kept_ms) = (fence.get() as i64, kept_for.as_ms() as i64);
        insert.execute(params![key, fence, kept_ms, expires, ttl_ms.map(|ms| ms as i64)])?;
        Ok(())
    }

    /// Adds to a number. A new number starts at 0 with this TTL.
    pub(crate) fn add(&mut self, key: &str, by: i64, ttl: Option<Ttl>) -> TxnResult<i64> {
        let stored = self.value(key)?;
        let number = match &stored {
            Some((value, _)) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
            None => Some(0),
        };
        let number = number.ok_or_else(|| refused(format!("`{key}` is no number")))?;
        let too_large = || refused(format!("`{key}` is {number}; another {by} is more than it can hold"));
        let sum = number.checked_add(by).ok_or_else(too_large)?;
        match stored {
            Some(_) => {
                let mut update = self.sql("UPDATE cell SET value = ?2 WHERE key = ?1")?;
                update.execute(params![key, sum.to_string().into_bytes()])?;
            }
            None => {
                let expires = ttl.map(|ttl| self.now.plus(ttl.as_duration()));
                self.set(key, sum.to_string().as_bytes(), expires, ttl)?;
            }
        }
        self.notify_watchers(key)?;
        Ok(sum)
    }

    pub(crate) fn take(&mut self, key: &str, limit: &Limit, weight: u32) -> TxnResult<Taken> {
        let stored = self.value(key)?;
        let stored =
            stored.as_ref().map(|(value, ends)| There { value, left: ends.map(|ends| ends.since(self.now)) });
        let decided = decide(limit, weight, stored, self.now.as_ns() / 1_000);
        let Decided { taken, write } = decided.map_err(|_| {
            refused(format!("`{key}` is no rate limit; something else is kept under its name"))
        })?;
        if let Some((value, left)) = write {
            // The TTL matters after a reboot only: the rate limit then lasts a whole period again.
            let ttl = Ttl::from_ms(limit.period_us() / 1_000);
            self.set(key, &value, Some(self.now.plus(left)), Some(ttl))?;
        }
        Ok(taken)
    }

    fn set(&mut self, key: &str, value: &[u8], expires: Option<Deadline>, ttl: Option<Ttl>) -> TxnResult<()> {
        // No read removes a value that is never used again: each write removes a few expired ones.
        self.sql("DELETE FROM cell WHERE key IN (SELECT key FROM cell WHERE expires <= ?1 LIMIT 16)")?
            .execute([time(self.now)])?;
        let mut insert = self.sql("INSERT OR REPLACE INTO cell VALUES (?1, ?2, ?3, ?4)")?;
        insert.execute(params![key, value, expires.map(time), ttl.map(|ttl| ttl.as_ms() as i64)])?;
        Ok(())
    }

    /// Asks for a notification of the next change, unless the value already differs from `known`.
    pub(crate) fn watch(&mut self, key: &str, known: Option<&[u8]>) -> TxnResult<WatchOutcome> {
        let stored = self.value(key)?;
        if stored.as_ref().map(|(value, _)| &**value) != known {
            return Ok(WatchOutcome::Changed);
        }
        let mut insert = self.sql("INSERT OR REPLACE INTO watching VALUES (?1, ?2, 0)")?;
        insert.execute(params![key, self.me.as_sql()])?;
        Ok(WatchOutcome::WatchedUntil(stored.and_then(|(_, ends)| ends).unwrap_or(Deadline::FAR)))
    }

    fn notify_watchers(&mut self, key: &str) -> TxnResult<()> {
        let select = "SELECT client FROM watching WHERE key = ?1 AND NOT told";
        let clients = self.rows(select, [key], |row| row.get(0))?;
        if clients.is_empty() {
            return Ok(());
        }
        self.sql("UPDATE watching SET told = 1 WHERE key = ?1")?.execute([key])?;
        for client in clients.into_iter().map(ClientId::from_sql) {
            match client == self.me {
                true => self.notifications.changed.push(key.to_owned()),
                false => drop(self.notifications.pokes.insert(client)),
            }
        }
        Ok(())
    }

    /// After a reboot no client watches, and every value with an expiry gets its whole TTL again.
    pub(super) fn reset_values_after_reboot(&mut self) -> TxnResult<()> {
        self.sql("DELETE FROM watching")?.execute([])?;
        for table in ["cell", "fenced"] {
            let update =
                format!("UPDATE {table} SET expires = ?1 + ttl_ms * 1000000 WHERE expires IS NOT NULL");
            self.sql(&update)?.execute([time(self.now)])?;
        }
        Ok(())
    }

    /// Removes expired values and fences, and all watchers if no other client is alive.
    pub(crate) fn remove_expired_values(&mut self, is_alone: bool) -> TxnResult<()> {
        if is_alone {
            self.sql("DELETE FROM watching")?.execute([])?;
        }
        self.sql("DELETE FROM cell WHERE expires <= ?1")?.execute([time(self.now)])?;
        self.sql("DELETE FROM fenced WHERE expires <= ?1")?.execute([time(self.now)])?;
        Ok(())
    }
}

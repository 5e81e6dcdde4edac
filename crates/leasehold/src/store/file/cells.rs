//! Values in the database, and those who watch them.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};

use super::book::{Book, Outcome};
use super::place::refused;
use super::presence::ClientId;
use super::rows::time;
use super::{File, Store};
use crate::cells::rate::{Limit, Taken};
use crate::cells::store::{
    Answer, CellStore, Changed, Kept, Key, Plan, ScriptKey, When, Write, Written, change_by_comparison,
};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::ttl::Ttl;

/// How often whoever is told of changes looks all the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[async_trait]
impl CellStore for File {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
        let key = key.to_string();
        let kept = move |book: &mut Book<'_>| {
            let now = book.now;
            let there = book.value(&key)?;
            Ok(there.map(|(value, ends)| Kept { value, remaining: ends.map(|ends| ends.since(now)) }))
        };
        Ok(self.ask(kept, false).await?.1)
    }

    async fn write(&self, key: &Key, write: &Write) -> Result<Written> {
        let (key, write) = (key.to_string(), write.clone());
        Ok(self.ask(move |book| book.write(&key, &write), false).await?.1)
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        let key = key.to_string();
        Ok(self.ask(move |book| book.add(&key, by, ttl), false).await?.1)
    }

    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
        change_by_comparison(self, key, plan).await
    }

    async fn run(&self, _source: &str, _keys: &[ScriptKey], _args: &[Vec<u8>]) -> Result<Answer> {
        let why = "it runs no scripts; `update` does the same in this process, one attempt after the other";
        Err(Error::Unsupported { store: "file", what: "scripts", why })
    }

    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken> {
        let (place, limit) = (limit.place(key), *limit);
        Ok(self.ask(move |book| book.take(&place, &limit, weight), false).await?.1)
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let watch = self.shared.ears.watchers.watch(key.to_string());
        loop {
            let mut rung = pin!(watch.notified());
            // Listens first and looks then.
            rung.as_mut().enable();
            let (asked, known) = (key.to_string(), from.map(<[u8]>::to_vec));
            let ends = match self.ask(move |book| book.watch(&asked, known.as_deref()), false).await?.1 {
                Watched::Changed => return Ok(()),
                Watched::Until(ends) => ends,
            };
            let now = self.clock().now();
            if now >= until {
                return Ok(());
            }
            self.clock().until(now.plus(LOOK_EVERY).min(ends).min(until), rung).await;
        }
    }
}

/// What came of a watch.
enum Watched {
    Changed,
    /// The same; it ends then.
    Until(Deadline),
}

impl Book<'_> {
    /// What is there, and until when.
    pub(super) fn value(&self, key: &str) -> Outcome<Option<(Vec<u8>, Option<Deadline>)>> {
        let mut select =
            self.sql("SELECT value, expires FROM cell WHERE key = ?1 AND (expires IS NULL OR expires > ?2)")?;
        let there = select.query_row(params![key, time(self.now)], |row| {
            let expires: Option<i64> = row.get(1)?;
            Ok((row.get(0)?, expires.map(|ns| Deadline::from_ns(ns.unsigned_abs()))))
        });
        Ok(there.optional()?)
    }

    fn write(&mut self, key: &str, write: &Write) -> Outcome<Written> {
        let (there, seen) = (self.value(key)?, self.fence_seen(key)?);
        let there = there.as_ref().map(|(value, _)| &**value);
        let written = write.when.judge(there, seen.map(|(fence, _)| fence));
        if written != Written::Written {
            return Ok(written);
        }
        match (&write.when, seen) {
            (When::Fenced { fence, kept_for }, _) => self.remember(key, *fence, *kept_for, write)?,
            (_, Some((fence, kept_for))) => self.remember(key, fence, kept_for, write)?,
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
        self.tell_watchers(key)?;
        Ok(Written::Written)
    }

    /// The highest fence it was written under, and for how long that is kept beyond the value.
    fn fence_seen(&self, key: &str) -> Outcome<Option<(Fence, Ttl)>> {
        let mut select = self
            .sql("SELECT fence, kept_ms FROM fenced WHERE key = ?1 AND (expires IS NULL OR expires > ?2)")?;
        let seen = select.query_row(params![key, time(self.now)], |row| {
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()))
        });
        match seen.optional()? {
            Some((fence, kept_ms)) => Ok(Some((Fence::new(fence)?, Ttl::from_ms(kept_ms)))),
            None => Ok(None),
        }
    }

    /// It lasts as long as the value that is written, or removed, and its own time longer.
    fn remember(&mut self, key: &str, fence: Fence, kept_for: Ttl, write: &Write) -> Outcome<()> {
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

    fn add(&mut self, key: &str, by: i64, ttl: Option<Ttl>) -> Outcome<i64> {
        let there = self.value(key)?;
        let number = match &there {
            Some((value, _)) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
            None => Some(0),
        };
        let number = number.ok_or_else(|| refused(format!("`{key}` is no number")))?;
        let too_much = || refused(format!("`{key}` is {number}; another {by} is more than it can hold"));
        let sum = number.checked_add(by).ok_or_else(too_much)?;
        match there {
            Some(_) => {
                let mut update = self.sql("UPDATE cell SET value = ?2 WHERE key = ?1")?;
                update.execute(params![key, sum.to_string().into_bytes()])?;
            }
            None => {
                let expires = ttl.map(|ttl| self.now.plus(ttl.as_duration()));
                self.set(key, sum.to_string().as_bytes(), expires, ttl)?;
            }
        }
        self.tell_watchers(key)?;
        Ok(sum)
    }

    pub(super) fn set(
        &mut self,
        key: &str,
        value: &[u8],
        expires: Option<Deadline>,
        ttl: Option<Ttl>,
    ) -> Outcome<()> {
        // What nobody asks for any more goes with the next that is made: a few at a time.
        self.sql("DELETE FROM cell WHERE key IN (SELECT key FROM cell WHERE expires <= ?1 LIMIT 16)")?
            .execute([time(self.now)])?;
        let mut insert = self.sql("INSERT OR REPLACE INTO cell VALUES (?1, ?2, ?3, ?4)")?;
        insert.execute(params![key, value, expires.map(time), ttl.map(|ttl| ttl.as_ms() as i64)])?;
        Ok(())
    }

    /// Has this client told of the next change, unless there was one.
    fn watch(&mut self, key: &str, known: Option<&[u8]>) -> Outcome<Watched> {
        let there = self.value(key)?;
        if there.as_ref().map(|(value, _)| &**value) != known {
            return Ok(Watched::Changed);
        }
        let mut insert = self.sql("INSERT OR REPLACE INTO watching VALUES (?1, ?2, 0)")?;
        insert.execute(params![key, self.me.as_sql()])?;
        Ok(Watched::Until(there.and_then(|(_, ends)| ends).unwrap_or(Deadline::FAR)))
    }

    fn tell_watchers(&mut self, key: &str) -> Outcome<()> {
        let mut watching = self.sql("SELECT client FROM watching WHERE key = ?1 AND NOT told")?;
        let clients = watching.query_map([key], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        if clients.is_empty() {
            return Ok(());
        }
        self.sql("UPDATE watching SET told = 1 WHERE key = ?1")?.execute([key])?;
        for client in clients.into_iter().map(ClientId::from_sql) {
            match client == self.me {
                true => self.news.changed.push(key.to_owned()),
                false => drop(self.news.pokes.insert(client)),
            }
        }
        Ok(())
    }

    /// After a reboot nobody watches, and what ends gets its whole time again.
    pub(super) fn boot_cells(&mut self) -> Outcome<()> {
        self.sql("DELETE FROM watching")?.execute([])?;
        for table in ["cell", "fenced"] {
            let update =
                format!("UPDATE {table} SET expires = ?1 + ttl_ms * 1000000 WHERE expires IS NOT NULL");
            self.sql(&update)?.execute([time(self.now)])?;
        }
        Ok(())
    }

    /// Watches of these clients end.
    pub(super) fn forget_watches(&mut self, clients: impl IntoIterator<Item = ClientId>) -> Outcome<()> {
        for client in clients {
            self.sql("DELETE FROM watching WHERE client = ?1")?.execute([client.as_sql()])?;
        }
        Ok(())
    }

    /// Where this client is alone, nobody else watches; and values that nobody has asked for since they ended.
    pub(super) fn sweep_cells(&mut self, is_alone: bool) -> Outcome<()> {
        if is_alone {
            self.sql("DELETE FROM watching")?.execute([])?;
        }
        self.sql("DELETE FROM cell WHERE expires <= ?1")?.execute([time(self.now)])?;
        self.sql("DELETE FROM fenced WHERE expires <= ?1")?.execute([time(self.now)])?;
        Ok(())
    }
}

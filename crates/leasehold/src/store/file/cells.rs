//! Values, counters and rate limits over the database: the [`CellStore`] of the file store.

use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;

use super::txn::{Txn, WatchOutcome};
use super::{File, Store};
use crate::cells::rate::{Limit, Taken};
use crate::cells::store::{
    Answer, CellStore, Changed, Kept, Key, Plan, ScriptKey, Write, Written, change_by_comparison,
};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::ttl::Ttl;

/// The interval at which a watcher reads the value without a notification.
const RECHECK_EVERY: Duration = Duration::from_secs(1);

#[async_trait]
impl CellStore for File {
    async fn read(&self, key: &Key) -> Result<Option<Kept>> {
        let key = key.to_string();
        let read = move |txn: &mut Txn<'_>| {
            let now = txn.now();
            let stored = txn.value(&key)?;
            Ok(stored.map(|(value, ends)| Kept { value, remaining: ends.map(|ends| ends.since(now)) }))
        };
        self.run_txn(read, false).await
    }

    async fn write(&self, key: &Key, write: &Write) -> Result<Written> {
        let (key, write) = (key.to_string(), write.clone());
        self.run_txn(move |txn| txn.write(&key, &write), false).await
    }

    async fn add(&self, key: &Key, by: i64, ttl: Option<Ttl>) -> Result<i64> {
        let key = key.to_string();
        self.run_txn(move |txn| txn.add(&key, by, ttl), false).await
    }

    async fn change(&self, key: &Key, plan: &mut Plan<'_>) -> Result<Changed> {
        change_by_comparison(self, key, plan).await
    }

    async fn run(&self, _source: &str, _keys: &[ScriptKey], _args: &[Vec<u8>]) -> Result<Answer> {
        let why = "it runs no scripts; `update` does the same in this process, one attempt after the other";
        Err(Error::Unsupported { store: "file", what: "scripts", why })
    }

    async fn take(&self, key: &Key, limit: &Limit, weight: u32) -> Result<Taken> {
        let (key, limit) = (limit.place(key), *limit);
        self.run_txn(move |txn| txn.take(&key, &limit, weight), false).await
    }

    async fn changed(&self, key: &Key, from: Option<&[u8]>, until: Deadline) -> Result<()> {
        let watch = self.shared.waiters.values.watch(key.to_string());
        loop {
            let mut notified = pin!(watch.notified());
            // Subscribes before it reads, so that no change between the two is missed.
            notified.as_mut().enable();
            let (key, known) = (key.to_string(), from.map(<[u8]>::to_vec));
            let ends = match self.run_txn(move |txn| txn.watch(&key, known.as_deref()), false).await? {
                WatchOutcome::Changed => return Ok(()),
                WatchOutcome::WatchedUntil(ends) => ends,
            };
            let now = self.clock().now();
            if now >= until {
                return Ok(());
            }
            self.clock().until(now.plus(RECHECK_EVERY).min(ends).min(until), notified).await;
        }
    }
}

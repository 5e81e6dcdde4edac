//! One transaction over the tables of holders, waiters and values.
//!
//! [`rules`] decides what is granted, [`queries`] reads, [`updates`] writes, [`recovery`] removes
//! what dead clients and earlier boots left, and [`values`] is for values and rate limits.

mod queries;
mod recovery;
mod rules;
mod updates;
mod values;

use std::collections::BTreeSet;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};

use super::db::TxnError;
use super::liveness::ClientId;
use super::rows::WaiterUpdate;
use crate::clock::Deadline;
use crate::name::Name;
pub(super) use rules::AcquireOutcome;
pub(super) use values::WatchOutcome;

pub(super) type TxnResult<T> = std::result::Result<T, TxnError>;

type Read<T> = fn(&Row<'_>) -> rusqlite::Result<T>;

pub(super) struct Txn<'a> {
    db: &'a Connection,
    now: Deadline,
    wall_us: u64,
    me: ClientId,
    granted: usize,
    notifications: Notifications,
}

impl<'a> Txn<'a> {
    pub(super) fn new(db: &'a Connection, now: Deadline, wall_us: u64, me: ClientId) -> Self {
        Txn { db, now, wall_us, me, granted: 0, notifications: Notifications::default() }
    }

    pub(super) fn now(&self) -> Deadline {
        self.now
    }

    pub(super) fn into_notifications(self) -> Notifications {
        self.notifications
    }

    fn sql(&self, text: &str) -> TxnResult<CachedStatement<'a>> {
        Ok(self.db.prepare_cached(text)?)
    }

    fn row<T>(&self, select: &str, params: impl Params, read: Read<T>) -> TxnResult<Option<T>> {
        Ok(self.sql(select)?.query_row(params, read).optional()?)
    }

    fn rows<T>(&self, select: &str, params: impl Params, read: Read<T>) -> TxnResult<Vec<T>> {
        Ok(self.sql(select)?.query_map(params, read)?.collect::<rusqlite::Result<_>>()?)
    }
}

/// The notifications to send once the transaction is committed.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    /// Waiters of this process that were granted their claim, or have to check again.
    pub(super) waiters: Vec<WaiterUpdate>,
    /// Keys of changed values that this process watches.
    pub(super) changed: Vec<String>,
    /// Other clients with such waiters or watched values.
    pub(super) pokes: BTreeSet<ClientId>,
    /// Clients that lost a name to an eviction.
    pub(super) evicted: Vec<(ClientId, Name)>,
    /// Names with more waiters to grant than one transaction may.
    pub(super) unfinished: Vec<Name>,
}

impl Notifications {
    pub(super) fn extend(&mut self, other: Notifications) {
        self.waiters.extend(other.waiters);
        self.changed.extend(other.changed);
        self.pokes.extend(other.pokes);
        self.evicted.extend(other.evicted);
        self.unfinished.extend(other.unfinished);
    }
}

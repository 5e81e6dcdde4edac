//! The SELECTs: holders and waiters of a name, and its status.

use std::collections::BTreeSet;

use rusqlite::{Row, params};

use super::{Txn, TxnResult};
use crate::claim::{Holder, Names, Status, Waiter, age};
use crate::clock::Deadline;
use crate::name::Name;
use crate::store::file::liveness::ClientId;
use crate::store::file::rows::{HolderRow, WaiterRow, deadline, is_several, select};
use crate::store::sharing::Occupancy;
use crate::token::Token;

/// The columns that [`read_held`] reads.
macro_rules! held_columns {
    () => {
        "coalesce(sum(share = 0), 0), coalesce(sum(share = 1), 0), coalesce(sum(take), 0)"
    };
}

/// The facts that most decisions about a name need.
#[derive(Debug)]
pub(super) struct NameSummary {
    pub(super) held: Occupancy,
    pub(super) first_expiry: Deadline,
    pub(super) queue_is_empty: bool,
    pub(super) first_waiter_expired: bool,
}

impl Txn<'_> {
    pub(super) fn summary(&self, name: &Name) -> TxnResult<NameSummary> {
        let mut select = self.sql(concat!(
            "SELECT ",
            held_columns!(),
            ", min(expires), (SELECT shows_until FROM waiting WHERE name = ?1 ORDER BY arrival LIMIT 1)
             FROM holding WHERE name = ?1",
        ))?;
        let now = self.now;
        Ok(select.query_row([name.as_str()], |row| {
            let first_shows_until: Option<i64> = row.get(4)?;
            Ok(NameSummary {
                held: read_held(row)?,
                first_expiry: row.get::<_, Option<i64>>(3)?.map_or(Deadline::FAR, deadline),
                queue_is_empty: first_shows_until.is_none(),
                first_waiter_expired: first_shows_until.is_some_and(|until| deadline(until) <= now),
            })
        })?)
    }

    /// The part of [`summary`](Self::summary) that a grant needs: without waiters, a third faster.
    pub(super) fn held(&self, name: &Name) -> TxnResult<Occupancy> {
        let mut select = self.sql(concat!("SELECT ", held_columns!(), " FROM holding WHERE name = ?1"))?;
        Ok(select.query_row([name.as_str()], read_held)?)
    }

    pub(super) fn holders(&self, name: &Name) -> TxnResult<Vec<HolderRow>> {
        self.rows(select!(holding "WHERE name = ?1"), [name.as_str()], HolderRow::read)
    }

    /// Returns the token's claim, if it holds exactly these names and has not expired.
    pub(super) fn own(&self, names: &Names, token: &Token) -> TxnResult<Option<HolderRow>> {
        let mut own = None;
        for name in names {
            let select = select!(holding "WHERE name = ?1 AND token = ?2");
            let holder = self.row(select, [name.as_str(), token.expose()], HolderRow::read)?;
            match holder.filter(|holder| holder.expires > self.now && holder.several == is_several(names)) {
                Some(holder) => own = Some(holder),
                None => return Ok(None),
            }
        }
        if is_several(names) {
            let mut count = self.sql("SELECT count(*) FROM holding WHERE token = ?1 AND several")?;
            let count: i64 = count.query_row([token.expose()], |row| row.get(0))?;
            own = own.filter(|_| usize::try_from(count) == Ok(names.as_slice().len()));
        }
        Ok(own)
    }

    pub(super) fn waiters(&self, name: &Name) -> TxnResult<Vec<WaiterRow>> {
        self.rows(select!(waiting "WHERE name = ?1 ORDER BY arrival"), [name.as_str()], WaiterRow::read)
    }

    pub(super) fn count_waiters(&self, name: &Name) -> TxnResult<usize> {
        let mut count = self.sql("SELECT count(*) FROM waiting WHERE name = ?1")?;
        let count: i64 = count.query_row([name.as_str()], |row| row.get(0))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn next_waiter(&self, name: &Name, after: i64) -> TxnResult<Option<WaiterRow>> {
        let select = select!(waiting "WHERE name = ?1 AND arrival > ?2 ORDER BY arrival LIMIT 1");
        self.row(select, params![name.as_str(), after], WaiterRow::read)
    }

    /// The next waiter that may overtake others and fits. The index skips those that do not fit.
    pub(super) fn next_barging(&self, name: &Name, after: i64) -> TxnResult<Option<WaiterRow>> {
        let held = self.held(name)?;
        if held.exclusive + held.shared > 0 {
            return Ok(None);
        }
        let select = select!(
            waiting "INDEXED BY waiting_barge WHERE name = ?1 AND share = 3 AND most - take >= ?2 AND arrival > ?3 ORDER BY arrival LIMIT 1"
        );
        let used = i64::try_from(held.permits).unwrap_or(i64::MAX);
        self.row(select, params![name.as_str(), used, after], WaiterRow::read)
    }

    pub(super) fn waiter_ahead(&self, name: &Name, arrival: i64) -> TxnResult<Option<WaiterRow>> {
        let select = select!(waiting "WHERE name = ?1 AND arrival < ?2 ORDER BY arrival DESC LIMIT 1");
        self.row(select, params![name.as_str(), arrival], WaiterRow::read)
    }

    pub(super) fn arrival(&self, token: &Token) -> TxnResult<Option<i64>> {
        self.row("SELECT arrival FROM waiting WHERE token = ?1 LIMIT 1", [token.expose()], |row| row.get(0))
    }

    pub(super) fn waiting_names(&self, token: &str) -> TxnResult<Vec<Name>> {
        let select = "SELECT name FROM waiting WHERE token = ?1";
        let names: Vec<String> = self.rows(select, [token], |row| row.get(0))?;
        names.iter().map(|name| Ok(Name::stored(name)?)).collect()
    }

    /// All clients that wait, or hold a lease that is not detached.
    pub(crate) fn clients(&self) -> TxnResult<BTreeSet<ClientId>> {
        let select = "SELECT client FROM holding WHERE NOT detached UNION SELECT client FROM waiting";
        let clients = self.rows(select, [], |row| row.get(0))?;
        Ok(clients.into_iter().map(ClientId::from_sql).collect())
    }

    /// Returns the status of a name, and the clients whose death would change it.
    pub(crate) fn inspect(&mut self, name: &Name) -> TxnResult<(Option<Status>, BTreeSet<ClientId>)> {
        self.refresh(name)?;
        let mut holders = self.holders(name)?;
        holders.sort_by_key(|holder| holder.fence);
        let waiters = self.waiters(name)?;
        let clients = holders.iter().filter_map(HolderRow::ends_with_client);
        let clients = clients.chain(waiters.iter().map(|waiter| waiter.client)).collect();
        if holders.is_empty() && waiters.is_empty() {
            return Ok((None, clients));
        }
        let waiter = |row: &WaiterRow| -> TxnResult<Waiter> {
            let waiting_for = age(u64::try_from(row.arrival).unwrap_or(0), self.wall_us);
            Ok(Waiter { owner: Token::parse(&row.token)?.owner(), share: row.share, waiting_for })
        };
        let status = Status {
            name: name.clone(),
            holders: holders.iter().map(|holder| self.holder_status(holder)).collect::<TxnResult<_>>()?,
            waiters: waiters.iter().map(waiter).collect::<TxnResult<_>>()?,
        };
        Ok((Some(status), clients))
    }

    /// Inspects every name that starts with a prefix.
    pub(crate) fn list(
        &mut self,
        prefix: &str,
        limit: usize,
    ) -> TxnResult<(Vec<Status>, BTreeSet<ClientId>)> {
        let (mut found, mut clients) = (Vec::new(), BTreeSet::new());
        let mut after: Option<String> = None;
        while found.len() < limit {
            let mut next = self.sql(
                "SELECT min(name) FROM (SELECT min(name) AS name FROM holding WHERE name >= ?1 AND name > ?2
                 UNION ALL SELECT min(name) FROM waiting WHERE name >= ?1 AND name > ?2)",
            )?;
            let last = after.as_deref().unwrap_or("");
            let next: Option<String> = next.query_row([prefix, last], |row| row.get(0))?;
            let Some(name) = next.filter(|name| name.starts_with(prefix)) else { break };
            let (status, its_clients) = self.inspect(&Name::stored(&name)?)?;
            found.extend(status);
            clients.extend(its_clients);
            after = Some(name);
        }
        Ok((found, clients))
    }

    pub(super) fn holder_status(&self, holder: &HolderRow) -> TxnResult<Holder> {
        Ok(Holder {
            owner: Token::parse(&holder.token)?.owner(),
            share: holder.share,
            fence: Some(holder.fence),
            remaining: holder.expires.since(self.now),
            nodes: None,
            held_for: age(holder.fence.get(), self.wall_us),
        })
    }
}

fn read_held(row: &Row<'_>) -> rusqlite::Result<Occupancy> {
    let sum = |column: usize| -> rusqlite::Result<u64> {
        Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
    };
    let count = |column: usize| -> rusqlite::Result<usize> {
        Ok(usize::try_from(sum(column)?).unwrap_or(usize::MAX))
    };
    Ok(Occupancy { exclusive: count(0)?, shared: count(1)?, permits: sum(2)? })
}

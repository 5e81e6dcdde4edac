//! Conversions between rows of the database and values.

use rusqlite::Row;

use super::liveness::ClientId;
use crate::claim::{Claim, Grant, Names, Permits, Share};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::ttl::Ttl;

/// A share as three columns: kind, permits taken, limit.
pub(super) fn share_columns(share: Share) -> (i64, i64, i64) {
    match share {
        Share::Exclusive => (0, 0, 0),
        Share::Shared => (1, 0, 0),
        Share::Permits(permits) => {
            (2 + i64::from(permits.is_barging()), permits.take().into(), permits.limit().into())
        }
    }
}

fn read_share(row: &Row<'_>) -> rusqlite::Result<Share> {
    let number = |column| row.get::<_, i64>(column).map(|number| u32::try_from(number).unwrap_or(0));
    let permits = || Permits::new(number(3)?, number(4)?).map_err(invalid_column);
    Ok(match row.get::<_, i64>(2)? {
        0 => Share::Exclusive,
        1 => Share::Shared,
        2 => Share::Permits(permits()?),
        _ => Share::Permits(permits()?.barging()),
    })
}

fn invalid_column(error: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Null, Box::new(error))
}

pub(super) fn time(deadline: Deadline) -> i64 {
    i64::try_from(deadline.as_ns()).unwrap_or(i64::MAX)
}

pub(super) fn deadline(ns: i64) -> Deadline {
    Deadline::from_ns(u64::try_from(ns).unwrap_or(0))
}

fn ttl(ms: i64) -> Ttl {
    Ttl::from_ms(u64::try_from(ms).unwrap_or(0))
}

pub(super) fn fence(number: i64) -> Result<Fence> {
    Fence::new(u64::try_from(number).unwrap_or(0))
}

/// All processes of a machine share one clock, so the expiry tells how long the grant is valid.
pub(super) fn grant(fence: Fence, fences: u16, expires: Deadline, ttl: Ttl) -> Grant {
    Grant { fence, fences, valid_until: expires.minus(ttl.drift()) }
}

pub(super) fn is_several(names: &Names) -> bool {
    names.only().is_none()
}

/// A SELECT of holders or waiters, with the columns in the order that `read` expects.
macro_rules! select {
    (holding $condition:literal) => {
        concat!(
            "SELECT 0, token, share, take, most, fence, fences, expires, ttl_ms, client, detached, several FROM holding ",
            $condition
        )
    };
    (waiting $condition:literal) => {
        concat!(
            "SELECT arrival, token, share, take, most, 0, fences, shows_until, ttl_ms, client, detached, several FROM waiting ",
            $condition
        )
    };
}
pub(super) use select;

/// A claim that is held, at one of its names.
#[derive(Debug)]
pub(super) struct HolderRow {
    pub(super) token: String,
    pub(super) share: Share,
    pub(super) fence: Fence,
    pub(super) fences: u16,
    pub(super) expires: Deadline,
    pub(super) ttl: Ttl,
    pub(super) client: ClientId,
    pub(super) detached: bool,
    pub(super) several: bool,
}

impl HolderRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(HolderRow {
            token: row.get(1)?,
            share: read_share(row)?,
            fence: fence(row.get(5)?).map_err(invalid_column)?,
            fences: row.get(6)?,
            expires: deadline(row.get(7)?),
            ttl: ttl(row.get(8)?),
            client: ClientId::from_sql(row.get(9)?),
            detached: row.get(10)?,
            several: row.get(11)?,
        })
    }

    pub(super) fn grant(&self) -> Grant {
        grant(self.fence, self.fences, self.expires, self.ttl)
    }

    /// The client whose death ends the lease; `None` if the lease is detached.
    pub(super) fn ends_with_client(&self) -> Option<ClientId> {
        (!self.detached).then_some(self.client)
    }
}

/// A claim that waits, at one of its names.
#[derive(Debug)]
pub(super) struct WaiterRow {
    pub(super) arrival: i64,
    pub(super) token: String,
    pub(super) share: Share,
    pub(super) fences: u16,
    pub(super) ttl: Ttl,
    pub(super) shows_until: Deadline,
    pub(super) client: ClientId,
    pub(super) detached: bool,
    pub(super) several: bool,
}

impl WaiterRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(WaiterRow {
            arrival: row.get(0)?,
            token: row.get(1)?,
            share: read_share(row)?,
            fences: row.get(6)?,
            shows_until: deadline(row.get(7)?),
            ttl: ttl(row.get(8)?),
            client: ClientId::from_sql(row.get(9)?),
            detached: row.get(10)?,
            several: row.get(11)?,
        })
    }

    pub(super) fn of(claim: &Claim, arrival: i64, now: Deadline, client: ClientId) -> Self {
        WaiterRow {
            arrival,
            token: claim.ticket.token.expose().to_owned(),
            share: claim.ticket.share,
            fences: claim.fences.max(1),
            ttl: claim.ttl,
            shows_until: now.plus(claim.ttl.as_duration()),
            client,
            detached: claim.detached,
            several: is_several(&claim.ticket.names),
        }
    }
}

/// A notification for one waiter: its grant, or, without one, the request to check again.
#[derive(Debug)]
pub(super) struct WaiterUpdate {
    pub(super) token: String,
    pub(super) grant: Option<Grant>,
}

impl WaiterUpdate {
    /// Reads the columns token, fence, fences, expires, ttl_ms. A fence of 0 stands for no grant.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let grant = match fence(row.get(1)?) {
            Ok(fence) => Some(grant(fence, row.get(2)?, deadline(row.get(3)?), ttl(row.get(4)?))),
            Err(_) => None,
        };
        Ok(WaiterUpdate { token: row.get(0)?, grant })
    }
}

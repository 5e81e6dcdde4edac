//! Rows of the database as values.

use rusqlite::Row;

use super::presence::ClientId;
use crate::claim::{Claim, Grant, Names, Permits, Share};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::token::Token;
use crate::ttl::Ttl;

/// A share in three columns: kind, permits taken, limit.
pub(super) fn columns(share: Share) -> (i64, i64, i64) {
    match share {
        Share::Exclusive => (0, 0, 0),
        Share::Shared => (1, 0, 0),
        Share::Permits(permits) => {
            (2 + i64::from(permits.is_barging()), permits.take().into(), permits.limit().into())
        }
    }
}

fn share(kind: i64, take: i64, most: i64) -> Result<Share> {
    let permits = || Permits::new(u32::try_from(take).unwrap_or(0), u32::try_from(most).unwrap_or(0));
    Ok(match kind {
        0 => Share::Exclusive,
        1 => Share::Shared,
        2 => Share::Permits(permits()?),
        _ => Share::Permits(permits()?.barging()),
    })
}

/// An error of ours, where SQLite's is expected.
fn bad(error: Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Null, Box::new(error))
}

fn share_of(row: &Row<'_>, first: usize) -> rusqlite::Result<Share> {
    share(row.get(first)?, row.get(first + 1)?, row.get(first + 2)?).map_err(bad)
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

/// Selects rows of either table in one order of columns, so that both can be read by one statement.
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
pub(super) struct Holding {
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

impl Holding {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Holding {
            token: row.get(1)?,
            share: share_of(row, 2)?,
            fence: fence(row.get(5)?).map_err(bad)?,
            fences: row.get(6)?,
            expires: deadline(row.get(7)?),
            ttl: ttl(row.get(8)?),
            client: ClientId::from_sql(row.get(9)?),
            detached: row.get(10)?,
            several: row.get(11)?,
        })
    }

    /// All processes of a machine have the same clock, so a holder knows when it was granted, whoever did it.
    pub(super) fn grant(&self) -> Grant {
        Grant { fence: self.fence, fences: self.fences, valid_until: self.expires.minus(self.ttl.drift()) }
    }

    /// Whose death ends it.
    pub(super) fn mortal(&self) -> Option<ClientId> {
        (!self.detached).then_some(self.client)
    }
}

/// A claim that waits, at one of its names.
#[derive(Debug)]
pub(super) struct Entry {
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

impl Entry {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Entry {
            arrival: row.get(0)?,
            token: row.get(1)?,
            share: share_of(row, 2)?,
            fences: row.get(6)?,
            shows_until: deadline(row.get(7)?),
            ttl: ttl(row.get(8)?),
            client: ClientId::from_sql(row.get(9)?),
            detached: row.get(10)?,
            several: row.get(11)?,
        })
    }

    pub(super) fn of(claim: &Claim, arrival: i64, now: Deadline, client: ClientId) -> Self {
        Entry {
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

pub(super) fn is_several(names: &Names) -> bool {
    names.only().is_none()
}

pub(super) fn token(text: &str) -> Result<Token> {
    Token::parse(text)
}

pub(super) fn name(text: &str) -> Result<Name> {
    Name::stored(text)
}

/// What a waiter has to hear.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) token: String,
    pub(super) grant: Option<Grant>,
}

impl Told {
    /// In this order: token, fence, fences, expires, ttl_ms; without a fence there is no grant.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number: i64 = row.get(1)?;
        let grant = match fence(number) {
            Ok(fence) => {
                let valid_until = deadline(row.get(3)?).minus(ttl(row.get(4)?).drift());
                Some(Grant { fence, fences: row.get(2)?, valid_until })
            }
            Err(_) => None,
        };
        Ok(Told { token: row.get(0)?, grant })
    }
}

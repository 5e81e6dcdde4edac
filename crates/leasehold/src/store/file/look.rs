//! What a transaction reads: who holds a name, who stands in line, who may enter.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, params};

use super::book::{Book, Outcome, Step};
use super::rows::{Entry, Holding, deadline, is_several, name as parse_name, select, token as parse_token};
use crate::claim::{Busy, Claim, Grant, Names};
use crate::clock::Deadline;
use crate::event::Loss;
use crate::name::Name;
use crate::store::held::Held;
use crate::token::Token;

/// A name at a glance.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) held: Held,
    /// When the first of its holders expires.
    earliest: Deadline,
    pub(super) line_is_empty: bool,
    head_is_absent: bool,
}

impl Book<'_> {
    /// The holders of a name, and whether nobody waits: after whatever is over has been taken out, and those have been
    /// admitted whose turn has come by that.
    pub(super) fn look_at(&mut self, name: &Name) -> Outcome<Seen> {
        let seen = self.see(name)?;
        if seen.earliest > self.now && !seen.head_is_absent {
            return Ok(seen);
        }
        let mut freed = vec![name.clone()];
        let now = self.now;
        for holding in self.holders(name)?.iter().filter(|holding| holding.expires <= now) {
            freed.extend(self.let_go(name, holding)?);
        }
        self.admit(freed)?;
        self.see(name)
    }

    /// What is needed for most decisions: sums over the holders, and the first in line.
    pub(super) fn see(&self, name: &Name) -> Outcome<Seen> {
        let mut select = self.sql(
            "SELECT coalesce(sum(share = 0), 0), coalesce(sum(share = 1), 0), coalesce(sum(take), 0), min(expires),
                    (SELECT shows_until FROM waiting WHERE name = ?1 ORDER BY arrival LIMIT 1)
             FROM holding WHERE name = ?1",
        )?;
        let now = self.now;
        Ok(select.query_row([name.as_str()], |row| {
            let head_shows_until: Option<i64> = row.get(4)?;
            Ok(Seen {
                held: sums(row)?,
                earliest: row.get::<_, Option<i64>>(3)?.map_or(Deadline::FAR, deadline),
                line_is_empty: head_shows_until.is_none(),
                head_is_absent: head_shows_until.is_some_and(|until| deadline(until) <= now),
            })
        })?)
    }

    pub(super) fn held(&self, name: &Name) -> Outcome<Held> {
        let mut select = self.sql(
            "SELECT coalesce(sum(share = 0), 0), coalesce(sum(share = 1), 0), coalesce(sum(take), 0)
             FROM holding WHERE name = ?1",
        )?;
        Ok(select.query_row([name.as_str()], sums)?)
    }

    pub(super) fn holders(&self, name: &Name) -> Outcome<Vec<Holding>> {
        let mut select = self.sql(select!(holding "WHERE name = ?1"))?;
        let rows = select.query_map([name.as_str()], Holding::read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// This token's claim, if these are its names, and its time is not over.
    pub(super) fn own(&self, names: &Names, token: &Token) -> Outcome<Option<Holding>> {
        let mut own = None;
        for name in names {
            let mut select = self.sql(select!(holding "WHERE name = ?1 AND token = ?2"))?;
            let holding = select.query_row([name.as_str(), token.expose()], Holding::read).optional()?;
            match holding.filter(|holding| holding.expires > self.now && holding.several == is_several(names))
            {
                Some(holding) => own = Some(holding),
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

    pub(super) fn line(&self, name: &Name) -> Outcome<Vec<Entry>> {
        let mut select = self.sql(select!(waiting "WHERE name = ?1 ORDER BY arrival"))?;
        let rows = select.query_map([name.as_str()], Entry::read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn next_in_line(&self, name: &Name, after: i64) -> Outcome<Option<Entry>> {
        let mut select =
            self.sql(select!(waiting "WHERE name = ?1 AND arrival > ?2 ORDER BY arrival LIMIT 1"))?;
        Ok(select.query_row(params![name.as_str(), after], Entry::read).optional()?)
    }

    pub(super) fn ahead(&self, name: &Name, arrival: i64) -> Outcome<Option<Entry>> {
        let mut select =
            self.sql(select!(waiting "WHERE name = ?1 AND arrival < ?2 ORDER BY arrival DESC LIMIT 1"))?;
        Ok(select.query_row(params![name.as_str(), arrival], Entry::read).optional()?)
    }

    pub(super) fn arrival(&self, token: &Token) -> Outcome<Option<i64>> {
        let mut select = self.sql("SELECT arrival FROM waiting WHERE token = ?1 LIMIT 1")?;
        Ok(select.query_row([token.expose()], |row| row.get(0)).optional()?)
    }

    /// At which names an entry stands.
    pub(super) fn names_in_line(&self, token: &str) -> Outcome<Vec<Name>> {
        let mut select = self.sql("SELECT name FROM waiting WHERE token = ?1")?;
        let names = select.query_map([token], |row| row.get::<_, String>(0))?;
        names.map(|name| Ok(parse_name(&name?)?)).collect()
    }

    /// The next of those who may pass others and would fit here; those who would not are not even read.
    pub(super) fn next_to_pass(&self, name: &Name, after: i64) -> Outcome<Option<Entry>> {
        let held = self.held(name)?;
        if held.exclusive + held.shared > 0 {
            return Ok(None);
        }
        let mut select = self.sql(select!(
            waiting "INDEXED BY waiting_barge WHERE name = ?1 AND share = 3 AND most - take >= ?2 AND arrival > ?3 ORDER BY arrival LIMIT 1"
        ))?;
        let used = i64::try_from(held.permits).unwrap_or(i64::MAX);
        Ok(select.query_row(params![name.as_str(), used, after], Entry::read).optional()?)
    }

    /// First in line at each of its names (or free to pass), and fitting beside who holds them.
    pub(super) fn may_enter(&self, entry: &Entry, names: &[Name]) -> Outcome<bool> {
        for name in names {
            if !entry.share.may_pass() && self.ahead(name, entry.arrival)?.is_some() {
                return Ok(false);
            }
            if !self.held(name)?.admits(entry.share) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn busy(&self, names: &Names) -> Outcome<Step> {
        let mut count = self.sql("SELECT count(*) FROM waiting WHERE name = ?1")?;
        let waiters: i64 = count.query_row([names.first().as_str()], |row| row.get(0))?;
        let mut in_the_way = BTreeSet::new();
        let mut first: Option<Holding> = None;
        for name in names {
            for holding in self.holders(name)? {
                in_the_way.extend(holding.mortal());
                if first.as_ref().is_none_or(|first| holding.fence < first.fence) {
                    first = Some(holding);
                }
            }
            in_the_way.extend(self.next_in_line(name, 0)?.map(|entry| entry.client));
        }
        let holder = first.as_ref().map(|holding| parse_token(&holding.token)).transpose()?;
        let busy = Busy {
            holder: holder.map(|token| token.owner()),
            remaining: first.map(|holding| holding.expires.since(self.now)),
            waiters: usize::try_from(waiters).unwrap_or(0),
        };
        Ok(Step::Busy { busy, in_the_way })
    }

    /// When a waiter looks by itself: every third of its TTL, to show itself; when the one ahead of it would have to have
    /// shown itself, or might have got the lock and let it expire; and, once it is first, when a holder expires.
    pub(super) fn wait(&self, claim: &Claim, arrival: i64) -> Outcome<Step> {
        let mut look_again = claim.wait.cap(self.now.plus(claim.ttl.third()));
        let mut watch = BTreeSet::new();
        for name in &claim.ticket.names {
            if let Some(ahead) = self.ahead(name, arrival)? {
                watch.insert(ahead.client);
                let granted_and_gone = self.now.plus(ahead.ttl.as_duration() / 2);
                look_again = look_again.min(ahead.shows_until).min(granted_and_gone);
                if !claim.ticket.share.may_pass() {
                    continue;
                }
            }
            for holding in self.holders(name)? {
                watch.extend(holding.mortal());
                look_again = look_again.min(holding.expires);
            }
        }
        watch.remove(&self.me);
        Ok(Step::Waiting { arrival: u64::try_from(arrival).unwrap_or(0), look_again, watch })
    }

    /// Our caller hears of its grant by the answer.
    pub(super) fn known(&mut self, token: &Token, grant: Grant) -> Grant {
        self.news.granted.retain(|(granted, _)| granted != token.expose());
        grant
    }

    pub(super) fn why_gone(&mut self, names: &Names) -> Outcome<Loss> {
        for name in names {
            if self.look_at(name)?.held != Held::default() {
                return Ok(Loss::Taken);
            }
        }
        Ok(Loss::Deleted)
    }
}

/// What the holders of a name have between them.
fn sums(row: &rusqlite::Row<'_>) -> rusqlite::Result<Held> {
    let sum = |column: usize| -> rusqlite::Result<u64> {
        Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
    };
    let count = |column: usize| -> rusqlite::Result<usize> {
        Ok(usize::try_from(sum(column)?).unwrap_or(usize::MAX))
    };
    Ok(Held { exclusive: count(0)?, shared: count(1)?, permits: sum(2)? })
}

//! Who holds and who waits, and every change to it: the rules, over the rows, inside one transaction.
//!
//! The rules are those of the memory store. A claim joins the end of the line at each of its names; then whoever stands
//! first at all of its names and fits beside the holders is admitted, whoever called.
//!
//! What is new here is who has to be *told*. A waiter watches the process of the one ahead of it, and once it is first,
//! those of the holders. So it is told when it is admitted, when the one ahead of it leaves without having been admitted,
//! and when it becomes first behind holders that it did not stand behind.

use std::collections::BTreeSet;

use rusqlite::{CachedStatement, Connection, params};

use super::db::Fault;
use super::place::refused;
use super::presence::ClientId;
use super::rows::{Entry, Holding, columns, is_several, name as parse_name, time, token as parse_token};
use crate::claim::{
    Busy, Claim, Converted, Evicted, Grant, Holder, Released, Renewed, Share, Status, Ticket, Waiter, age,
};
use crate::clock::Deadline;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::held::Held;
use crate::ttl::Ttl;

pub(super) type Outcome<T> = std::result::Result<T, Fault>;

pub(super) struct Book<'a> {
    pub(super) db: &'a Connection,
    pub(super) now: Deadline,
    pub(super) wall_us: u64,
    pub(super) me: ClientId,
    pub(super) admitted: usize,
    pub(super) news: News,
}

/// What others, and tasks of our own, have to hear once the transaction is committed.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Our own waiters who were admitted.
    pub(super) granted: Vec<(String, Grant)>,
    /// Our own waiters who have to look again.
    pub(super) looks: Vec<String>,
    /// Values that have changed and are watched by our own.
    pub(super) changed: Vec<String>,
    /// Other clients with such waiters and watchers.
    pub(super) pokes: BTreeSet<ClientId>,
    /// Clients that a name was taken from.
    pub(super) evicted: Vec<(ClientId, Name)>,
    /// Names at which more can be admitted.
    pub(super) more: Vec<Name>,
}

impl News {
    pub(super) fn add(&mut self, other: News) {
        self.granted.extend(other.granted);
        self.looks.extend(other.looks);
        self.changed.extend(other.changed);
        self.pokes.extend(other.pokes);
        self.evicted.extend(other.evicted);
        self.more.extend(other.more);
    }
}

/// What came of joining.
#[derive(Debug)]
pub(super) enum Step {
    Granted(Grant),
    /// Nothing of the claim is left; if one of these clients is dead, asking again may help.
    Busy {
        busy: Busy,
        in_the_way: BTreeSet<ClientId>,
    },
    /// In line. Look again then at the latest, or when one of these clients dies.
    /// A grant with a fence above its arrival is one of this wait: both come from one series.
    Waiting {
        arrival: u64,
        look_again: Deadline,
        watch: BTreeSet<ClientId>,
    },
}

impl<'a> Book<'a> {
    pub(super) fn new(db: &'a Connection, now: Deadline, wall_us: u64, me: ClientId) -> Self {
        Book { db, now, wall_us, me, admitted: 0, news: News::default() }
    }

    pub(super) fn into_news(self) -> News {
        self.news
    }

    pub(super) fn sql(&self, text: &str) -> Outcome<CachedStatement<'a>> {
        Ok(self.db.prepare_cached(text)?)
    }

    /// After a reboot nobody lives who held or waited, and the times are those of another clock. What was detached
    /// gets its whole TTL again: nobody can tell how much of it was left.
    pub(super) fn boot(&mut self, id: &str, set_off_by: &str) -> Outcome<()> {
        let known: (String, String) = self
            .sql("SELECT boot, set_off_by FROM meta")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if known.0 != id {
            self.sql("DELETE FROM waiting")?.execute([])?;
            self.sql("DELETE FROM holding WHERE NOT detached")?.execute([])?;
            self.sql("UPDATE holding SET expires = ?1 + ttl_ms * 1000000, handed = 0")?
                .execute([time(self.now)])?;
            self.boot_cells()?;
        } else if known.1 == set_off_by {
            return Ok(());
        } else if self.sql("SELECT 1 FROM holding UNION ALL SELECT 1 FROM waiting")?.exists([])? {
            let why = "it is in use by processes in another time namespace, whose clock is another; use it from one only";
            return Err(refused(why).into());
        }
        self.sql("UPDATE meta SET boot = ?1, set_off_by = ?2")?.execute([id, set_off_by])?;
        Ok(())
    }

    /// What we held and waited for as another client, before the store was opened anew, is ours as this one.
    pub(super) fn take_over(&mut self, former: ClientId) -> Outcome<()> {
        for text in [
            "UPDATE holding SET client = ?1 WHERE client = ?2",
            "UPDATE waiting SET client = ?1 WHERE client = ?2",
            "UPDATE watching SET client = ?1 WHERE client = ?2",
        ] {
            self.sql(text)?.execute([self.me.as_sql(), former.as_sql()])?;
        }
        Ok(())
    }

    /// Puts a newcomer at the end of the line; one who waits shows itself; one who holds has its time renewed. Then it
    /// is admitted if it is its turn.
    pub(super) fn join(&mut self, claim: &Claim) -> Outcome<Step> {
        let Ticket { names, token, share, .. } = &claim.ticket;
        let (mut free, mut own) = (true, false);
        for name in names {
            let seen = self.look_at(name)?;
            own |= seen.held != Held::default();
            free &= seen.line_is_empty && seen.held.admits(*share);
        }
        if (own || !free)
            && let Some(grant) = self.rearm(names, token, claim.ttl)?
        {
            return Ok(Step::Granted(self.known(token, grant)));
        }
        if free {
            let entry = Entry::of(claim, 0, self.now, self.me);
            let Some(fence) = self.hold(&entry, names, false)? else { return Err(no_more_fences()) };
            let valid_until = self.now.plus(claim.ttl.validity());
            return Ok(Step::Granted(Grant { fence, fences: entry.fences, valid_until }));
        }
        let over = claim.wait.is_over(self.now);
        // Whoever comes to try leaves no trace in the line, and whoever came first in it need not be passed.
        let arrival = match self.arrival(token)? {
            Some(arrival) => {
                self.show(token, claim.ttl)?;
                arrival
            }
            None if over && !share.may_pass() => return self.busy(names),
            None => self.line_up(claim)?,
        };
        self.move_up(names, arrival, *share)?;
        if let Some(grant) = self.rearm(names, token, claim.ttl)? {
            return Ok(Step::Granted(self.known(token, grant)));
        }
        self.numbers_left(claim.fences.max(1))?;
        if over {
            self.leave(token)?;
            return self.busy(names);
        }
        self.wait(claim, arrival)
    }

    pub(super) fn release(&mut self, ticket: &Ticket) -> Outcome<Released> {
        let several = is_several(&ticket.names);
        let mut released = !several || self.own(&ticket.names, &ticket.token)?.is_some();
        for name in &ticket.names {
            if !released {
                break;
            }
            let mut delete = self.sql(
                "DELETE FROM holding WHERE name = ?1 AND token = ?2 AND expires > ?3 AND several = ?4",
            )?;
            let row = params![name.as_str(), ticket.token.expose(), time(self.now), several];
            released &= delete.execute(row)? > 0;
        }
        if released {
            self.admit(ticket.names.as_slice().to_vec())?;
            return Ok(Released::Released);
        }
        self.leave(&ticket.token)?;
        for name in &ticket.names {
            self.look_at(name)?;
        }
        Ok(Released::NotHeld)
    }

    pub(super) fn renew(&mut self, ticket: &Ticket, ttl: Ttl) -> Outcome<Renewed> {
        let proven = match self.own(&ticket.names, &ticket.token)? {
            Some(holding) => ticket.fence.is_none_or(|fence| fence == holding.fence),
            None => false,
        };
        if !proven {
            return Ok(Renewed::Lost(self.why_gone(&ticket.names)?));
        }
        match self.rearm(&ticket.names, &ticket.token, ttl)? {
            Some(grant) => Ok(Renewed::Until(grant.valid_until)),
            None => Ok(Renewed::Lost(self.why_gone(&ticket.names)?)),
        }
    }

    pub(super) fn detach(&mut self, ticket: &Ticket, ttl: Ttl) -> Outcome<Renewed> {
        let Ticket { names, token, fence, .. } = ticket;
        let own = self.own(names, token)?.filter(|holding| holding.grant().has(*fence));
        let grant = match own {
            // Its end is set once; after that it moves on, never back.
            Some(holding) if holding.detached => self.rearm(names, token, ttl)?,
            Some(holding) => Some(self.let_loose(names, holding, *fence, ttl)?),
            None => None,
        };
        match grant {
            Some(grant) => Ok(Renewed::Until(grant.valid_until)),
            None => Ok(Renewed::Lost(self.why_gone(names)?)),
        }
    }

    pub(super) fn convert(&mut self, ticket: &Ticket, to: Share) -> Outcome<Converted> {
        let Ticket { names, token, .. } = ticket;
        let Some(holding) = self.own(names, token)? else { return Ok(Converted::NotHeld) };
        if holding.share == to {
            return Ok(Converted::Converted(holding.grant()));
        }
        if ticket.fence.is_some_and(|proven| proven != holding.fence) {
            return Ok(Converted::NotHeld);
        }
        for name in names {
            let mut others = self.look_at(name)?.held;
            others.remove(holding.share);
            if !others.admits(to) {
                return Ok(Converted::Refused);
            }
        }
        let fence = self.numbers(1)?.ok_or_else(no_more_fences)?;
        let (kind, take, most) = columns(to);
        for name in names {
            let mut update = self.sql(
                "UPDATE holding SET share = ?3, take = ?4, most = ?5, fence = ?6, fences = 1 WHERE name = ?1 AND token = ?2",
            )?;
            update.execute(params![name.as_str(), token.expose(), kind, take, most, fence.get() as i64])?;
        }
        self.admit(names.as_slice().to_vec())?;
        Ok(Converted::Converted(Grant { fence, fences: 1, ..holding.grant() }))
    }

    /// Takes a name from its holders, or from the one with this fence.
    pub(super) fn evict(&mut self, name: &Name, only: Option<Fence>) -> Outcome<Evicted> {
        self.look_at(name)?;
        let mut found = self.holders(name)?;
        found.retain(|holding| only.is_none_or(|only| holding.fence == only));
        if only.is_some() && found.is_empty() {
            return Ok(Evicted { holders: Vec::new() });
        }
        self.numbers(1)?.ok_or_else(no_more_fences)?;
        let mut holders = Vec::new();
        let mut freed = vec![name.clone()];
        for holding in found {
            holders.push(self.shown(&holding)?);
            // All of a claim or none: a lease over several names cannot go on without one of them.
            freed.extend(self.let_go(name, &holding)?);
            self.news.evicted.push((holding.client, name.clone()));
        }
        self.admit(freed)?;
        Ok(Evicted { holders })
    }

    fn shown(&self, holding: &Holding) -> Outcome<Holder> {
        Ok(Holder {
            owner: parse_token(&holding.token)?.owner(),
            share: holding.share,
            fence: Some(holding.fence),
            remaining: holding.expires.since(self.now),
            nodes: None,
            held_for: age(holding.fence.get(), self.wall_us),
        })
    }

    /// How things stand with a name, and the clients that its holders and waiters live by.
    pub(super) fn inspect(&mut self, name: &Name) -> Outcome<(Option<Status>, BTreeSet<ClientId>)> {
        self.look_at(name)?;
        let mut holders = self.holders(name)?;
        holders.sort_by_key(|holding| holding.fence);
        let line = self.line(name)?;
        let clients = holders.iter().filter_map(Holding::mortal).chain(line.iter().map(|entry| entry.client));
        let clients = clients.collect();
        if holders.is_empty() && line.is_empty() {
            return Ok((None, clients));
        }
        let waiter = |entry: &Entry| -> Outcome<Waiter> {
            let waiting_for = age(u64::try_from(entry.arrival).unwrap_or(0), self.wall_us);
            Ok(Waiter { owner: parse_token(&entry.token)?.owner(), share: entry.share, waiting_for })
        };
        let status = Status {
            name: name.clone(),
            holders: holders.iter().map(|holding| self.shown(holding)).collect::<Outcome<_>>()?,
            waiters: line.iter().map(waiter).collect::<Outcome<_>>()?,
        };
        Ok((Some(status), clients))
    }

    /// As above, for every name that starts with a prefix.
    pub(super) fn list(&mut self, prefix: &str, limit: usize) -> Outcome<(Vec<Status>, BTreeSet<ClientId>)> {
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
            let (status, theirs) = self.inspect(&parse_name(&name)?)?;
            found.extend(status);
            clients.extend(theirs);
            after = Some(name);
        }
        Ok((found, clients))
    }

    /// Takes out all that dead clients held and waited for, and admits those behind them.
    pub(super) fn bury(&mut self, dead: &BTreeSet<ClientId>) -> Outcome<()> {
        self.forget_watches(dead.iter().copied())?;
        let mut freed: BTreeSet<String> = BTreeSet::new();
        for client in dead {
            for text in [
                "SELECT DISTINCT name FROM holding WHERE client = ?1 AND NOT detached",
                "SELECT DISTINCT name FROM waiting WHERE client = ?1",
            ] {
                let mut names = self.sql(text)?;
                for name in names.query_map([client.as_sql()], |row| row.get(0))? {
                    freed.insert(name?);
                }
            }
        }
        let mut names = Vec::new();
        for name in freed {
            let name = parse_name(&name)?;
            let mut behind_a_dead_one = false;
            for entry in self.line(&name)? {
                if dead.contains(&entry.client) {
                    behind_a_dead_one = true;
                } else if std::mem::take(&mut behind_a_dead_one) {
                    self.tell(&name, &entry)?;
                }
            }
            names.push(name);
        }
        for client in dead {
            self.sql("DELETE FROM holding WHERE client = ?1 AND NOT detached")?.execute([client.as_sql()])?;
            self.sql("DELETE FROM waiting WHERE client = ?1")?.execute([client.as_sql()])?;
        }
        self.admit(names)
    }

    /// Everybody who holds or waits.
    pub(super) fn clients(&self) -> Outcome<BTreeSet<ClientId>> {
        let mut all =
            self.sql("SELECT client FROM holding WHERE NOT detached UNION SELECT client FROM waiting")?;
        let all = all.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        Ok(all.into_iter().map(ClientId::from_sql).collect())
    }

    /// Holders nobody has asked about since their time was over.
    pub(super) fn sweep(&mut self) -> Outcome<()> {
        let mut expired = self.sql("SELECT DISTINCT name FROM holding WHERE expires <= ?1")?;
        let names = expired.query_map([time(self.now)], |row| row.get(0))?;
        for name in names.collect::<rusqlite::Result<Vec<String>>>()? {
            self.look_at(&parse_name(&name)?)?;
        }
        Ok(())
    }
}

pub(super) fn no_more_fences() -> Fault {
    refused("the fence is at its limit of 2^63 - 1").into()
}

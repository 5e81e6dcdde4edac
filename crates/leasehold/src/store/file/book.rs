//! Who holds and who waits, and every change to it: the rules, over the rows, inside one transaction.
//!
//! The rules are those of the memory store. A claim joins the end of the line at each of its names; then whoever stands
//! first at all of its names and fits beside the holders is admitted, whoever called.
//!
//! What is new here is who has to be *told*. A waiter watches the process of the one ahead of it, and once it is first,
//! those of the holders. So it is told when it is admitted, when the one ahead of it leaves without having been admitted,
//! and when it becomes first behind holders that it did not stand behind.

use std::collections::BTreeSet;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::db::Fault;
use super::place::refused;
use super::presence::ClientId;
use super::rows::{
    Entry, Holding, columns, fence, is_several, name as parse_name, select, time, token as parse_token,
};
use crate::claim::{
    Busy, Claim, Converted, Evicted, Grant, Holder, Names, Released, Renewed, Share, Status, Ticket, Wait,
    Waiter,
};
use crate::clock::Deadline;
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::store::held::Held;
use crate::token::Token;
use crate::ttl::Ttl;

/// The most who are admitted in one transaction; the rest follows in another, so that nobody else waits for long.
const ADMITTED_MAX: usize = 128;

type Outcome<T> = std::result::Result<T, Fault>;

pub(super) struct Book<'a> {
    db: &'a Connection,
    now: Deadline,
    wall_us: u64,
    me: ClientId,
    admitted: usize,
    news: News,
}

/// What others, and tasks of our own, have to hear once the transaction is committed.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Our own waiters who were admitted.
    pub(super) granted: Vec<(String, Grant)>,
    /// Our own waiters who have to look again.
    pub(super) looks: Vec<String>,
    /// Other clients with such waiters.
    pub(super) pokes: BTreeSet<ClientId>,
    /// Names at which more can be admitted.
    pub(super) more: Vec<Name>,
}

impl News {
    pub(super) fn add(&mut self, other: News) {
        self.granted.extend(other.granted);
        self.looks.extend(other.looks);
        self.pokes.extend(other.pokes);
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
    Waiting {
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

    fn sql(&self, text: &str) -> Outcome<CachedStatement<'a>> {
        Ok(self.db.prepare_cached(text)?)
    }

    // ---- what is asked ----

    /// After a reboot nobody lives who held or waited, and the times are those of another clock. What was detached
    /// gets its whole TTL again: nobody can tell how much of it was left.
    pub(super) fn boot(&mut self, id: &str) -> Outcome<()> {
        let known: String = self.sql("SELECT boot FROM meta")?.query_row([], |row| row.get(0))?;
        if known != id {
            self.sql("DELETE FROM waiting")?.execute([])?;
            self.sql("DELETE FROM holding WHERE NOT detached")?.execute([])?;
            self.sql("UPDATE holding SET expires = ?1 + ttl_ms * 1000000, handed = 0")?
                .execute([time(self.now)])?;
            self.sql("UPDATE meta SET boot = ?1")?.execute([id])?;
        }
        Ok(())
    }

    /// Puts a newcomer at the end of the line; one who waits shows itself; one who holds has its time renewed. Then it
    /// is admitted if it is its turn.
    pub(super) fn join(&mut self, claim: &Claim) -> Outcome<Step> {
        let Ticket { names, token, share, .. } = &claim.ticket;
        let (mut free, mut own) = (true, false);
        for name in names {
            let (holders, line_is_empty) = self.look_at(name)?;
            own |= holders.iter().any(|holding| holding.token == token.expose());
            free &= line_is_empty && held(&holders).admits(*share);
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
        let over = match claim.wait {
            Wait::Never => true,
            Wait::Until(deadline) => self.now >= deadline,
            Wait::Forever => false,
        };
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
        if self.own(&ticket.names, &ticket.token)?.is_some() {
            for name in &ticket.names {
                let mut delete = self.sql("DELETE FROM holding WHERE name = ?1 AND token = ?2")?;
                delete.execute([name.as_str(), ticket.token.expose()])?;
            }
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
            let (mut others, _) = self.look_at(name)?;
            others.retain(|other| other.token != token.expose());
            if !held(&others).admits(to) {
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

    pub(super) fn evict(&mut self, name: &Name) -> Outcome<Evicted> {
        self.numbers(1)?.ok_or_else(no_more_fences)?;
        let (holders, _) = self.look_at(name)?;
        let mut labels = Vec::new();
        let mut freed = vec![name.clone()];
        for holding in holders {
            labels.push(parse_token(&holding.token)?.owner());
            // All of a claim or none: a lease over several names cannot go on without one of them.
            freed.extend(self.let_go(name, &holding)?);
        }
        self.admit(freed)?;
        Ok(Evicted { holders: labels })
    }

    /// How things stand with a name, and the clients that its holders and waiters live by.
    pub(super) fn inspect(&mut self, name: &Name) -> Outcome<(Option<Status>, BTreeSet<ClientId>)> {
        let (mut holders, _) = self.look_at(name)?;
        holders.sort_by_key(|holding| holding.fence);
        let line = self.line(name)?;
        let clients = holders.iter().filter_map(Holding::mortal).chain(line.iter().map(|entry| entry.client));
        let clients = clients.collect();
        if holders.is_empty() && line.is_empty() {
            return Ok((None, clients));
        }
        let holder = |holding: &Holding| -> Outcome<Holder> {
            Ok(Holder {
                owner: parse_token(&holding.token)?.owner(),
                share: holding.share,
                fence: Some(holding.fence),
                remaining: holding.expires.since(self.now),
            })
        };
        let waiter = |entry: &Entry| -> Outcome<Waiter> {
            Ok(Waiter { owner: parse_token(&entry.token)?.owner(), share: entry.share })
        };
        let status = Status {
            name: name.clone(),
            holders: holders.iter().map(holder).collect::<Outcome<_>>()?,
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

    // ---- looking ----

    /// The holders of a name, and whether nobody waits: after whatever is over has been taken out, and those have been
    /// admitted whose turn has come by that.
    fn look_at(&mut self, name: &Name) -> Outcome<(Vec<Holding>, bool)> {
        let (holders, head) = self.holders_and_head(name)?;
        let expired = holders.iter().any(|holding| holding.expires <= self.now);
        if !expired && head.as_ref().is_none_or(|entry| entry.shows_until > self.now) {
            return Ok((holders, head.is_none()));
        }
        let mut freed = vec![name.clone()];
        let now = self.now;
        for holding in holders.iter().filter(|holding| holding.expires <= now) {
            freed.extend(self.let_go(name, holding)?);
        }
        self.admit(freed)?;
        let (holders, head) = self.holders_and_head(name)?;
        Ok((holders, head.is_none()))
    }

    /// The holders, and the first in line.
    fn holders_and_head(&self, name: &Name) -> Outcome<(Vec<Holding>, Option<Entry>)> {
        const BOTH: &str = concat!(
            select!(holding "WHERE name = ?1"),
            " UNION ALL SELECT * FROM (",
            select!(waiting "WHERE name = ?1 ORDER BY arrival LIMIT 1"),
            ")"
        );
        let mut statement = self.sql(BOTH)?;
        let mut rows = statement.query([name.as_str()])?;
        let (mut holders, mut head) = (Vec::new(), None);
        while let Some(row) = rows.next()? {
            match row.get::<_, i64>(0)? {
                0 => holders.push(Holding::read(row)?),
                _ => head = Some(Entry::read(row)?),
            }
        }
        Ok((holders, head))
    }

    fn holders(&self, name: &Name) -> Outcome<Vec<Holding>> {
        let mut select = self.sql(select!(holding "WHERE name = ?1"))?;
        let rows = select.query_map([name.as_str()], Holding::read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// This token's claim, if these are its names, and its time is not over.
    fn own(&self, names: &Names, token: &Token) -> Outcome<Option<Holding>> {
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

    fn line(&self, name: &Name) -> Outcome<Vec<Entry>> {
        let mut select = self.sql(select!(waiting "WHERE name = ?1 ORDER BY arrival"))?;
        let rows = select.query_map([name.as_str()], Entry::read)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn next_in_line(&self, name: &Name, after: i64) -> Outcome<Option<Entry>> {
        let mut select =
            self.sql(select!(waiting "WHERE name = ?1 AND arrival > ?2 ORDER BY arrival LIMIT 1"))?;
        Ok(select.query_row(params![name.as_str(), after], Entry::read).optional()?)
    }

    fn ahead(&self, name: &Name, arrival: i64) -> Outcome<Option<Entry>> {
        let mut select =
            self.sql(select!(waiting "WHERE name = ?1 AND arrival < ?2 ORDER BY arrival DESC LIMIT 1"))?;
        Ok(select.query_row(params![name.as_str(), arrival], Entry::read).optional()?)
    }

    fn arrival(&self, token: &Token) -> Outcome<Option<i64>> {
        let mut select = self.sql("SELECT arrival FROM waiting WHERE token = ?1 LIMIT 1")?;
        Ok(select.query_row([token.expose()], |row| row.get(0)).optional()?)
    }

    /// At which names an entry stands.
    fn names_in_line(&self, token: &str) -> Outcome<Vec<Name>> {
        let mut select = self.sql("SELECT name FROM waiting WHERE token = ?1")?;
        let names = select.query_map([token], |row| row.get::<_, String>(0))?;
        names.map(|name| Ok(parse_name(&name?)?)).collect()
    }

    /// The next of those who may pass others and would fit here; those who would not are not even read.
    fn next_to_pass(&self, name: &Name, after: i64) -> Outcome<Option<Entry>> {
        let held = held(&self.holders(name)?);
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
    fn may_enter(&self, entry: &Entry, names: &[Name]) -> Outcome<bool> {
        for name in names {
            if !entry.share.may_pass() && self.ahead(name, entry.arrival)?.is_some() {
                return Ok(false);
            }
            if !held(&self.holders(name)?).admits(entry.share) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn busy(&self, names: &Names) -> Outcome<Step> {
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
    fn wait(&self, claim: &Claim, arrival: i64) -> Outcome<Step> {
        let mut look_again = self.now.plus(claim.ttl.third());
        if let Wait::Until(deadline) = claim.wait {
            look_again = look_again.min(deadline);
        }
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
        Ok(Step::Waiting { look_again, watch })
    }

    /// Our caller hears of its grant by the answer.
    fn known(&mut self, token: &Token, grant: Grant) -> Grant {
        self.news.granted.retain(|(granted, _)| granted != token.expose());
        grant
    }

    fn why_gone(&mut self, names: &Names) -> Outcome<Loss> {
        for name in names {
            if !self.look_at(name)?.0.is_empty() {
                return Ok(Loss::Taken);
            }
        }
        Ok(Loss::Deleted)
    }

    // ---- changing ----

    /// So many new numbers, of which this is the first. They follow the wall clock, so that they rise even where the
    /// last transactions were lost with the power; and they rise even where that clock is set back.
    fn numbers(&mut self, count: u16) -> Outcome<Option<Fence>> {
        let first = self.next_number()?;
        let Some(last) = first.checked_add(i64::from(count) - 1).filter(|_| first > 0) else {
            return Ok(None);
        };
        self.sql("UPDATE meta SET last = ?1")?.execute([last])?;
        Ok(Some(fence(first)?))
    }

    /// Zero where there is none.
    fn next_number(&self) -> Outcome<i64> {
        let last: i64 = self.sql("SELECT last FROM meta")?.query_row([], |row| row.get(0))?;
        Ok(last.checked_add(1).map_or(0, |next| next.max(i64::try_from(self.wall_us).unwrap_or(0))))
    }

    /// At the limit nobody is admitted; whoever asks is told so.
    fn numbers_left(&self, count: u16) -> Outcome<()> {
        match self.next_number()? {
            0 => Err(no_more_fences()),
            first if first.checked_add(i64::from(count) - 1).is_none() => Err(no_more_fences()),
            _ => Ok(()),
        }
    }

    fn line_up(&mut self, claim: &Claim) -> Outcome<i64> {
        let arrival = self.numbers(1)?.ok_or_else(no_more_fences)?.get() as i64;
        let entry = Entry::of(claim, arrival, self.now, self.me);
        let (kind, take, most) = columns(entry.share);
        for name in &claim.ticket.names {
            let mut insert = self
                .sql("INSERT INTO waiting VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, ?12)")?;
            insert.execute(params![
                name.as_str(),
                arrival,
                entry.token,
                kind,
                take,
                most,
                entry.fences,
                entry.ttl.as_ms() as i64,
                time(entry.shows_until),
                entry.client.as_sql(),
                entry.detached,
                entry.several,
            ])?;
        }
        Ok(arrival)
    }

    fn show(&mut self, token: &Token, ttl: Ttl) -> Outcome<()> {
        let until = time(self.now.plus(ttl.as_duration()));
        let mut update = self.sql("UPDATE waiting SET shows_until = ?2, told = 0 WHERE token = ?1")?;
        update.execute(params![token.expose(), until])?;
        Ok(())
    }

    /// Lets one in line enter if it is its turn; if the one ahead of it is gone, takes that out first.
    fn move_up(&mut self, names: &Names, arrival: i64, share: Share) -> Outcome<()> {
        let mut todo = Vec::new();
        for name in names {
            match self.ahead(name, arrival)? {
                Some(ahead) if ahead.shows_until <= self.now => {
                    let stood_at = self.names_in_line(&ahead.token)?;
                    self.step_out(&ahead, &stood_at, true)?;
                    todo.extend(stood_at);
                }
                Some(_) if !share.may_pass() => {}
                _ => todo.push(name.clone()),
            }
        }
        self.admit(todo)
    }

    /// Serves the lines at these names, and at every name this frees in turn.
    pub(super) fn admit(&mut self, mut todo: Vec<Name>) -> Outcome<()> {
        while let Some(name) = todo.pop() {
            let (mut passed, mut mixed, mut blocked) = (0, false, false);
            while let Some(entry) = match blocked {
                true => self.next_to_pass(&name, passed)?,
                false => self.next_in_line(&name, passed)?,
            } {
                if self.admitted >= ADMITTED_MAX {
                    self.news.more.push(name.clone());
                    break;
                }
                passed = entry.arrival;
                let names = match entry.several {
                    true => self.names_in_line(&entry.token)?,
                    false => vec![name.clone()],
                };
                let absent = entry.shows_until <= self.now;
                if absent {
                    self.step_out(&entry, &names, true)?;
                } else if !self.may_enter(&entry, &names)? {
                    // From here on only whoever may pass.
                    blocked = true;
                    continue;
                } else if !self.enter(&entry, &names)? {
                    break;
                } else {
                    mixed |= entry.share != Share::Exclusive || entry.several;
                }
                // Those behind it at its other names may move up.
                todo.extend(names.into_iter().filter(|other| *other != name));
                if entry.share == Share::Exclusive && !absent {
                    break;
                }
            }
            // Behind a lone holder stands who stood behind it before, and watches it. Behind several, the first has to
            // look whom to watch.
            if mixed && let Some(first) = self.next_in_line(&name, 0)? {
                self.tell(&name, &first)?;
            }
        }
        Ok(())
    }

    /// Moves from the line to the holders, at a fence or not at all.
    fn enter(&mut self, entry: &Entry, names: &[Name]) -> Outcome<bool> {
        let claimed = Names::new(names.iter().cloned())?;
        let Some(fence) = self.hold(entry, &claimed, true)? else { return Ok(false) };
        // One that passed others was ahead of somebody who now stands behind another.
        self.step_out(entry, names, entry.share.may_pass() || entry.several)?;
        self.admitted += 1;
        let valid_until = self.now.plus(entry.ttl.validity());
        match entry.client == self.me {
            true => {
                let grant = Grant { fence, fences: entry.fences, valid_until };
                self.news.granted.push((entry.token.clone(), grant));
            }
            false => drop(self.news.pokes.insert(entry.client)),
        }
        Ok(true)
    }

    fn hold(&mut self, entry: &Entry, names: &Names, handed: bool) -> Outcome<Option<Fence>> {
        let Some(fence) = self.numbers(entry.fences)? else { return Ok(None) };
        let (kind, take, most) = columns(entry.share);
        let expires = self.now.plus(entry.ttl.as_duration());
        for name in names {
            let mut insert = self
                .sql("INSERT INTO holding VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?;
            insert.execute(params![
                name.as_str(),
                entry.token,
                kind,
                take,
                most,
                fence.get() as i64,
                entry.fences,
                time(expires),
                entry.ttl.as_ms() as i64,
                entry.client.as_sql(),
                entry.detached,
                handed,
                is_several(names),
            ])?;
        }
        Ok(Some(fence))
    }

    /// Moves a holder's expiry on, never back; nothing where it does not hold.
    fn rearm(&mut self, names: &Names, token: &Token, ttl: Ttl) -> Outcome<Option<Grant>> {
        let Some(mut own) = self.own(names, token)? else { return Ok(None) };
        let expires = self.now.plus(ttl.as_duration());
        if expires > own.expires {
            (own.expires, own.ttl) = (expires, ttl);
            for name in names {
                let mut update =
                    self.sql("UPDATE holding SET expires = ?3, ttl_ms = ?4 WHERE name = ?1 AND token = ?2")?;
                update.execute(params![name.as_str(), own.token, time(expires), ttl.as_ms() as i64])?;
            }
        }
        Ok(Some(own.grant()))
    }

    /// Takes a holder out at all of its names, which are returned but for the one given. Whoever calls this admits
    /// the next.
    fn let_go(&mut self, name: &Name, holding: &Holding) -> Outcome<Vec<Name>> {
        let mut others = Vec::new();
        if holding.several {
            let mut select = self.sql("SELECT name FROM holding WHERE token = ?1 AND several")?;
            for other in select.query_map([&holding.token], |row| row.get::<_, String>(0))? {
                others.push(parse_name(&other?)?);
            }
            others.retain(|other| other != name);
        }
        for name in others.iter().chain([name]) {
            let mut delete = self.sql("DELETE FROM holding WHERE name = ?1 AND token = ?2")?;
            delete.execute([name.as_str(), &holding.token])?;
        }
        Ok(others)
    }

    /// Leaves the line, and lets those behind move up.
    fn leave(&mut self, token: &Token) -> Outcome<()> {
        let names = self.names_in_line(token.expose())?;
        let Some(arrival) = self.arrival(token)? else { return Ok(()) };
        let Some(name) = names.first() else { return Ok(()) };
        if let Some(entry) = self.next_in_line(name, arrival - 1)? {
            self.step_out(&entry, &names, true)?;
        }
        self.admit(names)
    }

    fn step_out(&mut self, entry: &Entry, names: &[Name], tell: bool) -> Outcome<()> {
        for name in names {
            let mut delete = self.sql("DELETE FROM waiting WHERE name = ?1 AND arrival = ?2")?;
            delete.execute(params![name.as_str(), entry.arrival])?;
            if tell && let Some(behind) = self.next_in_line(name, entry.arrival)? {
                self.tell(name, &behind)?;
            }
        }
        Ok(())
    }

    /// A waiter has to look again whom it stands behind.
    fn tell(&mut self, name: &Name, entry: &Entry) -> Outcome<()> {
        if entry.client == self.me {
            self.news.looks.push(entry.token.clone());
            return Ok(());
        }
        let mut update = self.sql("UPDATE waiting SET told = 1 WHERE name = ?1 AND arrival = ?2")?;
        update.execute(params![name.as_str(), entry.arrival])?;
        self.news.pokes.insert(entry.client);
        Ok(())
    }
}

fn no_more_fences() -> Fault {
    refused("the fence is at its limit of 2^63 - 1").into()
}

fn held(holders: &[Holding]) -> Held {
    let mut held = Held::default();
    holders.iter().for_each(|holding| held.add(holding.share));
    held
}

//! What a transaction changes: numbers given, places taken and left, holders admitted and let go, others told.

use rusqlite::params;

use super::book::{Book, Outcome, no_more_fences};
use super::rows::{Entry, Holding, columns, fence, is_several, name as parse_name, time};
use crate::claim::{Claim, Grant, Names, Share};
use crate::fence::Fence;
use crate::name::Name;
use crate::token::Token;
use crate::ttl::Ttl;

/// The most who are admitted in one transaction; the rest follows in another, so that nobody else waits for long.
const ADMITTED_MAX: usize = 128;

impl Book<'_> {
    /// So many new numbers, of which this is the first. They follow the wall clock, so that they rise even where the
    /// last transactions were lost with the power; and they rise even where that clock is set back.
    pub(super) fn numbers(&mut self, count: u16) -> Outcome<Option<Fence>> {
        let first = self.next_number()?;
        let Some(last) = first.checked_add(i64::from(count) - 1).filter(|_| first > 0) else {
            return Ok(None);
        };
        self.sql("UPDATE meta SET last = ?1")?.execute([last])?;
        Ok(Some(fence(first)?))
    }

    /// Zero where there is none.
    pub(super) fn next_number(&self) -> Outcome<i64> {
        let last: i64 = self.sql("SELECT last FROM meta")?.query_row([], |row| row.get(0))?;
        Ok(last.checked_add(1).map_or(0, |next| next.max(i64::try_from(self.wall_us).unwrap_or(0))))
    }

    /// At the limit nobody is admitted; whoever asks is told so.
    pub(super) fn numbers_left(&self, count: u16) -> Outcome<()> {
        match self.next_number()? {
            0 => Err(no_more_fences()),
            first if first.checked_add(i64::from(count) - 1).is_none() => Err(no_more_fences()),
            _ => Ok(()),
        }
    }

    pub(super) fn line_up(&mut self, claim: &Claim) -> Outcome<i64> {
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

    pub(super) fn show(&mut self, token: &Token, ttl: Ttl) -> Outcome<()> {
        let until = time(self.now.plus(ttl.as_duration()));
        let mut update = self.sql("UPDATE waiting SET shows_until = ?2, told = 0 WHERE token = ?1")?;
        update.execute(params![token.expose(), until])?;
        Ok(())
    }

    /// Lets one in line enter if it is its turn; if the one ahead of it is gone, takes that out first.
    pub(super) fn move_up(&mut self, names: &Names, arrival: i64, share: Share) -> Outcome<()> {
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
                    // Told as well, in case nobody comes to go on with it.
                    self.tell(&name, &entry)?;
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
    pub(super) fn enter(&mut self, entry: &Entry, names: &[Name]) -> Outcome<bool> {
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

    pub(super) fn hold(&mut self, entry: &Entry, names: &Names, handed: bool) -> Outcome<Option<Fence>> {
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
    pub(super) fn rearm(&mut self, names: &Names, token: &Token, ttl: Ttl) -> Outcome<Option<Grant>> {
        let Some(mut own) = self.own(names, token)? else { return Ok(None) };
        let expires = self.now.plus(ttl.as_duration());
        if expires > own.expires {
            (own.expires, own.ttl) = (expires, ttl);
            for name in names {
                let mut update = self.sql(
                    "UPDATE holding SET expires = ?3, ttl_ms = ?4, handed = 0 WHERE name = ?1 AND token = ?2",
                )?;
                update.execute(params![name.as_str(), own.token, time(expires), ttl.as_ms() as i64])?;
            }
        }
        Ok(Some(own.grant()))
    }

    /// Has a holder live by its TTL alone, which counts from now.
    pub(super) fn let_loose(
        &mut self,
        names: &Names,
        mut own: Holding,
        fence: Option<Fence>,
        ttl: Ttl,
    ) -> Outcome<Grant> {
        let before = own.expires;
        (own.expires, own.ttl, own.detached) = (self.now.plus(ttl.as_duration()), ttl, true);
        if let Some(fence) = fence {
            (own.fence, own.fences) = (fence, 1);
        }
        for name in names {
            let mut update = self.sql(
                "UPDATE holding SET fence = ?3, fences = ?4, expires = ?5, ttl_ms = ?6, detached = 1, handed = 0
                 WHERE name = ?1 AND token = ?2",
            )?;
            update.execute(params![
                name.as_str(),
                own.token,
                own.fence.get() as i64,
                own.fences,
                time(own.expires),
                ttl.as_ms() as i64,
            ])?;
            if own.expires < before {
                self.tell_who_watches(name)?;
            }
        }
        Ok(own.grant())
    }

    /// Takes a holder out at all of its names, which are returned but for the one given. Whoever calls this admits
    /// the next.
    pub(super) fn let_go(&mut self, name: &Name, holding: &Holding) -> Outcome<Vec<Name>> {
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
    pub(super) fn leave(&mut self, token: &Token) -> Outcome<()> {
        let names = self.names_in_line(token.expose())?;
        let Some(arrival) = self.arrival(token)? else { return Ok(()) };
        let Some(name) = names.first() else { return Ok(()) };
        if let Some(entry) = self.next_in_line(name, arrival - 1)? {
            self.step_out(&entry, &names, true)?;
        }
        self.admit(names)
    }

    pub(super) fn step_out(&mut self, entry: &Entry, names: &[Name], tell: bool) -> Outcome<()> {
        for name in names {
            let mut delete = self.sql("DELETE FROM waiting WHERE name = ?1 AND arrival = ?2")?;
            delete.execute(params![name.as_str(), entry.arrival])?;
            if tell && let Some(behind) = self.next_in_line(name, entry.arrival)? {
                self.tell(name, &behind)?;
            }
        }
        Ok(())
    }

    /// Those who would only look when a holder was to expire.
    fn tell_who_watches(&mut self, name: &Name) -> Outcome<()> {
        for (place, entry) in self.line(name)?.iter().enumerate() {
            if place == 0 || entry.share.may_pass() {
                self.tell(name, entry)?;
            }
        }
        Ok(())
    }

    /// A waiter has to look again whom it stands behind.
    pub(super) fn tell(&mut self, name: &Name, entry: &Entry) -> Outcome<()> {
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

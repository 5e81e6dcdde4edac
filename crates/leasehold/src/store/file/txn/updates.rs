//! The writes: numbers, rows of holders and waiters, and the notifications that follow from them.
//!
//! `RETURNING` is used only where it replaces several statements. It collects its rows in a
//! temporary table, and measured about twice as slow as one SELECT of one row.

use rusqlite::params;

use super::{Txn, TxnResult};
use crate::claim::{Claim, Grant, Names, Share, Ticket};
use crate::fence::Fence;
use crate::name::Name;
use crate::store::file::db::TxnError;
use crate::store::file::directory::refused;
use crate::store::file::rows::{
    HolderRow, WaiterRow, WaiterUpdate, fence, grant, is_several, share_columns, time,
};
use crate::token::Token;
use crate::ttl::Ttl;

impl Txn<'_> {
    /// Allocates consecutive numbers and returns the first; `None` at the limit. Numbers follow the
    /// wall clock, so that they rise even if a power cut lost the last transactions. They also rise
    /// if the clock is set back.
    pub(super) fn allocate_numbers(&mut self, count: u16) -> TxnResult<Option<Fence>> {
        let Some((first, last)) = self.next_numbers(count)? else { return Ok(None) };
        self.sql("UPDATE meta SET last = ?1")?.execute([last])?;
        Ok(Some(fence(first)?))
    }

    /// Returns an error at the limit. No waiter is granted there, and each has to learn why.
    pub(super) fn check_numbers_left(&self, count: u16) -> TxnResult<()> {
        self.next_numbers(count)?.map(drop).ok_or_else(out_of_numbers)
    }

    /// Returns the first and the last of the next numbers.
    fn next_numbers(&self, count: u16) -> TxnResult<Option<(i64, i64)>> {
        let last: i64 = self.sql("SELECT last FROM meta")?.query_row([], |row| row.get(0))?;
        let wall_us = i64::try_from(self.wall_us).unwrap_or(0);
        let first = last.checked_add(1).map(|next| next.max(wall_us)).filter(|first| *first > 0);
        Ok(first.and_then(|first| Some((first, first.checked_add(i64::from(count) - 1)?))))
    }

    /// Puts the claim at the end of the queue of each of its names, and returns its arrival.
    pub(super) fn enqueue(&mut self, claim: &Claim) -> TxnResult<i64> {
        let arrival = self.allocate_numbers(1)?.ok_or_else(out_of_numbers)?.get() as i64;
        let waiter = WaiterRow::of(claim, arrival, self.now, self.me);
        let (kind, take, most) = share_columns(waiter.share);
        for name in &claim.ticket.names {
            let mut insert = self
                .sql("INSERT INTO waiting VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, ?12)")?;
            insert.execute(params![
                name.as_str(),
                arrival,
                waiter.token,
                kind,
                take,
                most,
                waiter.fences,
                waiter.ttl.as_ms() as i64,
                time(waiter.shows_until),
                waiter.client.as_sql(),
                waiter.detached,
                waiter.several,
            ])?;
        }
        Ok(arrival)
    }

    /// Keeps the token's claim in the queue for another TTL.
    pub(super) fn extend_wait(&mut self, token: &Token, ttl: Ttl) -> TxnResult<()> {
        let until = time(self.now.plus(ttl.as_duration()));
        let mut update = self.sql("UPDATE waiting SET shows_until = ?2, told = 0 WHERE token = ?1")?;
        update.execute(params![token.expose(), until])?;
        Ok(())
    }

    /// Removes a waiter. With `notify_next`, notifies the waiter behind it at each of its names.
    pub(super) fn remove_waiter(&mut self, arrival: i64, names: &[Name], notify_next: bool) -> TxnResult<()> {
        for name in names {
            let mut delete = self.sql("DELETE FROM waiting WHERE name = ?1 AND arrival = ?2")?;
            delete.execute(params![name.as_str(), arrival])?;
            if notify_next && let Some(next) = self.next_waiter(name, arrival)? {
                self.notify(name, &next)?;
            }
        }
        Ok(())
    }

    /// Inserts a holder, or returns `None` without a fence. `handed`: its client must be notified.
    pub(super) fn insert_holder(
        &mut self,
        waiter: &WaiterRow,
        names: &Names,
        handed: bool,
    ) -> TxnResult<Option<Grant>> {
        let Some(fence) = self.allocate_numbers(waiter.fences)? else { return Ok(None) };
        let (kind, take, most) = share_columns(waiter.share);
        let expires = self.now.plus(waiter.ttl.as_duration());
        for name in names {
            let mut insert = self
                .sql("INSERT INTO holding VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)")?;
            insert.execute(params![
                name.as_str(),
                waiter.token,
                kind,
                take,
                most,
                fence.get() as i64,
                waiter.fences,
                time(expires),
                waiter.ttl.as_ms() as i64,
                waiter.client.as_sql(),
                waiter.detached,
                handed,
                is_several(names),
            ])?;
        }
        Ok(Some(grant(fence, waiter.fences, expires, waiter.ttl)))
    }

    /// Moves the expiry of a lease forward, never back.
    pub(super) fn extend_lease(&mut self, names: &Names, mut own: HolderRow, ttl: Ttl) -> TxnResult<Grant> {
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
        Ok(own.grant())
    }

    /// Makes a lease independent of its client's life: only its TTL, which starts now, ends it.
    pub(super) fn detach_holder(
        &mut self,
        names: &Names,
        mut own: HolderRow,
        fence: Option<Fence>,
        ttl: Ttl,
    ) -> TxnResult<Grant> {
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
                self.notify_watchers_of_holders(name)?;
            }
        }
        Ok(own.grant())
    }

    pub(super) fn change_share(
        &mut self,
        names: &Names,
        token: &Token,
        to: Share,
        fence: Fence,
    ) -> TxnResult<()> {
        let (kind, take, most) = share_columns(to);
        for name in names {
            let mut update = self.sql(
                "UPDATE holding SET share = ?3, take = ?4, most = ?5, fence = ?6, fences = 1 WHERE name = ?1 AND token = ?2",
            )?;
            update.execute(params![name.as_str(), token.expose(), kind, take, most, fence.get() as i64])?;
        }
        Ok(())
    }

    /// Deletes the ticket's lease, or returns `false` if it does not hold exactly its names.
    pub(super) fn delete_own(&mut self, ticket: &Ticket) -> TxnResult<bool> {
        let Ticket { names, token, .. } = ticket;
        let several = is_several(names);
        if several && self.own(names, token)?.is_none() {
            return Ok(false);
        }
        let mut is_deleted = true;
        for name in names {
            let mut delete = self.sql(
                "DELETE FROM holding WHERE name = ?1 AND token = ?2 AND expires > ?3 AND several = ?4",
            )?;
            is_deleted &=
                delete.execute(params![name.as_str(), token.expose(), time(self.now), several])? > 0;
        }
        Ok(is_deleted)
    }

    /// Removes a holder of `name` at all of its names. Returns the others, to grant their waiters.
    pub(super) fn remove_holder(&mut self, name: &Name, holder: &HolderRow) -> TxnResult<Vec<Name>> {
        if !holder.several {
            let mut delete = self.sql("DELETE FROM holding WHERE name = ?1 AND token = ?2")?;
            delete.execute([name.as_str(), &holder.token])?;
            return Ok(Vec::new());
        }
        let delete = "DELETE FROM holding WHERE token = ?1 AND several RETURNING name";
        let names: Vec<String> = self.rows(delete, [&holder.token], |row| row.get(0))?;
        names.iter().filter(|other| **other != name.as_str()).map(|other| Ok(Name::stored(other)?)).collect()
    }

    /// Tells a waiter to check again which processes to watch.
    pub(super) fn notify(&mut self, name: &Name, waiter: &WaiterRow) -> TxnResult<()> {
        if waiter.client == self.me {
            self.notifications.waiters.push(WaiterUpdate { token: waiter.token.clone(), grant: None });
            return Ok(());
        }
        let mut update = self.sql("UPDATE waiting SET told = 1 WHERE name = ?1 AND arrival = ?2")?;
        update.execute(params![name.as_str(), waiter.arrival])?;
        self.notifications.pokes.insert(waiter.client);
        Ok(())
    }

    /// Notifies the waiters that sleep until a holder expires: the first, and those that may barge.
    fn notify_watchers_of_holders(&mut self, name: &Name) -> TxnResult<()> {
        for (index, waiter) in self.waiters(name)?.iter().enumerate() {
            if index == 0 || waiter.share.may_pass() {
                self.notify(name, waiter)?;
            }
        }
        Ok(())
    }
}

pub(super) fn out_of_numbers() -> TxnError {
    refused("the fence is at its limit of 2^63 - 1").into()
}

//! Removal of the rows that dead clients, earlier boots and expired leases left.

use std::collections::BTreeSet;

use super::{Txn, TxnResult};
use crate::name::Name;
use crate::store::file::directory::refused;
use crate::store::file::liveness::ClientId;
use crate::store::file::rows::time;

impl Txn<'_> {
    /// Adapts the tables to this boot. After a reboot all former clients are dead, and all times
    /// are of another clock. A detached lease gets its whole TTL again: the rest of it is unknown.
    pub(crate) fn reset_after_reboot(&mut self, boot_id: &str, offset: &str) -> TxnResult<()> {
        let known: (String, String) = self
            .sql("SELECT boot, set_off_by FROM meta")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if known.0 != boot_id {
            self.sql("DELETE FROM waiting")?.execute([])?;
            self.sql("DELETE FROM holding WHERE NOT detached")?.execute([])?;
            self.sql("UPDATE holding SET expires = ?1 + ttl_ms * 1000000, handed = 0")?
                .execute([time(self.now)])?;
            self.reset_values_after_reboot()?;
        } else if known.1 == offset {
            return Ok(());
        } else if self.sql("SELECT 1 FROM holding UNION ALL SELECT 1 FROM waiting")?.exists([])? {
            let why = "it is in use by processes in another time namespace, whose clock is another; use it from one only";
            return Err(refused(why).into());
        }
        self.sql("UPDATE meta SET boot = ?1, set_off_by = ?2")?.execute([boot_id, offset])?;
        Ok(())
    }

    /// Moves all rows of the client that this process was before it opened the store again.
    pub(crate) fn take_over(&mut self, previous: ClientId) -> TxnResult<()> {
        for table in ["holding", "waiting", "watching"] {
            let update = format!("UPDATE {table} SET client = ?1 WHERE client = ?2");
            self.sql(&update)?.execute([self.me.as_sql(), previous.as_sql()])?;
        }
        Ok(())
    }

    /// Removes all rows of dead clients, and grants the waiters that are next.
    pub(crate) fn remove_dead(&mut self, dead: &BTreeSet<ClientId>) -> TxnResult<()> {
        let mut freed: BTreeSet<String> = BTreeSet::new();
        for client in dead {
            let select = "SELECT name FROM holding WHERE client = ?1 AND NOT detached UNION SELECT name FROM waiting WHERE client = ?1";
            freed.extend(self.rows(select, [client.as_sql()], |row| row.get::<_, String>(0))?);
        }
        let mut names = Vec::new();
        for name in freed {
            let name = Name::stored(&name)?;
            let mut is_behind_dead = false;
            for waiter in self.waiters(&name)? {
                if dead.contains(&waiter.client) {
                    is_behind_dead = true;
                } else if std::mem::take(&mut is_behind_dead) {
                    self.notify(&name, &waiter)?;
                }
            }
            names.push(name);
        }
        for client in dead {
            for text in [
                "DELETE FROM holding WHERE client = ?1 AND NOT detached",
                "DELETE FROM waiting WHERE client = ?1",
                "DELETE FROM watching WHERE client = ?1",
            ] {
                self.sql(text)?.execute([client.as_sql()])?;
            }
        }
        self.grant_waiters(names)
    }

    /// Removes expired holders of names that no operation has read since.
    pub(crate) fn remove_expired(&mut self) -> TxnResult<()> {
        let select = "SELECT DISTINCT name FROM holding WHERE expires <= ?1";
        let expired: Vec<String> = self.rows(select, [time(self.now)], |row| row.get(0))?;
        for name in expired {
            self.refresh(&Name::stored(&name)?)?;
        }
        Ok(())
    }
}

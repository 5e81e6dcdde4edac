//! SQLite: how the database is opened, one transaction, checkpoints, and what its failures mean.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::book::{Book, News};
use super::place::{Contents, Place, Trace, refused};
use super::presence::ClientId;
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Ordering};

/// "LEAS": whose database it is.
const APPLICATION: i32 = 0x4C45_4153;

/// Each step takes the schema to the next version. A step that has been released is never changed; what is new is a
/// step of its own.
const STEPS: &[&str] = &[include_str!("schema.sql"), include_str!("cells.sql"), include_str!("fences.sql")];

/// What a new store reserves, so that leases can be renewed and released on a disk that is full.
const RESERVE_BYTES: usize = 256 * 1024;

/// How often the path is looked at although nothing seems to have changed.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Why a transaction did not happen.
#[derive(Debug)]
pub(super) enum Fault {
    /// The files at the path are not those that were opened.
    Replaced,
    Sqlite(rusqlite::Error),
    /// As above, at the commit: it may have happened all the same.
    AtCommit(rusqlite::Error),
    Other(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sqlite(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Other(error)
    }
}

impl Fault {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Fault::Sqlite(error) | Fault::AtCommit(error) => error.sqlite_error_code(),
            _ => None,
        }
    }

    /// Somebody who does not know the gate has the database; it passes.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// In words for the person who has to do something about it.
    pub(super) fn explained(self, place: &Place) -> Error {
        let at = place.path().display();
        let (error, at_commit) = match self {
            Fault::Other(error) => return error,
            Fault::Replaced => {
                let why = format!("the files in `{at}` were replaced while it was asked");
                return Error::Unreachable { store: "file", why };
            }
            Fault::Sqlite(error) => (error, false),
            Fault::AtCommit(error) => (error, true),
        };
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => refused(format!("no space is left for `{at}`; free some")),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                refused(format!("`{at}` cannot be written to ({error}); locks need a directory that can"))
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => refused(format!(
                "the database in `{at}` is damaged ({error}); it holds nothing but the leases of running processes, so stop \
                 those, move the directory away, and a new one is made"
            )),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                let why = format!("another program has locked the database in `{at}`");
                Error::Unreachable { store: "file", why }
            }
            _ => {
                let why = match place.why_not_written() {
                    Some(reason) => {
                        format!("`{at}` cannot be written to ({reason}); locks need a directory that can")
                    }
                    None => format!("`{at}`: {error}"),
                };
                if at_commit { Error::Unreachable { store: "file", why } } else { refused(why) }
            }
        }
    }
}

/// The connection that writes, and what it was opened on.
pub(super) struct Db {
    connection: Connection,
    place: Arc<Place>,
    known: Contents,
    seen: Trace,
    looked: Deadline,
    /// Frames in the log after the last commit.
    log: Arc<AtomicU64>,
}

pub(super) fn connect(place: &Place) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(place.database(), flags)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // Closing a connection is no time to wait for a disk.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    if place.access().is_shared() {
        // A schema that another user has changed runs nothing of theirs.
        for (setting, on) in [
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        ] {
            connection.set_db_config(setting, on)?;
        }
        connection.pragma_update(None, "cell_size_check", true)?;
    }
    // Else a statement is compiled anew for each value that is bound: an index over some of the rows might fit it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn set_up(connection: &Connection) -> Result<(), rusqlite::Error> {
    // Until a log is written, the size of a page can be chosen.
    connection.pragma_update(None, "page_size", 1024)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // A log that was long once does not stay so. What is left is more than the reserve.
    connection.query_row("PRAGMA journal_size_limit = 1048576", [], |_| Ok(()))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// How many steps its schema has come; `None` where it is new.
fn recognised(connection: &Connection, place: &Place) -> Result<Option<usize>, Fault> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i32>(0));
    let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    if application == 0 && version == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0 {
        return Ok(None);
    }
    let at = place.path().display();
    if application != APPLICATION {
        let why = format!("the `locks.db` in `{at}` is not a Leasehold store; name another directory");
        return Err(refused(why).into());
    }
    match usize::try_from(version) {
        Ok(done) if done <= STEPS.len() => Ok(Some(done)),
        _ => {
            let why = format!(
                "the format of the store in `{at}` is version {version}, newer than this program knows; use a newer program"
            );
            Err(refused(why).into())
        }
    }
}

fn schema(connection: &Connection, done: Option<usize>) -> Result<(), Fault> {
    if done.is_none() {
        // Its name is on it from the first commit on: whoever comes after one that died here goes on with it.
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; CREATE TABLE reserve (bytes BLOB);
             INSERT INTO reserve VALUES (zeroblob({RESERVE_BYTES})); COMMIT"
        ))?;
    }
    let done = done.unwrap_or(0);
    if done == STEPS.len() {
        return Ok(());
    }
    // The space is there, in the log and in the database, before anybody relies on it.
    checkpoint(connection, "RESTART")?;
    let steps = STEPS[done..].concat();
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; DROP TABLE IF EXISTS reserve; {steps} PRAGMA user_version = {}; COMMIT",
        STEPS.len()
    ))?;
    Ok(())
}

/// Whether a client has left anything that its death would end.
pub(super) fn left_something(connection: &Connection, client: ClientId) -> Result<bool, rusqlite::Error> {
    let mut any = connection.prepare_cached(
        "SELECT 1 FROM holding WHERE client = ?1 AND NOT detached UNION ALL SELECT 1 FROM waiting WHERE client = ?1",
    )?;
    any.exists([client.as_sql()])
}

/// Frames in the log, and how many of them are in the database.
pub(super) fn checkpoint(connection: &Connection, how: &str) -> Result<(i64, i64), rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
}

/// Which boot it is, and how far this process's clock is from the kernel's own: a time namespace may have moved it.
fn boot() -> Result<(String, String)> {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = read.map_err(|error| refused(format!("the kernel gave no boot id: {error}")))?;
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or("0 0");
    Ok((id.trim().to_owned(), offset.split_whitespace().collect::<Vec<_>>().join(" ")))
}

impl Db {
    /// Called under the gate.
    pub(super) fn open(place: Arc<Place>, former: Option<&Contents>, clock: &Clock) -> Result<Self, Fault> {
        place.ensure_database(former)?;
        let mut connection = connect(&place)?;
        // Before anything is set: a database of somebody else's is left as it is.
        let done = recognised(&connection, &place)?;
        set_up(&connection)?;
        schema(&connection, done)?;
        let gone = |error: std::io::Error| refused(format!("`{}`: {error}", place.path().display()));
        // The log is made by the first transaction.
        connection.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
        let (known, seen) = (place.contents().map_err(gone)?, place.trace().map_err(gone)?);
        let log: Arc<AtomicU64> = Arc::default();
        let frames = log.clone();
        // It also stands where SQLite's own would write the log back, in the middle of somebody's commit.
        connection.wal_hook(Some(move |_: &mut Wal, count| {
            frames.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let mut db = Db { connection, place, known, seen, looked: clock.now(), log };
        let (id, offset) = boot()?;
        db.transact(clock, ClientId::NOBODY, |book| book.boot(&id, &offset))?;
        Ok(db)
    }

    /// Another connection to the same files, for reading. It reads at once: SQLite opens the log by its path at the first
    /// read, and later another one might be there.
    pub(super) fn reader(&self) -> Result<Connection, Fault> {
        let reader = connect(&self.place)?;
        reader.query_row("SELECT last FROM meta", [], |_| Ok(()))?;
        Ok(reader)
    }

    /// Whether this client neither holds nor waits. In doubt, no.
    pub(super) fn has_nothing_of(&self, client: ClientId) -> bool {
        left_something(&self.connection, client).is_ok_and(|left| !left)
    }

    /// How many frames the log has.
    pub(super) fn log_frames(&self) -> u64 {
        self.log.load(Ordering::Relaxed)
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Which files it was opened on.
    pub(super) fn contents(&self) -> Contents {
        self.known
    }

    /// Another file under the same path is another store, on which we hold nothing.
    fn still_there(&mut self, now: Deadline) -> Result<(), Fault> {
        let seen = self.place.trace().map_err(|_| Fault::Replaced)?;
        if seen == self.seen && now.since(self.looked) < LOOK_EVERY {
            return Ok(());
        }
        match self.place.contents() {
            Ok(contents) if contents == self.known => {
                (self.seen, self.looked) = (seen, now);
                Ok(())
            }
            _ => Err(Fault::Replaced),
        }
    }

    /// One transaction, all or nothing. Called under the gate.
    ///
    /// On a full disk it is tried once more, after the log has been written back and starts anew in the space it has.
    pub(super) fn transact<T>(
        &mut self,
        clock: &Clock,
        me: ClientId,
        mut work: impl FnMut(&mut Book<'_>) -> Result<T, Fault>,
    ) -> Result<(T, News), Fault> {
        match self.once(clock, me, &mut work) {
            Err(fault) if fault.is_full() => {
                checkpoint(&self.connection, "RESTART")?;
                self.once(clock, me, &mut work)
            }
            Err(fault) if fault.code().is_some() && !fault.is_busy() => {
                // Where a disk fails, another may be mounted in its place.
                self.looked = Deadline::from_ns(0);
                Err(fault)
            }
            outcome => outcome,
        }
    }

    fn once<T>(
        &mut self,
        clock: &Clock,
        me: ClientId,
        work: &mut impl FnMut(&mut Book<'_>) -> Result<T, Fault>,
    ) -> Result<(T, News), Fault> {
        self.still_there(clock.now())?;
        self.statement("BEGIN IMMEDIATE")?;
        // Read after everybody else is kept out, so that time does not go back between two transactions.
        let mut book = Book::new(&self.connection, clock.now(), Clock::wall_us(), me);
        // A panic must not leave everybody locked out until our next transaction.
        let worked = catch_unwind(AssertUnwindSafe(|| work(&mut book)));
        let worked = worked.unwrap_or_else(|panic| {
            let _ = self.roll_back();
            resume_unwind(panic)
        });
        let worked = worked.map(|value| (value, book.into_news()));
        let committed = match &worked {
            Ok(_) => self.statement("COMMIT").map_err(Fault::AtCommit),
            Err(_) => Ok(()),
        };
        let rolled_back = self.roll_back();
        committed?;
        rolled_back?;
        worked
    }

    /// What is neither committed nor rolled back by SQLite itself.
    fn roll_back(&self) -> Result<(), rusqlite::Error> {
        if self.connection.is_autocommit() { Ok(()) } else { self.statement("ROLLBACK") }
    }

    fn statement(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.raw_execute().map(drop)
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("place", &self.place.path()).finish_non_exhaustive()
    }
}

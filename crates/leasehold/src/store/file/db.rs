//! SQLite: opens the database, runs one transaction, and explains SQLite's errors.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::checkpoint::checkpoint;
use super::directory::{Directory, DirectoryStamp, FileIds, refused};
use super::liveness::ClientId;
use super::txn::{Notifications, Txn};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicU64, Ordering};

/// "LEAS": marks a database as a store of Leasehold.
const APPLICATION_ID: i32 = 0x4C45_4153;

/// Each migration leads to the next version of the schema. A released one is never changed.
const MIGRATIONS: &[&str] =
    &[include_str!("schema.sql"), include_str!("cells.sql"), include_str!("fences.sql")];

/// The space that a new store reserves, so that leases can be renewed and released on a full disk.
const RESERVE_BYTES: usize = 256 * 1024;

/// The interval at which the files are checked although the directory seems unchanged.
const CHECK_FILES_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(super) enum TxnError {
    #[error("the files at the path are no longer those that were opened")]
    Replaced,
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// An error of SQLite at the commit: the transaction may have happened.
    #[error(transparent)]
    Commit(rusqlite::Error),
    #[error(transparent)]
    Other(#[from] Error),
}

impl TxnError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            TxnError::Sqlite(error) | TxnError::Commit(error) => error.sqlite_error_code(),
            _ => None,
        }
    }

    /// Returns whether a program that does not use the gate has locked the database.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    pub(super) fn into_error(self, directory: &Directory) -> Error {
        let at = directory.path().display();
        let (error, at_commit) = match self {
            TxnError::Other(error) => return error,
            TxnError::Replaced => {
                let why = format!("the files in `{at}` were replaced while it was asked");
                return Error::Unreachable { store: "file", why };
            }
            TxnError::Sqlite(error) => (error, false),
            TxnError::Commit(error) => (error, true),
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
                let why = match directory.why_not_writable() {
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

/// The connection that writes, and the files that it was opened on.
pub(super) struct Db {
    connection: Connection,
    pub(super) directory: Arc<Directory>,
    pub(super) files: FileIds,
    stamp: DirectoryStamp,
    checked_at: Deadline,
    wal_frames: Arc<AtomicU64>,
}

pub(super) fn connect(directory: &Directory) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(directory.database(), flags)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // Without this, closing the connection would wait for the disk.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    if directory.access().is_shared() {
        // No trigger or view that another user adds to the schema is run.
        for (setting, on) in [
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        ] {
            connection.set_db_config(setting, on)?;
        }
        connection.pragma_update(None, "cell_size_check", true)?;
    }
    // Otherwise SQLite compiles a statement again for each value, which a partial index might fit.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn set_up(connection: &Connection) -> Result<(), rusqlite::Error> {
    // The page size can be set only before the database has a WAL.
    connection.pragma_update(None, "page_size", 1024)?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // The WAL file shrinks again to this size, which is larger than the reserve.
    connection.query_row("PRAGMA journal_size_limit = 1048576", [], |_| Ok(()))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// Returns the number of migrations that the database has, or `None` for a new database.
fn schema_version(connection: &Connection, directory: &Directory) -> Result<Option<usize>, TxnError> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i32>(0));
    let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    if application == 0 && version == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0 {
        return Ok(None);
    }
    let at = directory.path().display();
    if application != APPLICATION_ID {
        let why = format!("the `locks.db` in `{at}` is not a Leasehold store; name another directory");
        return Err(refused(why).into());
    }
    match usize::try_from(version) {
        Ok(done) if done <= MIGRATIONS.len() => Ok(Some(done)),
        _ => {
            let why = format!(
                "the format of the store in `{at}` is version {version}, newer than this program knows; use a newer program"
            );
            Err(refused(why).into())
        }
    }
}

fn migrate(connection: &Connection, done: Option<usize>) -> Result<(), TxnError> {
    if done.is_none() {
        // This commit sets the application id. After a crash, the next process continues here.
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE reserve (bytes BLOB);
             INSERT INTO reserve VALUES (zeroblob({RESERVE_BYTES})); COMMIT"
        ))?;
    }
    let done = done.unwrap_or(0);
    if done == MIGRATIONS.len() {
        return Ok(());
    }
    // The reserve is written to the WAL and to the database before any lease relies on it.
    checkpoint(connection, "RESTART")?;
    let migrations = MIGRATIONS[done..].concat();
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; DROP TABLE IF EXISTS reserve; {migrations} PRAGMA user_version = {}; COMMIT",
        MIGRATIONS.len()
    ))?;
    Ok(())
}

/// Returns whether a client has rows that its death ends.
pub(super) fn has_rows_of(connection: &Connection, client: ClientId) -> Result<bool, rusqlite::Error> {
    let mut any = connection.prepare_cached(
        "SELECT 1 FROM holding WHERE client = ?1 AND NOT detached UNION ALL SELECT 1 FROM waiting WHERE client = ?1",
    )?;
    any.exists([client.as_sql()])
}

/// The boot id, and how far a time namespace has moved this process's clock from the kernel's.
fn boot_id_and_offset() -> Result<(String, String)> {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = read.map_err(|error| refused(format!("the kernel gave no boot id: {error}")))?;
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or("0 0");
    Ok((id.trim().to_owned(), offset.split_whitespace().collect::<Vec<_>>().join(" ")))
}

impl Db {
    /// Opens the database, or creates it. Called under the gate.
    pub(super) fn open(
        directory: Arc<Directory>,
        previous: Option<&FileIds>,
        clock: &Clock,
    ) -> Result<Self, TxnError> {
        directory.ensure_database(previous)?;
        let mut connection = connect(&directory)?;
        // Checked before any setting, so that a database of another program is not changed.
        let done = schema_version(&connection, &directory)?;
        set_up(&connection)?;
        migrate(&connection, done)?;
        let gone = |error: std::io::Error| refused(format!("`{}`: {error}", directory.path().display()));
        // The first transaction creates the WAL file.
        connection.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
        let files = directory.file_ids().map_err(gone)?;
        let stamp = directory.stamp().map_err(gone)?;
        let wal_frames: Arc<AtomicU64> = Arc::default();
        let frames = wal_frames.clone();
        // This replaces SQLite's own hook, which would run a checkpoint inside a caller's commit.
        connection.wal_hook(Some(move |_: &mut Wal, count| {
            frames.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let mut db = Db { connection, directory, files, stamp, checked_at: clock.now(), wal_frames };
        let (boot_id, offset) = boot_id_and_offset()?;
        db.transact(clock, ClientId::NONE, |txn| txn.reset_after_reboot(&boot_id, &offset))?;
        Ok(db)
    }

    /// Returns another connection, for reads. It reads once now, because SQLite opens the WAL by
    /// its path at the first read, and a later read could open another file.
    pub(super) fn reader(&self) -> Result<Connection, TxnError> {
        let reader = connect(&self.directory)?;
        reader.query_row("SELECT last FROM meta", [], |_| Ok(()))?;
        Ok(reader)
    }

    /// Returns `false` also if the database cannot be read.
    pub(super) fn has_no_rows_of(&self, client: ClientId) -> bool {
        has_rows_of(&self.connection, client).is_ok_and(|has_rows| !has_rows)
    }

    pub(super) fn wal_frames(&self) -> u64 {
        self.wal_frames.load(Ordering::Relaxed)
    }

    /// Checks that the path still leads to the opened files.
    fn check_not_replaced(&mut self, now: Deadline) -> Result<(), TxnError> {
        let stamp = self.directory.stamp().map_err(|_| TxnError::Replaced)?;
        if stamp == self.stamp && now.since(self.checked_at) < CHECK_FILES_EVERY {
            return Ok(());
        }
        match self.directory.file_ids() {
            Ok(files) if files == self.files => {
                (self.stamp, self.checked_at) = (stamp, now);
                Ok(())
            }
            _ => Err(TxnError::Replaced),
        }
    }

    /// Runs one transaction, under the gate. On a full disk, runs it again after a checkpoint: the
    /// WAL then starts again in the space that it has.
    pub(super) fn transact<T>(
        &mut self,
        clock: &Clock,
        me: ClientId,
        mut work: impl FnMut(&mut Txn<'_>) -> Result<T, TxnError>,
    ) -> Result<(T, Notifications), TxnError> {
        match self.try_transact(clock, me, &mut work) {
            Err(error) if error.is_full() => {
                checkpoint(&self.connection, "RESTART")?;
                self.try_transact(clock, me, &mut work)
            }
            Err(error) if error.code().is_some() && !error.is_busy() => {
                // Another disk may be mounted at the path, so the next call checks the files.
                self.checked_at = Deadline::from_ns(0);
                Err(error)
            }
            outcome => outcome,
        }
    }

    fn try_transact<T>(
        &mut self,
        clock: &Clock,
        me: ClientId,
        work: &mut impl FnMut(&mut Txn<'_>) -> Result<T, TxnError>,
    ) -> Result<(T, Notifications), TxnError> {
        self.check_not_replaced(clock.now())?;
        self.statement("BEGIN IMMEDIATE")?;
        // Read inside the transaction, so that time does not go back between two transactions.
        let mut txn = Txn::new(&self.connection, clock.now(), Clock::wall_us(), me);
        // After a panic the database must not stay locked until this client's next transaction.
        let worked = catch_unwind(AssertUnwindSafe(|| work(&mut txn)));
        let worked = worked.unwrap_or_else(|panic| {
            let _ = self.roll_back();
            resume_unwind(panic)
        });
        let worked = worked.map(|value| (value, txn.into_notifications()));
        let committed = match &worked {
            Ok(_) => self.statement("COMMIT").map_err(TxnError::Commit),
            Err(_) => Ok(()),
        };
        let rolled_back = self.roll_back();
        committed?;
        rolled_back?;
        worked
    }

    /// Rolls back a transaction that SQLite has neither committed nor rolled back.
    fn roll_back(&self) -> Result<(), rusqlite::Error> {
        if self.connection.is_autocommit() { Ok(()) } else { self.statement("ROLLBACK") }
    }

    fn statement(&self, sql: &str) -> Result<(), rusqlite::Error> {
        self.connection.prepare_cached(sql)?.raw_execute().map(drop)
    }
}

//! The files of a file store, read without the store, which cleans up each name that it inspects.

use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::store::file::File;
use rusqlite::Connection;

use super::{Home, home_in_memory, ms};

pub struct Disk {
    home: Home,
    db: Connection,
}

impl Disk {
    /// In memory: a busy disk may stall for longer than any time limit of the tests.
    pub async fn new() -> Self {
        let home = home_in_memory("disk");
        drop(File::open(home.path()).await.unwrap());
        let db = Connection::open(home.path().join("locks.db")).unwrap();
        Disk { home, db }
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    /// The numbers of holders and waiters.
    pub fn rows(&self) -> (i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM holding), (SELECT count(*) FROM waiting)";
        self.db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    }

    /// Returns `ok`, or SQLite's findings.
    pub fn integrity(&self) -> String {
        self.db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
    }

    /// The liveness files of clients.
    pub fn clients(&self) -> Vec<String> {
        let folder = std::fs::read_dir(self.path().join("clients")).unwrap();
        let mut files: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }
}

/// The time limit of background work: a release waits at most two seconds for its turn, then the
/// cleanup task sends it again. It takes well below a millisecond on an idle machine.
pub const SOON: Duration = Duration::from_secs(5);

/// Waits until the count is empty.
pub async fn none_soon<T: PartialEq + Default + Debug>(what: &str, mut count: impl FnMut() -> T) {
    let since = Instant::now();
    loop {
        let left = count();
        if left == T::default() {
            return;
        }
        assert!(since.elapsed() < SOON, "{what} after {SOON:?}: {left:?}");
        tokio::time::sleep(ms(1)).await;
    }
}

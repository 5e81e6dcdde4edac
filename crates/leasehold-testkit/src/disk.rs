//! The files of a file store, read past the store: the store tidies up each name that it is asked about.

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
    /// In memory: a disk that is busy with others may stand still for longer than anything here waits.
    pub async fn new() -> Self {
        let home = home_in_memory("disk");
        drop(File::open(home.path()).await.unwrap());
        let db = Connection::open(home.path().join("locks.db")).unwrap();
        Disk { home, db }
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    /// The number of holders, and of waiters.
    pub fn rows(&self) -> (i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM holding), (SELECT count(*) FROM waiting)";
        self.db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    }

    /// SQLite's opinion of the database: `ok`, or what is wrong.
    pub fn integrity(&self) -> String {
        self.db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
    }

    /// The files by which clients show that they live.
    pub fn clients(&self) -> Vec<String> {
        let folder = std::fs::read_dir(self.path().join("clients")).unwrap();
        let mut files: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }
}

/// The time limit for work in the background: a release waits two seconds at most for
/// its turn, and then the janitor sends it again. It takes well below a millisecond on a machine that is not busy.
pub const SOON: Duration = Duration::from_secs(5);

/// Waits until nothing is left of what is counted.
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

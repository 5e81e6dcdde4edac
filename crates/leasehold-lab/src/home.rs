//! Temporary directories for tests and their servers.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MEMORY: &str = "/dev/shm";

/// A new directory, removed on drop.
#[derive(Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Creates a directory in `folder` whose name starts with `what`.
    pub fn new(folder: &Path, what: &str) -> io::Result<Self> {
        static HOMES: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = HOMES.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{what}_{}_{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Home(path)),
                // Left by a killed process that had the same process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a directory in memory, for tests and servers that must not wait for a busy disk.
    pub fn in_memory(what: &str) -> io::Result<Self> {
        Home::new(Path::new(MEMORY), &format!("leasehold_{what}"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

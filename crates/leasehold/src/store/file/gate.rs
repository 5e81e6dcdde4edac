//! The gate: a kernel lock (`flock`) that lets one process at a time change the database.
//!
//! A process takes it before a SQLite transaction, so SQLite never waits for a process that uses
//! the gate. SQLite's own busy handler gives no order, and an unlucky process could wait for long.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::Error;

/// The time that an operation waits for the gate.
pub(super) const GATE_TIMEOUT: Duration = Duration::from_secs(2);

/// The first pause between two attempts, which doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_micros(20);
pub(super) const RETRY_MAX: Duration = Duration::from_micros(500);

/// A thread that has waited this long retries at [`RETRY_MIN`] again, more often than a new one.
const RETRY_FAST_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Gate {
    file: File,
    pub(super) inode: u64,
}

pub(super) struct GateGuard<'a>(&'a File);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        // Cannot fail for a lock that this process holds. The end of the process unlocks as well.
        let _ = self.0.unlock();
    }
}

impl Gate {
    pub(super) fn new(file: File) -> Self {
        let inode = file.metadata().map_or(0, |metadata| metadata.ino());
        Gate { file, inode }
    }

    pub(super) fn try_enter(&self) -> Option<GateGuard<'_>> {
        match self.file.try_lock() {
            Ok(()) => Some(GateGuard(&self.file)),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => None,
        }
    }

    /// Takes the gate, or returns `None` after [`GATE_TIMEOUT`]. Only for threads that may block.
    ///
    /// It retries: a thread in `flock` cannot be interrupted, and would hang a runtime's shutdown.
    pub(super) fn enter(&self, clock: &Clock) -> Option<GateGuard<'_>> {
        let start = clock.now();
        let mut pause = RETRY_MIN;
        loop {
            if let Some(guard) = self.try_enter() {
                return Some(guard);
            }
            let now = clock.now();
            let waited = now.since(start);
            if waited >= GATE_TIMEOUT {
                return None;
            }
            // Jitter, so that two waiting threads do not always retry at the same moment.
            let jitter = Duration::from_nanos(now.as_ns() % (pause.as_nanos() as u64));
            Clock::rest(pause / 2 + jitter / 2);
            pause = if waited < RETRY_FAST_AFTER { (pause * 2).min(RETRY_MAX) } else { RETRY_MIN };
        }
    }
}

/// The error after [`GATE_TIMEOUT`]. Names the gate's holder, if `/proc/locks` shows it.
pub(super) fn gate_timeout_error(gate_inode: u64) -> Error {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let (seconds, gate) = (GATE_TIMEOUT.as_secs(), format!(":{gate_inode}"));
    let holder =
        locks.lines().filter(|line| line.contains("FLOCK") && !line.contains("->")).find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "WRITE").skip(1);
            let (pid, file) = (words.next()?, words.next()?);
            (file.ends_with(&gate) && pid.parse::<u32>().is_ok_and(|pid| pid > 0)).then(|| pid.to_owned())
        });
    let why = match holder {
        Some(pid) => {
            format!("process {pid} has been in the middle of a change for {seconds} s (is it stopped?)")
        }
        None => format!("it was not this process's turn for {seconds} s (is another one stopped?)"),
    };
    Error::Unreachable { store: "file", why }
}

//! When the WAL is written back into the database (a SQLite checkpoint).
//!
//! Checkpoints run on a blocking thread beside the transactions, never inside a caller's commit.

use rusqlite::Connection;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A checkpoint is due after this many new frames (about 8 MB).
const FRAMES_DUE: u64 = 8_000;

/// The limit for a client that opened the store when no other client had it open. It had to read
/// the whole WAL, and so will the next such client. This is the case of programs that run one after
/// the other.
const FRAMES_DUE_ALONE: u64 = 256;

/// From this length on (about 64 MB) the WAL has to start again from its beginning.
const FRAMES_MAX: i64 = 64_000;

#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// No other client had the store open, and this client has not committed anything yet.
    opened_alone: AtomicBool,
    is_running: AtomicBool,
    /// How many frames of the WAL the last checkpoint wrote back.
    written_back: AtomicU64,
}

impl Checkpointer {
    pub(super) fn new(opened_alone: bool) -> Self {
        Checkpointer { opened_alone: opened_alone.into(), ..Checkpointer::default() }
    }

    /// Whether a checkpoint is due after a commit that left the WAL with this many frames.
    pub(super) fn is_due(&self, frames: u64) -> bool {
        let is_first = self.opened_alone.swap(false, Ordering::Relaxed);
        is_first && frames > FRAMES_DUE_ALONE || self.new_frames(frames) > FRAMES_DUE
    }

    /// The frames since the last checkpoint.
    fn new_frames(&self, frames: u64) -> u64 {
        let written_back = self.written_back.load(Ordering::Relaxed);
        // The WAL is shorter than it was at the last checkpoint, so it has started again from its
        // beginning.
        if frames < written_back {
            self.written_back.store(0, Ordering::Relaxed);
            return frames;
        }
        frames - written_back
    }

    /// Returns whether the caller may run a checkpoint: no other one is running.
    /// [`finish`](Self::finish) ends it.
    pub(super) fn start(&self) -> bool {
        !self.is_running.swap(true, Ordering::AcqRel)
    }

    pub(super) fn finish(&self) {
        self.is_running.store(false, Ordering::Release);
    }

    /// Runs a checkpoint while other connections write. Returns whether the WAL is so long that the
    /// caller has to keep all writers out and run another one, so that the WAL can start again from
    /// its beginning.
    pub(super) fn run(&self, connection: &Connection) -> Result<bool, rusqlite::Error> {
        let (frames, written_back) = checkpoint(connection, "PASSIVE")?;
        self.written_back.store(u64::try_from(written_back).unwrap_or(0), Ordering::Relaxed);
        Ok(frames > FRAMES_MAX)
    }
}

/// Returns the number of frames in the WAL, and how many of them are in the database.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<(i64, i64), rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
}

//! Checkpoints, which write the WAL back into the database, never inside a caller's commit.

use rusqlite::Connection;

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// A checkpoint is due after this many new frames (about 8 MB).
const FRAMES_DUE: u64 = 8_000;

/// The limit at the first commit of a client that opened the store alone, as programs that run one
/// after the other do. It had to read the whole WAL, and so will the next such client.
const FRAMES_DUE_ALONE: u64 = 256;

/// From this length on (about 64 MB) the WAL has to start again from its beginning.
const FRAMES_MAX: i64 = 64_000;

#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    /// No other client had the store open, and this client has committed nothing yet.
    opened_alone: AtomicBool,
    is_running: AtomicBool,
    /// The frames of the WAL that the last checkpoint wrote back.
    written_back: AtomicU64,
}

impl Checkpointer {
    pub(super) fn new(opened_alone: bool) -> Self {
        Checkpointer { opened_alone: opened_alone.into(), ..Checkpointer::default() }
    }

    /// Returns whether a checkpoint is due after a commit that left this many frames in the WAL.
    pub(super) fn is_due(&self, frames: u64) -> bool {
        let is_first = self.opened_alone.swap(false, Ordering::Relaxed);
        is_first && frames > FRAMES_DUE_ALONE || self.new_frames(frames) > FRAMES_DUE
    }

    fn new_frames(&self, frames: u64) -> u64 {
        let written_back = self.written_back.load(Ordering::Relaxed);
        // The WAL is shorter than before, so it has started again from its beginning.
        if frames < written_back {
            self.written_back.store(0, Ordering::Relaxed);
            return frames;
        }
        frames - written_back
    }

    /// Starts a checkpoint, which [`finish`](Self::finish) ends. Returns `false` if one is running.
    pub(super) fn start(&self) -> bool {
        !self.is_running.swap(true, Ordering::AcqRel)
    }

    pub(super) fn finish(&self) {
        self.is_running.store(false, Ordering::Release);
    }

    /// Runs a checkpoint while other connections write. Returns whether the WAL is so long that the
    /// caller has to run another one without writers, so that the WAL starts again.
    pub(super) fn run(&self, connection: &Connection) -> Result<bool, rusqlite::Error> {
        let (frames, written_back) = checkpoint(connection, "PASSIVE")?;
        self.written_back.store(u64::try_from(written_back).unwrap_or(0), Ordering::Relaxed);
        Ok(frames > FRAMES_MAX)
    }
}

/// Returns the frames in the WAL, and how many of them are in the database.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<(i64, i64), rusqlite::Error> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| Ok((row.get(1)?, row.get(2)?)))
}

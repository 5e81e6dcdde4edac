//! Small text files: settings, passwords, tokens. Opening one never blocks, and reading one ends.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// No setting, password or token is longer.
const BYTES_MAX: u64 = 64 * 1024;

/// The choice for pipes, which a shell makes for `<(…)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipes {
    Read,
    Refuse,
}

/// Opens a regular file, or a pipe. The checks use the descriptor, so they hold for the bytes that
/// are read. A FIFO without a writer does not block this process, and a device is not read.
pub(crate) fn open(path: &Path, pipes: Pipes) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let about = file.metadata()?;
    let is_pipe = about.file_type().is_fifo() && pipes == Pipes::Read;
    if is_pipe {
        // Reads wait for a writer that is still at work.
        fcntl_setfl(&file, OFlags::empty())?;
    } else if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, about))
}

pub(crate) fn read(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(io::Error::other(format!("it is longer than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

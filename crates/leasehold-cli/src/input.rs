//! Small text files that this command reads: settings, passwords, tokens. Opening one never waits,
//! and reading one ends.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// No setting, password or token is longer.
const BYTES_MAX: u64 = 64 * 1024;

/// Whether a pipe will do, as the shell makes one for `<(…)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipes {
    Read,
    Refuse,
}

/// Opens a regular file, or a pipe. What is found out about the file is found out on the
/// descriptor, so that it holds for what is read. A FIFO without a writer does not stop this
/// process, and a device is not read.
pub(crate) fn open(path: &Path, pipes: Pipes) -> io::Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let about = file.metadata()?;
    let is_pipe = about.file_type().is_fifo() && pipes == Pipes::Read;
    if is_pipe {
        // A writer that is still at work is waited for.
        fcntl_setfl(&file, OFlags::empty())?;
    } else if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((file, about))
}

/// Reads the whole of it, as UTF-8.
pub(crate) fn read(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(io::Error::other(format!("it is longer than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

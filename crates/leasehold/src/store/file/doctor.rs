//! Whether a directory is a fit place for a store: what `leasehold doctor` says of `file:`.

use std::io;
use std::path::Path;

use rustix::fs::{fstat, fstatfs, fstatvfs};

use super::File;
use super::place::{DATABASE, Place, WAL, refused};
use super::presence::Clients;
use crate::doctor::{Bytes, Finding, tried};
use crate::error::{Error, Result};

/// With less than this nothing can be written before long.
const FREE_BYTES_MIN: u64 = 1 << 20;
const FREE_BYTES_LOW: u64 = 64 << 20;

/// Each client has three files.
const FREE_FILES_LOW: u64 = 100;

/// The log is written back long before it is so long.
const LOG_BYTES_HIGH: u64 = 64 << 20;

/// Local file systems by their numbers; the others are refused when a store is opened.
const LOCAL: &[(u32, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683E, "Btrfs"),
    (0x2FC1_2FC1, "ZFS"),
    (0xF2F5_2010, "F2FS"),
    (0xCA45_1A4E, "bcachefs"),
    (0x0102_1994, "tmpfs, which a reboot empties; so it would end all locks"),
    (0x794C_7630, "overlayfs: if it is a container's, only processes in it meet here"),
];

/// What is seen of the directory before and while it is used as a store.
pub(crate) async fn examine(directory: &Path) -> Result<Vec<Finding>> {
    let path = directory.to_owned();
    let looked = tokio::task::spawn_blocking(move || look(&path)).await;
    let mut findings = looked
        .map_err(|error| Error::System { what: "thread to look at the store", why: error.to_string() })??;
    let store = File::open(directory).await?;
    findings.push(tried(&store).await);
    Ok(findings)
}

/// Before it is opened: that clears up after the dead.
fn look(path: &Path) -> Result<Vec<Finding>> {
    let (place, _) = Place::open(path)?;
    let shown = place.path().display().to_string();
    let seen = || -> io::Result<Vec<Finding>> {
        let stat = fstat(place.directory())?;
        let mode = stat.st_mode & 0o777;
        let what = format!("{shown}, of user {}, closed to others (mode {mode:o})", stat.st_uid);
        let mut findings = vec![Finding::good("directory", what)];
        findings.push(file_system(fstatfs(place.directory())?.f_type as u32));
        let space = fstatvfs(place.directory())?;
        findings.push(free_space(space.f_bavail.saturating_mul(space.f_frsize)));
        // Some file systems make room for them as they go, and say 0 of 0.
        if space.f_files > 0 && space.f_favail < FREE_FILES_LOW {
            findings.push(Finding::bad(
                "files",
                format!(
                    "the file system has room for {} more files, and each client makes three",
                    space.f_favail
                ),
                "remove what is not needed there, or name another directory",
            ));
        }
        findings.push(size(place.bytes(DATABASE)?, place.bytes(WAL)?));
        findings.push(clients(&Clients::new(place.clients().clone()))?);
        Ok(findings)
    };
    seen().map_err(|error| refused(format!("`{shown}`: {error}")))
}

fn file_system(kind: u32) -> Finding {
    match LOCAL.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => Finding::good("file system", *name),
        None => Finding::caution(
            "file system",
            format!("of a kind that is not known here (0x{kind:X})"),
            "see that it is local to this machine: across a network kernel locks do not reach everybody",
        ),
    }
}

fn free_space(bytes: u64) -> Finding {
    let what = format!("{} free", Bytes(bytes));
    let advice = "make room, or name another directory: where nothing can be written, no lock can be taken";
    match bytes {
        0..FREE_BYTES_MIN => Finding::bad("free space", what, advice),
        FREE_BYTES_MIN..FREE_BYTES_LOW => Finding::caution("free space", what, advice),
        _ => Finding::good("free space", what),
    }
}

fn size(database: u64, log: u64) -> Finding {
    let what = format!("the database has {}, its log {}", Bytes(database), Bytes(log));
    match log {
        0..LOG_BYTES_HIGH => Finding::good("size", what),
        _ => Finding::caution(
            "size",
            what,
            "the log is not written back: see whether something else has the database open for reading",
        ),
    }
}

fn clients(clients: &Clients) -> io::Result<Finding> {
    let (dead, alive): (Vec<_>, Vec<_>) =
        clients.all()?.into_iter().partition(|client| clients.is_dead(*client));
    let what = match dead.len() {
        0 => format!("{} alive", alive.len()),
        dead => format!("{} alive; {dead} dead, whose locks are free now", alive.len()),
    };
    Ok(Finding::good("clients", what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn little_room_wants_care_and_none_is_bad() {
        for (bytes, verdict) in [
            (0, Verdict::Bad),
            (FREE_BYTES_MIN - 1, Verdict::Bad),
            (FREE_BYTES_MIN, Verdict::Caution),
            (FREE_BYTES_LOW, Verdict::Good),
        ] {
            assert_eq!(free_space(bytes).verdict, verdict, "{bytes}");
        }
    }

    #[test]
    fn a_long_log_and_a_file_system_nobody_knows_want_care() {
        assert_eq!(size(u64::MAX, LOG_BYTES_HIGH - 1).verdict, Verdict::Good);
        assert_eq!(size(0, LOG_BYTES_HIGH).verdict, Verdict::Caution);
        assert_eq!(file_system(0xEF53).verdict, Verdict::Good);
        assert_eq!(file_system(0x1234).verdict, Verdict::Caution);
    }
}

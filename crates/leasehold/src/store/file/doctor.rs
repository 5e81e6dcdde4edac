//! The findings of `leasehold doctor` for `file:`: whether a directory is fit for a store.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Stat, accessat, fstat, fstatfs, fstatvfs, statfs, statvfs};

use super::directory::{DATABASE, Directory, WAL, exists, refused};
use super::liveness::Clients;
use super::{Access, File};
use crate::doctor::{Bytes, Finding, tried};
use crate::error::{Error, Result};

/// With less free space than this, writes are about to fail.
const FREE_BYTES_MIN: u64 = 1 << 20;
const FREE_BYTES_LOW: u64 = 64 << 20;

/// Each client has three files.
const FREE_FILES_LOW: u64 = 100;

/// Checkpoints keep the WAL far below this length.
const WAL_BYTES_HIGH: u64 = 64 << 20;

/// Local file systems by their numbers. Opening a store refuses network file systems.
const LOCAL_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "XFS"),
    (0x9123_683E, "Btrfs"),
    (0x2FC1_2FC1, "ZFS"),
    (0xF2F5_2010, "F2FS"),
    (0xCA45_1A4E, "bcachefs"),
    (0x0102_1994, "tmpfs, which a reboot empties; so it would end all locks"),
    (0x794C_7630, "overlayfs: if it is a container's, only processes in it meet here"),
];

/// Examines the directory, then acquires and releases a lock in its store. Does not create a store.
pub(crate) async fn examine(directory: &Path, access: Access) -> Result<Vec<Finding>> {
    let path = directory.to_owned();
    let examined = tokio::task::spawn_blocking(move || match exists(&path, access)? {
        true => examine_store(&path, access).map(|findings| (findings, true)),
        false => examine_missing(&path).map(|findings| (findings, false)),
    });
    let examined = examined
        .await
        .map_err(|error| Error::System { what: "thread to look at the store", why: error.to_string() })?;
    let (mut findings, exists) = examined?;
    if !exists {
        return Ok(findings);
    }
    let store = File::open_for(directory, access).await?;
    findings.push(tried(&store).await);
    Ok(findings)
}

fn examine_missing(path: &Path) -> Result<Vec<Finding>> {
    let path =
        std::path::absolute(path).map_err(|error| refused(format!("`{}`: {error}", path.display())))?;
    let shown = path.display();
    let Some(nearest) = path.ancestors().find(|path| path.exists()) else {
        return Err(refused(format!("`{shown}`: no directory above it can be seen")));
    };
    let find = || -> io::Result<Vec<Finding>> {
        let may_write = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        if let Err(error) = accessat(CWD, nearest, may_write, AtFlags::EACCESS) {
            let what =
                format!("{shown} does not exist yet, and cannot be made in {}: {error}", nearest.display());
            let advice =
                "name a directory that this user can make, or have it made for this user, with mode 700";
            return Ok(vec![Finding::bad("directory", what, advice)]);
        }
        let what = format!("{shown} does not exist yet; the first lock makes it");
        Ok(vec![Finding::good("directory", what), file_system(statfs(nearest)?.f_type as u32), {
            let space = statvfs(nearest)?;
            free_space(space.f_bavail.saturating_mul(space.f_frsize))
        }])
    };
    find().map_err(|error| refused(format!("`{shown}`: {error}")))
}

/// Examines a store before it is opened, because opening removes the files of dead clients.
fn examine_store(path: &Path, access: Access) -> Result<Vec<Finding>> {
    let (directory, _) = Directory::open(path, access)?;
    let shown = directory.path().display().to_string();
    let find = || -> io::Result<Vec<Finding>> {
        let stat = fstat(directory.fd())?;
        let mut findings = vec![owner(&stat, &shown, access)];
        findings.push(file_system(fstatfs(directory.fd())?.f_type as u32));
        let space = fstatvfs(directory.fd())?;
        findings.push(free_space(space.f_bavail.saturating_mul(space.f_frsize)));
        // Some file systems create inodes on demand, and report 0 of 0.
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
        findings.push(size(directory.file_bytes(DATABASE)?, directory.file_bytes(WAL)?));
        findings.push(clients(&Clients::of(&directory))?);
        Ok(findings)
    };
    find().map_err(|error| refused(format!("`{shown}`: {error}")))
}

fn owner(stat: &Stat, shown: &str, access: Access) -> Finding {
    let (owner, group, mode) = (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777);
    let what = match access {
        Access::User => format!("{shown}, of user {owner}, closed to others (mode {mode:o})"),
        Access::Group => {
            format!("{shown}, of user {owner}, shared by the members of group {group} (mode {mode:o})")
        }
        Access::All => format!("{shown}, of user {owner}, shared by all users (mode {mode:o})"),
    };
    match owner == 0 || owner == rustix::process::geteuid().as_raw() {
        true => Finding::good("directory", what),
        false => Finding::caution(
            "directory",
            what,
            "its user can put another one in its place; better that is root",
        ),
    }
}

fn file_system(kind: u32) -> Finding {
    match LOCAL_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind) {
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

fn size(database: u64, wal: u64) -> Finding {
    let what = format!("the database has {}, its log {}", Bytes(database), Bytes(wal));
    match wal {
        0..WAL_BYTES_HIGH => Finding::good("size", what),
        _ => Finding::caution(
            "size",
            what,
            "the log is not written back: see whether something else has the database open for reading",
        ),
    }
}

fn clients(clients: &Clients) -> io::Result<Finding> {
    let (dead, alive): (Vec<_>, Vec<_>) =
        clients.list()?.into_iter().partition(|client| clients.is_dead(*client));
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
    fn low_free_space_is_a_caution_and_none_is_bad() {
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
    fn a_long_wal_and_an_unknown_file_system_are_cautions() {
        assert_eq!(size(u64::MAX, WAL_BYTES_HIGH - 1).verdict, Verdict::Good);
        assert_eq!(size(0, WAL_BYTES_HIGH).verdict, Verdict::Caution);
        assert_eq!(file_system(0xEF53).verdict, Verdict::Good);
        assert_eq!(file_system(0x1234).verdict, Verdict::Caution);
    }
}

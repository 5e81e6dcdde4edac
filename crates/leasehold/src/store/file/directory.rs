//! The directory of a store: creates it, checks it and its files, and notices their replacement.
//!
//! All files are opened through a descriptor of the directory, so that the files that were checked
//! are the files that are used. No existing database file is opened here: closing any descriptor of
//! it would drop SQLite's locks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fstat, fstatfs, mkdirat, openat, renameat_with, stat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::access::{Access, Rules, wrong_file_type};
use crate::error::{Error, Result};
use crate::sync::Arc;

pub(super) const DATABASE: &str = "locks.db";
pub(super) const WAL: &str = "locks.db-wal";
const SHM: &str = "locks.db-shm";
const DATABASE_FILES: [&str; 3] = [DATABASE, WAL, SHM];
pub(super) const GATE: &str = "gate";
pub(super) const CLIENTS: &str = "clients";

/// SQLite takes 512 bytes, including the name of the database and a suffix of 8.
const PATH_BYTES_MAX: usize = 495;

/// File systems whose kernel locks or shared memory do not reach all processes.
const NETWORK_FILE_SYSTEMS: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x7375_7245, "Coda"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x0BD0_0BD0, "Lustre"),
];

pub(super) fn refused(why: impl Into<String>) -> Error {
    Error::Refused { store: "file", why: why.into() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl From<Stat> for FileId {
    fn from(stat: Stat) -> Self {
        FileId { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// The metadata that change when a file in the directory is created, renamed or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectoryStamp {
    modified: (i64, i64),
    changed: (i64, i64),
    links: u64,
}

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// `path`, absolute and without symbolic links, for SQLite.
    real: PathBuf,
    fd: OwnedFd,
    pub(super) clients: Arc<OwnedFd>,
    rules: Rules,
}

pub(super) fn default_path() -> Result<PathBuf> {
    match path_from_variable("XDG_STATE_HOME") {
        Some(state) => check_home_owner("XDG_STATE_HOME", state.join("leasehold")),
        None => match path_from_variable("HOME") {
            Some(home) => check_home_owner("HOME", home.join(".local/state/leasehold")),
            None => Err(refused(
                "neither XDG_STATE_HOME nor HOME is set to an absolute path; name a directory, as in `file:/var/lib/locks`",
            )),
        },
    }
}

/// A path below the home directory, as in `file:~/PATH`.
pub(crate) fn in_home(below: &str) -> Result<PathBuf> {
    match path_from_variable("HOME") {
        Some(home) => check_home_owner("HOME", home.join(below)),
        None => {
            Err(refused("HOME is not set to an absolute path, so `~` means nothing; write the whole path"))
        }
    }
}

fn path_from_variable(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Refuses another user's home if this process runs as root, as under `sudo` with that user's HOME:
/// the user could not use directories that root creates there.
fn check_home_owner(variable: &str, path: PathBuf) -> Result<PathBuf> {
    let owner = path.ancestors().find_map(|path| Some(std::fs::metadata(path).ok()?.uid()));
    match owner {
        Some(owner) if owner != 0 && rustix::process::geteuid().is_root() => Err(refused(format!(
            "{variable} leads to `{}`, where everything belongs to user {owner}, but this process runs as root; use root's own \
             ({variable}=/root, `sudo -H`), or name a directory, as in `file:/var/lib/locks`",
            path.display()
        ))),
        _ => Ok(path),
    }
}

/// Returns whether this directory has a store. A directory that is not fit for one is an error.
pub(crate) fn exists(path: &Path, access: Access) -> Result<bool> {
    let path =
        std::path::absolute(path).map_err(|error| refused(format!("`{}`: {error}", path.display())))?;
    let is_missing =
        std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if is_missing && !access.is_shared() {
        return Ok(false);
    }
    let (directory, _) = checked_directory(&path, access)?;
    match statat(&directory, DATABASE, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(false),
        _ => Ok(true),
    }
}

impl Directory {
    /// Opens the directory, its `clients` and its gate, and returns the gate. Creates what does not
    /// exist, except a directory that users share.
    pub(super) fn open(path: &Path, access: Access) -> Result<(Self, File)> {
        let shown = path.display();
        let path = std::path::absolute(path).map_err(|error| refused(format!("`{shown}`: {error}")))?;
        let failed = |what: &str| {
            let shown = shown.to_string();
            let what = what.to_owned();
            move |error: Errno| match error {
                Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => wrong_file_type(
                    &format!("{shown}{what}"),
                    if what == "/gate" { FileType::RegularFile } else { FileType::Directory },
                ),
                other => refused(format!("`{shown}{what}`: {other}")),
            }
        };
        if !access.is_shared() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(access.directory_mode()).create(&path);
            // A file that is not a directory gets a better error below.
            if let Err(error) = made
                && !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
            {
                return Err(refused(format!(
                    "the directory `{shown}` could not be made: {error}; name another, or make it yourself"
                )));
            }
        }
        let (directory, rules) = checked_directory(&path, access)?;
        create_clients(&directory, access).map_err(failed("/clients"))?;
        let clients = open_directory(&directory, Path::new(CLIENTS)).map_err(failed("/clients"))?;
        rules.check_open(&clients, &format!("{shown}/clients"), FileType::Directory)?;
        let gate = open_gate(&directory, access).map_err(failed("/gate"))?;
        rules.check_open(&gate, &format!("{shown}/gate"), FileType::RegularFile)?;
        // The kernel's name for the descriptor has no symbolic links.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
            .map_err(|error| refused(format!("/proc is needed, and gave no name for `{shown}`: {error}")))?;
        if real.as_os_str().len() > PATH_BYTES_MAX {
            return Err(refused(format!(
                "the path `{shown}` is too long: SQLite takes {PATH_BYTES_MAX} bytes; name a directory with a shorter one"
            )));
        }
        Ok((Directory { path, real, fd: directory, clients: Arc::new(clients), rules }, File::from(gate)))
    }

    /// Creates an empty database if there is none, and checks the database files, under the gate.
    ///
    /// Removes the rest of a store that lost some of its files, because a database and a WAL of
    /// different stores would damage each other. `previous` are the files of a store that was open
    /// here until some were replaced. An index (`-shm`) without a WAL shows that a person removed
    /// the WAL: SQLite removes the index first.
    pub(super) fn ensure_database(&self, previous: Option<&FileIds>) -> Result<()> {
        let failed = |error: Errno| refused(format!("`{}`: {error}", self.database().display()));
        let found = |file| self.identity(file).map_err(failed);
        let is_wal_missing = found(WAL)?.is_none() && found(SHM)?.is_some();
        let current = [found(DATABASE)?, found(WAL)?, found(SHM)?];
        let before = previous.map_or([None; 3], FileIds::database_files);
        // If all three are the same, another file was replaced, and no lease is lost.
        if is_wal_missing || current != before {
            for (n, file) in DATABASE_FILES.iter().enumerate() {
                if current[n].is_some() && (is_wal_missing || current[n] == before[n]) {
                    self.remove(file).map_err(failed)?;
                }
            }
        }
        if found(DATABASE)?.is_none() {
            for leftover in [WAL, SHM] {
                self.remove(leftover).map_err(failed)?;
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            // Opening the file is safe here: a file that did not exist has no locks to drop.
            let created = openat(&self.fd, DATABASE, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
            // SQLite gives the WAL and the index the mode of the database.
            self.rules.access.apply(&created, FileType::RegularFile).map_err(failed)?;
        }
        for file in DATABASE_FILES {
            match statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let shown = format!("{}/{file}", self.path.display());
                    self.rules.check(&stat, &shown, FileType::RegularFile)?;
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn identity(&self, file: &str) -> rustix::io::Result<Option<FileId>> {
        match statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, file: &str) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the kernel's reason why nothing can be written; SQLite reports only a failure.
    pub(super) fn why_not_writable(&self) -> Option<String> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let gate = openat(&self.fd, GATE, flags, Mode::empty());
        let written = gate.and_then(|gate| match self.rules.check_open(&gate, GATE, FileType::RegularFile) {
            Ok(()) => rustix::io::pwrite(&gate, &[0], 0),
            // Another file is in the gate's place, and must not be written to.
            Err(_) => Err(Errno::STALE),
        });
        written.err().map(|error| error.to_string())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn database(&self) -> PathBuf {
        self.real.join(DATABASE)
    }

    pub(super) fn access(&self) -> Access {
        self.rules.access
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns 0 if the file does not exist.
    pub(super) fn file_bytes(&self, file: &str) -> io::Result<u64> {
        match statat(&self.fd, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn stamp(&self) -> io::Result<DirectoryStamp> {
        let stat = fstat(&self.fd)?;
        Ok(DirectoryStamp {
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            links: stat.st_nlink as u64,
        })
    }

    /// Returns the files that the path leads to now.
    pub(super) fn file_ids(&self) -> io::Result<FileIds> {
        let inside = |file| self.identity(file)?.ok_or(Errno::NOENT);
        Ok(FileIds {
            directory: stat(&self.path)?.into(),
            gate: inside(GATE)?,
            clients: inside(CLIENTS)?,
            database: inside(DATABASE)?,
            wal: inside(WAL)?,
            shm: inside(SHM)?,
        })
    }
}

/// The files of one store. Other files in their place are another store, without these leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIds {
    directory: FileId,
    gate: FileId,
    clients: FileId,
    database: FileId,
    wal: FileId,
    shm: FileId,
}

impl FileIds {
    fn database_files(&self) -> [Option<FileId>; 3] {
        [Some(self.database), Some(self.wal), Some(self.shm)]
    }
}

fn open_directory(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Opens the directory of a store, and checks its access and that its file system is local.
fn checked_directory(path: &Path, access: Access) -> Result<(OwnedFd, Rules)> {
    let directory =
        open_directory(rustix::fs::CWD, path).map_err(|error| Rules::open_error(access, path, error))?;
    let rules = Rules::of(access, &directory, path)?;
    let shown = path.display();
    let kind = fstatfs(&directory).map_err(|error| refused(format!("`{shown}`: {error}")))?.f_type;
    match network_file_system(kind as u32) {
        Some(network) => Err(refused(format!(
            "`{shown}` is on {network}, where kernel locks do not reach everybody; use a local directory, or a store made for several machines"
        ))),
        None => Ok((directory, rules)),
    }
}

/// Opens or creates the gate. A shared gate gets its mode before its name, because other users may
/// open it at the same moment.
fn open_gate(directory: &OwnedFd, access: Access) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if !access.is_shared() {
        return openat(directory, GATE, flags | OFlags::CREATE, Mode::from_raw_mode(0o600));
    }
    match openat(directory, GATE, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let new = temporary_name(GATE)?;
    let made = openat(directory, &new, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600))?;
    // Renamed, not linked: another user's check refuses a file with two names.
    let renamed = access
        .apply(&made, FileType::RegularFile)
        .and_then(|()| renameat_with(directory, &new, directory, GATE, RenameFlags::NOREPLACE));
    if renamed.is_err() {
        unlinkat(directory, &new, AtFlags::empty())?;
    }
    match renamed {
        Ok(()) | Err(Errno::EXIST) => openat(directory, GATE, flags, Mode::empty()),
        Err(error) => Err(error),
    }
}

/// Creates the directory of the clients, like the gate.
fn create_clients(directory: &OwnedFd, access: Access) -> rustix::io::Result<()> {
    let made = match access.is_shared() {
        false => mkdirat(directory, CLIENTS, Mode::from_raw_mode(0o700)),
        true if statat(directory, CLIENTS, AtFlags::SYMLINK_NOFOLLOW).is_ok() => Ok(()),
        true => {
            let new = temporary_name(CLIENTS)?;
            mkdirat(directory, &new, Mode::from_raw_mode(0o700))?;
            let folder = open_directory(directory, Path::new(&new))?;
            let renamed = access
                .apply(&folder, FileType::Directory)
                .and_then(|()| renameat_with(directory, &new, directory, CLIENTS, RenameFlags::NOREPLACE));
            if renamed.is_err() {
                unlinkat(directory, &new, AtFlags::REMOVEDIR)?;
            }
            renamed
        }
    };
    match made {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn temporary_name(name: &str) -> rustix::io::Result<String> {
    let number = getrandom::u64().map_err(|_| Errno::IO)?;
    Ok(format!(".{name}-{number:016x}"))
}

fn network_file_system(kind: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

/// A path that fits into a socket address, however long the directory's own path is.
pub(super) fn short_path(directory: BorrowedFd<'_>, file: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{file}", directory.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        for (magic, name) in [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x0102_1997, "9p")] {
            assert_eq!(network_file_system(magic), Some(name));
        }
        assert_eq!(network_file_system(0x6573_5546), Some("FUSE or virtiofs"));
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630] {
            assert_eq!(network_file_system(local), None, "ext4, tmpfs, xfs, btrfs, overlayfs");
        }
    }
}

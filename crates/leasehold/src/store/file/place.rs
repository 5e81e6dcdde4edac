//! The directory of a store: made if need be, looked at with suspicion, and recognised later.
//!
//! Everything is reached through a descriptor of the directory, so that what was checked is what is used. The database
//! itself is never opened here: closing any descriptor of it would drop the locks that SQLite has on it.

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

use super::access::{Access, Rules, not_what_it_should_be};
use crate::error::{Error, Result};
use crate::sync::Arc;

pub(super) const DATABASE: &str = "locks.db";
pub(super) const WAL: &str = "locks.db-wal";
const SHM: &str = "locks.db-shm";
const DATABASE_FILES: [&str; 3] = [DATABASE, WAL, SHM];
pub(super) const GATE: &str = "gate";
pub(super) const CLIENTS: &str = "clients";

/// SQLite takes 512, with the name of the database and an ending of 8.
const PATH_BYTES_MAX: usize = 495;

/// File systems on which kernel locks or shared memory do not reach everybody who can see the file.
const FOREIGN: &[(u32, &str)] = &[
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

/// Which file it is, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl From<Stat> for Identity {
    fn from(stat: Stat) -> Self {
        Identity { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// What changes in a directory when something in it is made, renamed or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trace {
    modified: (i64, i64),
    changed: (i64, i64),
    links: u64,
}

#[derive(Debug)]
pub(super) struct Place {
    /// As it was given, made absolute.
    path: PathBuf,
    /// The same without symbolic links, for SQLite.
    real: PathBuf,
    directory: OwnedFd,
    clients: Arc<OwnedFd>,
    rules: Rules,
}

/// `$XDG_STATE_HOME/leasehold`, or else `~/.local/state/leasehold`.
pub(super) fn default_path() -> Result<PathBuf> {
    match from_variable("XDG_STATE_HOME") {
        Some(state) => of_this_user("XDG_STATE_HOME", state.join("leasehold")),
        None => match from_variable("HOME") {
            Some(home) => of_this_user("HOME", home.join(".local/state/leasehold")),
            None => Err(refused(
                "neither XDG_STATE_HOME nor HOME is set to an absolute path; name a directory, as in `file:/var/lib/locks`",
            )),
        },
    }
}

/// A path below the home directory.
pub(super) fn in_home(below: &str) -> Result<PathBuf> {
    match from_variable("HOME") {
        Some(home) => of_this_user("HOME", home.join(below)),
        None => {
            Err(refused("HOME is not set to an absolute path, so `~` means nothing; write the whole path"))
        }
    }
}

fn from_variable(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Refuses to make directories of root's in another user's home, as under `sudo` with that user's HOME: the user could
/// not use them.
fn of_this_user(variable: &str, path: PathBuf) -> Result<PathBuf> {
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

impl Place {
    /// Opens the directory with what has to be in it but for the database. One for a single user is made if it is not there.
    pub(super) fn open(path: &Path, access: Access) -> Result<(Self, File)> {
        let shown = path.display();
        let path = std::path::absolute(path).map_err(|error| refused(format!("`{shown}`: {error}")))?;
        let failed = |what: &str| {
            let shown = shown.to_string();
            let what = what.to_owned();
            move |error: Errno| match error {
                Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO => not_what_it_should_be(
                    &format!("{shown}{what}"),
                    if what == "/gate" { FileType::RegularFile } else { FileType::Directory },
                ),
                other => refused(format!("`{shown}{what}`: {}", explained(other))),
            }
        };
        if !access.is_shared() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(access.directory_mode()).create(&path);
            // What stands there instead of a directory is named below.
            if let Err(error) = made
                && !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
            {
                return Err(refused(format!(
                    "the directory `{shown}` could not be made: {error}; name another, or make it yourself"
                )));
            }
        }
        let (directory, rules) = checked_directory(&path, access)?;
        make_clients(&directory, access).map_err(failed("/clients"))?;
        let clients = open_directory(&directory, Path::new(CLIENTS)).map_err(failed("/clients"))?;
        rules.check_open(&clients, &format!("{shown}/clients"), FileType::Directory)?;
        let gate = open_gate(&directory, access).map_err(failed("/gate"))?;
        rules.check_open(&gate, &format!("{shown}/gate"), FileType::RegularFile)?;
        // The name that the kernel has for the descriptor: no symbolic links in it.
        let real = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
            .map_err(|error| refused(format!("/proc is needed, and gave no name for `{shown}`: {error}")))?;
        if real.as_os_str().len() > PATH_BYTES_MAX {
            return Err(refused(format!(
                "the path `{shown}` is too long: SQLite takes {PATH_BYTES_MAX} bytes; name a directory with a shorter one"
            )));
        }
        Ok((Place { path, real, directory, clients: Arc::new(clients), rules }, File::from(gate)))
    }

    /// Whether a store is there, found out without making one. A directory that is no place for a store is an error.
    pub(super) fn exists(path: &Path, access: Access) -> Result<bool> {
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

    /// Sees to it that there is a database file that is ours, empty at first. Called under the gate.
    ///
    /// What is left of a store that was torn apart is removed: `former` is one that was open here until some of its files
    /// were replaced, and an index without its log is what remains where the log was removed by hand (SQLite takes the
    /// index away first). A database and a log that do not belong together would damage each other.
    pub(super) fn ensure_database(&self, former: Option<&Contents>) -> Result<()> {
        let failed = |error: Errno| refused(format!("`{}`: {}", self.database().display(), explained(error)));
        let found = |file| self.identity(file).map_err(failed);
        let torn = found(WAL)?.is_none() && found(SHM)?.is_some();
        let is = [found(DATABASE)?, found(WAL)?, found(SHM)?];
        let was = former.map_or([None; 3], Contents::database_files);
        // Where they are all the same, only something beside them was replaced, and nobody has lost anything.
        if torn || is != was {
            for (n, file) in DATABASE_FILES.iter().enumerate() {
                if is[n].is_some() && (torn || is[n] == was[n]) {
                    self.remove(file).map_err(failed)?;
                }
            }
        }
        if found(DATABASE)?.is_none() {
            for leftover in [WAL, SHM] {
                self.remove(leftover).map_err(failed)?;
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            // Nobody has a lock on a file that was not there.
            let made =
                openat(&self.directory, DATABASE, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
            // SQLite gives its log and its index the mode of the database.
            self.rules.access.apply(&made, FileType::RegularFile).map_err(failed)?;
        }
        for file in DATABASE_FILES {
            match statat(&self.directory, file, AtFlags::SYMLINK_NOFOLLOW) {
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

    fn identity(&self, file: &str) -> rustix::io::Result<Option<Identity>> {
        match statat(&self.directory, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, file: &str) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(&self.directory, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What the kernel says where SQLite only knows that something failed: the reason why nothing can be written here.
    pub(super) fn why_not_written(&self) -> Option<String> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let gate = openat(&self.directory, GATE, flags, Mode::empty());
        let written = gate.and_then(|gate| match self.rules.check_open(&gate, GATE, FileType::RegularFile) {
            Ok(()) => rustix::io::pwrite(&gate, &[0], 0),
            // Nothing is written into what somebody has put in its place.
            Err(_) => Err(Errno::STALE),
        });
        written.err().map(explained)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path that SQLite opens.
    pub(super) fn database(&self) -> PathBuf {
        self.real.join(DATABASE)
    }

    pub(super) fn clients(&self) -> &Arc<OwnedFd> {
        &self.clients
    }

    pub(super) fn access(&self) -> Access {
        self.rules.access
    }

    /// The directory itself.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// How long a file in it is, if it is there.
    pub(super) fn bytes(&self, file: &str) -> io::Result<u64> {
        match statat(&self.directory, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn trace(&self) -> io::Result<Trace> {
        let stat = fstat(&self.directory)?;
        Ok(Trace {
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
            links: stat.st_nlink as u64,
        })
    }

    /// What the path leads to now.
    pub(super) fn contents(&self) -> io::Result<Contents> {
        let inside = |file| self.identity(file)?.ok_or(Errno::NOENT);
        Ok(Contents {
            directory: stat(&self.path)?.into(),
            gate: inside(GATE)?,
            clients: inside(CLIENTS)?,
            database: inside(DATABASE)?,
            log: inside(WAL)?,
            index: inside(SHM)?,
        })
    }
}

/// Which files a store is made of; others in their place are another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    directory: Identity,
    gate: Identity,
    clients: Identity,
    database: Identity,
    log: Identity,
    index: Identity,
}

impl Contents {
    fn database_files(&self) -> [Option<Identity>; 3] {
        [Some(self.database), Some(self.log), Some(self.index)]
    }
}

fn open_directory(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Opens the directory of a store, if it is fit for this access and on a local file system.
fn checked_directory(path: &Path, access: Access) -> Result<(OwnedFd, Rules)> {
    let directory =
        open_directory(rustix::fs::CWD, path).map_err(|error| Rules::unopened(access, path, error))?;
    let rules = Rules::of(access, &directory, path)?;
    let shown = path.display();
    let kind =
        fstatfs(&directory).map_err(|error| refused(format!("`{shown}`: {}", explained(error))))?.f_type;
    match foreign(kind as u32) {
        Some(network) => Err(refused(format!(
            "`{shown}` is on {network}, where kernel locks do not reach everybody; use a local directory, or a store made for several machines"
        ))),
        None => Ok((directory, rules)),
    }
}

/// Opens the gate, made if it is not there. It appears under its name with the mode that lets all in who share it: others may
/// come at the same moment.
fn open_gate(directory: &OwnedFd, access: Access) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if !access.is_shared() {
        return openat(directory, GATE, flags | OFlags::CREATE, Mode::from_raw_mode(0o600));
    }
    match openat(directory, GATE, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let new = temporary(GATE)?;
    let made = openat(directory, &new, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600))?;
    // A link would give it two names for a moment, which another user's check refuses.
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

/// Makes the folder of the clients, if it is not there, in the same way.
fn make_clients(directory: &OwnedFd, access: Access) -> rustix::io::Result<()> {
    let made = match access.is_shared() {
        false => mkdirat(directory, CLIENTS, Mode::from_raw_mode(0o700)),
        true if statat(directory, CLIENTS, AtFlags::SYMLINK_NOFOLLOW).is_ok() => Ok(()),
        true => {
            let new = temporary(CLIENTS)?;
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

/// A name that nobody else uses.
fn temporary(name: &str) -> rustix::io::Result<String> {
    let number = getrandom::u64().map_err(|_| Errno::IO)?;
    Ok(format!(".{name}-{number:016x}"))
}

fn foreign(kind: u32) -> Option<&'static str> {
    FOREIGN.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name)
}

pub(super) fn explained(error: Errno) -> String {
    io::Error::from(error).to_string()
}

/// A path below a directory that fits into the address of a socket however long the directory's own path is.
pub(super) fn short_path(directory: BorrowedFd<'_>, file: &str) -> PathBuf {
    format!("/proc/self/fd/{}/{file}", directory.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        for (magic, name) in [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x0102_1997, "9p")] {
            assert_eq!(foreign(magic), Some(name));
        }
        assert_eq!(foreign(0x6573_5546), Some("FUSE or virtiofs"));
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630] {
            assert_eq!(foreign(local), None, "ext4, tmpfs, xfs, btrfs, overlayfs");
        }
    }
}

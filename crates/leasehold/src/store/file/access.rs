//! The users of a store, and the checks of its directory and files that follow from them.
//!
//! Users who share a store can change each other's locks, because all of them can write the
//! database. The checks prevent more: no link is followed, no file outside the directory is
//! written, and no file that blocks, such as a FIFO, is opened.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, openat, statat};
use rustix::io::Errno;

use super::directory::{CLIENTS, DATABASE, GATE, refused};
use crate::error::Result;

/// The users of a `file:` store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// Only the owner of the directory (mode 0700), which is created if it does not exist.
    #[default]
    User,
    /// All members of the directory's group (mode 2770). The directory has to exist.
    Group,
    /// All users of this machine (mode 0777). The directory has to exist.
    All,
}

impl Access {
    /// Parses the value of `?shared=` in a URL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "group" => Some(Access::Group),
            "all" => Some(Access::All),
            _ => None,
        }
    }

    fn value(self) -> Option<&'static str> {
        match self {
            Access::User => None,
            Access::Group => Some("group"),
            Access::All => Some("all"),
        }
    }

    /// Returns how the store in this directory is shared, by the modes of directory and database.
    fn of_store(directory: &OwnedFd, mode: u32) -> Option<Self> {
        let database = statat(directory, DATABASE, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_mode & 0o777;
        let is_shared_as = |it: &Access| mode & 0o3777 == it.directory_mode() && database == it.file_mode();
        [Access::Group, Access::All].into_iter().find(is_shared_as)
    }

    pub(super) fn is_shared(self) -> bool {
        self != Access::User
    }

    pub(super) fn directory_mode(self) -> u32 {
        match self {
            Access::User => 0o700,
            // The setgid bit: a new file belongs to the directory's group.
            Access::Group => 0o2770,
            Access::All => 0o777,
        }
    }

    pub(super) fn file_mode(self) -> u32 {
        self.directory_mode() & 0o666
    }

    fn install_command(self, path: &Path) -> String {
        let group = if self == Access::Group { " -g GROUP" } else { "" };
        format!("install -d -m {:o}{group} {}", self.directory_mode(), path.display())
    }

    /// Sets the mode of a new file, independent of the umask.
    pub(super) fn apply(self, file: impl AsFd, kind: FileType) -> rustix::io::Result<()> {
        let mode = if kind == FileType::Directory { self.directory_mode() } else { self.file_mode() };
        match self.is_shared() {
            true => fchmod(file, Mode::from_raw_mode(mode)),
            false => Ok(()),
        }
    }
}

/// The owner, group and mode that the files in one directory must have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) access: Access,
    group: u32,
}

impl Rules {
    /// Returns the rules for this directory, or an error if it is not fit for this access.
    pub(super) fn of(access: Access, directory: &OwnedFd, path: &Path) -> Result<Self> {
        let shown = path.display();
        let stat = fstat(directory).map_err(|error| refused(format!("`{shown}`: {error}")))?;
        let rules = Rules { access, group: stat.st_gid };
        let mode = stat.st_mode & 0o7777;
        let alone = || is_for_locks_alone(directory, path);
        // For a store that is already shared, the advice must not shut its users out.
        let shared = || {
            let value = Access::of_store(directory, mode)?.value()?;
            Some(format!("this store is shared; write `file:{shown}?shared={value}`"))
        };
        if !access.is_shared() {
            rules.check_owned(&stat, &shown.to_string(), FileType::Directory, || match (shared(), alone()) {
                (Some(advice), _) => advice,
                (None, true) => format!("if that is a mistake, `chmod 700 {shown}`"),
                (None, false) => format!(
                    "it is used for other things, so leave it as it is and name a directory for the locks alone, such as `file:{}`",
                    path.join("leasehold").display()
                ),
            })?;
            return Ok(rules);
        }
        // With the sticky bit, `fs.protected_regular` keeps a user from opening another's WAL.
        let is_right = mode & 0o3777 == access.directory_mode();
        if !is_right {
            let right = access.directory_mode();
            let how = match (shared(), alone()) {
                (Some(advice), _) => advice,
                (None, true) => format!("`chmod {right:o} {shown}`"),
                (None, false) => format!(
                    "leave it as it is, and make one for the locks alone: `{}`",
                    access.install_command(&path.join("leasehold"))
                ),
            };
            return Err(refused(format!(
                "`{shown}` has mode {mode:o}, and a directory that is shared like this has {right:o}; {how}"
            )));
        }
        Ok(rules)
    }

    pub(super) fn open_error(access: Access, path: &Path, error: Errno) -> crate::Error {
        let shown = path.display();
        match error {
            Errno::LOOP | Errno::NOTDIR => refused(format!(
                "`{shown}` is not a directory (a symbolic link is not followed); name the directory itself"
            )),
            Errno::NOENT if access.is_shared() => refused(format!(
                "`{shown}` does not exist, and a directory that users share is made by hand: `{}`",
                access.install_command(path)
            )),
            Errno::ACCESS if access == Access::Group => {
                let group = rustix::fs::stat(path)
                    .map_or_else(|_| "its group".to_owned(), |it| format!("group {}", it.st_gid));
                let me = rustix::process::geteuid().as_raw();
                refused(format!(
                    "`{shown}` is shared by the members of {group}, and user {me} is none; add this user to the group (`usermod -aG`), \
                     and log in anew"
                ))
            }
            other => refused(format!("`{shown}`: {other}")),
        }
    }

    pub(super) fn check_open(self, file: impl AsFd, shown: &str, kind: FileType) -> Result<()> {
        let stat = fstat(&file).map_err(|error| refused(format!("`{shown}`: {error}")))?;
        self.check(&stat, shown, kind)
    }

    pub(super) fn check(self, stat: &Stat, shown: &str, kind: FileType) -> Result<()> {
        let is_directory = kind == FileType::Directory;
        let mode = if is_directory { self.access.directory_mode() } else { self.access.file_mode() };
        if !self.access.is_shared() {
            return self.check_owned(stat, shown, kind, || {
                format!("if that is a mistake, `chmod {mode:o} {shown}`")
            });
        }
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return Err(wrong_file_type(shown, kind));
        }
        // Through a hard link a hostile user could have a file outside the store changed.
        if !is_directory && stat.st_nlink > 1 {
            return Err(refused(format!("`{shown}` has another name somewhere (a hard link); move it away")));
        }
        let is = stat.st_mode & 0o7777;
        let has_group = self.access != Access::Group || stat.st_gid == self.group;
        if is & 0o2777 != mode && is & 0o777 != mode || !has_group {
            let group = if self.access == Access::Group {
                format!("chgrp {} {shown}; ", self.group)
            } else {
                String::new()
            };
            return Err(refused(format!(
                "`{shown}` (user {}, group {}, mode {is:o}) cannot be used by all who share it; have its user or root do `{group}chmod {mode:o} {shown}`",
                stat.st_uid, stat.st_gid
            )));
        }
        Ok(())
    }

    fn check_owned(
        self,
        stat: &Stat,
        shown: &str,
        kind: FileType,
        advice: impl FnOnce() -> String,
    ) -> Result<()> {
        if FileType::from_raw_mode(stat.st_mode) != kind {
            return Err(wrong_file_type(shown, kind));
        }
        let me = rustix::process::geteuid().as_raw();
        if stat.st_uid != me {
            return Err(refused(format!(
                "`{shown}` belongs to user {}, and this process runs as user {me}; name another directory, or share one \
                 between users with `?shared=group` or `?shared=all`",
                stat.st_uid
            )));
        }
        let mode = stat.st_mode & 0o7777;
        if mode & 0o077 != 0 {
            return Err(refused(format!("`{shown}` is open to other users (mode {mode:o}); {}", advice())));
        }
        Ok(())
    }
}

pub(super) fn wrong_file_type(shown: &str, kind: FileType) -> crate::Error {
    let wanted = if kind == FileType::Directory { "a directory" } else { "a plain file" };
    refused(format!("`{shown}` is not {wanted} (a symbolic link is not followed); move it away"))
}

/// Returns whether the mode of a directory may be changed without harm: it has a store, or is empty
/// and not one of the system's top directories, such as `/srv` or `/var/tmp`.
fn is_for_locks_alone(directory: &OwnedFd, path: &Path) -> bool {
    if statat(directory, DATABASE, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return true;
    }
    let is_deep = path.components().count() > 3;
    let is_own = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            [".", "..", GATE, CLIENTS].map(str::as_bytes).contains(&entry.file_name().to_bytes())
        })
    };
    is_deep && rustix::fs::Dir::read_from(directory).is_ok_and(|mut entries| entries.all(is_own))
}

/// Opens a socket. The path leads to it even if another user has replaced the file since.
pub(super) fn socket(directory: impl AsFd, name: &str) -> rustix::io::Result<(OwnedFd, std::path::PathBuf)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = openat(directory, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(Errno::CONNREFUSED);
    }
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd()).into();
    Ok((socket, path))
}

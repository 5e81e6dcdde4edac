//! Proof of which clients are alive.
//!
//! Each client has a file that it keeps locked. The kernel unlocks it when the process dies, for
//! any reason and in any PID namespace. Beside the file are two sockets: one receives pokes, and
//! other clients stay connected to the other one to learn of the death.

use std::fmt;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, unlinkat};

use super::access::{self, Access};
use super::directory::{Directory, short_path};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// The id of one opened store: a random number that is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(u64);

impl ClientId {
    /// No client: for transactions that run before this client is registered.
    pub(super) const NONE: ClientId = ClientId(0);

    fn random() -> Result<Self> {
        let number = getrandom::u64()
            .map_err(|error| Error::System { what: "random numbers", why: error.to_string() })?;
        Ok(ClientId(number.max(1)))
    }

    pub(super) fn from_sql(number: i64) -> Self {
        ClientId(number as u64)
    }

    pub(super) fn as_sql(self) -> i64 {
        self.0 as i64
    }

    fn file_name(self, extension: &str) -> String {
        format!("{:016x}.{extension}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const LOCK: &str = "lock";
/// The socket to connect to. The connection ends when the client dies.
pub(super) const SOCK: &str = "sock";
/// The socket that receives pokes.
pub(super) const POKE: &str = "poke";

#[derive(Debug, Clone)]
pub(super) struct Clients {
    directory: Arc<OwnedFd>,
    access: Access,
}

/// The files of this client. Dropping it unlocks the lock file, which means a death. The client
/// that removes the dead client's rows also removes the file: a missing file never means a death.
#[derive(Debug)]
pub(super) struct LivenessLock {
    clients: Clients,
    pub(super) id: ClientId,
    /// Locked as long as this client, or a process with its lifeline, is alive.
    lock: File,
}

#[derive(Debug)]
pub(super) struct ClientSockets {
    pub(super) deaths: UnixListener,
    pub(super) pokes: UnixDatagram,
}

/// The path of a client's socket, valid until this is dropped.
#[derive(Debug)]
pub(super) struct SocketPath {
    pub(super) path: std::path::PathBuf,
    _socket: Option<OwnedFd>,
}

impl Clients {
    pub(super) fn of(directory: &Directory) -> Self {
        Clients { directory: directory.clients.clone(), access: directory.access() }
    }

    /// Creates a client's files, under the gate: an unlocked file looks like a dead client's.
    pub(super) fn register(&self) -> Result<(LivenessLock, ClientSockets)> {
        let id = ClientId::random()?;
        let register = || -> io::Result<(LivenessLock, ClientSockets)> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock =
                File::from(openat(&*self.directory, id.file_name(LOCK), flags, Mode::from_raw_mode(0o600))?);
            self.access.apply(&lock, FileType::RegularFile)?;
            let liveness = LivenessLock { clients: self.clone(), id, lock };
            liveness.lock.try_lock().map_err(io::Error::from)?;
            let deaths = UnixListener::bind(self.path(id, SOCK))?;
            let pokes = UnixDatagram::bind(self.path(id, POKE))?;
            for extension in [SOCK, POKE] {
                // By its descriptor, so that the mode of no other file is changed.
                let (_socket, path) = access::socket(&*self.directory, &id.file_name(extension))?;
                std::fs::set_permissions(path, Permissions::from_mode(self.access.file_mode()))?;
            }
            deaths.set_nonblocking(true)?;
            pokes.set_nonblocking(true)?;
            Ok((liveness, ClientSockets { deaths, pokes }))
        };
        register().map_err(|error| Error::Refused {
            store: "file",
            why: format!("this process could not show itself in `clients`: {error}"),
        })
    }

    fn path(&self, id: ClientId, extension: &str) -> std::path::PathBuf {
        short_path(self.directory.as_fd(), &id.file_name(extension))
    }

    /// In a shared directory a link could lead to another program's socket. A descriptor cannot.
    pub(super) fn socket(&self, id: ClientId, extension: &str) -> io::Result<SocketPath> {
        match self.access.is_shared() {
            false => Ok(SocketPath { path: self.path(id, extension), _socket: None }),
            true => {
                let (socket, path) = access::socket(&*self.directory, &id.file_name(extension))?;
                Ok(SocketPath { path, _socket: Some(socket) })
            }
        }
    }

    /// Returns whether the client is dead. In doubt it is not, and its leases end with their TTLs.
    pub(super) fn is_dead(&self, id: ClientId) -> bool {
        // Non-blocking: opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(&*self.directory, id.file_name(LOCK), flags, Mode::empty()) {
            // Shared, so that two clients that check at once do not take each other for the owner.
            Ok(file) => match File::from(file).try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
            },
            // The file was removed, which proves no death: a program may remove old files.
            Err(_) => false,
        }
    }

    /// Returns whether the client has no lock file: it was closed, or its file was removed.
    pub(super) fn has_no_lock_file(&self, id: ClientId) -> bool {
        let found = rustix::fs::statat(&*self.directory, id.file_name(LOCK), AtFlags::SYMLINK_NOFOLLOW);
        found.is_err_and(|error| error == rustix::io::Errno::NOENT)
    }

    /// Lists all clients that have a file, alive or dead.
    pub(super) fn list(&self) -> io::Result<Vec<ClientId>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&*self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if let Some((number, _)) = name.split_once('.')
                && let Ok(number) = u64::from_str_radix(number, 16)
            {
                found.push(ClientId(number));
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Removes the files of a client without rows. Without its lock file no death can be proven.
    pub(super) fn remove_files(&self, id: ClientId) {
        // The lock file last: as long as it exists, another client may still remove the rest.
        self.remove_sockets(id);
        let _ = unlinkat(&*self.directory, id.file_name(LOCK), AtFlags::empty());
    }

    fn remove_sockets(&self, id: ClientId) {
        for extension in [SOCK, POKE] {
            let _ = unlinkat(&*self.directory, id.file_name(extension), AtFlags::empty());
        }
    }
}

impl LivenessLock {
    /// Another descriptor of the lock, which ends when all of them are closed, in all processes.
    pub(super) fn lifeline(&self) -> io::Result<OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Removes the lock file too, for a client that has no rows.
    pub(super) fn remove_files(&self) {
        self.clients.remove_files(self.id);
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        self.clients.remove_sockets(self.id);
    }
}

//! Who is alive. Each client has a file that it keeps locked, and the kernel lets go of the lock when the process dies,
//! whatever it died of and in whichever PID namespace. Beside it stand two sockets: one to listen for pokes, one for
//! others to hear of its death.

use std::fmt;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, unlinkat};

use super::access::{self, Access};
use super::place::{Place, short_path};
use crate::error::{Error, Result};
use crate::sync::Arc;

/// One opened store; a random number, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClientId(u64);

impl ClientId {
    /// Who acts when nobody does: at the opening of a store.
    pub(super) const NOBODY: ClientId = ClientId(0);

    pub(super) fn fresh() -> Result<Self> {
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

    fn file(self, ending: &str) -> String {
        format!("{:016x}.{ending}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const LOCK: &str = "lock";
const SOCK: &str = "sock";
const POKE: &str = "poke";

/// The folder in which clients show themselves.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    folder: Arc<OwnedFd>,
    access: Access,
}

/// One's own files. When this is dropped the lock is open, which is what others take for a death; the file itself is
/// removed by whoever buries, so that a file that is missing never looks like one.
#[derive(Debug)]
pub(super) struct Presence {
    clients: Clients,
    id: ClientId,
    /// Locked as long as this client lives, or whoever it gave a lifeline.
    lock: File,
}

/// Where others reach a client.
#[derive(Debug)]
pub(super) struct Ears {
    pub(super) deaths: UnixListener,
    pub(super) pokes: UnixDatagram,
}

/// The path of a client's socket. It is good for as long as this is kept.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) path: std::path::PathBuf,
    _socket: Option<OwnedFd>,
}

impl Clients {
    pub(super) fn of(place: &Place) -> Self {
        Clients { folder: place.clients().clone(), access: place.access() }
    }

    /// Called under the gate, so that nobody takes the file for a dead client's before it is locked.
    pub(super) fn enter(&self) -> Result<(Presence, Ears)> {
        let id = ClientId::fresh()?;
        let entered = || -> io::Result<(Presence, Ears)> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = File::from(openat(&*self.folder, id.file(LOCK), flags, Mode::from_raw_mode(0o600))?);
            self.access.apply(&lock, FileType::RegularFile)?;
            let presence = Presence { clients: self.clone(), id, lock };
            presence.lock.try_lock().map_err(io::Error::from)?;
            let deaths = UnixListener::bind(self.path(id, SOCK))?;
            let pokes = UnixDatagram::bind(self.path(id, POKE))?;
            for ending in [SOCK, POKE] {
                // By its descriptor: nothing else can be in its place.
                let (_socket, path) = access::socket(&*self.folder, &id.file(ending))?;
                std::fs::set_permissions(path, Permissions::from_mode(self.access.file_mode()))?;
            }
            deaths.set_nonblocking(true)?;
            pokes.set_nonblocking(true)?;
            Ok((presence, Ears { deaths, pokes }))
        };
        entered().map_err(|error| Error::Refused {
            store: "file",
            why: format!("this process could not show itself in `clients`: {error}"),
        })
    }

    fn path(&self, id: ClientId, ending: &str) -> std::path::PathBuf {
        short_path(self.folder.as_fd(), &id.file(ending))
    }

    /// Where a connection to this client ends with its life.
    pub(super) fn death_socket(&self, id: ClientId) -> io::Result<Reached> {
        self.reach(id, SOCK)
    }

    /// Where this client is told to read what concerns it.
    pub(super) fn poke_socket(&self, id: ClientId) -> io::Result<Reached> {
        self.reach(id, POKE)
    }

    /// Where others can write into the folder, a link in a socket's place would lead to a socket of another program.
    fn reach(&self, id: ClientId, ending: &str) -> io::Result<Reached> {
        match self.access.is_shared() {
            false => Ok(Reached { path: self.path(id, ending), _socket: None }),
            true => {
                let (socket, path) = access::socket(&*self.folder, &id.file(ending))?;
                Ok(Reached { path, _socket: Some(socket) })
            }
        }
    }

    /// Whether it has died. In doubt it lives: then its TTL ends what it holds.
    pub(super) fn is_dead(&self, id: ClientId) -> bool {
        // Not for long: a FIFO in its place would have us wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match openat(&*self.folder, id.file(LOCK), flags, Mode::empty()) {
            // Shared, so that two who ask at the same time do not take each other for the owner.
            Ok(file) => match File::from(file).try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
            },
            // Removed, by us or by some sweeper of old files: that proves nothing.
            Err(_) => false,
        }
    }

    /// Whether it has no file here: closed, or its file was removed.
    pub(super) fn is_gone(&self, id: ClientId) -> bool {
        let found = rustix::fs::statat(&*self.folder, id.file(LOCK), AtFlags::SYMLINK_NOFOLLOW);
        found.is_err_and(|error| error == rustix::io::Errno::NOENT)
    }

    /// Everybody who has a file here, alive or not.
    pub(super) fn all(&self) -> io::Result<Vec<ClientId>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&*self.folder)? {
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

    /// Takes a dead client's files away. It must have left nothing: without its lock nobody can tell that it is dead.
    pub(super) fn clear(&self, id: ClientId) {
        // The lock last: where it is, somebody may still clear the rest.
        self.hush(id);
        let _ = unlinkat(&*self.folder, id.file(LOCK), AtFlags::empty());
    }

    fn hush(&self, id: ClientId) {
        for ending in [SOCK, POKE] {
            let _ = unlinkat(&*self.folder, id.file(ending), AtFlags::empty());
        }
    }
}

impl Presence {
    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    /// Another handle of the lock: it is open only once every copy of it is closed, in whatever process.
    pub(super) fn lifeline(&self) -> io::Result<OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Removes its lock too: it has left nothing, so nobody has to see that it is dead.
    pub(super) fn clear(&self) {
        self.clients.clear(self.id);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.clients.hush(self.id);
    }
}

//! One opened store: its writer, this client's sockets, and its background tasks.
//!
//! Three tasks live as long as the store. One receives pokes. One keeps the connections of other
//! clients open, which end when this process dies. One does the follow-up work of transactions. In
//! addition, one task watches each process that a waiter of this client is behind.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rusqlite::Connection;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixDatagram, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};

use super::access::Access;
use super::db::{Db, TxnError, has_rows_of};
use super::directory::{Directory, FileIds, refused};
use super::gate::{Gate, gate_timeout_error};
use super::liveness::{ClientId, ClientSockets, Clients, SOCK};
use super::notify::{FollowUp, LocalWaiters, Notifier};
use super::rows::WaiterUpdate;
use super::writer::Writer;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::Notice;
use crate::sync::{Arc, Mutex, lock};

/// The longest time from the end of a dead process's sockets until the kernel unlocks its file.
const UNLOCK_DELAY: Duration = Duration::from_millis(50);

/// The interval for checking a client that is not watched by a connection.
const RECHECK_EVERY: Duration = Duration::from_secs(1);

/// The most clients that are watched by a connection.
const CONNECTIONS_MAX: usize = 256;

/// Longer than the text of any notice.
const NOTICE_BYTES_MAX: usize = Name::BYTES_MAX + 64;

#[derive(Debug)]
pub(super) struct OpenedStore {
    pub(super) directory: Arc<Directory>,
    files: FileIds,
    pub(super) writer: Arc<Writer>,
    clock: Clock,
    clients: Clients,
    me: ClientId,
    waiters: Arc<LocalWaiters>,
    /// Reads the rows of this client after a poke, also while another connection writes.
    reader: Mutex<Connection>,
    watched: Mutex<HashMap<ClientId, AbortHandle>>,
    /// Aborted when this is dropped.
    tasks: Mutex<JoinSet<()>>,
    pub(super) runtime: Handle,
}

/// A store that this process had open at the same path before its files were replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreviousStore {
    files: FileIds,
    client: ClientId,
}

/// Opens a store without its tasks, on a blocking thread. Also returns what the tasks receive.
fn open_blocking(
    path: &Path,
    access: Access,
    previous: Option<&PreviousStore>,
    clock: Clock,
    waiters: Arc<LocalWaiters>,
) -> Result<(OpenedStore, ClientSockets, UnboundedReceiver<FollowUp>)> {
    let (directory, gate) = Directory::open(path, access)?;
    let (directory, gate) = (Arc::new(directory), Gate::new(gate));
    let guard = gate.enter(&clock).ok_or_else(|| gate_timeout_error(gate.inode))?;
    let into_error = |error: TxnError| error.into_error(&directory);
    let mut db =
        Db::open(directory.clone(), previous.map(|previous| &previous.files), &clock).map_err(into_error)?;
    let reader = db.reader().map_err(into_error)?;
    let clients = Clients::of(&directory);
    let (liveness, sockets) = clients.register()?;
    let (sender, follow_ups) = unbounded_channel();
    let notifier = Notifier::new(clients.clone(), waiters.clone(), sender).map_err(no_socket)?;
    // Removes the clients that have died since another client checked last.
    let unreadable = |error: std::io::Error| refused(format!("`{}`: {error}", directory.path().display()));
    let mut known: BTreeSet<ClientId> = clients.list().map_err(unreadable)?.into_iter().collect();
    let me = liveness.id;
    let (with_rows, _) = db.transact(&clock, me, |txn| txn.clients()).map_err(into_error)?;
    known.extend(with_rows);
    known.remove(&me);
    known.retain(|client| previous.is_none_or(|previous| previous.client != *client));
    let others = known.len();
    let mut dead = known;
    dead.retain(|client| clients.is_dead(*client));
    let is_alone = dead.len() == others;
    let cleaned = db.transact(&clock, me, |txn| {
        if let Some(previous) = previous {
            txn.take_over(previous.client)?;
        }
        if !dead.is_empty() {
            txn.remove_dead(&dead)?;
        }
        txn.remove_expired_values(is_alone)?;
        txn.remove_expired()
    });
    let ((), notifications) = cleaned.map_err(into_error)?;
    dead.iter().for_each(|client| clients.remove_files(*client));
    drop(guard);
    // Sent here, because the future that opens the store may have been dropped meanwhile.
    notifier.send(notifications);
    let files = db.files;
    let writer = Arc::new(Writer::new(db, gate, clock.clone(), liveness, Arc::new(notifier), is_alone));
    let opened = OpenedStore {
        directory,
        files,
        writer,
        clock,
        clients,
        me,
        waiters,
        reader: Mutex::new(reader),
        watched: Mutex::default(),
        tasks: Mutex::default(),
        runtime: Handle::current(),
    };
    Ok((opened, sockets, follow_ups))
}

fn no_socket(error: std::io::Error) -> Error {
    Error::System { what: "socket of the file store", why: error.to_string() }
}

impl OpenedStore {
    /// Opens the store at this path. If the future is dropped, nothing stays open.
    pub(super) async fn open(
        path: &Path,
        access: Access,
        previous: Option<PreviousStore>,
        clock: &Clock,
        waiters: Arc<LocalWaiters>,
    ) -> Result<Arc<Self>> {
        let (path, its_clock) = (path.to_owned(), clock.clone());
        let opened = tokio::task::spawn_blocking(move || {
            open_blocking(&path, access, previous.as_ref(), its_clock, waiters)
        })
        .await;
        let (opened, sockets, follow_ups) = opened
            .map_err(|error| Error::System { what: "thread to open the store", why: error.to_string() })??;
        let deaths = UnixListener::from_std(sockets.deaths).map_err(no_socket)?;
        let pokes = UnixDatagram::from_std(sockets.pokes).map_err(no_socket)?;
        // Other users must not use up the file descriptors of this process.
        let connections_max = if access.is_shared() { CONNECTIONS_MAX } else { usize::MAX };
        let opened = Arc::new(opened);
        let weak = Arc::downgrade(&opened);
        let mut tasks = lock(&opened.tasks);
        tasks.spawn(receive_pokes(pokes, weak.clone()));
        tasks.spawn(keep_connections(deaths, connections_max, clock.clone()));
        tasks.spawn(do_follow_ups(follow_ups, weak));
        drop(tasks);
        Ok(opened)
    }

    pub(super) fn as_previous(&self) -> PreviousStore {
        PreviousStore { files: self.files, client: self.me }
    }

    /// Watches for the death of these clients.
    pub(super) fn watch(self: &Arc<Self>, clients: BTreeSet<ClientId>) {
        let mut watched = lock(&self.watched);
        for client in clients {
            if watched.contains_key(&client) {
                continue;
            }
            let connects = watched.len() < CONNECTIONS_MAX;
            let task =
                watch(client, connects, self.clients.clone(), self.clock.clone(), Arc::downgrade(self));
            watched.insert(client, self.runtime.spawn(task).abort_handle());
        }
    }

    /// Removes the rows and files of the dead clients among these. Returns whether there were any.
    pub(super) async fn remove_dead_among(&self, mut clients: BTreeSet<ClientId>) -> Result<bool> {
        clients.remove(&self.me);
        clients.retain(|client| self.clients.is_dead(*client));
        if clients.is_empty() {
            return Ok(false);
        }
        self.remove_dead(clients).await.map_err(|error| error.into_error(&self.directory))?;
        Ok(true)
    }

    /// Removes the rows and files of dead clients, and grants the waiters that are next.
    async fn remove_dead(&self, dead: BTreeSet<ClientId>) -> Result<(), TxnError> {
        // The first client that learns of a death removes the rows. The others need no transaction.
        if self.have_rows(&dead) {
            let dead = dead.clone();
            self.writer.write(move |txn| txn.remove_dead(&dead), false).await?;
        }
        dead.iter().for_each(|client| self.clients.remove_files(*client));
        Ok(())
    }

    /// Returns whether a client has rows that its death ends, or the database cannot be read.
    fn have_rows(&self, clients: &BTreeSet<ClientId>) -> bool {
        let reader = lock(&self.reader);
        clients.iter().any(|client| has_rows_of(&reader, *client).unwrap_or(true))
    }

    /// Waits up to [`UNLOCK_DELAY`] for the kernel to unlock the client's file.
    async fn is_dead_soon(&self, client: ClientId) -> bool {
        let until = self.clock.now().plus(UNLOCK_DELAY);
        loop {
            if self.clients.is_dead(client) {
                return true;
            }
            if self.clock.now() >= until || self.clients.has_no_lock_file(client) {
                return false;
            }
            self.clock.sleep_until(self.clock.now().plus(UNLOCK_DELAY / 100)).await;
        }
    }

    /// Reads the notifications for this client from the database, and wakes their waiters.
    fn read_notifications(&self) {
        let read = || -> rusqlite::Result<(Vec<WaiterUpdate>, Vec<String>)> {
            let (reader, me) = (lock(&self.reader), [self.me.as_sql()]);
            let mut updates = reader.prepare_cached(
                "SELECT token, fence, fences, expires, ttl_ms FROM holding WHERE client = ?1 AND handed
                 UNION ALL SELECT token, 0, 0, 0, 0 FROM waiting WHERE client = ?1 AND told",
            )?;
            let mut changed = reader.prepare_cached("SELECT key FROM watching WHERE client = ?1 AND told")?;
            let updates = updates.query_map(me, WaiterUpdate::read)?.collect::<rusqlite::Result<_>>()?;
            Ok((updates, changed.query_map(me, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?))
        };
        match read() {
            Ok((updates, changed)) => self.waiters.wake(updates, &changed),
            Err(_) => self.waiters.wake_all(),
        }
    }
}

impl Drop for OpenedStore {
    fn drop(&mut self) {
        lock(&self.watched).values().for_each(AbortHandle::abort);
    }
}

async fn receive_pokes(pokes: UnixDatagram, opened: Weak<OpenedStore>) {
    while pokes.readable().await.is_ok() {
        let mut notices = Vec::new();
        let mut text = [0; NOTICE_BYTES_MAX];
        while let Ok(length) = pokes.try_recv(&mut text) {
            let text = str::from_utf8(&text[..length]).unwrap_or_default();
            notices.extend(Notice::parse(text, ""));
        }
        let Some(opened) = opened.upgrade() else { return };
        notices.into_iter().for_each(|notice| opened.waiters.notices.send(notice));
        opened.read_notifications();
    }
}

/// Keeps up to `most` connections of other clients open. Their end shows the clients that this
/// process died. A client without one checks this process every [`RECHECK_EVERY`].
async fn keep_connections(deaths: UnixListener, most: usize, clock: Clock) {
    let mut kept = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = deaths.accept() => match accepted {
                Ok((stream, _)) if kept.len() < most => kept.push(until_closed(stream)),
                Ok(_) => {}
                // No file descriptor is left. Clients wait for a connection, or check later.
                Err(_) => clock.sleep_until(clock.now().plus(RECHECK_EVERY)).await,
            },
            Some(()) = kept.next() => {}
        }
    }
}

async fn until_closed(mut stream: UnixStream) {
    while matches!(stream.read(&mut [0; 16]).await, Ok(1..)) {}
}

async fn do_follow_ups(mut follow_ups: UnboundedReceiver<FollowUp>, opened: Weak<OpenedStore>) {
    while let Some(follow_up) = follow_ups.recv().await {
        let Some(opened) = opened.upgrade() else { return };
        let done = match follow_up {
            FollowUp::CheckLiveness(client) if opened.is_dead_soon(client).await => {
                opened.remove_dead([client].into()).await
            }
            FollowUp::CheckLiveness(_) => Ok(()),
            FollowUp::GrantWaiters(name) => {
                opened.writer.write(move |txn| txn.grant_waiters(vec![name.clone()]), true).await
            }
        };
        if let Err(error) = done {
            // Waiters check again by themselves within a third of their TTL.
            let error = error.into_error(&opened.directory);
            tracing::debug!(%error, "follow-up work of the file store failed");
        }
    }
}

/// Waits for a client's death, and removes its rows. Only its lock file proves the death.
async fn watch(client: ClientId, connects: bool, clients: Clients, clock: Clock, opened: Weak<OpenedStore>) {
    loop {
        if connects
            && let Ok(socket) = clients.socket(client, SOCK)
            && let Ok(stream) = UnixStream::connect(&socket.path).await
        {
            drop(socket);
            until_closed(stream).await;
        }
        let Some(opened) = opened.upgrade() else { return };
        let dead: BTreeSet<ClientId> = [client].into();
        let died = if connects { opened.is_dead_soon(client).await } else { clients.is_dead(client) };
        let is_over = match died {
            true => opened.remove_dead(dead).await.is_ok(),
            // A client with neither a lock file nor rows was closed.
            false => clients.has_no_lock_file(client) && !opened.have_rows(&dead),
        };
        if is_over {
            // A client that granted a claim to a waiter here may have died before it sent the poke.
            opened.read_notifications();
            lock(&opened.watched).remove(&client);
            return;
        }
        drop(opened);
        clock.sleep_until(clock.now().plus(RECHECK_EVERY)).await;
    }
}

//! One opened directory: its desk, this client's presence in it, and the tasks that listen.
//!
//! Three tasks live as long as a site: one hears pokes, one lets others hear of our death (by keeping their connections
//! open until it comes), one does chores. One more for each process that a waiter of ours stands behind watches for
//! its death.

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
use tokio::task::AbortHandle;

use super::access::Access;
use super::db::{Db, Fault, left_something};
use super::desk::{Desk, Gate, out_of_time};
use super::messenger::{Chore, Ears as Listeners, Messenger};
use super::place::{Contents, Place, refused};
use super::presence::{ClientId, Clients, Ears, Presence};
use super::rows;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::Notice;
use crate::sync::{Arc, Mutex, lock};

/// How long a kernel may take to let go of a dead process's lock after it closed its sockets.
const DYING: Duration = Duration::from_millis(50);

/// How often a process is looked at that cannot be watched.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most processes that a connection is kept to; the others are looked at every so often.
const WATCHED_MAX: usize = 256;

/// Longer than the text of any notice.
const NOTICE_MAX: usize = Name::BYTES_MAX + 64;

#[derive(Debug)]
pub(super) struct Site {
    pub(super) place: Arc<Place>,
    /// Which files it was opened on.
    contents: Contents,
    pub(super) desk: Arc<Desk>,
    clock: Clock,
    clients: Clients,
    me: ClientId,
    listeners: Arc<Listeners>,
    /// For what concerns us after a poke: it reads while others write.
    reader: Mutex<Connection>,
    watched: Mutex<HashMap<ClientId, AbortHandle>>,
    tasks: Mutex<Vec<AbortHandle>>,
    pub(super) runtime: Handle,
}

/// What was open at the same path before some of its files were replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Former {
    contents: Contents,
    client: ClientId,
}

/// What is opened on a thread that may block.
struct Opened {
    place: Arc<Place>,
    db: Db,
    gate: Gate,
    reader: Connection,
    clients: Clients,
    presence: Presence,
    ears: Ears,
    messenger: Messenger,
    to_do: UnboundedReceiver<Chore>,
    /// Nobody else has it open.
    is_alone: bool,
}

fn open(
    path: &Path,
    access: Access,
    former: Option<&Former>,
    clock: &Clock,
    listeners: Arc<Listeners>,
) -> Result<Opened> {
    let (place, gate) = Place::open(path, access)?;
    let (place, gate) = (Arc::new(place), Gate::new(gate));
    let inside = gate.enter(clock).ok_or_else(|| out_of_time(gate.inode()))?;
    let explained = |fault: Fault| fault.explained(&place);
    let mut db = Db::open(place.clone(), former.map(|former| &former.contents), clock).map_err(explained)?;
    let reader = db.reader().map_err(explained)?;
    let clients = Clients::of(&place);
    let (presence, ears) = clients.enter()?;
    let (chores, to_do) = unbounded_channel();
    let messenger = Messenger::new(clients.clone(), listeners, chores).map_err(no_socket)?;
    // Whoever died since somebody looked last.
    let unreadable = |error: std::io::Error| refused(format!("`{}`: {error}", place.path().display()));
    let mut known: BTreeSet<ClientId> = clients.all().map_err(unreadable)?.into_iter().collect();
    let (in_book, _) = db.transact(clock, presence.id(), |book| book.clients()).map_err(explained)?;
    known.extend(in_book);
    known.remove(&presence.id());
    known.retain(|client| former.is_none_or(|former| former.client != *client));
    let others = known.len();
    known.retain(|client| clients.is_dead(*client));
    let is_alone = known.len() == others;
    let cleaned = db.transact(clock, presence.id(), |book| {
        if let Some(former) = former {
            book.take_over(former.client)?;
        }
        if !known.is_empty() {
            book.bury(&known)?;
        }
        book.sweep_cells(is_alone)?;
        book.sweep()
    });
    let ((), news) = cleaned.map_err(explained)?;
    known.iter().for_each(|dead| clients.clear(*dead));
    drop(inside);
    // Here, since whoever opens it may have given up meanwhile.
    messenger.tell(news);
    Ok(Opened { place, db, gate, reader, clients, presence, ears, messenger, to_do, is_alone })
}

fn no_socket(error: std::io::Error) -> Error {
    Error::System { what: "socket of the file store", why: error.to_string() }
}

impl Site {
    /// In the place of a `former` one whose files were replaced, if there was one. Dropped before its end, it leaves nothing
    /// behind.
    pub(super) async fn open(
        path: &Path,
        access: Access,
        former: Option<Former>,
        clock: &Clock,
        listeners: Arc<Listeners>,
    ) -> Result<Arc<Self>> {
        let (path, its_clock, its_listeners) = (path.to_owned(), clock.clone(), listeners.clone());
        let opened = tokio::task::spawn_blocking(move || {
            open(&path, access, former.as_ref(), &its_clock, its_listeners)
        })
        .await;
        let opened = opened
            .map_err(|error| Error::System { what: "thread to open the store", why: error.to_string() })??;
        let Opened { place, db, gate, reader, clients, presence, ears, messenger, to_do, is_alone } = opened;
        let deaths = UnixListener::from_std(ears.deaths).map_err(no_socket)?;
        let pokes = UnixDatagram::from_std(ears.pokes).map_err(no_socket)?;
        // Other users are not to take all descriptors of this process.
        let connections_max = if access.is_shared() { WATCHED_MAX } else { usize::MAX };
        let contents = db.contents();
        let me = presence.id();
        let desk = Arc::new(Desk::new(db, gate, clock.clone(), presence, Arc::new(messenger), is_alone));
        let site = Arc::new(Site {
            place,
            contents,
            desk,
            clock: clock.clone(),
            clients,
            me,
            listeners,
            reader: Mutex::new(reader),
            watched: Mutex::default(),
            tasks: Mutex::default(),
            runtime: Handle::current(),
        });
        let weak = Arc::downgrade(&site);
        let tasks = [
            tokio::spawn(hear_pokes(pokes, weak.clone())).abort_handle(),
            tokio::spawn(keep_connections(deaths, connections_max, clock.clone())).abort_handle(),
            tokio::spawn(do_chores(to_do, weak)).abort_handle(),
        ];
        lock(&site.tasks).extend(tasks);
        Ok(site)
    }

    pub(super) fn former(&self) -> Former {
        Former { contents: self.contents, client: self.me }
    }

    /// Hears of the death of these clients from now on.
    pub(super) fn watch(self: &Arc<Self>, clients: BTreeSet<ClientId>) {
        let mut watched = lock(&self.watched);
        for client in clients {
            if watched.contains_key(&client) {
                continue;
            }
            let connects = watched.len() < WATCHED_MAX;
            let task =
                watch(client, connects, self.clients.clone(), self.clock.clone(), Arc::downgrade(self));
            watched.insert(client, self.runtime.spawn(task).abort_handle());
        }
    }

    /// Those of them who are dead.
    pub(super) fn dead(&self, mut clients: BTreeSet<ClientId>) -> BTreeSet<ClientId> {
        clients.remove(&self.me);
        clients.retain(|client| self.clients.is_dead(*client));
        clients
    }

    /// Whether it has died, or does so within a moment.
    async fn dies(&self, client: ClientId) -> bool {
        let until = self.clock.now().plus(DYING);
        loop {
            if self.clients.is_dead(client) {
                return true;
            }
            if self.clock.now() >= until || self.clients.is_gone(client) {
                return false;
            }
            self.clock.sleep_until(self.clock.now().plus(DYING / 100)).await;
        }
    }

    /// Takes out what dead clients held, and admits the next.
    pub(super) async fn bury(&self, dead: BTreeSet<ClientId>) -> Result<(), Fault> {
        if dead.is_empty() || !self.left_something(&dead) {
            dead.iter().for_each(|client| self.clients.clear(*client));
            return Ok(());
        }
        let buried = dead.clone();
        self.desk.write(move |book| book.bury(&buried), false).await?;
        dead.iter().for_each(|client| self.clients.clear(*client));
        Ok(())
    }

    /// Many hear of a death, and one of them buries. In doubt, yes.
    fn left_something(&self, dead: &BTreeSet<ClientId>) -> bool {
        let reader = lock(&self.reader);
        dead.iter().any(|client| left_something(&reader, *client).unwrap_or(true))
    }

    /// After a poke: rings for every waiter of ours who was admitted, or has to look again, and for whoever watches a value
    /// that has changed.
    fn hear(&self) {
        let read = || -> rusqlite::Result<Vec<rows::Told>> {
            let reader = lock(&self.reader);
            let mut select = reader.prepare_cached(
                "SELECT token, fence, fences, expires, ttl_ms FROM holding WHERE client = ?1 AND handed
                 UNION ALL SELECT token, 0, 0, 0, 0 FROM waiting WHERE client = ?1 AND told",
            )?;
            select.query_map([self.me.as_sql()], rows::Told::read)?.collect()
        };
        let changed = || -> rusqlite::Result<Vec<String>> {
            let reader = lock(&self.reader);
            let mut select = reader.prepare_cached("SELECT key FROM watching WHERE client = ?1 AND told")?;
            select.query_map([self.me.as_sql()], |row| row.get(0))?.collect()
        };
        let Listeners { bells, watchers, .. } = &*self.listeners;
        match (read(), changed()) {
            (Ok(told), Ok(changed)) => {
                told.iter().for_each(|told| {
                    bells.ring(&told.token, told.grant);
                });
                changed.iter().for_each(|key| watchers.ring(key));
            }
            // Then everybody looks.
            _ => self.listeners.ring_all(),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        let watches = std::mem::take(&mut *lock(&self.watched));
        tasks.iter().chain(watches.values()).for_each(AbortHandle::abort);
    }
}

async fn hear_pokes(pokes: UnixDatagram, site: Weak<Site>) {
    while pokes.readable().await.is_ok() {
        let mut notices = Vec::new();
        let mut text = [0; NOTICE_MAX];
        while let Ok(length) = pokes.try_recv(&mut text) {
            let text = str::from_utf8(&text[..length]).unwrap_or_default();
            notices.extend(Notice::parse(text, ""));
        }
        let Some(site) = site.upgrade() else { return };
        notices.into_iter().for_each(|notice| site.listeners.notices.send(notice));
        site.hear();
    }
}

/// Keeps every connection, up to so many, until the other side ends it. Ours end with this process. One that is refused looks
/// by itself.
async fn keep_connections(deaths: UnixListener, most: usize, clock: Clock) {
    let ended =
        |mut stream: UnixStream| async move { while matches!(stream.read(&mut [0; 16]).await, Ok(1..)) {} };
    let mut kept = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = deaths.accept() => match accepted {
                Ok((stream, _)) if kept.len() < most => kept.push(ended(stream)),
                Ok(_) => {}
                // No descriptor is left. Those who want to connect wait, or look by themselves.
                Err(_) => clock.sleep_until(clock.now().plus(LOOK_EVERY)).await,
            },
            Some(()) = kept.next() => {}
        }
    }
}

async fn do_chores(mut to_do: UnboundedReceiver<Chore>, site: Weak<Site>) {
    while let Some(chore) = to_do.recv().await {
        let Some(site) = site.upgrade() else { return };
        let done = match chore {
            Chore::Suspect(client) if site.dies(client).await => site.bury([client].into()).await,
            Chore::Suspect(_) => Ok(()),
            Chore::Admit(name) => site.desk.write(move |book| book.admit(vec![name.clone()]), true).await,
        };
        if let Err(fault) = done {
            // Whoever waits looks by itself within a third of its TTL.
            tracing::debug!(error = %fault.explained(&site.place), "a chore of the file store failed");
        }
    }
}

/// Until this client has died and been buried. The connection breaks when it dies; its lock is the truth.
async fn watch(client: ClientId, connects: bool, clients: Clients, clock: Clock, site: Weak<Site>) {
    loop {
        if connects
            && let Ok(reached) = clients.death_socket(client)
            && let Ok(mut stream) = UnixStream::connect(&reached.path).await
        {
            drop(reached);
            while matches!(stream.read(&mut [0; 16]).await, Ok(1..)) {}
        }
        let Some(site) = site.upgrade() else { return };
        let dead: BTreeSet<ClientId> = [client].into();
        let died = if connects { site.dies(client).await } else { clients.is_dead(client) };
        // One that has left neither a file nor anything else was closed.
        let is_over = match died {
            true => site.bury(dead).await.is_ok(),
            false => clients.is_gone(client) && !site.left_something(&dead),
        };
        if is_over {
            // Whoever buried it, or the dead one itself, may have died before we were told.
            site.hear();
            lock(&site.watched).remove(&client);
            return;
        }
        drop(site);
        clock.sleep_until(clock.now().plus(LOOK_EVERY)).await;
    }
}

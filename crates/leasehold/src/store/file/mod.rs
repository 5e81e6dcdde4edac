//! `file:`, a store for all processes of one machine, without a server.
//!
//! A SQLite database has the tables of the memory store, holders and waiters. The kernel does what
//! a server would do: it lets one process write at a time (`gate`), shows which clients are alive
//! (`liveness`), and carries notifications and the end of connections (`notify`, `opened`). The
//! rules are in `txn/rules.rs`.

mod access;
mod cells;
mod checkpoint;
mod db;
mod directory;
mod doctor;
mod gate;
mod liveness;
mod notify;
mod opened;
mod rows;
mod txn;
mod writer;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{Capabilities, NoticeReceiver, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::{Arc, Mutex, lock};
use crate::ttl::Ttl;
pub use access::Access;
use db::TxnError;
pub(crate) use directory::{exists, in_home};
pub(crate) use doctor::examine;
use liveness::ClientId;
use notify::LocalWaiters;
use opened::OpenedStore;
use txn::{AcquireOutcome, Txn};

/// A larger batch of renewals does not run on the caller's thread.
const RENEWED_INLINE_MAX: usize = 16;

/// The number of times that one operation opens the store again after its files were replaced.
const REOPENED_MAX: usize = 3;

/// A store in a directory of this machine, for all processes that open it. It belongs to the
/// runtime in which it is opened.
#[derive(Debug)]
pub struct File {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    access: Access,
    clock: Clock,
    waiters: Arc<LocalWaiters>,
    opened: Mutex<Arc<OpenedStore>>,
    reopening: tokio::sync::Mutex<()>,
}

impl File {
    /// Opens the store in this directory for this user. Creates a directory that does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`] if the directory is not fit for a store, with the reason;
    /// [`Error::Invalid`] outside a runtime.
    ///
    /// # Cancel safety
    /// If the future is dropped, no store is opened. A directory that was created stays.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self> {
        File::open_for(directory, Access::User).await
    }

    /// Opens the store in this directory for several users, who all have to use the same
    /// [`Access`].
    ///
    /// Each user can change each lock. `docs/stores/file.md` says what users can do to each other.
    ///
    /// # Errors
    /// As [`open`](File::open).
    ///
    /// # Cancel safety
    /// As [`open`](File::open).
    pub async fn open_for(directory: impl AsRef<Path>, access: Access) -> Result<Self> {
        let path = directory.as_ref().to_owned();
        let clock = Clock::system()?;
        let waiters: Arc<LocalWaiters> = Arc::default();
        let opened = OpenedStore::open(&path, access, None, &clock, waiters.clone()).await?;
        let (opened, reopening) = (Mutex::new(opened), tokio::sync::Mutex::default());
        Ok(File { shared: Arc::new(Shared { path, access, clock, waiters, opened, reopening }) })
    }

    /// Returns the directory of a store if none is named: `$XDG_STATE_HOME/leasehold`, or else
    /// `~/.local/state/leasehold`.
    ///
    /// # Errors
    /// [`Error::Refused`] if neither `XDG_STATE_HOME` nor `HOME` is set to an absolute path.
    pub fn default_directory() -> Result<PathBuf> {
        directory::default_path()
    }

    /// Runs on its own task: if the caller is dropped while rows move to the new client, they would
    /// belong to no live client.
    async fn reopen(&self, replaced: Arc<OpenedStore>) -> Result<()> {
        let shared = self.shared.clone();
        let runtime = replaced.runtime.clone();
        match runtime.spawn(async move { shared.reopen(&replaced).await }).await {
            Ok(reopened) => reopened,
            Err(error) => Err(Error::System { what: "task to open the store anew", why: error.to_string() }),
        }
    }

    async fn run_txn<T, F>(&self, work: F, is_long: bool) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Txn<'_>) -> Result<T, TxnError> + Clone + Send + 'static,
    {
        Ok(self.run_txn_on(work, is_long).await?.1)
    }

    async fn run_txn_on<T, F>(&self, work: F, is_long: bool) -> Result<(Arc<OpenedStore>, T)>
    where
        T: Send + 'static,
        F: FnMut(&mut Txn<'_>) -> Result<T, TxnError> + Clone + Send + 'static,
    {
        let mut opened = self.shared.opened();
        for _ in 0..REOPENED_MAX {
            match opened.writer.write(work.clone(), is_long).await {
                Ok(value) => return Ok((opened, value)),
                Err(TxnError::Replaced) => {
                    self.reopen(opened).await?;
                    opened = self.shared.opened();
                }
                Err(error) => return Err(error.into_error(&opened.directory)),
            }
        }
        Err(TxnError::Replaced.into_error(&opened.directory))
    }

    /// Runs the transaction again until none of the clients that it returns is dead.
    async fn run_txn_without_dead<T, F>(&self, work: F, is_long: bool) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Txn<'_>) -> Result<(T, BTreeSet<ClientId>), TxnError> + Clone + Send + 'static,
    {
        loop {
            let (opened, (value, clients)) = self.run_txn_on(work.clone(), is_long).await?;
            if !opened.remove_dead_among(clients).await? {
                return Ok(value);
            }
        }
    }
}

impl Shared {
    fn opened(&self) -> Arc<OpenedStore> {
        lock(&self.opened).clone()
    }

    /// Opens a replaced store again. If the database is another one, this process loses its leases.
    async fn reopen(&self, replaced: &Arc<OpenedStore>) -> Result<()> {
        let _one_at_a_time = self.reopening.lock().await;
        if !Arc::ptr_eq(&self.opened(), replaced) {
            return Ok(());
        }
        tracing::warn!(path = %self.path.display(), "the files of the store were replaced; it is opened anew");
        let previous = Some(replaced.as_previous());
        let opened =
            OpenedStore::open(&self.path, self.access, previous, &self.clock, self.waiters.clone()).await?;
        *lock(&self.opened) = opened;
        // The waiters' rows may be lost with the replaced files.
        self.waiters.wake_all();
        Ok(())
    }
}

#[async_trait]
impl Store for File {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let waiter = self.shared.waiters.claims.hang(&claim.ticket.token);
        loop {
            let asked = claim.clone();
            let (opened, outcome) = self.run_txn_on(move |txn| txn.acquire(&asked), false).await?;
            match outcome {
                AcquireOutcome::Granted(grant) => return Ok(Acquired::Granted(grant)),
                AcquireOutcome::Busy { busy, blockers } => {
                    if !opened.remove_dead_among(blockers).await? {
                        return Ok(Acquired::Busy(busy));
                    }
                }
                AcquireOutcome::Waiting { arrival, recheck_at, watch } => {
                    opened.watch(watch);
                    // A waiter must not keep a replaced store open.
                    drop(opened);
                    let grant = self.clock().until(recheck_at, waiter.rung()).await.flatten();
                    if let Some(grant) = grant
                        && grant.fence.get() > arrival
                        && grant.valid_until > self.clock().now()
                    {
                        return Ok(Acquired::Granted(grant));
                    }
                }
            }
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let asked = due.to_vec();
        let renewed = self.run_txn(
            move |txn| {
                let renewed = asked.iter().map(|(ticket, ttl)| txn.renew(ticket, *ttl));
                renewed.collect::<Result<Vec<_>, TxnError>>()
            },
            due.len() > RENEWED_INLINE_MAX,
        );
        match renewed.await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        let ticket = ticket.clone();
        self.run_txn(move |txn| txn.release(&ticket), false).await
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let ticket = ticket.clone();
        self.run_txn(move |txn| txn.detach(&ticket, ttl), false).await
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        let ticket = ticket.clone();
        self.run_txn(move |txn| txn.convert(&ticket, to), false).await
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        let name = name.clone();
        self.run_txn_without_dead(move |txn| txn.inspect(&name), false).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let prefix = prefix.to_owned();
        self.run_txn_without_dead(move |txn| txn.list(&prefix, limit), true).await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        let name = name.clone();
        self.run_txn(move |txn| txn.evict(&name, None), false).await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        let name = name.clone();
        self.run_txn(move |txn| txn.evict(&name, Some(fence)), false).await
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        Some(self.shared.waiters.notices.subscribe())
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        let sent = self.shared.opened().writer.notifier.send_ended(names, fence);
        sent.map_err(|error| Error::System { what: "list of clients", why: error.to_string() })
    }

    async fn adopt(&self, _: &Name, _: Ttl) -> Result<Adopted> {
        Err(Error::Unsupported { store: "file", what: "adopt", why: "every lock of it ends by itself" })
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        Some(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all("file")
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        self.shared.opened().writer.lifeline().map(Some)
    }
}

//! `file:`, every process of one machine, without a server.
//!
//! A SQLite database in a directory holds the two tables of the memory store: who *holds* and who *waits*. What a server
//! would do, the kernel does: it lets one process write at a time (`desk`), knows who lives (`presence`), and carries
//! pokes and the news of a death between processes (`messenger`, `site`). The rules are in `book`.

mod access;
mod book;
mod cells;
mod change;
mod db;
mod desk;
mod doctor;
mod limits;
mod look;
mod messenger;
mod place;
mod presence;
mod rows;
mod site;

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
use book::{Book, Step};
use db::Fault;
pub(crate) use doctor::examine;
use messenger::Ears;
use place::Place;
use site::Site;

/// More renewals than this are not made on the caller's thread.
const RENEWED_AT_ONCE: usize = 16;

/// How often the files may be replaced under one operation.
const REPLACED_MAX: usize = 3;

/// A store in a directory of this machine. Every process of this user that opens the same directory shares it, and with
/// [`open_for`](File::open_for) processes of several users do.
///
/// It belongs to the runtime it is opened in.
#[derive(Debug)]
pub struct File {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    access: Access,
    clock: Clock,
    ears: Arc<Ears>,
    site: Mutex<Arc<Site>>,
    reopening: tokio::sync::Mutex<()>,
}

impl File {
    /// Opens the store in this directory, made if it is not there.
    ///
    /// # Errors
    /// [`Error::Refused`] where the directory is not fit for it, with the reason; [`Error::Invalid`] outside a runtime.
    ///
    /// # Cancel safety
    /// Dropped before its end, nothing is opened; a directory that was made stays.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self> {
        File::open_for(directory, Access::User).await
    }

    /// Opens the store in this directory for several users. All who use it say the same. The directory exists already, with
    /// the mode that [`Access`] tells.
    ///
    /// Whoever may use it can change every lock in it; see `docs/stores/file.md` for what they can do to each other.
    ///
    /// # Errors
    /// As [`open`](File::open).
    ///
    /// # Cancel safety
    /// As [`open`](File::open).
    pub async fn open_for(directory: impl AsRef<Path>, access: Access) -> Result<Self> {
        let path = directory.as_ref().to_owned();
        let clock = Clock::system()?;
        let ears: Arc<Ears> = Arc::default();
        let site = Site::open(&path, access, None, &clock, ears.clone()).await?;
        let reopening = tokio::sync::Mutex::default();
        Ok(File { shared: Arc::new(Shared { path, access, clock, ears, site: Mutex::new(site), reopening }) })
    }

    /// Whether there is a store in this directory, found out without making one.
    pub(crate) fn exists(directory: &Path, access: Access) -> Result<bool> {
        Place::exists(directory, access)
    }

    /// Where a store is if nothing is said: `$XDG_STATE_HOME/leasehold`, or else `~/.local/state/leasehold`.
    ///
    /// # Errors
    /// [`Error::Refused`] where neither `XDG_STATE_HOME` nor `HOME` is set to an absolute path.
    pub fn default_directory() -> Result<PathBuf> {
        place::default_path()
    }

    /// A path below the home directory, as `file:~/PATH` means it.
    pub(crate) fn in_home(below: &str) -> Result<PathBuf> {
        place::in_home(below)
    }

    /// On a task of its own: whoever asked may go, but what is half taken over would be held by nobody.
    async fn reopen(&self, replaced: Arc<Site>) -> Result<()> {
        let shared = self.shared.clone();
        let runtime = replaced.runtime.clone();
        match runtime.spawn(async move { shared.reopen(&replaced).await }).await {
            Ok(reopened) => reopened,
            Err(error) => Err(Error::System { what: "task to open the store anew", why: error.to_string() }),
        }
    }

    async fn ask<T, F>(&self, work: F, is_long: bool) -> Result<(Arc<Site>, T)>
    where
        T: Send + 'static,
        F: FnMut(&mut Book<'_>) -> Result<T, Fault> + Clone + Send + 'static,
    {
        let mut site = self.shared.site();
        for _ in 0..REPLACED_MAX {
            match site.desk.write(work.clone(), is_long).await {
                Ok(value) => return Ok((site, value)),
                Err(Fault::Replaced) => {
                    self.reopen(site).await?;
                    site = self.shared.site();
                }
                Err(fault) => return Err(fault.explained(&site.place)),
            }
        }
        Err(Fault::Replaced.explained(&site.place))
    }

    /// Asks again as long as there was somebody dead in it.
    async fn ask_of_the_living<T, F>(&self, work: F, is_long: bool) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Book<'_>) -> Result<(T, std::collections::BTreeSet<presence::ClientId>), Fault>
            + Clone
            + Send
            + 'static,
    {
        loop {
            let (site, (value, clients)) = self.ask(work.clone(), is_long).await?;
            let dead = site.dead(clients);
            if dead.is_empty() {
                return Ok(value);
            }
            site.bury(dead).await.map_err(|fault| fault.explained(&site.place))?;
        }
    }
}

impl Shared {
    fn site(&self) -> Arc<Site> {
        lock(&self.site).clone()
    }

    /// Other files are at the path now. Where the database is the same, we hold in it what we held; where it is another,
    /// nothing.
    async fn reopen(&self, replaced: &Arc<Site>) -> Result<()> {
        let _one_at_a_time = self.reopening.lock().await;
        if !Arc::ptr_eq(&self.site(), replaced) {
            return Ok(());
        }
        tracing::warn!(path = %self.path.display(), "the files of the store were replaced; it is opened anew");
        let site =
            Site::open(&self.path, self.access, Some(replaced.former()), &self.clock, self.ears.clone())
                .await?;
        *lock(&self.site) = site;
        // Their places in line may be gone with the old files.
        self.ears.ring_all();
        Ok(())
    }
}

#[async_trait]
impl Store for File {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let bell = self.shared.ears.bells.hang(&claim.ticket.token);
        loop {
            let asked = claim.clone();
            let (site, step) = self.ask(move |book| book.join(&asked), false).await?;
            match step {
                Step::Granted(grant) => return Ok(Acquired::Granted(grant)),
                Step::Busy { busy, in_the_way } => {
                    let dead = site.dead(in_the_way);
                    if dead.is_empty() {
                        return Ok(Acquired::Busy(busy));
                    }
                    site.bury(dead).await.map_err(|fault| fault.explained(&site.place))?;
                }
                Step::Waiting { arrival, look_again, watch } => {
                    site.watch(watch);
                    // A site that is replaced meanwhile has to end.
                    drop(site);
                    let grant = self.clock().until(look_again, bell.rung()).await.flatten();
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
        let renewed = self.ask(
            move |book| {
                asked.iter().map(|(ticket, ttl)| book.renew(ticket, *ttl)).collect::<Result<Vec<_>, Fault>>()
            },
            due.len() > RENEWED_AT_ONCE,
        );
        match renewed.await {
            Ok((_, answers)) => answers.into_iter().map(Ok).collect(),
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        let asked = ticket.clone();
        Ok(self.ask(move |book| book.release(&asked), false).await?.1)
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        let asked = ticket.clone();
        Ok(self.ask(move |book| book.detach(&asked, ttl), false).await?.1)
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        let asked = ticket.clone();
        Ok(self.ask(move |book| book.convert(&asked, to), false).await?.1)
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        let name = name.clone();
        self.ask_of_the_living(move |book| book.inspect(&name), false).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        let prefix = prefix.to_owned();
        self.ask_of_the_living(move |book| book.list(&prefix, limit), true).await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        let name = name.clone();
        Ok(self.ask(move |book| book.evict(&name, None), false).await?.1)
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        let name = name.clone();
        Ok(self.ask(move |book| book.evict(&name, Some(fence)), false).await?.1)
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        Some(self.shared.ears.notices.subscribe())
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        let told = self.shared.site().desk.messenger().tell_ended(names, fence);
        told.map_err(|error| Error::System { what: "list of clients", why: error.to_string() })
    }

    async fn adopt(&self, _: &Name, _: Ttl) -> Result<Adopted> {
        Err(Error::Unsupported { store: "file", what: "adopt", why: "every lock of it ends by itself" })
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        Some(self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fenced: true,
            fence_blocks: true,
            fair: true,
            shared: true,
            permits: true,
            several_names: true,
            conversions: true,
            pushed: true,
            cells: true,
            ..Capabilities::none("file")
        }
    }

    fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        self.shared.site().desk.lifeline().map(Some)
    }
}

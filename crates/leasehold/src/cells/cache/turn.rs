//! A turn to load: the lease of a key, and the mark that whoever loads leaves in the place of the value.
//!
//! What keeps an old value from being written over a newer one is the mark. It carries the fence of the lease, and is put there
//! before the loader is called; the value is written only where that mark still stands, in one step. Whoever loads after that
//! puts a mark of its own, and whoever invalidates takes it away: then what the first one has loaded is not written, however
//! late it comes, and nothing has to be remembered of it.

use super::entry::{Entry, Look, What};
use super::place::Place;
use super::room::TurnEnd;
use crate::cells::store::{When, Write, Written};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::lease::Lease;
use crate::locks::Client;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// The right to load, not used yet.
pub(super) struct Turn {
    pub(super) lease: Lease,
    /// What was there when it was last looked at.
    pub(super) before: Option<Arc<Look>>,
    /// Whom to tell when it is over.
    pub(super) end: Option<TurnEnd>,
}

/// What comes of beginning a turn.
pub(super) enum Begun {
    Load(Loading),
    /// There is no need to load.
    There(Arc<Look>),
}

/// A turn in use. Dropped, it is given up: the mark is taken away in the background, and the next may load at once.
pub(super) struct Loading {
    mark: Mark,
    // After the mark has gone its own way: whoever is next need not wait for that.
    lease: Option<Lease>,
    end: Option<TurnEnd>,
    began: Deadline,
}

/// For how long a value is to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// While it is fresh, and stale.
    pub(super) kept: Ttl,
    /// While it is stale.
    pub(super) stale: std::time::Duration,
}

/// What stands in the place of the value while it is loaded.
struct Mark {
    client: Arc<Client>,
    place: Arc<Place>,
    fence: Fence,
    raw: Vec<u8>,
    before: Arc<Look>,
    is_there: bool,
}

impl Turn {
    /// Puts the mark there, unless there is what makes a load needless.
    ///
    /// # Cancel safety
    /// Dropped anywhere, the turn is over, and the mark is taken away in the background.
    pub(super) async fn begin(
        self,
        client: &Arc<Client>,
        place: &Arc<Place>,
        load_within: Ttl,
        is_enough: impl Fn(&Arc<Look>) -> bool,
    ) -> Result<Begun> {
        let Turn { lease, mut before, end } = self;
        let fence = lease.fence();
        loop {
            let look = match before.take() {
                Some(look) => look,
                None => Arc::new(read(client, place).await?),
            };
            if is_enough(&look) {
                return Ok(Begun::There(look));
            }
            let lost = match look.fence() {
                // Somebody was granted the key after us, and has begun.
                Some(newer) if newer > fence => Some(Loss::Taken),
                _ => lease.loss(),
            };
            if let Some(reason) = lost {
                return Err(Error::Lost { names: lease.names().clone(), reason });
            }
            let now = client.clock().now();
            let (raw, ttl) = look.marked(place, fence, now, load_within);
            let write = Write { when: is(&look.raw), value: Some(raw.clone()), ttl: Some(ttl) };
            // From before it is sent: it may arrive although nobody hears the answer.
            let mut mark = Mark {
                client: client.clone(),
                place: place.clone(),
                fence,
                raw,
                before: look,
                is_there: true,
            };
            if mark.write(&write).await? {
                let began = client.clock().now();
                return Ok(Begun::Load(Loading { mark, lease: Some(lease), end, began }));
            }
            mark.is_there = false;
        }
    }
}

impl Loading {
    pub(super) fn began(&self) -> Deadline {
        self.began
    }

    /// Writes what was loaded, where the mark still stands, and tells those who wait; says whether it was written.
    pub(super) async fn done(mut self, value: Option<&[u8]>, times: Times) -> Result<bool> {
        let clock = self.mark.client.clock();
        let entry = Entry {
            what: if value.is_some() { What::Value } else { What::Absent },
            is_loading: false,
            fence: self.mark.fence,
            kept: times.kept.as_duration(),
            linger: std::time::Duration::ZERO,
            stale: times.stale,
            load_time: clock.now().since(self.began),
        };
        let value = value.unwrap_or_default();
        let raw = entry.encode(value, &self.mark.place);
        // Kept beside: dropped before the answer, the mark is taken away, and a write that is still on its way finds none.
        let when = When::Is(self.mark.raw.clone());
        let write = Write { when, value: Some(raw), ttl: Some(times.kept) };
        let number = self.end.as_ref().map(|end| end.room().begin());
        let asked = clock.now();
        let written = self.mark.write(&write).await;
        // Written or overtaken: there is no mark of ours any more. Where there was no answer, its TTL does it.
        self.mark.is_there = false;
        let (true, Some(raw)) = (written?, write.value) else { return Ok(false) };
        if let (Some(number), Some(end)) = (number, &self.end) {
            let look = Look::written(raw, entry, value.len(), asked);
            end.room().tell(number, Ok(Arc::new(look)));
        }
        Ok(true)
    }

    /// Gives up, and passes the turn on.
    pub(super) async fn give_up(mut self) {
        self.lease = None;
        self.end = None;
        // In a task, so that it is done also where the caller goes.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && let Ok(Err(error)) = runtime.spawn(self.mark.take_away()).await
        {
            tracing::debug!(%error, place = %self.mark.place.cell, "the mark of a load that failed stays to its end");
        }
    }
}

impl Mark {
    async fn write(&self, write: &Write) -> Result<bool> {
        let client = &self.client;
        client.check_open()?;
        let written = client.in_time(client.cells(super::WHAT)?.write(&self.place.cell, write)).await?;
        Ok(written == Written::Written)
    }

    /// Puts back what was there before, as far as it still counts; once.
    fn take_away(&mut self) -> impl Future<Output = Result<()>> + Send + use<> {
        let is_there = std::mem::replace(&mut self.is_there, false);
        let (client, place) = (self.client.clone(), self.place.clone());
        let before = self.before.unmarked(&place, self.fence, client.clock().now());
        let (value, ttl) = before.map_or((None, None), |(raw, ttl)| (Some(raw), Some(ttl)));
        let write = Write { when: When::Is(std::mem::take(&mut self.raw)), value, ttl };
        async move {
            if is_there {
                client.in_time(client.cells(super::WHAT)?.write(&place.cell, &write)).await?;
            }
            Ok(())
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.is_there && tokio::runtime::Handle::try_current().is_ok() {
            let gone = self.take_away();
            crate::sync::spawn(async move { drop(gone.await) });
        }
    }
}

/// What is there now.
pub(super) async fn read(client: &Client, place: &Place) -> Result<Look> {
    client.check_open()?;
    let asked = client.clock().now();
    let kept = client.in_time(client.cells(super::WHAT)?.read(&place.cell)).await?;
    Look::new(kept, place, asked)
}

fn is(there: &Option<Vec<u8>>) -> When {
    there.clone().map_or(When::Absent, When::Is)
}

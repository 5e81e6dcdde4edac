//! One load: the lease of a key, and the marker that the loader writes in place of the value.
//!
//! The marker keeps an old value from overwriting a newer one. It carries the fence of the lease,
//! and is written before the loader runs; the value is written only if that marker is still there,
//! in one step of the store. The next loader replaces the marker, and an invalidation removes it:
//! then the first loader's value is not written, however late, and no fence has to be remembered.

use super::entry::{Content, Entry, Lifetime, Snapshot};
use super::key::CacheKey;
use super::single_flight::{LoadEnd, Told};
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
pub(super) struct LoadTurn {
    pub(super) lease: Lease,
    /// The newest read, if any.
    pub(super) before: Option<Arc<Snapshot>>,
    /// Set if a coordinator offered the turn.
    pub(super) end: Option<LoadEnd>,
}

pub(super) enum Begun {
    Loading(Loading),
    /// The stored value needs no load.
    Enough(Arc<Snapshot>),
}

/// A load that has begun. A drop removes the marker in the background for the next caller.
pub(super) struct Loading {
    // Dropped before the lease, whose release need not wait for the removal.
    marker: LoadMarker,
    lease: Option<Lease>,
    end: Option<LoadEnd>,
    began: Deadline,
}

/// The entry that a loader writes in place of the value, and the entry that it replaced.
struct LoadMarker {
    client: Arc<Client>,
    key: Arc<CacheKey>,
    fence: Fence,
    raw: Vec<u8>,
    before: Arc<Snapshot>,
    is_there: bool,
}

impl LoadTurn {
    /// Writes the marker, unless the stored value is good enough.
    ///
    /// # Cancel safety
    /// If dropped, the turn is over, and the marker is removed in the background.
    pub(super) async fn begin(
        self,
        client: &Arc<Client>,
        key: &Arc<CacheKey>,
        load_within: Ttl,
        is_enough: impl Fn(&Arc<Snapshot>) -> bool,
    ) -> Result<Begun> {
        let LoadTurn { lease, mut before, end } = self;
        let fence = lease.fence();
        loop {
            let before = match before.take() {
                Some(snapshot) => snapshot,
                None => Arc::new(read(client, key).await?),
            };
            if is_enough(&before) {
                return Ok(Begun::Enough(before));
            }
            let lost = match before.fence() {
                // A later holder of the lease has begun.
                Some(newer) if newer > fence => Some(Loss::Taken),
                _ => lease.loss(),
            };
            if let Some(reason) = lost {
                return Err(Error::Lost { names: lease.names().clone(), reason });
            }
            let now = client.clock().now();
            let (raw, ttl) = before.with_marker(key, fence, now, load_within);
            let when = before.raw.clone().map_or(When::Absent, When::Is);
            let write = Write { when, value: Some(raw.clone()), ttl: Some(ttl) };
            // Set before the write is sent: it may arrive although the answer does not.
            let mut marker =
                LoadMarker { client: client.clone(), key: key.clone(), fence, raw, before, is_there: true };
            if marker.write(&write).await? {
                let began = client.clock().now();
                return Ok(Begun::Loading(Loading { marker, lease: Some(lease), end, began }));
            }
            marker.is_there = false;
        }
    }
}

impl Loading {
    pub(super) fn began(&self) -> Deadline {
        self.began
    }

    /// Writes the value or its absence if the marker is still there; returns whether it was.
    pub(super) async fn finish(mut self, value: Option<&[u8]>, lifetime: Lifetime) -> Result<bool> {
        let clock = self.marker.client.clock();
        let content = if value.is_some() { Content::Value } else { Content::Absent };
        let load_time = clock.now().since(self.began);
        let entry = Entry::loaded(content, self.marker.fence, lifetime, load_time);
        let value = value.unwrap_or_default();
        let raw = entry.encode(value, &self.marker.key);
        // The marker keeps its bytes: a drop before the answer removes it, and a late write fails.
        let when = When::Is(self.marker.raw.clone());
        let write = Write { when, value: Some(raw), ttl: Some(lifetime.kept) };
        let number = self.end.as_ref().map_or(0, |end| end.flight.begin());
        let asked = clock.now();
        let written = self.marker.write(&write).await;
        // This write, or another, has replaced the marker. Without an answer, it ends with its TTL.
        self.marker.is_there = false;
        let (true, Some(raw)) = (written?, write.value) else { return Ok(false) };
        if let Some(end) = self.end {
            let snapshot = Arc::new(Snapshot::written(raw, entry, value.len(), asked));
            // The coordinator ends with its last caller.
            let _ = end.told.send(Told { number, snapshot });
        }
        Ok(true)
    }

    /// Ends the load without a value. The next caller can load at once.
    pub(super) async fn give_up(mut self) {
        self.lease = None;
        self.end = None;
        // In a task, which removes the marker even if the caller is dropped.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && let Ok(Err(error)) = runtime.spawn(self.marker.remove()).await
        {
            let cell = &self.marker.key.cell;
            tracing::debug!(%error, place = %cell, "the marker of a load that failed stays until its TTL is over");
        }
    }
}

impl LoadMarker {
    async fn write(&self, write: &Write) -> Result<bool> {
        let client = &self.client;
        let written = client.in_time(client.open_cells(super::WHAT)?.write(&self.key.cell, write)).await?;
        Ok(written == Written::Written)
    }

    /// Puts back the previous value, if that has not expired; once.
    fn remove(&mut self) -> impl Future<Output = Result<()>> + Send + use<> {
        let is_there = std::mem::replace(&mut self.is_there, false);
        let (client, key) = (self.client.clone(), self.key.clone());
        let before = self.before.without_marker(&key, self.fence, client.clock().now());
        let (value, ttl) = before.map_or((None, None), |(raw, ttl)| (Some(raw), Some(ttl)));
        let write = Write { when: When::Is(std::mem::take(&mut self.raw)), value, ttl };
        async move {
            if is_there {
                client.in_time(client.cells(super::WHAT)?.write(&key.cell, &write)).await?;
            }
            Ok(())
        }
    }
}

impl Drop for LoadMarker {
    fn drop(&mut self) {
        if self.is_there && tokio::runtime::Handle::try_current().is_ok() {
            let removal = self.remove();
            crate::sync::spawn(async move { drop(removal.await) });
        }
    }
}

pub(super) async fn read(client: &Client, key: &CacheKey) -> Result<Snapshot> {
    let asked = client.clock().now();
    let kept = client.in_time(client.open_cells(super::WHAT)?.read(&key.cell)).await?;
    Snapshot::new(kept, key, asked)
}

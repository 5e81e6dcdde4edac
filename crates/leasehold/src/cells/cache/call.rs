//! One call of a cache: reads, waits and loads.

use std::time::Duration;

use super::coordinator::Coordinator;
use super::entry::{Content, Snapshot};
use super::error::LoadError;
use super::key::CacheKey;
use super::load::{Begun, LoadTurn, Loading, read};
use super::single_flight::{Flight, Refreshing, Waited};
use super::{Lifetimes, Settings};
use crate::cells::codec::Codec;
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::kinds::mutex::Mutex;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::{Arc, spawn};

/// The time limit of the request that names the loader once the wait is over.
const LAST_WORD: Duration = Duration::from_millis(250);

/// A caller with a shorter wait asks the store itself: a coordinator would rarely be faster.
const COORDINATED_FROM: Duration = Duration::from_millis(250);

/// The needs of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    /// Also the absence of a value.
    ValueOrAbsence,
    /// A load, also if there is a value.
    Load,
}

pub(super) struct Call<'a, T> {
    pub(super) client: &'a Arc<Client>,
    pub(super) settings: &'a Settings,
    pub(super) codec: &'a Codec<T>,
    pub(super) key: Arc<CacheKey>,
    pub(super) flight: Flight,
    pub(super) wanted: Wanted,
    pub(super) lifetimes: Option<Lifetimes>,
    /// The end of its wait for other loaders.
    pub(super) until: Deadline,
}

/// Each calls its loader at most once; an output of `None` means that there is no value.
impl<T> Call<'_, T> {
    pub(super) async fn get(&self) -> Result<Option<T>> {
        let snapshot = self.read().await?;
        Ok(match snapshot.is_usable(self.settings.stale_for) {
            true => self.decode(snapshot).flatten(),
            false => None,
        })
    }

    pub(super) async fn get_or_load<E>(
        self,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        let stale_for = self.settings.stale_for;
        let mut before = None;
        // While callers wait, there is no fresh value to read, but there may be a stale one.
        if !self.flight.is_waited_for() || !stale_for.is_zero() {
            let snapshot = self.read().await?;
            if snapshot.is_usable(stale_for) {
                let refresh = self.refresh_of(&snapshot);
                // Boxed, because most calls end here.
                return match (self.decode(snapshot), refresh) {
                    (Some(found), None) => Ok(found),
                    (Some(found), Some(refresh)) => Box::pin(self.refresh_or(refresh, found, loader)).await,
                    (None, _) => Box::pin(self.load_in_turn(loader)).await,
                };
            }
            before = Some(snapshot);
        }
        Box::pin(self.wait_or_load(before, loader)).await
    }

    /// Acquires the lease and loads, unless the value is then good enough.
    pub(super) async fn load_in_turn<E>(
        &self,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        let lock = self.lock();
        // The wait is for other loaders: a free lease is taken, however short the wait is.
        let lease = match lock.try_lock().await? {
            Some(lease) => lease,
            None => match lock.wait(self.until.since(self.client.clock().now())).lock().await {
                Ok(lease) => lease,
                Err(Error::Busy { busy, waited, .. }) => {
                    return Err(LoadError::Waited { place: self.name(), loader: busy.holder, waited });
                }
                Err(error) => return Err(error.into()),
            },
        };
        self.load_unless_enough(LoadTurn { lease, before: None, end: None }, loader).await
    }

    /// Waits with the other callers of this client for a value, or for the turn to load it.
    async fn wait_or_load<E>(
        &self,
        before: Option<Arc<Snapshot>>,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        if self.settings.wait < COORDINATED_FROM {
            return self.load_in_turn(loader).await;
        }
        let clock = self.client.clock();
        let began = clock.now();
        let start = |news| {
            let (client, key, flight) = (self.client.clone(), self.key.clone(), self.flight.clone());
            let (lock, before) = (self.lock(), before.clone());
            spawn(Coordinator { client, key, lock, flight, news, before }.run());
        };
        match self.flight.wait(clock, self.until, start).await? {
            Waited::Turn(turn) => self.load_unless_enough(turn, loader).await,
            Waited::Value(snapshot) => match self.decode(snapshot) {
                Some(found) => Ok(found),
                // The value does not satisfy this caller.
                None => self.load_in_turn(loader).await,
            },
            Waited::TimedOut => Err(self.waited(began).await),
        }
    }

    /// Loads a stale value again, if no other client does. Without a load, returns `found`.
    async fn refresh_or<E>(
        &self,
        (_refreshing, before): (Arc<Refreshing>, Arc<Snapshot>),
        found: Option<T>,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        let Ok(Some(lease)) = self.lock().try_lock().await else { return Ok(found) };
        let turn = LoadTurn { lease, before: Some(before.clone()), end: None };
        let is_newer = |snapshot: &Arc<Snapshot>| snapshot.is_fresh() && snapshot.raw != before.raw;
        match turn.begin(self.client, &self.key, self.settings.load_within, is_newer).await {
            Ok(Begun::Loading(loading)) => self.load(loading, loader).await,
            Ok(Begun::Enough(snapshot)) => Ok(self.decode(snapshot).unwrap_or(found)),
            Err(_) => Ok(found),
        }
    }

    async fn load_unless_enough<E>(
        &self,
        turn: LoadTurn,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        let is_enough = |snapshot: &Arc<Snapshot>| {
            self.wanted != Wanted::Load && snapshot.is_fresh() && self.decode(snapshot.clone()).is_some()
        };
        match turn.begin(self.client, &self.key, self.settings.load_within, is_enough).await? {
            Begun::Loading(loading) => self.load(loading, loader).await,
            Begun::Enough(snapshot) => Ok(self.decode(snapshot).flatten()),
        }
    }

    async fn load<E>(
        &self,
        loading: Loading,
        loader: impl AsyncFnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        let limit = self.settings.load_within.as_duration();
        let clock = self.client.clock();
        let output = clock.until(loading.began().plus(limit), std::pin::pin!(loader())).await;
        let failure = match output {
            Some(Ok(value)) => {
                self.keep(loading, value.as_ref()).await?;
                return Ok(value);
            }
            Some(Err(error)) => LoadError::Failed(error),
            None => LoadError::Endless { place: self.name(), limit },
        };
        loading.give_up().await;
        Err(failure)
    }

    /// Writes what was loaded. An encoding error fails the call; a failed write does not.
    async fn keep(&self, loading: Loading, value: Option<&T>) -> Result<()> {
        let encoded = value.map(|value| self.encode(value)).transpose();
        let lifetime = self.lifetimes.and_then(|lifetimes| match value {
            Some(_) => Some(lifetimes.value),
            None => lifetimes.absent,
        });
        let (bytes, lifetime) = match (encoded, lifetime) {
            (Ok(bytes), Some(lifetime)) => (bytes, lifetime),
            (encoded, _) => {
                loading.give_up().await;
                return encoded.map(drop);
            }
        };
        let place = &self.key.cell;
        if let Err(error) = bytes.as_deref().map_or(Ok(()), |bytes| self.client.check_value(bytes)) {
            tracing::warn!(%place, %error, "a loaded value was not kept");
            loading.give_up().await;
            return Ok(());
        }
        match loading.finish(bytes.as_deref(), lifetime).await {
            Ok(true) => {}
            Ok(false) => tracing::debug!(%place, "a loaded value was overtaken or invalidated, and not kept"),
            Err(error) => tracing::warn!(%place, %error, "a loaded value was perhaps not kept"),
        }
        Ok(())
    }

    /// Builds the error of a caller whose wait is over, with the client that loads.
    async fn waited<E>(&self, began: Deadline) -> LoadError<E> {
        let clock = self.client.clock();
        let waited = clock.now().since(began);
        let status =
            clock.until(clock.now().plus(LAST_WORD), self.client.store.inspect(&self.key.lease)).await;
        let status = status.and_then(Result::ok).flatten();
        let loader = status.and_then(|status| status.holders.into_iter().next()).map(|holder| holder.owner);
        LoadError::Waited { place: self.name(), loader, waited }
    }

    /// Returns the right to load a stale or early value again, unless a task of this client has it.
    fn refresh_of(&self, snapshot: &Arc<Snapshot>) -> Option<(Arc<Refreshing>, Arc<Snapshot>)> {
        let Settings { early, draw, loader_ttl, .. } = self.settings;
        let is_due = !snapshot.is_fresh() || snapshot.is_due_early(*early, || draw());
        // A loader that began within its TTL has the lease, or its process has just died.
        if !is_due || snapshot.is_loading_since(loader_ttl.as_duration()) {
            return None;
        }
        Some((self.flight.try_refresh()?, snapshot.clone()))
    }

    fn name(&self) -> Name {
        self.key.cell.name().clone()
    }

    fn lock(&self) -> Mutex {
        let Settings { loader_ttl, load_within, .. } = self.settings;
        Mutex::new(self.client.clone(), Ok(self.key.lease.clone()))
            .ttl(loader_ttl.as_duration())
            .max_hold(load_within.as_duration())
            .internal()
    }

    async fn read(&self) -> Result<Arc<Snapshot>> {
        self.flight.reads.read(self.client.clock(), read(self.client, &self.key)).await
    }

    /// Returns the value, or `Some(None)` for its absence; `None` if the caller needs a load.
    fn decode(&self, snapshot: Arc<Snapshot>) -> Option<Option<T>> {
        match (snapshot.content(), self.wanted) {
            (Content::Value, _) => {
                let value = match Arc::try_unwrap(snapshot) {
                    Ok(snapshot) => (self.codec.decode)(snapshot.into_value().into()),
                    Err(shared) => (self.codec.decode)(shared.value().into()),
                };
                if value.is_err() {
                    tracing::warn!(place = %self.key.cell, "a cached value is of another type, and is loaded again");
                }
                value.ok().map(Some)
            }
            (Content::Absent, Wanted::ValueOrAbsence) => Some(None),
            _ => None,
        }
    }

    fn encode<'v>(&self, value: &'v T) -> Result<std::borrow::Cow<'v, [u8]>> {
        (self.codec.encode)(value).map_err(|error| match error {
            Error::Invalid { why, .. } => {
                Error::invalid("value to be cached", std::any::type_name::<T>(), why)
            }
            error => error,
        })
    }
}

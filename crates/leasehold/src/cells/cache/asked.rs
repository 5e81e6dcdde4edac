//! One call of a cache: what it finds, whom it waits for, and what it loads.

use std::time::Duration;

use super::clerk::Clerk;
use super::codec::Codec;
use super::entry::{Look, What};
use super::error::LoadError;
use super::place::Place;
use super::room::{Seat, TurnEnd, Waited};
use super::turn::{Begun, Loading, Turn, read};
use super::{Lifetimes, Settings};
use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::kinds::mutex::Mutex;
use crate::locks::Client;
use crate::name::Name;
use crate::sync::{Arc, spawn};

/// How long the store may take, once the wait is over, to say who loads.
const LAST_WORD: Duration = Duration::from_millis(250);

/// Who waits no longer than this does not wait with others.
const ALONE_BELOW: Duration = Duration::from_millis(250);

/// Whether a caller can do with knowing that there is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Value,
    ValueOrAbsent,
}

pub(super) struct Asked<'a, T> {
    pub(super) client: &'a Arc<Client>,
    pub(super) settings: &'a Settings,
    pub(super) codec: &'a Codec<T>,
    pub(super) place: Arc<Place>,
    pub(super) seat: Seat,
    pub(super) times: Option<Lifetimes>,
}

impl<T> Asked<'_, T> {
    pub(super) async fn get(&self) -> Result<Option<T>> {
        let look = self.look().await?;
        Ok(match look.is_usable(self.settings.stale_for) {
            true => self.found(look, Wish::Value).flatten(),
            false => None,
        })
    }

    pub(super) async fn get_or_load<E, F, W>(self, wish: Wish, loader: F) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let Settings { stale_for, wait, .. } = *self.settings;
        let until = self.client.clock().now().plus(wait);
        let mut before = None;
        // Where others wait already there is nothing; unless there is something that is stale, which they may not want.
        if !self.seat.room().is_attended() || !stale_for.is_zero() {
            let look = self.look().await?;
            if look.is_usable(stale_for) {
                let refresh = self.refresh_of(&look);
                if let Some(found) = self.found(look, wish) {
                    // Boxed, as all that follows: most calls end here.
                    return match refresh {
                        Some(refresh) => Box::pin(self.load_or(refresh, found, wish, loader)).await,
                        None => Ok(found),
                    };
                }
                let is_enough =
                    |look: &Arc<Look>| look.is_fresh() && self.found(look.clone(), wish).is_some();
                return Box::pin(self.load_in_turn(until, wish, is_enough, loader)).await;
            }
            before = Some(look);
        }
        Box::pin(self.wait_or_load(before, until, wish, loader)).await
    }

    /// Takes the turn, whatever others do, and loads; unless there is enough when it comes.
    pub(super) async fn load_in_turn<E, F, W>(
        &self,
        until: Deadline,
        wish: Wish,
        is_enough: impl Fn(&Arc<Look>) -> bool,
        loader: F,
    ) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let lock = self.lock();
        // Waiting is for others: whoever finds it free has it, however little it wants to wait.
        let lease = match lock.try_lock().await? {
            Some(lease) => lease,
            None => match lock.wait(until.since(self.client.clock().now())).lock().await {
                Ok(lease) => lease,
                Err(Error::Busy { busy, waited, .. }) => {
                    return Err(LoadError::Waited { place: self.name(), loader: busy.holder, waited });
                }
                Err(error) => return Err(error.into()),
            },
        };
        let turn = Turn { lease, before: None, end: None };
        self.begin(turn, wish, is_enough, loader).await
    }

    /// Waits with the others of this client until there is a value, or until it is its turn to load.
    async fn wait_or_load<E, F, W>(
        &self,
        before: Option<Arc<Look>>,
        until: Deadline,
        wish: Wish,
        loader: F,
    ) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let (clock, room) = (self.client.clock(), self.seat.room());
        let start = clock.now();
        let attend = || {
            let (client, place) = (self.client.clone(), self.place.clone());
            let (seat, before) = (self.seat.again(), before.clone());
            spawn(Clerk { client, place, lock: self.lock(), seat, before }.attend());
        };
        let is_enough = |look: &Arc<Look>| look.is_fresh() && self.found(look.clone(), wish).is_some();
        // Who hardly waits asks for itself: whether somebody else loads is known by then, and nothing is told in so short a time.
        if self.settings.wait < ALONE_BELOW {
            return self.load_in_turn(until, wish, is_enough, loader).await;
        }
        match room.wait(clock, until, attend).await {
            Waited::Turn(turn) => self.begin(turn, wish, is_enough, loader).await,
            Waited::Told(look) => match self.found(look?, wish) {
                Some(found) => Ok(found),
                // There is something, and it will not do for this one.
                None => self.load_in_turn(until, wish, is_enough, loader).await,
            },
            Waited::Over => Err(self.waited(start).await),
        }
    }

    /// Loads anew what is still good, if nobody else does; what was found is given where that comes to nothing.
    async fn load_or<E, F, W>(
        &self,
        (end, before): (TurnEnd, Arc<Look>),
        found: Option<T>,
        wish: Wish,
        loader: F,
    ) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let Ok(Some(lease)) = self.lock().try_lock().await else { return Ok(found) };
        let turn = Turn { lease, before: Some(before.clone()), end: Some(end) };
        let is_enough = |look: &Arc<Look>| look.is_fresh() && look.raw != before.raw;
        let load_within = self.settings.load_within;
        match turn.begin(self.client, &self.place, load_within, is_enough).await {
            Ok(Begun::Load(loading)) => self.load(loading, loader).await,
            Ok(Begun::There(look)) => Ok(self.found(look, wish).unwrap_or(found)),
            Err(_) => Ok(found),
        }
    }

    async fn begin<E, F, W>(
        &self,
        turn: Turn,
        wish: Wish,
        is_enough: impl Fn(&Arc<Look>) -> bool,
        loader: F,
    ) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let load_within = self.settings.load_within;
        match turn.begin(self.client, &self.place, load_within, is_enough).await? {
            Begun::Load(loading) => self.load(loading, loader).await,
            Begun::There(look) => Ok(self.found(look, wish).flatten()),
        }
    }

    async fn load<E, F, W>(&self, loading: Loading, loader: F) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let limit = self.settings.load_within.as_duration();
        let clock = self.client.clock();
        let output = clock.until(loading.began().plus(limit), std::pin::pin!(loader())).await;
        let failure = match output {
            Some(Ok(value)) => match self.keep(loading, value.as_ref()).await {
                Ok(()) => return Ok(value),
                Err(error) => return Err(error.into()),
            },
            Some(Err(error)) => LoadError::Failed(error),
            None => LoadError::Endless { place: self.name(), limit },
        };
        loading.give_up().await;
        Err(failure)
    }

    /// Keeps what was loaded, if it is to be kept. An error only where it is no value.
    async fn keep(&self, loading: Loading, value: Option<&T>) -> Result<()> {
        let encoded = value.map(self.codec.encode).transpose();
        let times = self.times.and_then(|times| match value {
            Some(_) => Some(times.value),
            None => times.absent,
        });
        let (bytes, times) = match (encoded, times) {
            (Ok(bytes), Some(times)) => (bytes, times),
            (encoded, _) => {
                loading.give_up().await;
                return encoded.map(drop);
            }
        };
        let place = &self.place.cell;
        // Its caller has it all the same, as where the store does not answer.
        if let Err(error) = bytes.as_deref().map_or(Ok(()), |bytes| self.client.check_value(bytes)) {
            tracing::warn!(%place, %error, "loaded, and not kept");
            loading.give_up().await;
            return Ok(());
        }
        match loading.done(bytes.as_deref(), times).await {
            Ok(true) => {}
            Ok(false) => tracing::debug!(%place, "loaded, and overtaken or invalidated meanwhile: not kept"),
            Err(error) => tracing::warn!(%place, %error, "loaded, and perhaps not kept"),
        }
        Ok(())
    }

    /// What is said to one whose wait since then is over: who loads.
    async fn waited<E>(&self, start: Deadline) -> LoadError<E> {
        let clock = self.client.clock();
        let waited = clock.now().since(start);
        let status =
            clock.until(clock.now().plus(LAST_WORD), self.client.store.inspect(&self.place.lease)).await;
        let status = status.and_then(Result::ok).flatten();
        let loader = status.and_then(|status| status.holders.into_iter().next()).map(|holder| holder.owner);
        LoadError::Waited { place: self.name(), loader, waited }
    }

    /// Whether this caller is to load anew what it has found: it is stale, or its time has come early.
    fn refresh_of(&self, look: &Arc<Look>) -> Option<(TurnEnd, Arc<Look>)> {
        let Settings { early, draw, loader_ttl, .. } = self.settings;
        let is_due = !look.is_fresh() || look.is_due_early(*early, || draw());
        // Whoever has begun a moment ago has the lease, or its process has just died.
        if !is_due || look.is_loading_since(loader_ttl.as_duration()) {
            return None;
        }
        Some((self.seat.refresh()?, look.clone()))
    }

    fn name(&self) -> Name {
        self.place.cell.name().clone()
    }

    fn lock(&self) -> Mutex {
        let Settings { loader_ttl, load_within, .. } = self.settings;
        Mutex::new(self.client.clone(), Ok(self.place.lease.clone()))
            .ttl(loader_ttl.as_duration())
            .max_hold(load_within.as_duration())
            .internal()
    }

    async fn look(&self) -> Result<Arc<Look>> {
        self.seat.room().look(self.client.clock(), read(self.client, &self.place)).await
    }

    /// What was seen, as the caller wants it; nothing where that will not do.
    fn found(&self, look: Arc<Look>, wish: Wish) -> Option<Option<T>> {
        match (look.what(), wish) {
            (What::Value, _) => {
                // Mostly nobody else has it, and it need not be copied.
                let bytes = match Arc::try_unwrap(look) {
                    Ok(look) => look.into_value(),
                    Err(shared) => shared.value().to_vec(),
                };
                let value = (self.codec.decode)(bytes);
                if value.is_none() {
                    tracing::warn!(place = %self.place.cell, "a cached value is of another type, and is loaded anew");
                }
                value.map(Some)
            }
            (What::Absent, Wish::ValueOrAbsent) => Some(None),
            _ => None,
        }
    }
}

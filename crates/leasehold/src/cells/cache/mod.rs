//! `Cache`: values that one caller per key loads for all clients of a store.

mod call;
mod coordinator;
mod entry;
mod error;
mod key;
mod load;
mod shared_reads;
mod single_flight;

use std::fmt;
use std::time::Duration;

use crate::cells::codec::Codec;
use crate::cells::store::Write;
use crate::error::{Error, Result, change_valid};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;
use call::{Call, Wanted};
use entry::Lifetime;
use key::CacheKey;

pub use error::LoadError;
pub(crate) use single_flight::SingleFlights;

/// The name of the feature, for errors.
const WHAT: &str = "a cache";

const WAIT: Duration = Duration::from_secs(30);

/// The default of [`Cache::loader_ttl`].
const LOADER_TTL: Duration = Duration::from_secs(5);

/// The default of [`Cache::load_within`].
const LOAD_WITHIN: Duration = Duration::from_secs(3_600);

/// A cache that loads each value once for all callers.
///
/// Of all callers of [`get_or_load`](Cache::get_or_load) that find no value, in all processes, one
/// calls its loader, under a lease. The store tells the others as soon as the value is there. If
/// the loader fails, the next caller loads at once; if its process dies, within the
/// [`loader_ttl`](Cache::loader_ttl) (on the file store at once).
///
/// A value is written only if meanwhile no other loader has begun and no caller has
/// [invalidated](Cache::invalidate) it. So a loader that was suspended for an hour changes nothing.
///
/// | option | default | meaning |
/// |---|---|---|
/// | [`wait`](Cache::wait) | 30 s | how long a caller waits for others to load |
/// | [`stale_for`](Cache::stale_for) | 0 | how long past its TTL a value is served while one caller loads it again |
/// | [`absent_for`](Cache::absent_for) | the TTL | how long the cache remembers that there is no value |
/// | [`early`](Cache::early) | 1 | how eagerly a value is loaded again before its TTL is over |
/// | [`loader_ttl`](Cache::loader_ttl) | 5 s | how long the lease of a loader outlives its process |
/// | [`load_within`](Cache::load_within) | 1 h | how long a load may take |
///
/// A key is any text or bytes. A cache's name has at most 128 bytes and no `/`. A hit costs one
/// request, and does not touch the lease. The store's clock decides whether a value is fresh.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let locks = leasehold::connect("memory:").await?;
/// let prices = locks.cache("prices").stale_for(Duration::from_secs(10));
/// let load = async || Ok::<_, std::io::Error>(b"12.50".to_vec()); // asks the database
/// let price = prices.get_or_load("apples", Duration::from_secs(60), load).await?;
/// assert_eq!(price, b"12.50");
/// assert_eq!(prices.get("apples").await?, Some(price));
/// prices.invalidate("apples").await?;
/// assert_eq!(prices.get("apples").await?, None);
/// # Ok(()) }
/// ```
#[must_use = "a cache does nothing until it is asked for something"]
pub struct Cache<T = Vec<u8>> {
    client: Arc<Client>,
    settings: Result<Settings>,
    codec: Codec<T>,
}

#[derive(Clone)]
struct Settings {
    name: Name,
    wait: Duration,
    stale_for: Duration,
    absent_for: Option<Duration>,
    early: f64,
    loader_ttl: Ttl,
    load_within: Ttl,
    draw: Draw,
}

type Draw = std::sync::Arc<dyn Fn() -> f64 + Send + Sync>;

#[derive(Debug, Clone, Copy)]
struct Lifetimes {
    value: Lifetime,
    /// `None` if the cache does not remember the absence of a value.
    absent: Option<Lifetime>,
}

impl<T> Cache<T> {
    /// Sets how long a caller waits for others to load before [`LoadError::Waited`].
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|settings| {
            settings.wait = wait;
            Ok(())
        })
    }

    /// Sets how long past its TTL a value is served while one caller loads it again. That caller
    /// waits for its own loader.
    pub fn stale_for(self, stale_for: Duration) -> Self {
        self.set(|settings| zero_or_ttl(stale_for).map(|stale_for| settings.stale_for = stale_for))
    }

    /// Sets how long the cache remembers that a loader has returned `None`; zero means not at all.
    pub fn absent_for(self, absent_for: Duration) -> Self {
        self.set(|settings| zero_or_ttl(absent_for).map(|absent_for| settings.absent_for = Some(absent_for)))
    }

    /// Sets how eagerly one caller loads a value before its TTL is over, while the others get the
    /// present one: with a chance of `exp(-left / (load time × beta))`. At 1, a busy key is loaded
    /// again shortly before its end; more is earlier, 0 is never.
    pub fn early(self, beta: f64) -> Self {
        self.set(|settings| {
            if !(0.0..=1_000.0).contains(&beta) {
                let why = "it lies between 0 (never) and 1,000; 1 is usual";
                return Err(Error::invalid("beta of early loading", beta.to_string(), why));
            }
            settings.early = beta;
            Ok(())
        })
    }

    /// Sets how long the lease of a loader outlives its process. A live process renews the lease.
    pub fn loader_ttl(self, ttl: Duration) -> Self {
        self.set(|settings| Ttl::new(ttl).map(|ttl| settings.loader_ttl = ttl))
    }

    /// Limits a load: then it is cancelled ([`LoadError::Endless`]), and the next caller loads.
    pub fn load_within(self, limit: Duration) -> Self {
        self.set(|settings| Ttl::new(limit).map(|limit| settings.load_within = limit))
    }

    /// Replaces the random numbers, for tests: `draw` returns numbers above 0 and at most 1.
    #[cfg(feature = "testing")]
    pub fn drawing(self, draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.set(|settings| {
            settings.draw = std::sync::Arc::new(draw);
            Ok(())
        })
    }

    fn set(mut self, change: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        change_valid(&mut self.settings, change);
        self
    }

    /// Returns a value that is fresh, or as stale as [`stale_for`](Cache::stale_for) allows.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the store does not answer; [`Error::Unsupported`] if it keeps no
    /// values; [`Error::Invalid`] for an invalid option.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        self.call(key.as_ref(), Wanted::Value, None)?.get().await
    }

    /// Returns the value; loads it if there is none, and keeps it for the TTL. While another caller
    /// loads, this call waits for its value; if that loader fails, the next waiting caller loads.
    ///
    /// # Errors
    /// [`LoadError::Failed`] if this caller's own loader failed; [`LoadError::Waited`] if others
    /// loaded for longer than the [`wait`](Cache::wait); [`LoadError::Endless`] if the loader took
    /// longer than [`load_within`](Cache::load_within); [`LoadError::Store`] as
    /// [`get`](Cache::get). A loaded value is returned even if it could not be written.
    ///
    /// # Cancel safety
    /// If dropped while it waits, it leaves nothing behind. If dropped while its loader runs, or if
    /// that panics, the loader is cancelled, and the next caller loads at once.
    pub async fn get_or_load<E, F, W>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: F,
    ) -> Result<T, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<T, E>>,
    {
        let call = self.call(key.as_ref(), Wanted::Value, Some(ttl))?;
        some(call.get_or_load(async || loader().await.map(Some)).await?)
    }

    /// Acts as [`get_or_load`](Cache::get_or_load), for a value that may not exist: the cache
    /// remembers a loader's `None` for [`absent_for`](Cache::absent_for).
    ///
    /// # Errors
    /// As [`get_or_load`](Cache::get_or_load).
    ///
    /// # Cancel safety
    /// As [`get_or_load`](Cache::get_or_load).
    pub async fn find_or_load<E, F, W>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: F,
    ) -> Result<Option<T>, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<Option<T>, E>>,
    {
        let call = self.call(key.as_ref(), Wanted::ValueOrAbsence, Some(ttl))?;
        call.get_or_load(async || loader().await).await
    }

    /// Loads the value even if there is one, after other loads, and keeps it for the TTL.
    ///
    /// # Errors
    /// As [`get_or_load`](Cache::get_or_load).
    ///
    /// # Cancel safety
    /// As [`get_or_load`](Cache::get_or_load).
    pub async fn refresh<E, F, W>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: F,
    ) -> Result<T, LoadError<E>>
    where
        F: FnOnce() -> W,
        W: Future<Output = Result<T, E>>,
    {
        let call = self.call(key.as_ref(), Wanted::Load, Some(ttl))?;
        some(call.load_in_turn(async || loader().await.map(Some)).await?)
    }

    /// Removes the value. That of a loader that began before is not kept either.
    ///
    /// # Errors
    /// As [`get`](Cache::get).
    ///
    /// # Cancel safety
    /// If dropped, the removal may or may not have happened; it can be repeated.
    pub async fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let call = self.call(key.as_ref(), Wanted::Value, None)?;
        let client = &self.client;
        client.in_time(client.cells(WHAT)?.write(&call.key.cell, &Write::REMOVE)).await.map(drop)
    }

    /// Checks everything before a request is sent.
    fn call(&self, key: &[u8], wanted: Wanted, ttl: Option<Duration>) -> Result<Call<'_, T>> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let client = &self.client;
        client.open_cells(WHAT)?;
        let can = client.store.capabilities();
        if !can.fenced {
            let why = "it has no fences to tell one loader from the next";
            return Err(Error::Unsupported { store: can.store, what: WHAT, why });
        }
        let lifetimes = ttl.map(|ttl| settings.lifetimes(ttl)).transpose()?;
        let key = Arc::new(CacheKey::new(&settings.name, key)?);
        let flight = client.caches.join(key.lease.clone());
        let until = client.clock().now().plus(settings.wait);
        Ok(Call { client, settings, codec: &self.codec, key, flight, wanted, lifetimes, until })
    }
}

impl Cache {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        let settings = name.and_then(key::checked).and_then(|name| {
            Ok(Settings {
                name,
                wait: WAIT,
                stale_for: Duration::ZERO,
                absent_for: None,
                early: 1.0,
                loader_ttl: Ttl::new(LOADER_TTL)?,
                load_within: Ttl::new(LOAD_WITHIN)?,
                draw: std::sync::Arc::new(random),
            })
        });
        Cache { client, settings, codec: Codec::bytes() }
    }

    /// Returns the cache for values of a type, stored as JSON. A value that cannot be read as that
    /// type, because another version of the program wrote it, is loaded again.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + serde::de::DeserializeOwned>(self) -> Cache<T> {
        Cache { client: self.client, settings: self.settings, codec: Codec::json() }
    }
}

fn zero_or_ttl(time: Duration) -> Result<Duration> {
    if time.is_zero() { Ok(time) } else { Ttl::new(time).map(|_| time) }
}

/// Unwraps the output of a loader that always returns a value.
fn some<T, E>(value: Option<T>) -> Result<T, LoadError<E>> {
    value.ok_or_else(|| LoadError::Store(Error::invalid("cached value", "none", "a value was asked for")))
}

impl Settings {
    fn lifetimes(&self, ttl: Duration) -> Result<Lifetimes> {
        let kept = |ttl: Duration| -> Result<Lifetime> {
            Ttl::new(ttl)?;
            Ok(Lifetime { kept: Ttl::new(ttl.saturating_add(self.stale_for))?, stale: self.stale_for })
        };
        let absent = match self.absent_for {
            Some(Duration::ZERO) => None,
            Some(absent_for) => Some(kept(absent_for)?),
            None => Some(kept(ttl)?),
        };
        Ok(Lifetimes { value: kept(ttl)?, absent })
    }
}

/// Returns a random number above 0 and at most 1; without random bytes 1, so no load is early.
fn random() -> f64 {
    getrandom::u64().map_or(1.0, |random| ((random >> 11) + 1) as f64 / (1u64 << 53) as f64)
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Cache { client: self.client.clone(), settings: self.settings.clone(), codec: self.codec }
    }
}

impl<T> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Cache");
        match &self.settings {
            Ok(settings) => out.field("name", &settings.name),
            Err(error) => out.field("invalid", error),
        };
        out.finish_non_exhaustive()
    }
}

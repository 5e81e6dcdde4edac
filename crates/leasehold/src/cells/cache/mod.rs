//! `Cache`: values that one caller per key loads, in the whole fleet, while the others wait or are served the stale one.

mod asked;
mod clerk;
mod codec;
mod entry;
mod error;
mod place;
mod room;
mod turn;

use std::fmt;
use std::time::Duration;

use crate::cells::store::{When, Write};
use crate::error::{Error, Result};
use crate::locks::Client;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;
use asked::{Asked, Wish};
use codec::Codec;
use place::Place;
use turn::Times;

pub use error::LoadError;
pub(crate) use room::Rooms;

/// What a store is asked for.
const WHAT: &str = "a cache";

/// How long a caller waits for others to load, if nothing is said.
const WAIT: Duration = Duration::from_secs(30);

/// How long a loader that dies keeps its turn, if nothing is said.
const LOADER_TTL: Duration = Duration::from_secs(5);

/// How long a load may take, if nothing is said.
const LOAD_WITHIN: Duration = Duration::from_secs(3_600);

/// Values that are loaded once for all who want them.
///
/// Of all callers of [`get_or_load`](Cache::get_or_load) that find no value, in whatever process, one calls its loader, under a
/// lease; the others wait, and are told the moment the value is there. Where the loader fails, the next of them loads at
/// once; where its process dies, within the [`loader_ttl`](Cache::loader_ttl) (on the file store at once).
///
/// A value is written only if nobody has begun to load after its loader did, and nobody has
/// [invalidated](Cache::invalidate) it since. So a loader that was stopped for an hour, and wakes, changes nothing.
///
/// | option | if nothing is said | meaning |
/// |---|---|---|
/// | [`wait`](Cache::wait) | 30 s | how long a caller waits for others to load |
/// | [`stale_for`](Cache::stale_for) | 0 | how long past its TTL a value is served while somebody loads anew |
/// | [`absent_for`](Cache::absent_for) | the TTL | how long it is remembered that there is nothing |
/// | [`early`](Cache::early) | 1 | how eagerly a value is loaded anew before its TTL is over |
/// | [`loader_ttl`](Cache::loader_ttl) | 5 s | how long a loader whose process dies keeps its turn |
/// | [`load_within`](Cache::load_within) | 1 h | how long a load may take |
///
/// A key is any text or bytes. A cache's name has at most 128 bytes and no `/`. A hit costs one request, and the lease is not
/// touched. Whether a value is fresh, the store's clock decides.
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

/// Where random numbers come from.
type Draw = std::sync::Arc<dyn Fn() -> f64 + Send + Sync>;

/// For how long what a loader gives is kept.
#[derive(Debug, Clone, Copy)]
struct Lifetimes {
    value: Times,
    /// Nothing where it is not to be remembered that there is none.
    absent: Option<Times>,
}

impl<T> Cache<T> {
    /// How long a caller waits for others to load before it says [`LoadError::Waited`]. Its own loader may take longer.
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|settings| {
            settings.wait = wait;
            Ok(())
        })
    }

    /// How long past its TTL a value is kept, and served while one caller loads it anew. That one waits for its own loader.
    pub fn stale_for(self, stale_for: Duration) -> Self {
        self.set(|settings| {
            if !stale_for.is_zero() {
                Ttl::new(stale_for)?;
            }
            settings.stale_for = stale_for;
            Ok(())
        })
    }

    /// How long it is remembered that there is nothing, where a loader says so; zero for not at all. If nothing is said, as
    /// long as a value is.
    pub fn absent_for(self, absent_for: Duration) -> Self {
        self.set(|settings| {
            if !absent_for.is_zero() {
                Ttl::new(absent_for)?;
            }
            settings.absent_for = Some(absent_for);
            Ok(())
        })
    }

    /// How eagerly a value is loaded anew before its TTL is over, by one caller, while the others are served what is there: with
    /// a chance of `exp(-left / (load time × beta))`. With 1, the next load is on its way before the end as surely as the key is in
    /// demand; more is earlier, 0 is never.
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

    /// How long a loader whose process dies keeps its turn. While it lives, its lease is renewed, however long it takes.
    pub fn loader_ttl(self, ttl: Duration) -> Self {
        self.set(|settings| Ttl::new(ttl).map(|ttl| settings.loader_ttl = ttl))
    }

    /// How long a load may take. Past this it is cancelled ([`LoadError::Endless`]), and the next caller loads.
    pub fn load_within(self, limit: Duration) -> Self {
        self.set(|settings| Ttl::new(limit).map(|limit| settings.load_within = limit))
    }

    /// Draws from here, and not from the operating system: numbers above 0 and at most 1.
    #[cfg(feature = "testing")]
    pub fn drawing(self, draw: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.set(|settings| {
            settings.draw = std::sync::Arc::new(draw);
            Ok(())
        })
    }

    fn set(mut self, change: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        // The first thing wrong is the one reported.
        if let Ok(settings) = &mut self.settings
            && let Err(error) = change(settings)
        {
            self.settings = Err(error);
        }
        self
    }

    /// What is there: a fresh value, or a stale one where [`stale_for`](Cache::stale_for) allows it. Nothing is loaded.
    ///
    /// # Errors
    /// [`Error::Unreachable`] where the store does not answer; [`Error::Unsupported`] where it keeps no values;
    /// [`Error::Invalid`] for a bad option.
    ///
    /// # Cancel safety
    /// Changes nothing; can be dropped at any time.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        self.ask(key.as_ref(), None)?.get().await
    }

    /// What is there, or what the loader gives where there is nothing: one loader per key in the whole fleet, whose value is
    /// kept for the TTL. Where others load, this waits for their value; where they fail, it is this one's turn sooner or
    /// later.
    ///
    /// # Errors
    /// [`LoadError::Failed`] where this caller's own loader failed (the failure of another's is not told to it);
    /// [`LoadError::Waited`] where others loaded for longer than the [`wait`](Cache::wait); [`LoadError::Endless`] where the
    /// loader took longer than [`load_within`](Cache::load_within); [`LoadError::Store`] as of [`get`](Cache::get). A value
    /// that was loaded is returned also where it could not be written.
    ///
    /// # Cancel safety
    /// Dropped while it waits, nothing is left behind. Dropped while its loader runs, the loader is cancelled, and the turn
    /// passes on at once: the next caller loads. The same for a panic of the loader.
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
        let asked = self.ask(key.as_ref(), Some(ttl))?;
        some(asked.get_or_load(Wish::Value, || async { loader().await.map(Some) }).await?)
    }

    /// The same for what may not exist: that there is nothing is remembered too, for as long as
    /// [`absent_for`](Cache::absent_for) says.
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
        let asked = self.ask(key.as_ref(), Some(ttl))?;
        asked.get_or_load(Wish::ValueOrAbsent, loader).await
    }

    /// Loads anew, whatever is there, and keeps what the loader gives for the TTL. Where others load, this waits for its turn.
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
        let asked = self.ask(key.as_ref(), Some(ttl))?;
        let until = self.client.clock().now().plus(asked.settings.wait);
        some(asked.load_in_turn(until, Wish::Value, |_| false, || async { loader().await.map(Some) }).await?)
    }

    /// Forgets the value. What a loader gives that began before this is not kept, either.
    ///
    /// # Errors
    /// As [`get`](Cache::get).
    ///
    /// # Cancel safety
    /// Dropped before the answer, it may or may not have happened; it can be repeated.
    pub async fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let asked = self.ask(key.as_ref(), None)?;
        let write = Write { when: When::Always, value: None, ttl: None };
        let client = &self.client;
        client.in_time(client.cells(WHAT)?.write(&asked.place.cell, &write)).await.map(drop)
    }

    /// What is wrong is told before anything is sent.
    fn ask(&self, key: &[u8], ttl: Option<Duration>) -> Result<Asked<'_, T>> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let client = &self.client;
        client.check_open()?;
        client.cells(WHAT)?;
        let can = client.store.capabilities();
        if !can.fenced {
            let why = "it has no fences to tell one loader from the next";
            return Err(Error::Unsupported { store: can.store, what: WHAT, why });
        }
        let times = ttl.map(|ttl| settings.times(ttl)).transpose()?;
        let place = Arc::new(Place::new(&settings.name, key)?);
        let seat = client.caches.enter(&place.lease);
        Ok(Asked { client, settings, codec: &self.codec, place, seat, times })
    }
}

impl Cache {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name>) -> Self {
        let settings = name.and_then(place::checked).and_then(|name| {
            Ok(Settings {
                name,
                wait: WAIT,
                stale_for: Duration::ZERO,
                absent_for: None,
                early: 1.0,
                loader_ttl: Ttl::new(LOADER_TTL)?,
                load_within: Ttl::new(LOAD_WITHIN)?,
                draw: std::sync::Arc::new(codec::drawn),
            })
        });
        Cache { client, settings, codec: Codec::bytes() }
    }

    /// The same for values of a type, kept as JSON. What is there and cannot be read as that type (another version of the
    /// program wrote it) is as if it were not there: it is loaded anew.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + serde::de::DeserializeOwned>(self) -> Cache<T> {
        Cache { client: self.client, settings: self.settings, codec: Codec::json() }
    }
}

/// A loader that gives a value gives one to everybody.
fn some<T, E>(value: Option<T>) -> Result<T, LoadError<E>> {
    value.ok_or_else(|| LoadError::Store(Error::invalid("cached value", "none", "a value was asked for")))
}

impl Settings {
    /// For how long a value is kept, and for how long nothing is.
    fn times(&self, ttl: Duration) -> Result<Lifetimes> {
        let kept = |ttl: Duration| -> Result<Times> {
            Ttl::new(ttl)?;
            Ok(Times { kept: Ttl::new(ttl.saturating_add(self.stale_for))?, stale: self.stale_for })
        };
        let absent = match self.absent_for {
            Some(Duration::ZERO) => None,
            Some(absent_for) => Some(kept(absent_for)?),
            None => Some(kept(ttl)?),
        };
        Ok(Lifetimes { value: kept(ttl)?, absent })
    }
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

//! Values that are loaded once for all who want them, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::cells::cache::LoadError;
use crate::error::Result;

/// Values that are loaded once for all who want them. The options are those of [`crate::Cache`].
///
/// A loader runs on the calling thread. It cannot be cancelled: [`load_within`](Cache::load_within) ends its turn, and the
/// next caller loads, but it is waited for.
#[derive(Debug, Clone)]
pub struct Cache<T = Vec<u8>> {
    pub(super) inner: crate::Cache<T>,
    pub(super) engine: Arc<Engine>,
}

#[cfg(feature = "json")]
impl Cache {
    /// The same for values of a type, kept as JSON. See [`crate::Cache::json`].
    #[must_use]
    pub fn json<T: serde::Serialize + serde::de::DeserializeOwned>(self) -> Cache<T> {
        Cache { inner: self.inner.json(), engine: self.engine }
    }
}

impl<T> Cache<T> {
    /// How long a caller waits for others to load.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Cache { inner: self.inner.wait(wait), ..self }
    }

    /// How long past its TTL a value is served while one caller loads it anew.
    #[must_use]
    pub fn stale_for(self, stale_for: Duration) -> Self {
        Cache { inner: self.inner.stale_for(stale_for), ..self }
    }

    /// How long it is remembered that there is nothing.
    #[must_use]
    pub fn absent_for(self, absent_for: Duration) -> Self {
        Cache { inner: self.inner.absent_for(absent_for), ..self }
    }

    /// How eagerly a value is loaded anew before its TTL is over. See [`crate::Cache::early`].
    #[must_use]
    pub fn early(self, beta: f64) -> Self {
        Cache { inner: self.inner.early(beta), ..self }
    }

    /// How long a loader whose process dies keeps its turn.
    #[must_use]
    pub fn loader_ttl(self, ttl: Duration) -> Self {
        Cache { inner: self.inner.loader_ttl(ttl), ..self }
    }

    /// How long a load may take.
    #[must_use]
    pub fn load_within(self, limit: Duration) -> Self {
        Cache { inner: self.inner.load_within(limit), ..self }
    }

    /// What is there; nothing is loaded. See [`crate::Cache::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        self.engine.block_on(self.inner.get(key))?
    }

    /// What is there, or what the loader gives where there is nothing. See [`crate::Cache::get_or_load`].
    pub fn get_or_load<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LoadError<E>> {
        self.engine.block_on(self.inner.get_or_load(key, ttl, || async { loader() }))?
    }

    /// The same for what may not exist. See [`crate::Cache::find_or_load`].
    pub fn find_or_load<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        self.engine.block_on(self.inner.find_or_load(key, ttl, || async { loader() }))?
    }

    /// Loads anew, whatever is there. See [`crate::Cache::refresh`].
    pub fn refresh<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LoadError<E>> {
        self.engine.block_on(self.inner.refresh(key, ttl, || async { loader() }))?
    }

    /// Forgets the value. See [`crate::Cache::invalidate`].
    pub fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.engine.block_on(self.inner.invalidate(key))?
    }
}

//! The blocking types that need no lock: values, counters, scripts, rate limits and caches.

use std::time::Duration;

use super::mirror::mirror;
use crate::cells::cache::LoadError;
use crate::cells::rate::{Algorithm, Taken};
use crate::cells::script::{Arg, FromAnswer};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::IntoName;
use crate::{Next, Updated};

mirror! {
    /// Values, counters and scripts, which need no lock. See [`crate::Cells`].
    ///
    /// ```
    /// let cells = leasehold::blocking::connect("memory:")?.cells();
    /// assert_eq!(cells.counter("visits").add(1)?, 1);
    /// let updated = cells.cell::<u64>("price").update(|price| price.unwrap_or(100) - 1)?;
    /// assert_eq!(updated.value, Some(99));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[derive(Clone)]
    struct Cells(crate::Cells) {
        /// Returns the counter with this name.
        fn counter(&self, name: impl IntoName) -> Counter;
        /// Returns the cell with this name, whose value is bytes.
        fn bytes(&self, name: impl IntoName) -> Cell<Vec<u8>>;
        /// Returns a script, which runs on a Redis store only.
        fn script(&self, source: impl Into<String>) -> Script;
    }

    /// A number that many clients add to. See [`crate::Counter`].
    #[derive(Clone)]
    #[must_use = "a counter does nothing until it is added to or read"]
    struct Counter(crate::Counter) {
        /// Sets how long the counter lasts, from its first add.
        fn ttl(self, time: Duration) -> Self;
        /// Adds, and returns the sum.
        async fn add(&self, by: i64) -> Result<i64>;
        /// Returns the value.
        async fn get(&self) -> Result<i64>;
        /// Removes the counter: the next add starts from zero.
        async fn reset(&self) -> Result<()>;
    }

    /// A value that is changed without a lock. See [`crate::Cell`].
    #[must_use = "a cell does nothing until it is read or written"]
    struct Cell<T>(crate::Cell) {
        /// Sets how long a value lasts, from each write.
        fn ttl(self, time: Duration) -> Self;
        /// Sets how often an [`update`](Cell::update) is tried.
        fn tries(self, tries: u32) -> Self;
        /// Sets how long the fence of [`set_fenced`](Cell::set_fenced) outlives the value.
        fn fence_kept_for(self, time: Duration) -> Self;
        /// Returns the value, if there is one.
        async fn get(&self) -> Result<Option<T>>;
        /// Writes the value.
        async fn set(&self, value: &T) -> Result<()>;
        /// Writes the value if there is none; returns whether it did.
        async fn set_if_absent(&self, value: &T) -> Result<bool>;
        /// Writes `new` if the value is `current`; returns whether it did.
        async fn compare_and_set(&self, current: &T, new: &T) -> Result<bool>;
        /// Removes the value if it is `current`; returns whether it did.
        async fn compare_and_delete(&self, current: &T) -> Result<bool>;
        /// Removes the value.
        async fn delete(&self) -> Result<()>;
        /// Writes the value, unless there was a write under a higher fence.
        async fn set_fenced(&self, fence: Fence, value: &T) -> Result<()>;
        /// Removes the value, unless there was a write under a higher fence.
        async fn delete_fenced(&self, fence: Fence) -> Result<()>;
    }

    /// A script of the user. See [`crate::Script`].
    #[derive(Clone)]
    #[must_use = "a script does nothing until it is called"]
    struct Script(crate::Script) {
        /// Begins a call.
        fn call(&self) -> Call;
    }

    /// One call of a [`Script`]. See [`crate::cells::script::Call`].
    #[derive(Clone)]
    #[must_use = "a call does nothing until it is run"]
    struct Call(crate::cells::script::Call) {
        /// Adds the key of this cell to `KEYS`.
        fn cell(self, name: impl IntoName) -> Self;
        /// Adds the key of this counter to `KEYS`.
        fn counter(self, name: impl IntoName) -> Self;
        /// Adds this key to `KEYS`, without a prefix.
        fn key(self, key: impl AsRef<[u8]>) -> Self;
        /// Adds an argument to `ARGV`.
        fn arg(self, arg: impl Into<Arg>) -> Self;
    }

    /// An amount per period, for all clients that use the name. See [`crate::RateLimit`].
    #[derive(Clone)]
    #[must_use = "a rate limit does nothing until something is taken"]
    struct RateLimit(crate::RateLimit) {
        /// Sets the amount per [period](RateLimit::per). It is required.
        fn max(self, max: u32) -> Self;
        /// Sets the period. It is required.
        fn per(self, period: Duration) -> Self;
        /// Sets the algorithm.
        fn algorithm(self, algorithm: Algorithm) -> Self;
        /// Counts in windows.
        fn fixed_window(self) -> Self;
        /// Allows at most the maximum in any period, the default.
        fn sliding_window(self) -> Self;
        /// Spaces takes evenly, with at most this burst.
        fn gcra(self, burst: u32) -> Self;
        /// Takes this weight if the limit allows it now.
        async fn take(&self, weight: u32) -> Result<Taken>;
        /// Waits until the limit allows this weight, and takes it.
        async fn wait(&self, weight: u32) -> Result<()>;
        /// Waits at most this long until the limit allows this weight, and takes it.
        async fn wait_for(&self, weight: u32, time: Duration) -> Result<Taken>;
    }

    /// Values that one caller loads for all others. See [`crate::Cache`].
    ///
    /// A loader runs on the calling thread, uncancelled: past [`load_within`](Cache::load_within)
    /// the next caller loads, but this call still waits for its loader.
    #[derive(Clone)]
    #[must_use = "a cache does nothing until it is asked for something"]
    struct Cache<T = Vec<u8>>(crate::Cache) {
        /// Sets how long a caller waits while others load.
        fn wait(self, wait: Duration) -> Self;
        /// Sets how long past its TTL a value is served while one caller loads it again.
        fn stale_for(self, stale_for: Duration) -> Self;
        /// Sets how long the cache remembers that there is no value.
        fn absent_for(self, absent_for: Duration) -> Self;
        /// Sets how eagerly a value is loaded again before its TTL is over.
        fn early(self, beta: f64) -> Self;
        /// Sets how long a loader whose process dies keeps other callers from loading.
        fn loader_ttl(self, ttl: Duration) -> Self;
        /// Limits how long a load may take.
        fn load_within(self, limit: Duration) -> Self;
        /// Returns the value if there is one, and loads nothing.
        async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>>;
        /// Removes the value.
        async fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()>;
    }
}

impl Cells {
    /// Returns the cell with this name, stored as JSON. See [`crate::Cells::cell`].
    #[cfg(feature = "json")]
    pub fn cell<T: serde::Serialize + serde::de::DeserializeOwned>(&self, name: impl IntoName) -> Cell<T> {
        Cell { inner: self.inner.cell(name), engine: self.engine.clone() }
    }
}

impl<T: Send> Cell<T> {
    /// Reads, computes and writes the value, repeatedly if needed. See [`crate::Cell::update`].
    pub fn update<R: Into<Next<T>>>(&self, next: impl FnMut(Option<T>) -> R + Send) -> Result<Updated<T>> {
        self.engine.block_on(self.inner.update(next))?
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        Cell { inner: self.inner.clone(), engine: self.engine.clone() }
    }
}

impl Call {
    /// Runs the script, and returns its answer. See [`crate::cells::script::Call::run`].
    pub fn run<R: FromAnswer>(&self) -> Result<R> {
        self.engine.block_on(self.inner.run())?
    }
}

#[cfg(feature = "json")]
impl Cache {
    /// Returns the cache for values stored as JSON. See [`crate::Cache::json`].
    pub fn json<T: serde::Serialize + serde::de::DeserializeOwned>(self) -> Cache<T> {
        Cache { inner: self.inner.json(), engine: self.engine }
    }
}

impl<T> Cache<T> {
    /// Returns the value; loads it if there is none. See [`crate::Cache::get_or_load`].
    pub fn get_or_load<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LoadError<E>> {
        self.engine.block_on(self.inner.get_or_load(key, ttl, || async { loader() }))?
    }

    /// Returns the value, if it exists; loads it if needed. See [`crate::Cache::find_or_load`].
    pub fn find_or_load<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, LoadError<E>> {
        self.engine.block_on(self.inner.find_or_load(key, ttl, || async { loader() }))?
    }

    /// Loads the value even if there is one. See [`crate::Cache::refresh`].
    pub fn refresh<E>(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Duration,
        loader: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, LoadError<E>> {
        self.engine.block_on(self.inner.refresh(key, ttl, || async { loader() }))?
    }
}

//! What needs no lock, for code that is not async.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use super::engine::Engine;
use crate::cells::script::{Arg, FromAnswer};
use crate::error::Result;
use crate::fence::Fence;
use crate::name::IntoName;
use crate::{Next, Updated};

/// What needs no lock. See [`crate::Cells`].
///
/// ```
/// let cells = leasehold::blocking::connect("memory:")?.cells();
/// assert_eq!(cells.counter("visits").add(1)?, 1);
/// let updated = cells.cell::<u64>("price").update(|price| price.unwrap_or(100) - 1)?;
/// assert_eq!(updated.value, Some(99));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cells {
    pub(super) inner: crate::Cells,
    pub(super) engine: Arc<Engine>,
}

impl Cells {
    /// A number that is added to.
    pub fn counter(&self, name: impl IntoName) -> Counter {
        Counter { inner: self.inner.counter(name), engine: self.engine.clone() }
    }

    /// A value of any type that serde knows, kept as JSON.
    #[cfg(feature = "json")]
    pub fn cell<T: Serialize + DeserializeOwned>(&self, name: impl IntoName) -> Cell<T> {
        Cell { inner: self.inner.cell(name), engine: self.engine.clone() }
    }

    /// A value that is just bytes.
    pub fn bytes(&self, name: impl IntoName) -> Cell<Vec<u8>> {
        Cell { inner: self.inner.bytes(name), engine: self.engine.clone() }
    }

    /// A script of your own. On a Redis store only.
    pub fn script(&self, source: impl Into<String>) -> Script {
        Script { inner: self.inner.script(source), engine: self.engine.clone() }
    }
}

/// A number that many add to. See [`crate::Counter`].
#[derive(Debug, Clone)]
pub struct Counter {
    inner: crate::Counter,
    engine: Arc<Engine>,
}

impl Counter {
    /// How long it lasts from when it is made.
    #[must_use]
    pub fn ttl(self, time: Duration) -> Self {
        Counter { inner: self.inner.ttl(time), engine: self.engine }
    }

    /// Adds, and says what it comes to. See [`crate::Counter::add`].
    pub fn add(&self, by: i64) -> Result<i64> {
        self.engine.block_on(self.inner.add(by))?
    }

    /// What it comes to now.
    pub fn get(&self) -> Result<i64> {
        self.engine.block_on(self.inner.get())?
    }

    /// Removes it: the next who adds makes it anew.
    pub fn reset(&self) -> Result<()> {
        self.engine.block_on(self.inner.reset())?
    }
}

/// A value that is changed without a lock. See [`crate::Cell`].
pub struct Cell<T> {
    inner: crate::Cell<T>,
    engine: Arc<Engine>,
}

impl<T> Cell<T> {
    /// How long what is written lasts, from each write.
    #[must_use]
    pub fn ttl(self, time: Duration) -> Self {
        self.with(|cell| cell.ttl(time))
    }

    /// How often an [`update`](Cell::update) is tried before it is given up.
    #[must_use]
    pub fn tries(self, tries: u32) -> Self {
        self.with(|cell| cell.tries(tries))
    }

    /// How long the fence of [`set_fenced`](Cell::set_fenced) is remembered when the value is gone.
    #[must_use]
    pub fn fence_kept_for(self, time: Duration) -> Self {
        self.with(|cell| cell.fence_kept_for(time))
    }

    /// What is there.
    pub fn get(&self) -> Result<Option<T>> {
        self.engine.block_on(self.inner.get())?
    }

    /// Writes it, whatever is there.
    pub fn set(&self, value: &T) -> Result<()> {
        self.engine.block_on(self.inner.set(value))?
    }

    /// Writes it where nothing is; says whether it did.
    pub fn set_if_absent(&self, value: &T) -> Result<bool> {
        self.engine.block_on(self.inner.set_if_absent(value))?
    }

    /// Writes `new` where `current` is; says whether it did.
    pub fn compare_and_set(&self, current: &T, new: &T) -> Result<bool> {
        self.engine.block_on(self.inner.compare_and_set(current, new))?
    }

    /// Removes it if it is this; says whether it did.
    pub fn compare_and_delete(&self, current: &T) -> Result<bool> {
        self.engine.block_on(self.inner.compare_and_delete(current))?
    }

    /// Removes it, whatever it is.
    pub fn delete(&self) -> Result<()> {
        self.engine.block_on(self.inner.delete())?
    }

    /// Writes it unless something was written under a higher fence. See [`crate::Cell::set_fenced`].
    pub fn set_fenced(&self, fence: Fence, value: &T) -> Result<()> {
        self.engine.block_on(self.inner.set_fenced(fence, value))?
    }

    /// Removes it unless something was written under a higher fence. See [`crate::Cell::delete_fenced`].
    pub fn delete_fenced(&self, fence: Fence) -> Result<()> {
        self.engine.block_on(self.inner.delete_fenced(fence))?
    }

    fn with(self, change: impl FnOnce(crate::Cell<T>) -> crate::Cell<T>) -> Self {
        Cell { inner: change(self.inner), engine: self.engine }
    }
}

impl<T: Send> Cell<T> {
    /// Reads the value, asks what to make of it, and writes that if nobody has written in between; else again. See
    /// [`crate::Cell::update`].
    pub fn update<R: Into<Next<T>>>(&self, next: impl FnMut(Option<T>) -> R + Send) -> Result<Updated<T>> {
        self.engine.block_on(self.inner.update(next))?
    }
}

impl<T> std::fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        Cell { inner: self.inner.clone(), engine: self.engine.clone() }
    }
}

/// A script of your own. See [`crate::Script`].
#[derive(Debug, Clone)]
pub struct Script {
    inner: crate::Script,
    engine: Arc<Engine>,
}

impl Script {
    /// Begins a call.
    pub fn call(&self) -> Call {
        Call { inner: self.inner.call(), engine: self.engine.clone() }
    }
}

/// One call of a [`Script`]. See [`crate::cells::script::Call`].
#[derive(Debug, Clone)]
#[must_use = "a call does nothing until it is run"]
pub struct Call {
    inner: crate::cells::script::Call,
    engine: Arc<Engine>,
}

impl Call {
    /// The next of `KEYS` is this cell's.
    pub fn cell(self, name: impl IntoName) -> Self {
        Call { inner: self.inner.cell(name), engine: self.engine }
    }

    /// The next of `KEYS` is this counter's.
    pub fn counter(self, name: impl IntoName) -> Self {
        Call { inner: self.inner.counter(name), engine: self.engine }
    }

    /// The next of `KEYS` is this, as it stands.
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        Call { inner: self.inner.key(key), engine: self.engine }
    }

    /// The next of `ARGV`.
    pub fn arg(self, arg: impl Into<Arg>) -> Self {
        Call { inner: self.inner.arg(arg), engine: self.engine }
    }

    /// Has the server run it, and gives its answer.
    pub fn run<R: FromAnswer>(&self) -> Result<R> {
        self.engine.block_on(self.inner.run())?
    }
}

//! Values, counters, scripts, rate limits and caches, which need no lock.

#[cfg(not(shuttle))]
pub mod cache;
pub mod cell;
mod codec;
pub mod counter;
pub mod rate;
pub mod script;
pub mod store;
pub mod update;

use std::fmt;
use std::time::Duration;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use crate::debug::debug_parts;
use crate::error::{Error, Result, change_valid};
use crate::locks::Client;
use crate::name::{IntoName, Name};
use crate::sync::Arc;
use crate::ttl::Ttl;
use cell::Cell;
use counter::Counter;
use script::Script;
use store::{CellStore, Kept, Key, Kind, Write, Written};

/// Values, counters and scripts, which need no lock, from [`Locks::cells`](crate::Locks::cells).
///
/// The best lock is often none: the store itself adds to a number, or replaces a value that is
/// still unchanged, in one step, and no client waits. An invalid name fails at its first use.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::connect("memory:").await?;
/// let cells = locks.cells();
/// assert_eq!(cells.counter("visits").add(1).await?, 1);
///
/// let price = cells.cell::<u64>("price");
/// assert!(price.set_if_absent(&100).await?);
/// assert!(price.compare_and_set(&100, &90).await?);
/// let updated = price.update(|price| price.unwrap_or(0) / 2).await?;
/// assert_eq!((updated.value, updated.tries), (Some(45), 1));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cells {
    client: Arc<Client>,
}

impl Cells {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Cells { client }
    }

    /// Returns the counter with this name.
    pub fn counter(&self, name: impl IntoName) -> Counter {
        Counter::new(Place::new(&self.client, "a counter", Kind::Counter, name.into_name()))
    }

    /// Returns the cell with this name, for a serde type that is stored as JSON.
    #[cfg(feature = "json")]
    pub fn cell<T: Serialize + DeserializeOwned>(&self, name: impl IntoName) -> Cell<T> {
        Cell::json(self.cell_place(name))
    }

    /// Returns the cell with this name, whose value is bytes.
    pub fn bytes(&self, name: impl IntoName) -> Cell<Vec<u8>> {
        Cell::bytes(self.cell_place(name))
    }

    /// Returns a Lua script of your own, which only a Redis store runs.
    pub fn script(&self, source: impl Into<String>) -> Script {
        Script::new(self.client.clone(), source.into())
    }

    fn cell_place(&self, name: impl IntoName) -> Place {
        Place::new(&self.client, "a cell", Kind::Cell, name.into_name())
    }
}

debug_parts!(Cells:);

/// The key of a value, and the TTL of what is written there.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) client: Arc<Client>,
    /// The user of this place, for the error of a store that keeps no values.
    what: &'static str,
    pub(crate) terms: Result<Terms>,
}

#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) key: Key,
    pub(crate) ttl: Option<Ttl>,
}

impl Place {
    pub(crate) fn new(client: &Arc<Client>, what: &'static str, kind: Kind, name: Result<Name>) -> Self {
        let terms = name.map(|name| Terms { key: Key::new(kind, name), ttl: None });
        Place { client: client.clone(), what, terms }
    }

    pub(crate) fn ttl(&mut self, time: Duration) {
        change_valid(&mut self.terms, |terms| Ttl::new(time).map(|ttl| terms.ttl = Some(ttl)));
    }

    pub(crate) fn terms(&self) -> Result<&Terms> {
        self.terms.as_ref().map_err(Clone::clone)
    }

    /// Returns the terms, if they are valid, and the store, while the client is open.
    pub(crate) fn open(&self) -> Result<(&Terms, &dyn CellStore)> {
        Ok((self.terms()?, self.client.open_cells(self.what)?))
    }

    async fn read(&self) -> Result<Option<Kept>> {
        let (terms, store) = self.open()?;
        self.client.in_time(store.read(&terms.key)).await
    }

    async fn write(&self, write: &Write) -> Result<Written> {
        let (terms, store) = self.open()?;
        let written = self.client.in_time(store.write(&terms.key, write)).await;
        written.map_err(|error| unknown(terms.key.name(), error))
    }

    fn show(&self, as_what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(as_what);
        match &self.terms {
            Ok(terms) => out.field("name", terms.key.name()).field("ttl", &terms.ttl),
            Err(error) => out.field("invalid", error),
        };
        out.finish_non_exhaustive()
    }
}

/// Converts a missing answer to a change into [`Error::Unknown`].
fn unknown(name: &Name, error: Error) -> Error {
    match error {
        Error::Unreachable { why, .. } => Error::Unknown { names: name.clone().into(), what: "change", why },
        error => error,
    }
}

//! What can go wrong where a value is loaded.

use std::time::Duration;

use crate::error::{Error, Short};
use crate::name::Name;
use crate::token::Owner;

/// Why a caller of a [`Cache`](super::Cache) got no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError<E> {
    /// This caller's own loader failed. Others have passed it over: the next of them loads.
    #[error("the loader failed: {0}")]
    Failed(E),

    /// Somebody else was to load it, and the wait is over.
    #[error("{}", WaitedText { place, loader: loader.as_ref(), waited: *waited })]
    Waited {
        /// Which value: `CACHE/KEY`.
        place: Name,
        /// Who loads it, as far as the store told.
        loader: Option<Owner>,
        /// How long the caller waited.
        waited: Duration,
    },

    /// This caller's own loader took longer than [`load_within`](super::Cache::load_within), and was cancelled.
    #[error(
        "loading `{place}` took longer than {}, and was given up; make the loader faster, or let it take longer (`load_within`)",
        Short(*limit)
    )]
    Endless {
        /// Which value: `CACHE/KEY`.
        place: Name,
        /// How long it was allowed to take.
        limit: Duration,
    },

    /// The store, or what it was asked.
    #[error(transparent)]
    Store(#[from] Error),
}

impl<E> LoadError<E> {
    /// The loader's own error, if it is one.
    pub fn into_failed(self) -> Option<E> {
        match self {
            LoadError::Failed(error) => Some(error),
            _ => None,
        }
    }
}

struct WaitedText<'a> {
    place: &'a Name,
    loader: Option<&'a Owner>,
    waited: Duration,
}

impl std::fmt::Display for WaitedText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` was not loaded within {}", self.place, Short(self.waited))?;
        if let Some(loader) = self.loader {
            write!(f, " ({loader} is loading it)")?;
        }
        write!(
            f,
            "; wait longer (`wait`), serve the old value meanwhile (`stale_for`), or make the loader faster"
        )
    }
}

//! `LoadError`: why a caller of a cache got no value.

use std::time::Duration;

use crate::error::{Error, Short};
use crate::name::Name;
use crate::token::Owner;

/// The error of a caller of a [`Cache`](super::Cache).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader of this caller failed. The next caller that waits loads.
    #[error("the loader failed: {0}")]
    Failed(E),

    /// Another caller loads the value, and the wait is over.
    #[error(
        "`{place}` was not loaded within {}{}; wait longer (`wait`), serve the old value meanwhile (`stale_for`), or make the loader faster",
        Short(*waited),
        who_loads(loader.as_ref())
    )]
    Waited {
        /// The name of the value: `CACHE/KEY`.
        place: Name,
        /// The client that loads it, if the store could tell.
        loader: Option<Owner>,
        /// The time that the caller waited.
        waited: Duration,
    },

    /// The loader of this caller took longer than [`load_within`](super::Cache::load_within), and was cancelled.
    #[error(
        "loading `{place}` took longer than {}, and was given up; make the loader faster, or let it take longer (`load_within`)",
        Short(*limit)
    )]
    Endless {
        /// The name of the value: `CACHE/KEY`.
        place: Name,
        /// The time that it may take.
        limit: Duration,
    },

    /// The store failed or does not offer a cache, or an option is not valid.
    #[error(transparent)]
    Store(#[from] Error),
}

impl<E> LoadError<E> {
    /// Returns the error of the loader, if it is one.
    pub fn into_failed(self) -> Option<E> {
        match self {
            LoadError::Failed(error) => Some(error),
            _ => None,
        }
    }
}

fn who_loads(loader: Option<&Owner>) -> String {
    loader.map(|loader| format!(" ({loader} is loading it)")).unwrap_or_default()
}

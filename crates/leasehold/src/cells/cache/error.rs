//! `LoadError`: the errors of a cache.

use std::time::Duration;

use crate::error::{Error, Short};
use crate::name::Name;
use crate::token::Owner;

/// The error of a caller of a [`Cache`](super::Cache).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError<E> {
    /// The loader of this caller failed. The next waiting caller loads.
    #[error("the loader failed: {0}")]
    Failed(E),

    /// The wait is over, and another caller still loads the value.
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

    /// This caller's loader exceeded [`load_within`](super::Cache::load_within), and was cancelled.
    #[error(
        "loading `{place}` took longer than {}, and was given up; make the loader faster, or let it take longer (`load_within`)",
        Short(*limit)
    )]
    Endless {
        /// The name of the value: `CACHE/KEY`.
        place: Name,
        /// The limit.
        limit: Duration,
    },

    /// The store failed or offers no cache, or an option is invalid.
    #[error(transparent)]
    Store(#[from] Error),
}

impl<E> LoadError<E> {
    /// Returns the error of the loader, if that failed.
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

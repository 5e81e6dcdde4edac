//! At most one run per period, for code that is not async.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::error::Result;
use crate::lease::Proof;

/// At most one run per period, in the whole fleet. See [`crate::Once`].
#[derive(Debug, Clone)]
pub struct Once {
    pub(crate) inner: crate::Once,
    pub(super) engine: Arc<Engine>,
}

impl Once {
    /// The period: from the beginning of one run to where the next may begin.
    #[must_use]
    pub fn per(self, period: Duration) -> Self {
        Once { inner: self.inner.per(period), ..self }
    }

    /// A cap on a run: past this it is lost.
    #[must_use]
    pub fn at_most_for(self, at_most_for: Duration) -> Self {
        Once { inner: self.inner.at_most_for(at_most_for), ..self }
    }

    /// How long the name stays taken where the run is given back.
    #[must_use]
    pub fn at_least_for(self, at_least_for: Duration) -> Self {
        Once { inner: self.inner.at_least_for(at_least_for), ..self }
    }

    /// Begins a run; `None` where there is nothing to do. See [`crate::Once::take`].
    pub fn take(&self) -> Result<Option<Turn>> {
        let inner = self.engine.block_on(self.inner.take())??;
        Ok(inner.map(|inner| Turn { inner, engine: self.engine.clone() }))
    }

    /// Does the work on this thread; `None` where there is nothing to do. Work that is not async cannot be cancelled: long work
    /// looks at [`Proof::is_valid`] before each step that matters.
    pub fn run<T>(&self, work: impl FnOnce(&Proof) -> T) -> Result<Option<T>> {
        let Some(turn) = self.take()? else { return Ok(None) };
        let output = work(&turn);
        turn.done()?;
        Ok(Some(output))
    }
}

/// The run of this period. See [`crate::Turn`]. It has everything a [`Proof`] has.
#[must_use = "the run is given back as soon as its turn is dropped"]
#[derive(Debug)]
pub struct Turn {
    // Before the engine, so that what its drop sends still finds the janitor.
    inner: crate::Turn,
    engine: Arc<Engine>,
}

impl Turn {
    /// The run is over, and counts. See [`crate::Turn::done`].
    pub fn done(self) -> Result<()> {
        self.engine.block_on(self.inner.done())?
    }

    /// The run does not count. See [`crate::Turn::give_back`].
    pub fn give_back(self) -> Result<()> {
        self.engine.block_on(self.inner.give_back())?
    }
}

impl Deref for Turn {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.inner
    }
}

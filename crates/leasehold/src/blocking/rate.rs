//! Rate limits for code that is not async.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::cells::rate::{Algorithm, Taken};
use crate::error::Result;

/// So much in such a time, for all who use the name. See [`crate::RateLimit`].
#[derive(Debug, Clone)]
pub struct RateLimit {
    pub(super) inner: crate::RateLimit,
    pub(super) engine: Arc<Engine>,
}

impl RateLimit {
    /// How much in a [period](RateLimit::per). It has to be said.
    #[must_use]
    pub fn max(self, max: u32) -> Self {
        self.with(|limit| limit.max(max))
    }

    /// In which time. It has to be said.
    #[must_use]
    pub fn per(self, period: Duration) -> Self {
        self.with(|limit| limit.per(period))
    }

    /// By this rule.
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        self.with(|limit| limit.algorithm(algorithm))
    }

    /// A number that starts anew with each window.
    #[must_use]
    pub fn fixed_window(self) -> Self {
        self.with(crate::RateLimit::fixed_window)
    }

    /// At most the maximum in any period, as it is if nothing is said.
    #[must_use]
    pub fn sliding_window(self) -> Self {
        self.with(crate::RateLimit::sliding_window)
    }

    /// Evenly, with so many at once at most.
    #[must_use]
    pub fn gcra(self, burst: u32) -> Self {
        self.with(|limit| limit.gcra(burst))
    }

    /// Takes so much if it may be had now. See [`crate::RateLimit::take`].
    pub fn take(&self, weight: u32) -> Result<Taken> {
        self.engine.block_on(self.inner.take(weight))?
    }

    /// Waits until so much may be had, and takes it. See [`crate::RateLimit::wait`].
    pub fn wait(&self, weight: u32) -> Result<()> {
        self.engine.block_on(self.inner.wait(weight))?
    }

    /// The same, at most so long. See [`crate::RateLimit::wait_for`].
    pub fn wait_for(&self, weight: u32, time: Duration) -> Result<Taken> {
        self.engine.block_on(self.inner.wait_for(weight, time))?
    }

    fn with(self, change: impl FnOnce(crate::RateLimit) -> crate::RateLimit) -> Self {
        RateLimit { inner: change(self.inner), engine: self.engine }
    }
}

//! One leader at a time, for code that is not async.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::lease::Lease;
use crate::error::Result;
use crate::fence::Fence;
use crate::kinds::election::Leader;
use crate::lease::Proof;

/// One leader at a time among those who campaign. The options are those of [`crate::Election`].
#[derive(Debug, Clone)]
pub struct Election {
    pub(crate) inner: crate::Election,
    pub(super) engine: Arc<Engine>,
}

impl Election {
    /// How often those who observe ask the store who leads.
    #[must_use]
    pub fn look_every(self, look_every: Duration) -> Self {
        Election { inner: self.inner.look_every(look_every), ..self }
    }

    /// Waits in line until this one leads. See [`crate::Election::campaign`].
    pub fn campaign(&self) -> Result<Leadership> {
        let inner = self.engine.block_on(self.inner.campaign())??;
        Ok(Leadership { inner, engine: self.engine.clone() })
    }

    /// Who leads now; `None` where nobody does.
    pub fn leader(&self) -> Result<Option<Leader>> {
        self.engine.block_on(self.inner.leader())?
    }

    /// Every change of leader from now on. See [`crate::Election::leader_changed`].
    pub fn leader_changed(&self) -> Changes {
        Changes { inner: self.inner.leader_changed(), engine: self.engine.clone() }
    }
}

/// The changes of leader. See [`crate::Changes`].
#[derive(Debug)]
pub struct Changes {
    inner: crate::Changes,
    engine: Arc<Engine>,
}

impl Changes {
    /// Who leads now, at once; after that, waits until it is somebody else, or a new term, or nobody.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Leader>> {
        self.engine.block_on(self.inner.next())?
    }
}

/// A term of office. See [`crate::Leadership`]. It has everything a [`Proof`] has.
#[must_use = "the leader resigns as soon as this is dropped"]
#[derive(Debug)]
pub struct Leadership {
    // Before the engine, so that what its drop sends still finds the janitor.
    inner: crate::Leadership,
    engine: Arc<Engine>,
}

impl Leadership {
    /// The term: the fence.
    pub fn term(&self) -> Fence {
        self.inner.term()
    }

    /// Leads no more, and lets the next one lead at once.
    pub fn resign(self) -> Result<()> {
        self.engine.block_on(self.inner.resign())?
    }

    /// The lease itself.
    pub fn into_lease(self) -> Lease {
        Lease { inner: self.inner.into_lease(), engine: self.engine }
    }
}

impl Deref for Leadership {
    type Target = Proof;

    fn deref(&self) -> &Proof {
        &self.inner
    }
}

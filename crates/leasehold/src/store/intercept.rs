//! Decorators of a store: one implementation of [`Store`] that shows them each call first.

use std::fmt;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::pin::Pin;

use async_trait::async_trait;

use super::{Capabilities, NoticeReceiver, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;

/// A call of a store.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method of [`Store`].
    pub method: &'static str,
    /// The first name of each ticket in the call, or the prefix of a list.
    pub about: Vec<String>,
    /// The call claims a name for longer than its client lives.
    pub detached: bool,
}

/// The future of one execution of a call.
pub type Execution<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A decorator of a store, and itself a [`Store`]. Calls about locks go through
/// [`intercept`](Intercept::intercept), all others straight to the inner store.
pub trait Intercept: Send + Sync + fmt::Debug {
    /// The store behind the decorator.
    fn inner(&self) -> &Arc<dyn Store>;

    /// Answers a call by executing it any number of times. A failed renewal fails for every ticket.
    fn intercept<T, E>(&self, call: Call, execute: E) -> impl Future<Output = Result<T>> + Send
    where
        T: fmt::Debug + Send + 'static,
        E: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync + 'static;

    /// Returns the capabilities of the decorated store, from those of the inner one.
    fn adjust(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// Returns whether clients get the notices and the values of the inner store.
    fn passes_notices_and_values(&self) -> bool {
        true
    }
}

fn call(method: &'static str, about: impl ToString) -> Call {
    Call { method, about: vec![about.to_string()], detached: false }
}

/// Intercepts a call. Every execution gets a copy of its first argument, which is borrowed.
macro_rules! pass {
    ($decorator:ident, $call:expr, $method:ident($arg:ident $(, $more:ident)*)) => {{
        let (call, $arg) = ($call, Arc::new($arg.to_owned()));
        let execute = move |store: Arc<dyn Store>| -> Execution<_> {
            let $arg = $arg.clone();
            Box::pin(async move { store.$method(&$arg $(, $more)*).await })
        };
        $decorator.intercept(call, execute).await
    }};
}

#[async_trait]
impl<I: Intercept> Store for I {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let call = Call { detached: claim.detached, ..call("acquire", claim.ticket.names.first()) };
        pass!(self, call, acquire(claim))
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let about = due.iter().map(|(ticket, _)| ticket.names.first().to_string()).collect();
        let call = Call { method: "renew", about, detached: false };
        let kept: Arc<[(Ticket, Ttl)]> = due.into();
        let execute = move |store: Arc<dyn Store>| -> Execution<_> {
            let kept = kept.clone();
            Box::pin(async move { Ok(store.renew(&kept).await) })
        };
        match self.intercept(call, execute).await {
            Ok(answers) => answers,
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        pass!(self, call("release", ticket.names.first()), release(ticket))
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        pass!(self, call("detach", ticket.names.first()), detach(ticket, ttl))
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        pass!(self, call("convert", ticket.names.first()), convert(ticket, to))
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        pass!(self, call("inspect", name), inspect(name))
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        pass!(self, call("list", prefix), list(prefix, limit))
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        pass!(self, call("evict", name), evict(name))
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        pass!(self, call("evict_holder", name), evict_holder(name, fence))
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        self.passes_notices_and_values().then(|| self.inner().notices()).flatten()
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.inner().confirm_end(names, fence).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        pass!(self, call("adopt", name), adopt(name, ttl))
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        self.passes_notices_and_values().then(|| self.inner().cells()).flatten()
    }

    fn capabilities(&self) -> Capabilities {
        self.adjust(self.inner().capabilities())
    }

    fn clock(&self) -> &Clock {
        self.inner().clock()
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        self.inner().lifeline()
    }
}

//! Decorators of a store: one implementation of [`Store`] that shows every call to the decorator before it is executed.

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

/// One call of a store.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method of [`Store`].
    pub method: &'static str,
    /// The first name of each ticket in the call; for a list, the prefix.
    pub about: Vec<String>,
    /// Whether the call claims a name for longer than its client lives.
    pub detached: bool,
}

/// The future of one execution of a call.
pub type Execution<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// A decorator of a store. Each type that implements it is a [`Store`]: locks go through
/// [`intercept`](Intercept::intercept), everything else goes straight to the inner store.
pub trait Intercept: Send + Sync + fmt::Debug {
    /// The store behind the decorator.
    fn inner(&self) -> &Arc<dyn Store>;

    /// Answers a call, by executing it as often as the decorator likes. A renewal that fails here fails for every ticket.
    fn intercept<T, E>(&self, call: Call, execute: E) -> impl Future<Output = Result<T>> + Send
    where
        T: fmt::Debug + Send + 'static,
        E: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync + 'static;

    /// What the decorated store can do, from what the inner one can.
    fn adjust(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    /// Whether clients get the notices and the values of the inner store.
    fn passes_notices_and_values(&self) -> bool {
        true
    }
}

/// Intercepts a call whose arguments are kept for every execution of it.
async fn pass<I, A, T, E>(decorator: &I, call: Call, args: A, execute: E) -> Result<T>
where
    I: Intercept,
    A: Send + Sync + 'static,
    T: fmt::Debug + Send + 'static,
    E: Fn(Arc<dyn Store>, Arc<A>) -> Execution<T> + Send + Sync + 'static,
{
    let args = Arc::new(args);
    decorator.intercept(call, move |store| execute(store, args.clone())).await
}

fn call(method: &'static str, about: &str) -> Call {
    Call { method, about: vec![about.to_owned()], detached: false }
}

#[async_trait]
impl<I: Intercept> Store for I {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        let call = Call { detached: claim.detached, ..call("acquire", claim.ticket.names.first().as_str()) };
        pass(self, call, claim.clone(), |store, claim| Box::pin(async move { store.acquire(&claim).await }))
            .await
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        let about = due.iter().map(|(ticket, _)| ticket.names.first().to_string()).collect();
        let call = Call { method: "renew", about, detached: false };
        let answers =
            pass(self, call, due.to_vec(), |store, due| Box::pin(async move { Ok(store.renew(&due).await) }));
        match answers.await {
            Ok(answers) => answers,
            Err(error) => due.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        pass(self, call("release", ticket.names.first().as_str()), ticket.clone(), |store, ticket| {
            Box::pin(async move { store.release(&ticket).await })
        })
        .await
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        pass(self, call("detach", ticket.names.first().as_str()), ticket.clone(), move |store, ticket| {
            Box::pin(async move { store.detach(&ticket, ttl).await })
        })
        .await
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        pass(self, call("convert", ticket.names.first().as_str()), ticket.clone(), move |store, ticket| {
            Box::pin(async move { store.convert(&ticket, to).await })
        })
        .await
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        pass(self, call("inspect", name.as_str()), name.clone(), |store, name| {
            Box::pin(async move { store.inspect(&name).await })
        })
        .await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        pass(self, call("list", prefix), prefix.to_owned(), move |store, prefix| {
            Box::pin(async move { store.list(&prefix, limit).await })
        })
        .await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        pass(self, call("evict", name.as_str()), name.clone(), |store, name| {
            Box::pin(async move { store.evict(&name).await })
        })
        .await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        pass(self, call("evict_holder", name.as_str()), name.clone(), move |store, name| {
            Box::pin(async move { store.evict_holder(&name, fence).await })
        })
        .await
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        self.passes_notices_and_values().then(|| self.inner().notices()).flatten()
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.inner().confirm_end(names, fence).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        pass(self, call("adopt", name.as_str()), name.clone(), move |store, name| {
            Box::pin(async move { store.adopt(&name, ttl).await })
        })
        .await
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

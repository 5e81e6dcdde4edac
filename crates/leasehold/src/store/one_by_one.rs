//! Several names on a store that takes one at a time: one after the other, in the order of the names.
//!
//! Whoever takes names in one order for all waits only for names that come later than those it holds, so nobody waits in a
//! circle. It is not one step: somebody who looks may see some of the names held and the others free. All or none holds all the
//! same for whoever asks: what was taken is kept alive while the rest is waited for, and given back where the rest is not to be
//! had.
//!
//! Each name is claimed by itself, with a token of its own, made of the whole claim's. To the client it is one claim: one renewal, one
//! release, one loss. Everything that is about one name goes straight through.

use std::fmt;
#[cfg(unix)]
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::{Capabilities, NoticeReceiver, Store};
use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Grant, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::{Clock, Deadline};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::sync::Arc;
use crate::ttl::Ttl;

pub(crate) struct Ordered {
    inner: Arc<dyn Store>,
}

/// A name that is held while others are waited for.
struct Taken {
    ticket: Ticket,
    valid_until: Deadline,
}

impl Ordered {
    /// The store as it is, where it takes several names in one step; or where no fence would do for all of them, and it refuses.
    pub(crate) fn over(store: Arc<dyn Store>) -> Arc<dyn Store> {
        let can = store.capabilities();
        match can.several_names || can.fences_per_name {
            true => store,
            false => Arc::new(Ordered { inner: store }),
        }
    }

    /// Whatever it ends with but a grant, nothing of it is left, or the error says that this is not known.
    async fn acquire_all(&self, claim: &Claim) -> Result<Acquired> {
        let mut taken: Vec<Taken> = Vec::new();
        let mut fence = None;
        for ticket in parts(&claim.ticket) {
            let asked = Claim { ticket, fences: 1, ..claim.clone() };
            let answer = tokio::select! {
                biased;
                answer = self.inner.acquire(&asked) => answer,
                // What was asked for last may be granted all the same, so that its outcome is not known.
                lost = self.keep(&mut taken, claim.ttl) => {
                    Err(self.unreachable(format!("{lost} was lost while the other names were waited for")))
                }
            };
            let grant = match answer {
                Ok(Acquired::Granted(grant)) => grant,
                // The client withdraws all of it.
                Err(error) if error.is_outcome_unknown() => return Err(error),
                other => {
                    self.give_back(&taken).await?;
                    return other;
                }
            };
            // Fences are one sequence for all names: the last one given is above any that was given before for any of these,
            // and below any that will be.
            fence = fence.max(Some(grant.fence));
            taken.push(Taken { ticket: asked.ticket, valid_until: grant.valid_until });
        }
        let valid_until = taken.iter().map(|taken| taken.valid_until).min();
        match (fence, valid_until) {
            (Some(fence), Some(valid_until)) => {
                Ok(Acquired::Granted(Grant { fence, fences: 1, valid_until }))
            }
            _ => Err(Error::invalid("names", "[]", "a claim has at least one name")),
        }
    }

    /// Renews what is held, and ends with the names of the first that is lost.
    async fn keep(&self, taken: &mut [Taken], ttl: Ttl) -> Names {
        let clock = self.clock();
        let mut pause = ttl.third();
        loop {
            let Some(deadline) = taken.iter().map(|taken| taken.valid_until).min() else {
                return std::future::pending().await;
            };
            clock.sleep_until(clock.now().plus(pause).min(deadline)).await;
            let due: Vec<(Ticket, Ttl)> = taken.iter().map(|taken| (taken.ticket.clone(), ttl)).collect();
            let answers = clock.until(deadline, self.inner.renew(&due)).await;
            pause = ttl.third();
            let mut answers = answers.into_iter().flatten();
            for taken in &mut *taken {
                match answers.next() {
                    Some(Ok(Renewed::Until(deadline))) => {
                        taken.valid_until = taken.valid_until.max(deadline);
                    }
                    Some(Ok(Renewed::Lost(_))) => return taken.ticket.names.clone(),
                    // Until its deadline it is as good as before, and is asked for again soon.
                    Some(Err(_)) | None => pause = ttl.third() / 8,
                }
                if clock.now() >= taken.valid_until {
                    return taken.ticket.names.clone();
                }
            }
        }
    }

    fn unreachable(&self, why: impl Into<String>) -> Error {
        Error::Unreachable { store: self.capabilities().store, why: why.into() }
    }

    async fn give_back(&self, taken: &[Taken]) -> Result<()> {
        let releases = taken.iter().map(|taken| self.inner.release(&taken.ticket));
        join_all(releases).await.into_iter().find_map(Result::err).map_or(Ok(()), |error| {
            // Whatever it was, the client has to withdraw what is left.
            match error.is_outcome_unknown() {
                true => Err(error),
                false => Err(self.unreachable(error.to_string())),
            }
        })
    }
}

/// What is claimed of each name. The fence of one is not that of the whole claim; its token proves it alone.
fn parts(ticket: &Ticket) -> Vec<Ticket> {
    if ticket.names.only().is_some() {
        return vec![ticket.clone()];
    }
    let numbered = (0..=u8::MAX).zip(&ticket.names);
    let part = |(number, name): (u8, &Name)| Ticket {
        names: name.clone().into(),
        token: ticket.token.companion(number),
        share: ticket.share,
        fence: None,
    };
    numbered.map(part).collect()
}

/// The loss of one is the loss of all; what is not known of one is not known; and all last as long as the first to end.
fn together(answers: impl Iterator<Item = Result<Renewed>>) -> Result<Renewed> {
    let mut all = Ok(Renewed::Until(Deadline::FAR));
    for answer in answers {
        all = match (all, answer) {
            (Ok(Renewed::Lost(reason)), _) | (_, Ok(Renewed::Lost(reason))) => Ok(Renewed::Lost(reason)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Renewed::Until(one)), Ok(Renewed::Until(other))) => Ok(Renewed::Until(one.min(other))),
        };
    }
    all
}

#[async_trait]
impl Store for Ordered {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        match claim.ticket.names.only() {
            Some(_) => self.inner.acquire(claim).await,
            None => self.acquire_all(claim).await,
        }
    }

    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>> {
        if due.iter().all(|(ticket, _)| ticket.names.only().is_some()) {
            return self.inner.renew(due).await;
        }
        let flat: Vec<(Ticket, Ttl)> = due
            .iter()
            .flat_map(|(ticket, ttl)| parts(ticket).into_iter().map(move |part| (part, *ttl)))
            .collect();
        let missing = || self.unreachable("it answered for fewer claims than it was asked about");
        let mut answers = self.inner.renew(&flat).await.into_iter();
        let mut of_one = |ticket: &Ticket| {
            let parts = ticket.names.as_slice().len();
            let answers: Vec<_> =
                (0..parts).map(|_| answers.next().unwrap_or_else(|| Err(missing()))).collect();
            together(answers.into_iter())
        };
        due.iter().map(|(ticket, _)| of_one(ticket)).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Released> {
        if ticket.names.only().is_some() {
            return self.inner.release(ticket).await;
        }
        let parts = parts(ticket);
        // All of them are sent, whatever becomes of the first.
        let answers = join_all(parts.iter().map(|part| self.inner.release(part))).await;
        let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
        let not_held = answers.into_iter().find(|answer| *answer == Released::NotHeld);
        Ok(not_held.unwrap_or(Released::Released))
    }

    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed> {
        if ticket.names.only().is_some() {
            return self.inner.detach(ticket, ttl).await;
        }
        let parts = parts(ticket);
        let answers = join_all(parts.iter().map(|part| self.inner.detach(part, ttl))).await;
        let all = together(answers.into_iter());
        if let Ok(Renewed::Lost(_)) = all {
            // The others are nobody's now.
            self.release(ticket).await?;
        }
        all
    }

    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted> {
        match ticket.names.only() {
            Some(_) => self.inner.convert(ticket, to).await,
            None => Err(Error::Unsupported {
                store: self.capabilities().store,
                what: "conversions of several names",
                why: "it cannot change them in one step",
            }),
        }
    }

    async fn inspect(&self, name: &Name) -> Result<Option<Status>> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>> {
        self.inner.list(prefix, limit).await
    }

    async fn evict(&self, name: &Name) -> Result<Evicted> {
        self.inner.evict(name).await
    }

    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        self.inner.evict_holder(name, fence).await
    }

    fn notices(&self) -> Option<NoticeReceiver> {
        self.inner.notices()
    }

    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        self.inner.confirm_end(names, fence).await
    }

    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted> {
        self.inner.adopt(name, ttl).await
    }

    fn cells(&self) -> Option<&dyn CellStore> {
        self.inner.cells()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> &Clock {
        self.inner.clock()
    }

    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>> {
        self.inner.lifeline()
    }
}

impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

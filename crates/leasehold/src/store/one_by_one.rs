//! Claims of several names on a store that takes one name at a time.
//!
//! All clients take names in one order. A claim therefore waits only for names that come later than
//! those it holds, and no claims wait in a circle. This is not one step: a status may show some
//! names held and others free. It is still all or none: the names taken so far are renewed while
//! the claim waits, and released if it does not get the rest.
//!
//! Each name has its own token, derived from the claim's. For the client it is one claim, with one
//! renewal, one release and one loss. Calls about one name go straight through.

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

/// A name that is held while the claim waits for others.
struct Taken {
    ticket: Ticket,
    valid_until: Deadline,
}

impl Ordered {
    /// Wraps a store that takes one name at a time. A store with `fences_per_name` stays as it is,
    /// and refuses several names, because no fence would do for all of them.
    pub(crate) fn over(store: Arc<dyn Store>) -> Arc<dyn Store> {
        let can = store.capabilities();
        match can.several_names || can.fences_per_name {
            true => store,
            false => Arc::new(Ordered { inner: store }),
        }
    }

    /// Without a grant, leaves nothing of the claim behind, or returns an unknown outcome.
    async fn acquire_all(&self, claim: &Claim) -> Result<Acquired> {
        let mut taken: Vec<Taken> = Vec::new();
        let mut fence = None;
        for ticket in parts(&claim.ticket) {
            let asked = Claim { ticket, fences: 1, ..claim.clone() };
            let answer = tokio::select! {
                biased;
                answer = self.inner.acquire(&asked) => answer,
                // The last request may still be granted, so its outcome is unknown.
                lost = self.keep(&mut taken, claim.ttl) => {
                    Err(self.unreachable(format!("{lost} was lost while the other names were waited for")))
                }
            };
            let grant = match answer {
                Ok(Acquired::Granted(grant)) => grant,
                // The client withdraws the whole claim.
                Err(error) if error.is_outcome_unknown() => return Err(error),
                other => {
                    self.give_back(&taken).await?;
                    return other;
                }
            };
            // All names share one sequence of fences: the last fence is above any earlier one of
            // these names, and below any later one.
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

    /// Renews the names taken so far, until one is lost, and returns the names of that one.
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
                    // The name is valid until its deadline, and is renewed again soon.
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
            // After any error the client has to withdraw the rest.
            match error.is_outcome_unknown() {
                true => Err(error),
                false => Err(self.unreachable(error.to_string())),
            }
        })
    }
}

/// Returns a ticket for each name, without the claim's fence: its token alone proves it.
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

/// Merges answers: a loss or an unknown outcome counts for all names, and so does the earliest end.
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
        // Sends every release, even if one fails.
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
            // The other names belong to no claim any more.
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

//! What a store is asked and what it answers: `Claim`, `Share`, `Ticket`, `Grant`, `Status`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::event::Loss;
use crate::fence::Fence;
use crate::name::Name;
use crate::token::{Owner, Token};
use crate::ttl::Ttl;

/// One or more names, claimed together.
///
/// Invariants:
/// - 1 to 64 names, sorted, each once: two callers who say the same names in another order mean the same.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Names(Several);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Several {
    One(Name),
    Many(Arc<[Name]>),
}

impl Names {
    /// The most names one claim may have.
    pub const COUNT_MAX: usize = 64;

    /// Sorts the names, drops repeats, and checks that there are 1 to 64 of them.
    pub fn new(names: impl IntoIterator<Item = Name>) -> Result<Self> {
        let mut names: Vec<Name> = names.into_iter().collect();
        names.sort();
        names.dedup();
        match names.len() {
            0 => Err(Error::invalid("names", "[]", "a claim has at least one name")),
            1 => Ok(Names(Several::One(names.swap_remove(0)))),
            2..=Names::COUNT_MAX => Ok(Names(Several::Many(names.into()))),
            n => Err(Error::invalid("names", format!("{n} of them"), "a claim has at most 64 names")),
        }
    }

    /// The names, in order.
    pub fn as_slice(&self) -> &[Name] {
        match &self.0 {
            Several::One(name) => std::slice::from_ref(name),
            Several::Many(names) => names,
        }
    }

    /// The first name.
    pub fn first(&self) -> &Name {
        &self.as_slice()[0]
    }

    /// Where there is just one: that one.
    pub fn only(&self) -> Option<&Name> {
        match &self.0 {
            Several::One(name) => Some(name),
            Several::Many(_) => None,
        }
    }
}

impl From<Name> for Names {
    fn from(name: Name) -> Self {
        Names(Several::One(name))
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = std::slice::Iter<'a, Name>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.into_iter().enumerate() {
            write!(f, "{}`{name}`", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// How much of a name is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// All of it: nobody else holds it at the same time.
    Exclusive,
    /// Together with others who share it; never beside an exclusive holder.
    Shared,
    /// Some permits of a limit.
    Permits(Permits),
}

impl Share {
    /// Whether it may pass those who came before it.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Share::Permits(permits) if permits.is_barging())
    }
}

/// `take` permits of a `limit`, waiting in order or barging.
///
/// Invariants: `1 ≤ take ≤ limit`. Each claim is judged by its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permits {
    take: u32,
    limit: u32,
    barging: bool,
}

impl Permits {
    /// `take` permits of `limit`, in order of arrival.
    pub fn new(take: u32, limit: u32) -> Result<Self> {
        if take == 0 || take > limit {
            let why = "one takes at least 1 permit and at most the limit";
            return Err(Error::invalid("permits", format!("{take} of {limit}"), why));
        }
        Ok(Permits { take, limit, barging: false })
    }

    /// The same, taken by whoever comes when enough are free, whoever waits.
    #[must_use]
    pub fn barging(self) -> Self {
        Permits { barging: true, ..self }
    }

    /// How many are taken.
    pub fn take(self) -> u32 {
        self.take
    }

    /// How many there may be in all.
    pub fn limit(self) -> u32 {
        self.limit
    }

    /// Whether those who wait may be passed.
    pub fn is_barging(self) -> bool {
        self.barging
    }
}

/// How long a claim waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: busy is an answer.
    Never,
    /// Until the deadline; then busy is the answer.
    Until(Deadline),
    /// For ever; whoever asked withdraws by releasing the ticket.
    Forever,
}

impl Wait {
    /// Whether a claim that waits like this is answered with busy now.
    pub fn is_over(self, now: Deadline) -> bool {
        match self {
            Wait::Never => true,
            Wait::Until(deadline) => now >= deadline,
            Wait::Forever => false,
        }
    }

    /// Returns the earlier of `at` and the end of the wait, so that a waiter which checks again at `at` does not check
    /// too late. [`Wait::Never`] has no end.
    #[must_use]
    pub fn cap(self, at: Deadline) -> Deadline {
        match self {
            Wait::Until(deadline) => at.min(deadline),
            Wait::Never | Wait::Forever => at,
        }
    }
}

/// A request for a share of one or more names.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Who asks for what. Its `fence` is `None`: nothing has been granted.
    pub ticket: Ticket,
    /// How long the grant is to live without renewal.
    pub ttl: Ttl,
    /// How long to wait.
    pub wait: Wait,
    /// How many fences to give with the grant, 1 to 16: one for each task of this client that can be served
    /// in turn under the same grant. A store without fence blocks gives one.
    pub fences: u16,
    /// Whether it is to outlive the client that asked: such a claim lives by its TTL alone, also on a store that
    /// frees what a dead client held.
    pub detached: bool,
}

/// Names, token and share: enough to renew, release or withdraw, with or without a grant.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// What is claimed.
    pub names: Names,
    /// By whom.
    pub token: Token,
    /// How much of it.
    pub share: Share,
    /// The first fence of the grant, where there is one. Renewal proves token *and* fence; a ticket without a fence,
    /// from one who knows only the token of a [`Detached`](crate::Detached), proves that alone.
    pub fence: Option<Fence>,
}

/// The store's yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The (first) fence.
    pub fence: Fence,
    /// How many fences from there on belong to this grant.
    pub fences: u16,
    /// Until when the holder may believe in it, drift already taken off.
    pub valid_until: Deadline,
}

impl Grant {
    /// Whether a ticket with this fence, if it has one, may be of this grant.
    pub(crate) fn has(&self, fence: Option<Fence>) -> bool {
        let last = self.fence.get() + u64::from(self.fences.saturating_sub(1));
        fence.is_none_or(|fence| (self.fence.get()..=last).contains(&fence.get()))
    }
}

/// The answer to a claim.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// It is yours.
    Granted(Grant),
    /// It is not; nothing of the claim is left in the store.
    Busy(Busy),
}

/// Who is in the way, as far as the store can tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// The label of a holder.
    pub holder: Option<Owner>,
    /// What is left of that holder's TTL, if it is not renewed.
    pub remaining: Option<Duration>,
    /// How many wait already.
    pub waiters: usize,
}

/// The answer to a renewal, and to a detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The holder may believe in it until then.
    Until(Deadline),
    /// The claim is not there any more, and was not made again.
    Lost(Loss),
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// It was held by this token and is free now.
    Released,
    /// This token holds nothing; a place in the queue, if there was one, is gone.
    NotHeld,
}

/// The answer to a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converted {
    /// The claim has the share that was asked for; if that is a change, with a new fence.
    Converted(Grant),
    /// Others are in the way; the claim is as it was.
    Refused,
    /// This token holds nothing.
    NotHeld,
}

/// What a forced release found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// Those who held it, with what was left of their TTLs.
    pub holders: Vec<Holder>,
}

/// What an [adoption](crate::Locks::adopt) came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// It had no end, and has one now.
    Adopted {
        /// The label of whoever holds it.
        holder: Owner,
    },
    /// It ends by itself, and was left as it is.
    Ends {
        /// The label of whoever holds it.
        holder: Owner,
        /// In which time, unless renewed.
        remaining: Duration,
    },
    /// Nobody holds it.
    NotHeld,
}

/// The label of one who will never let go by itself.
pub(crate) const ENDLESS: &str = "another library, without an expiry";

/// How things stand with one name.
#[derive(Debug, Clone)]
pub struct Status {
    /// Which name.
    pub name: Name,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub waiters: Vec<Waiter>,
}

/// One who holds a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The label.
    pub owner: Owner,
    /// How much of it.
    pub share: Share,
    /// The fence, where the store has fences.
    pub fence: Option<Fence>,
    /// What is left of the TTL.
    pub remaining: Duration,
    /// On how many nodes it is held, on a store of several.
    pub nodes: Option<Nodes>,
    /// How long ago the store granted it, or last converted it, by the store's clock. A store that keeps no time beside a
    /// holder takes it from the fence, which follows its clock: then it is absent where the clock was set back since, and too
    /// long by as much as the clock was set forward.
    pub held_for: Option<Duration>,
}

/// How many nodes of a store hold something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    /// So many were seen to hold it.
    pub held: usize,
    /// Of so many.
    pub all: usize,
    /// So many have to.
    pub needed: usize,
}

impl Nodes {
    /// Whether no more hold it than have to, though there are more: one that fails now is one too many.
    pub fn is_degraded(self) -> bool {
        self.held <= self.needed && self.needed < self.all
    }
}

impl Holder {
    /// Whether it is another library's and has no end, so that it is never free unless somebody sees to it, or
    /// [adopts](crate::Locks::adopt) it.
    pub fn is_endless(&self) -> bool {
        self.owner.as_str() == ENDLESS
    }
}

/// One who waits for a name.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The label.
    pub owner: Owner,
    /// How much of it.
    pub share: Share,
    /// How long ago it came, by the store's clock; with the limits of [`Holder::held_for`].
    pub waiting_for: Option<Duration>,
}

/// How long ago a store gave this number, where its numbers follow its clock in µs since 1970.
#[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
pub(crate) fn age(number: u64, now_us: u64) -> Option<Duration> {
    /// 2020-01-01. A lower number is no time: somebody wrote it by hand.
    const EARLIEST_US: u64 = 1_577_836_800_000_000;
    let age_us = now_us.checked_sub(number).filter(|_| number >= EARLIEST_US);
    age_us.map(Duration::from_micros)
}

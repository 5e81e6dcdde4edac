//! The requests to a store and its answers: `Claim`, `Share`, `Ticket`, `Grant`, `Status`.

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

/// Names claimed together: 1 to 64, sorted, without repeats. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Names(Several);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Several {
    One(Name),
    Many(Arc<[Name]>),
}

impl Names {
    /// The most names in one claim.
    pub const COUNT_MAX: usize = 64;

    /// Sorts the names, drops repeats, and checks their number.
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

    /// Returns the names, in order.
    pub fn as_slice(&self) -> &[Name] {
        match &self.0 {
            Several::One(name) => std::slice::from_ref(name),
            Several::Many(names) => names,
        }
    }

    /// Returns the first name.
    pub fn first(&self) -> &Name {
        &self.as_slice()[0]
    }

    /// Returns the name if there is only one.
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

/// The part of a name that is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// The whole name: no other holder has it at the same time.
    Exclusive,
    /// A share beside other shared holders; never beside an exclusive holder.
    Shared,
    /// Some permits of a limit.
    Permits(Permits),
}

impl Share {
    /// Returns whether it may pass earlier claims.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Share::Permits(permits) if permits.is_barging())
    }
}

/// `take` permits of a `limit`, with `1 ≤ take ≤ limit`. Each claim is judged by its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permits {
    take: u32,
    limit: u32,
    barging: bool,
}

impl Permits {
    /// Makes `take` permits of `limit`, granted in order of arrival.
    pub fn new(take: u32, limit: u32) -> Result<Self> {
        if take == 0 || take > limit {
            let why = "one takes at least 1 permit and at most the limit";
            return Err(Error::invalid("permits", format!("{take} of {limit}"), why));
        }
        Ok(Permits { take, limit, barging: false })
    }

    /// Makes them barging: granted as soon as enough are free, past the waiters.
    #[must_use]
    pub fn barging(self) -> Self {
        Permits { barging: true, ..self }
    }

    /// Returns the number of permits taken.
    pub fn take(self) -> u32 {
        self.take
    }

    /// Returns the number of all permits.
    pub fn limit(self) -> u32 {
        self.limit
    }

    /// Returns whether the claim may pass the waiters.
    pub fn is_barging(self) -> bool {
        self.barging
    }
}

/// The time that a claim waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The claim does not wait: busy is an answer.
    Never,
    /// The claim waits until the deadline; then busy is the answer.
    Until(Deadline),
    /// The claim waits for ever; the client withdraws it by releasing the ticket.
    Forever,
}

impl Wait {
    /// Returns whether busy is the answer now.
    pub fn is_over(self, now: Deadline) -> bool {
        match self {
            Wait::Never => true,
            Wait::Until(deadline) => now >= deadline,
            Wait::Forever => false,
        }
    }

    /// Returns the earlier of `at` and the end of the wait, so that a waiter which checks again at
    /// `at` is not late. [`Wait::Never`] has no end.
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
    /// The names, token and share. Its `fence` is `None`: nothing has been granted.
    pub ticket: Ticket,
    /// The TTL of the grant.
    pub ttl: Ttl,
    /// The time to wait.
    pub wait: Wait,
    /// The number of fences to allocate with the grant, 1 to 16: one for each task of this client
    /// that can be served in turn under the grant. A store without fence blocks allocates one.
    pub fences: u16,
    /// True if only the TTL ends the claim, also on a store that frees the claims of dead clients.
    pub detached: bool,
}

/// Names, token and share: sufficient to renew, release or withdraw a claim, granted or not.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// The names claimed.
    pub names: Names,
    /// The token of the claimant.
    pub token: Token,
    /// The share claimed.
    pub share: Share,
    /// The first fence of the grant, if any. Renewal proves token *and* fence; a ticket without a
    /// fence, made from the token of a [`Detached`](crate::Detached) lease, proves the token alone.
    pub fence: Option<Fence>,
}

/// The store's positive answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The (first) fence.
    pub fence: Fence,
    /// The number of fences of this grant, from `fence` on.
    pub fences: u16,
    /// The deadline until which the holder may rely on it, drift already subtracted.
    pub valid_until: Deadline,
}

impl Grant {
    /// Returns whether a ticket with this fence, if any, may belong to this grant.
    pub(crate) fn has(&self, fence: Option<Fence>) -> bool {
        let last = self.fence.get() + u64::from(self.fences.saturating_sub(1));
        fence.is_none_or(|fence| (self.fence.get()..=last).contains(&fence.get()))
    }
}

/// The answer to a claim.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// The claim is granted.
    Granted(Grant),
    /// The claim is not granted; nothing of it is left in the store.
    Busy(Busy),
}

/// The holder that is in the way, as far as the store can tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// The label of a holder.
    pub holder: Option<Owner>,
    /// The time left of that holder's TTL, unless renewed.
    pub remaining: Option<Duration>,
    /// The number of waiters.
    pub waiters: usize,
}

/// The answer to a renewal, and to a detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The holder may rely on the claim until this deadline.
    Until(Deadline),
    /// The claim does not exist any more, and was not made again.
    Lost(Loss),
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The token held the claim, which is free now.
    Released,
    /// The token holds nothing; its place in the queue, if any, is gone.
    NotHeld,
}

/// The answer to a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converted {
    /// The claim has the requested share, with a new fence if that is a change.
    Converted(Grant),
    /// Other holders are in the way; the claim is unchanged.
    Refused,
    /// The token holds nothing.
    NotHeld,
}

/// The result of a forced release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// The former holders, with the time that was left of their TTLs.
    pub holders: Vec<Holder>,
}

/// The result of an [adoption](crate::Locks::adopt).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// The lock had no expiry, and has one now.
    Adopted {
        /// The label of the holder.
        holder: Owner,
    },
    /// The lock has an expiry, and was not changed.
    Ends {
        /// The label of the holder.
        holder: Owner,
        /// The time left, unless renewed.
        remaining: Duration,
    },
    /// The name has no holder.
    NotHeld,
}

/// The label of a holder without an expiry.
pub(crate) const ENDLESS: &str = "another library, without an expiry";

/// The holders and waiters of one name.
#[derive(Debug, Clone)]
pub struct Status {
    /// The name.
    pub name: Name,
    /// The holders.
    pub holders: Vec<Holder>,
    /// The waiters, in order.
    pub waiters: Vec<Waiter>,
}

/// A holder of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The label.
    pub owner: Owner,
    /// The share.
    pub share: Share,
    /// The fence, if the store has fences.
    pub fence: Option<Fence>,
    /// The time left of the TTL.
    pub remaining: Duration,
    /// The nodes that hold it, on a store of several.
    pub nodes: Option<Nodes>,
    /// The time since the store granted or last converted it, by the store's clock. Some stores
    /// derive it from the fence, which follows their clock: it is then absent if the clock was set
    /// back since, and too long by the amount that the clock was set forward.
    pub held_for: Option<Duration>,
}

/// The numbers of nodes of a store that hold a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    /// The nodes seen to hold it.
    pub held: usize,
    /// All nodes.
    pub all: usize,
    /// The nodes required.
    pub needed: usize,
}

impl Nodes {
    /// Returns whether no more nodes hold it than required, on a store with spare nodes.
    pub fn is_degraded(self) -> bool {
        self.held <= self.needed && self.needed < self.all
    }
}

impl Holder {
    /// Returns whether the lock is another library's and has no expiry: it is never free unless an
    /// operator releases or [adopts](crate::Locks::adopt) it.
    pub fn is_endless(&self) -> bool {
        self.owner.as_str() == ENDLESS
    }
}

/// A waiter for a name.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The label.
    pub owner: Owner,
    /// The share.
    pub share: Share,
    /// The time since it came, by the store's clock; with the limits of [`Holder::held_for`].
    pub waiting_for: Option<Duration>,
}

/// Returns the age of a number from a store whose numbers follow its clock in µs since 1970.
#[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
pub(crate) fn age(number: u64, now_us: u64) -> Option<Duration> {
    /// 2020-01-01. A lower number is no time: it was written by hand.
    const EARLIEST_US: u64 = 1_577_836_800_000_000;
    let age_us = now_us.checked_sub(number).filter(|_| number >= EARLIEST_US);
    age_us.map(Duration::from_micros)
}

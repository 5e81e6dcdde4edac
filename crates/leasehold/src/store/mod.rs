//! The `Store` trait, which decides claims, and a module for each store.

#[cfg(all(feature = "testing", not(shuttle)))]
pub mod conformance;
#[cfg(any(feature = "testing", shuttle))]
pub mod faulty;
#[cfg(all(feature = "file", target_os = "linux", not(shuttle)))]
pub mod file;
#[cfg(any(feature = "testing", shuttle))]
pub mod intercept;
pub mod memory;
pub(crate) mod notices;
mod one_by_one;
#[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
pub(crate) mod parameter;
#[cfg(all(feature = "redis", not(shuttle)))]
pub mod quorum;
#[cfg(all(feature = "redis", not(shuttle)))]
pub mod redis;
pub(crate) mod registry;
mod sharing;
#[cfg(all(any(all(feature = "file", target_os = "linux"), feature = "redis"), not(shuttle)))]
mod waiters;
mod watchers;

use std::fmt;
#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The attribute for an `impl Store`.
pub use async_trait::async_trait;

use crate::cells::store::CellStore;
use crate::claim::{
    Acquired, Adopted, Claim, Converted, Evicted, Names, Released, Renewed, Share, Status, Ticket,
};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::ttl::Ttl;

pub use notices::{Notice, NoticeReceiver, Notices};
pub(crate) use one_by_one::Ordered;

/// A system that decides claims.
///
/// The trait is the minimum for an implementor. Only [notices](Notice) and the eviction of one
/// holder have defaults, which offer nothing. Renewal in time, loss, clean-up and the local queue
/// are the work of the client ([`Locks`](crate::Locks)), the same over every store.
///
/// # Contract
///
/// **Atomic.** Each call checks and changes the store in one step. No crash leaves a claim without
/// an expiry.
///
/// **Time.** A `valid_until` is on [`clock`](Store::clock), and counts [`Ttl::validity`] from
/// before the request that granted or renewed the claim was sent. Renewals and repeated acquires
/// never shorten a claim. A [`detach`](Store::detach) sets its end, once.
///
/// **Bounded.** Each call ends within the store's operation time-out (an acquire: beyond its wait).
/// This is a few seconds at most, well below the TTLs in use.
///
/// **Errors.** [`Error::is_outcome_unknown`](crate::Error::is_outcome_unknown) tells whether the
/// request may have been executed. After any other error nothing has changed.
///
/// **Idempotent.** A repeated acquire of a token that holds returns the same fences and renews the
/// claim; a token that waits keeps its place. A repeated release returns `NotHeld`. After a release
/// was sent for a token, the client never uses that token again.
///
/// **Names and token.** At other names than those it claimed, a token holds nothing and changes
/// nothing.
///
/// **Detached.** A [`detached`](Claim::detached) claim ends by its TTL, a release or an eviction,
/// never with its client. Any client renews and releases it, with a ticket that may lack the fence,
/// and that has [`Share::Exclusive`] if the share is not known.
///
/// **Dropped futures.** The outcome of a call whose future is dropped is unknown. The client then
/// releases the ticket, so a store need not clean up. A dropped future must not block others that
/// joined its queue.
///
/// **Late requests.** A request whose future was dropped, or ended without an answer, is executed
/// at most [`Capabilities::late_window`] later, if at all. If a network repeats an *answered*
/// acquire after the release, the copy holds a name for one TTL at worst.
///
/// **Order.** In a `fair` store no newcomer passes a live waiter. A waiter whose future is not
/// polled for longer than its TTL may be passed. Behind every wake-up is a poll, at most a third of
/// the claim's TTL away.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Requests a claim, and waits for it as long as `claim.wait` says. After `Busy` nothing is
    /// left of the claim.
    async fn acquire(&self, claim: &Claim) -> Result<Acquired>;

    /// Renews held claims, with one answer for each ticket, in order. A claim that is gone is
    /// `Lost`, never made again. An `Err` concerns one claim only, and a claim that gets no answer
    /// in time must not delay the answers for the others.
    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>>;

    /// Releases a held claim, or withdraws a waiting one.
    async fn release(&self, ticket: &Ticket) -> Result<Released>;

    /// Makes a held claim [`detached`](Claim::detached), without a gap. It ends this TTL from now,
    /// earlier or later than before. A claim that is gone is `Lost`, never made again.
    ///
    /// A claim that is detached already is renewed, so that a late duplicate does not shorten what
    /// another client has extended since. The ticket proves token and fence. Its fence may be any
    /// of the grant's, and becomes the only one.
    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed>;

    /// Changes the share of a held claim without a gap, or returns `Refused` if it does not fit.
    ///
    /// It never waits. A changed claim is a new grant with a new fence. The ticket's fence is
    /// proven, so that a late duplicate of an earlier conversion changes nothing. A claim that has
    /// the share already stays as it is.
    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted>;

    /// Returns the status of a name, or `None` if it has neither holders nor waiters.
    async fn inspect(&self, name: &Name) -> Result<Option<Status>>;

    /// Lists the names in use that start with `prefix`, sorted, at most `limit` of them.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>>;

    /// Releases a name by force, for an operator. The next fence is higher than any before, even if
    /// the name was free. Only this call is not idempotent: a duplicate evicts the next holder.
    async fn evict(&self, name: &Name) -> Result<Evicted>;

    /// Evicts only the holder whose grant has this fence. Without such a holder, nothing changes.
    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        let _ = (name, fence);
        let why = "it takes a name from all its holders only";
        Err(Error::Unsupported { store: self.capabilities().store, what: "evicting one holder", why })
    }

    /// Returns the notices of other clients: of evictions, and of evicted holders whose work has
    /// ended. `None` if a client learns of an eviction only at its next renewal.
    ///
    /// A store sends [`Notice::Evicted`] at least to the holder's clients, once a renewal can see
    /// the eviction.
    fn notices(&self) -> Option<NoticeReceiver> {
        None
    }

    /// Sends [`Notice::Ended`] to the other clients: the work under an evicted lease has ended.
    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        let _ = (names, fence);
        Ok(())
    }

    /// Repairs, for an operator, a lock that another program left without an end: it ends this TTL
    /// from now. A lock with an end keeps it. `Unsupported` if every lock of the store has one.
    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted>;

    /// Returns the store of values, if there is one.
    fn cells(&self) -> Option<&dyn CellStore>;

    /// Returns what this store can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns the clock of the store's deadlines.
    fn clock(&self) -> &Clock;

    /// Returns a descriptor that keeps this client alive while any process has a copy of it open.
    /// `None` if only the TTL frees what a dead process held.
    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>>;
}

/// The abilities of a store. The client refuses calls that need others, before they are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub store: &'static str,
    /// Grants carry fences that only rise. Otherwise each grant has fence 1, which means nothing.
    pub fenced: bool,
    /// A claim may ask for several fences at once.
    pub fence_blocks: bool,
    /// First come, first served.
    pub fair: bool,
    /// `Share::Shared`.
    pub shared: bool,
    /// `Share::Permits`.
    pub permits: bool,
    /// Claims over several names, all or none, in one step. Otherwise the client takes the names
    /// one by one, in order, unless `fences_per_name`.
    pub several_names: bool,
    /// Each name has its own fences, which do not compare with those of other names.
    pub fences_per_name: bool,
    /// `convert`.
    pub conversions: bool,
    /// A release wakes the next waiter, without a poll.
    pub pushed: bool,
    /// Values beside locks ([`Store::cells`]).
    pub cells: bool,
    /// The longest time after the end of its future that a request may still be executed.
    pub late_window: Duration,
    /// The longest TTL that a claim, a renewal or a detach may ask for.
    pub max_ttl: Ttl,
    /// The reason to give when `shared` or `permits` is refused, if there is a special one.
    pub no_shares: Option<&'static str>,
}

impl Capabilities {
    /// Returns the minimum: exclusive claims of one name. Turn on what your store can do beyond it.
    pub fn none(store: &'static str) -> Self {
        Capabilities {
            store,
            fenced: false,
            fence_blocks: false,
            fair: false,
            shared: false,
            permits: false,
            several_names: false,
            fences_per_name: false,
            conversions: false,
            pushed: false,
            cells: false,
            late_window: Duration::ZERO,
            max_ttl: Ttl::MAX,
            no_shares: None,
        }
    }

    /// Every ability, with one sequence of fences for all names.
    pub(crate) fn all(store: &'static str) -> Self {
        Capabilities {
            fenced: true,
            fence_blocks: true,
            fair: true,
            shared: true,
            permits: true,
            several_names: true,
            conversions: true,
            pushed: true,
            cells: true,
            ..Capabilities::none(store)
        }
    }
}

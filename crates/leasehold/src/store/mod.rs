//! The `Store` trait: where claims are decided. One module a store.

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

/// What an `impl Store` is marked with.
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

/// Where claims are decided.
///
/// The trait is the implementor's minimum: only the methods around [notices](Notice) and one of several holders have a
/// default, which is to offer nothing. Renewal in time, loss, clean-up and the
/// local queue are the client's work ([`Locks`](crate::Locks)), the same over every store.
///
/// # Contract
///
/// **Atomic.** Each call decides and acts in one step: there is no moment at which a crash leaves a claim
/// without an expiry, or at which a check and what follows from it come apart.
///
/// **Time.** A `valid_until` is counted on [`clock`](Store::clock) from before the request that proves it was
/// sent, plus [`Ttl::validity`]. Neither renewal nor a repeated acquire ever shortens a claim; a [`detach`](Store::detach)
/// sets its end, once.
///
/// **Bounded.** Each call ends within the store's own operation time-out (an acquire: beyond its wait): a few seconds at
/// most, and well below the TTLs in use.
///
/// **Errors.** [`Error::is_outcome_unknown`](crate::Error::is_outcome_unknown) says whether the request may
/// have been executed. Every other error is definite: nothing changed.
///
/// **Idempotent.** A repeated acquire of a token that holds gives the same fences and re-arms the expiry; of
/// a token that waits, goes on waiting in the same place. A repeated release says `NotHeld`. Once a release
/// has been sent for a token, the client never uses that token again.
///
/// **Names and token.** A token that is shown at other names than those it claimed holds nothing there, and nothing
/// changes.
///
/// **Detached.** A claim that is [`detached`](Claim::detached) ends by its TTL, a release or an eviction, never because its
/// client is gone. Any client renews and releases it, by a ticket that may lack the fence, and that says
/// [`Share::Exclusive`] where the share is not known.
///
/// **Dropped futures.** Dropping a call's future leaves its outcome unknown; the client then releases the
/// ticket, so a store need not clean up by itself. A future that is dropped after others joined the same
/// queue must not block them.
///
/// **Late requests.** A request whose future was dropped, or ended without an answer, is executed at most
/// [`Capabilities::late_window`] after that, if at all. A copy of an *answered* acquire that arrives after the release
/// (a network that repeats things) holds a name for one TTL at worst.
///
/// **Order.** A store that is `fair` never lets a newcomer pass a live waiter. A waiter whose future is not
/// polled for longer than its TTL may be passed over. Every wake-up has a poll behind it, at most a third of
/// the claim's TTL away.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Asks for a claim; waits for it as long as `claim.wait` says. After `Busy` nothing is left of it.
    async fn acquire(&self, claim: &Claim) -> Result<Acquired>;

    /// Renews held claims: as many answers as there are tickets, in the same order. A claim that is gone is
    /// `Lost`, never made again. An `Err` is unknown for that claim alone; one that gets no answer in time must not hold
    /// up the answers for the others.
    async fn renew(&self, due: &[(Ticket, Ttl)]) -> Vec<Result<Renewed>>;

    /// Gives up a claim, whether held or waiting.
    async fn release(&self, ticket: &Ticket) -> Result<Released>;

    /// Has a held claim go on without its client, and without a gap: from now on it is [`detached`](Claim::detached), and it
    /// ends this TTL from now, be that later or sooner than it would have. A claim that is gone is `Lost`, never made again.
    ///
    /// One that is detached already is renewed: nothing is shortened a second time, so that a late duplicate takes nothing
    /// from whoever extended it since. The ticket proves token and fence; its fence may be any of the grant's, and is from
    /// now on the only one.
    async fn detach(&self, ticket: &Ticket, ttl: Ttl) -> Result<Renewed>;

    /// Changes the share of a held claim without a gap. It never waits: what does not fit is `Refused`.
    ///
    /// A changed claim is a new grant with a new fence, and the ticket's fence is proven, so that a late duplicate
    /// of an earlier conversion changes nothing. To the share it has already, a claim is converted with no change.
    async fn convert(&self, ticket: &Ticket, to: Share) -> Result<Converted>;

    /// How things stand with a name; `None` where nobody holds it or waits.
    async fn inspect(&self, name: &Name) -> Result<Option<Status>>;

    /// The names in use that start with `prefix`, sorted, at most `limit` of them.
    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<Status>>;

    /// An operator's forced release. The next fence is higher than any before, even if nobody held it. The one
    /// call that is not idempotent: a duplicate evicts whoever came next.
    async fn evict(&self, name: &Name) -> Result<Evicted>;

    /// The same for the one holder whose grant has this fence, and for nobody else. Where there is no such holder, nothing
    /// changes.
    async fn evict_holder(&self, name: &Name, fence: Fence) -> Result<Evicted> {
        let _ = (name, fence);
        let why = "it takes a name from all its holders only";
        Err(Error::Unsupported { store: self.capabilities().store, what: "evicting one holder", why })
    }

    /// What other clients tell: of evictions, and of evicted holders whose work has ended. `None` where a client hears
    /// of an eviction at its next renewal only.
    ///
    /// A store sends [`Notice::Evicted`] to the clients of the holder, at least, once the eviction is visible to a renewal.
    fn notices(&self) -> Option<NoticeReceiver> {
        None
    }

    /// Tells the other clients, with [`Notice::Ended`], that the work under an evicted lease has ended.
    async fn confirm_end(&self, names: &Names, fence: Fence) -> Result<()> {
        let _ = (names, fence);
        Ok(())
    }

    /// An operator's repair of a lock that another program left without an end: it ends this TTL from now. Nothing else
    /// changes, and what has an end keeps it. `Unsupported` where there is no such lock.
    async fn adopt(&self, name: &Name, ttl: Ttl) -> Result<Adopted>;

    /// Where it keeps values, if it does.
    fn cells(&self) -> Option<&dyn CellStore>;

    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// The clock its deadlines are on.
    fn clock(&self) -> &Clock;

    /// Where a store frees what a dead process held: a descriptor that keeps this client among the living for as long as
    /// any process has a copy of it open. `None` where only the TTL counts.
    #[cfg(unix)]
    fn lifeline(&self) -> Result<Option<OwnedFd>>;
}

/// What a store can do. What it cannot, it leaves off here, and the client refuses it before it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub store: &'static str,
    /// Grants carry fences that only rise. (Without, each grant has fence 1, which means nothing.)
    pub fenced: bool,
    /// A claim may ask for several fences at once.
    pub fence_blocks: bool,
    /// First come, first served.
    pub fair: bool,
    /// `Share::Shared`.
    pub shared: bool,
    /// `Share::Permits`.
    pub permits: bool,
    /// Claims over several names, all or none, in one step. Where a store cannot, its client takes them one by one, in the
    /// order of the names, unless `fences_per_name`.
    pub several_names: bool,
    /// Each name has fences of its own: one that is above all of one name need not be above those of another.
    pub fences_per_name: bool,
    /// `convert`.
    pub conversions: bool,
    /// A release wakes the next waiter; it does not wait for a poll.
    pub pushed: bool,
    /// It keeps values beside locks ([`Store::cells`]).
    pub cells: bool,
    /// How long after its future ended a request may still be executed.
    pub late_window: Duration,
    /// The longest TTL that a claim, a renewal or a detach may ask for.
    pub max_ttl: Ttl,
    /// Why there are neither readers nor permits, where that takes more words.
    pub no_shares: Option<&'static str>,
}

impl Capabilities {
    /// A store that can do nothing beyond exclusive claims of one name; turn on what yours can.
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

    /// A store that can do everything, with one sequence of fences for all names.
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

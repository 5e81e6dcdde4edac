//! Locks held on a lease, for processes on one machine or on many.
//!
//! You never *own* a lock in a distributed system: you hold it on a lease. The lease is renewed while you hold it,
//! it ends at a deadline that this process can check by itself, and losing it is an event, never a silence.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
//! let locks = leasehold::connect("memory:").await?;
//!
//! let lease = locks.mutex("orders:42").lock().await?;
//! // … the protected resource checks lease.fence() …
//! lease.release().await?; // an error if it was no longer ours: roll back
//!
//! // Cancelled the moment the lease is lost:
//! let fence = locks.mutex("orders:42").run(async |proof| proof.fence()).await?;
//! # let _ = fence; Ok(()) }
//! ```
//!
//! # The tour
//!
//! - [`connect`] gives [`Locks`]; [`Locks::mutex`] gives a [`Mutex`]; locking it gives a [`Lease`].
//! - [`Locks::rwlock`] gives an [`RwLock`], which many readers hold or one writer; [`Locks::semaphore`] a [`Semaphore`], which
//!   has so many permits. What they give is a [`Lease`] too. A writer's becomes a reader's by
//!   [`downgrade`](Lease::downgrade), and a reader's perhaps a writer's by [`upgrade`](Lease::upgrade).
//! - [`Locks::all`] gives [`All`]: several names, all or none, on one lease.
//! - [`Locks::owner`] gives a [`Scope`], in which a lock that is held may be taken again, counted.
//! - [`Locks::once`] gives [`Once`]: at most one run per period.
//! - [`Locks::election`] gives an [`Election`]: one leader at a time, whose fence is its term.
//! - [`Locks::latch`] gives a [`Latch`], which is closed until so many have counted down.
//! - [`Locks::cells`] gives [`Cells`], for what needs no lock at all: a [`Counter`], a [`Cell`] that is compared and set, updated
//!   optimistically or written under a fence, a [`Script`] of your own. When to use which: `docs/cells.md`.
//! - [`Locks::rate_limit`] gives a [`RateLimit`]: so much in such a time, for all who use the name.
//! - [`Locks::cache`] gives a [`Cache`], whose values one caller per key loads while the others wait: `docs/cache.md`.
//! - Which kind is on which store, and what to know about each, is on one page: `docs/kinds.md`.
//! - A [`Lease`] shows its [`Fence`], says how long it lasts, tells when it is [lost](Proof::lost), and is let go
//!   once. A [`Proof`] is the same without the right to let go.
//! - A [`Detached`] lease outlives the process that took it: it lives by its TTL alone, and whoever knows its [`Token`]
//!   extends or releases it. It is taken as such, or made of a [`Lease`] by [`detach`](Lease::detach).
//! - [`Error`] keeps busy, lost, unreachable, unknown and the rest apart, and says what to do.
//! - [`Event`]s go to a [hook](Options::on_event), to `tracing`, and to `metrics`
//!   (names in the documentation of [`event`]).
//! - [`doctor`] says whether a store is fit for locks, and what to do where it is not.
//! - [`blocking`] is the same for code that is not async.
//! - [`store`] is for those who write a store: the [`Store`] trait with its contract; with the feature `testing`
//!   also the conformance suite and a wrapper that loses, delays and repeats.

mod acquire;
#[cfg(not(shuttle))]
pub mod blocking;
pub mod cells;
mod claim;
mod cleanup;
pub mod clock;
mod closing;
mod connect;
mod debug;
mod departures;
#[cfg(not(shuttle))]
pub mod doctor;
mod error;
pub mod event;
mod fence;
mod jitter;
pub mod kinds;
mod lease;
mod locks;
mod loss;
mod name;
mod password;
mod renewal;
pub mod store;
mod sync;
mod token;
mod ttl;

pub use cells::Cells;
#[cfg(not(shuttle))]
pub use cells::cache::{Cache, LoadError};
pub use cells::cell::Cell;
pub use cells::counter::Counter;
pub use cells::rate::{RateLimit, Taken};
pub use cells::script::Script;
pub use cells::update::{Next, Updated};
pub use claim::{
    Acquired, Adopted, Busy, Claim, Converted, Evicted, Grant, Holder, Names, Nodes, Permits, Released,
    Renewed, Share, Status, Ticket, Wait, Waiter,
};
pub use clock::{Clock, Deadline};
pub use connect::{Options, connect};
pub use departures::{Departed, Departure, Departures};
/// For the command, whose messages show durations as the errors do.
#[doc(hidden)]
pub use error::Short;
pub use error::{Error, NodeAnswer, NodeSaid, Result};
pub use event::Event;
pub use fence::Fence;
pub use kinds::all::All;
pub use kinds::election::{Changes, Election, Leader, Leadership};
pub use kinds::latch::Latch;
pub use kinds::mutex::Mutex;
pub use kinds::once::{Once, Turn};
pub use kinds::rwlock::RwLock;
pub use kinds::scope::{CountedLease, ReentrantMutex, Scope};
pub use kinds::semaphore::Semaphore;
pub use lease::convert::Upgrade;
pub use lease::detached::Detached;
pub use lease::{Lease, Proof, Setback};
pub use locks::Locks;
pub use loss::Loss;
pub use name::{IntoName, Name};
pub use password::Password;
pub use store::{Capabilities, Store};
pub use token::{Owner, OwnerProcess, Token};
pub use ttl::Ttl;

/// The examples of the documents compile and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[cfg(feature = "json")]
    #[doc = include_str!("../../../docs/cells.md")]
    struct Cells;
    #[doc = include_str!("../../../docs/rates.md")]
    struct Rates;
    #[doc = include_str!("../../../docs/cache.md")]
    struct Cache;
    #[doc = include_str!("../../../docs/stores/memory.md")]
    struct Memory;
    #[cfg(feature = "redis")]
    #[doc = include_str!("../../../docs/stores/redis.md")]
    struct Redis;
    #[cfg(feature = "redis")]
    #[doc = include_str!("../../../docs/stores/redlock.md")]
    struct Redlock;
    #[cfg(all(feature = "file", target_os = "linux"))]
    #[doc = include_str!("../../../docs/stores/file.md")]
    struct File;
}

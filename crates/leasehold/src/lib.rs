//! Distributed locks held on a lease, for processes on one machine or on many.
//!
//! A client does not own a lock: it holds the lock on a lease, which it renews in the background.
//! The lease ends at a deadline that this process checks by itself, and every loss is reported.
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
//! - [`connect`] returns [`Locks`], [`Locks::mutex`] a [`Mutex`], and locking that a [`Lease`].
//! - [`Locks::rwlock`] returns an [`RwLock`] (many readers or one writer), [`Locks::semaphore`] a
//!   [`Semaphore`] (a number of permits). [`downgrade`](Lease::downgrade) turns a writer's lease
//!   into a reader's; [`upgrade`](Lease::upgrade) tries the reverse.
//! - [`Locks::all`] returns [`All`]: several names, all or none, on one lease.
//! - [`Locks::owner`] returns a [`Scope`], whose locks are re-entrant.
//! - [`Locks::once`] returns [`Once`]: at most one run per period.
//! - [`Locks::election`] returns an [`Election`]: one leader at a time, whose fence is its term.
//! - [`Locks::latch`] returns a [`Latch`]: closed until a number of counts arrived.
//! - [`Locks::cells`] returns [`Cells`], for work without a lock: a [`Counter`], a [`Cell`]
//!   (compare-and-set, optimistic update, fenced write), your own [`Script`]. See `docs/cells.md`.
//! - [`Locks::rate_limit`] returns a [`RateLimit`], shared by all clients that use the name.
//! - [`Locks::cache`] returns a [`Cache`]: one caller per key loads the value (`docs/cache.md`).
//! - `docs/kinds.md` lists which store supports which kind.
//! - A [`Lease`] has a [`Fence`] and a deadline, reports when it is [lost](Proof::lost), and is
//!   released once. A [`Proof`] observes a lease and cannot release it.
//! - A [`Detached`] lease outlives its process: it is not renewed, and any process that knows its
//!   [`Token`] extends or releases it. [`detach`](Lease::detach) makes one from a [`Lease`].
//! - [`Error`] separates busy, lost, unreachable, unknown and other failures.
//! - [`Event`]s go to a [hook](Options::on_event), to `tracing` and to `metrics` (see [`event`]).
//! - [`doctor`] examines whether a store is fit for locks.
//! - [`blocking`] is the API for code that is not async.
//! - [`store`] is for implementors of stores: the [`Store`] trait and its contract; with the
//!   feature `testing` also the conformance suite and a wrapper that injects faults.

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
/// For the CLI, whose messages show durations as the errors do.
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

/// Compiles and runs the examples of the documents.
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

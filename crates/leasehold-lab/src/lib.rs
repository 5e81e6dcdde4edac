//! The laboratory: real servers are started here, and hurt, to see what a lock survives.
//!
//! - [`Server`]: a real Redis or Valkey as a child process, with a port and a directory of its own. It can be stopped, killed,
//!   started again on the same port, and made to stand still. It never outlives the process that started it.
//! - [`Proxy`]: a bad network in front of it. Answers get lost after their requests were executed, requests arrive twice or
//!   late, connections are cut or go deaf; and all that clients send is counted.
//! - [`Postgres`]: a real PostgreSQL, for what a lock protects there.
//! - [`Authority`]: certificates for servers that speak TLS, and for their clients.
//! - [`Client`]: the smallest client there is, to look at a server past the library under test.
//!
//! ```
//! use leasehold_lab::{Client, Kind, Proxy, Server, Trick};
//!
//! let server = Server::start(Kind::Redis)?;
//! let proxy = Proxy::to(server.addr())?;
//! let mut client = Client::tcp(proxy.addr())?;
//!
//! proxy.arm(Trick::LoseReply);
//! client.patience(std::time::Duration::from_millis(50))?;
//! assert!(client.command(&["SET", "lock:orders", "mine"]).is_err(), "no answer came");
//! assert_eq!(server.command(&["GET", "lock:orders"])?.text(), Some("mine"), "and yet it was executed");
//! # Ok::<(), leasehold_lab::Error>(())
//! ```
//!
//! All of it works from tests that are async and from tests that are not, under any runtime and on a paused clock: what has
//! to go on by itself has a thread of its own. Calls block, for as long as a server on this machine takes to answer; a server
//! that stands still is waited for no longer than [`PATIENCE`].
//!
//! The programs are those that `LEASEHOLD_REDIS_SERVER` and `LEASEHOLD_VALKEY_SERVER` name; else those in `tools/bin` beside
//! what cargo has built, where `cargo xtask test` installs what Debian does not have; else those on PATH.
//!
//! Linux only, like what is needed for it: `setpriv`, abstract sockets, pidfds.
//!
//! Only the tests of this repository use it, so an item has a doc where its name does not say it all.
#![allow(missing_docs)]

mod certs;
mod client;
mod dice;
mod error;
mod home;
mod port;
mod postgres;
mod process;
mod proxy;
mod resp;
mod server;

pub use certs::Authority;
pub use client::{Client, PATIENCE};
pub use dice::Dice;
pub use error::{Error, Result};
pub use home::Home;
pub use postgres::Postgres;
pub use proxy::{Counts, Cut, Flow, Proxy, Toward, Trick};
pub use resp::Reply;
pub use server::{Kind, Server, Setup, Tls};

/// Locks a mutex, also one that a panic has poisoned.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

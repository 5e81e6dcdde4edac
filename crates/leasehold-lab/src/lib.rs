//! Real servers and network faults for the tests.
//!
//! - [`Server`]: a Redis or Valkey child process with its own port and directory. A test can stop,
//!   kill, pause and restart it. It never outlives the process that started it.
//! - [`Proxy`]: a faulty network in front of it. The proxy loses replies after their requests were
//!   executed, duplicates or delays requests, cuts or silences connections, and counts traffic.
//! - [`Postgres`]: a PostgreSQL, as the resource that a lock protects.
//! - [`Authority`]: certificates for TLS servers and their clients.
//! - [`Client`]: a minimal client that inspects a server without the library under test.
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
//! The lab works from sync and async tests, under any runtime and on a paused clock: it has its own
//! threads. Calls block until the server answers, for a paused server at most [`PATIENCE`].
//!
//! The server programs are, in this order: those that `LEASEHOLD_REDIS_SERVER` and
//! `LEASEHOLD_VALKEY_SERVER` name, those in `tools/bin` beside cargo's build directory, where
//! `cargo xtask test` installs what Debian does not have, and those on PATH.
//!
//! Linux only: it needs `setpriv`, abstract sockets and pidfds.
#![allow(missing_docs)] // Only the tests of this repository use it.

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

/// Locks a mutex, also a poisoned one.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

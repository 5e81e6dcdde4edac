//! The servers and the proxy that the tests of the other crates use.
#![allow(clippy::unwrap_used)]

mod common;
mod proxy;
mod server;

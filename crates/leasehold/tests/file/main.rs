//! The file store.
#![allow(clippy::unwrap_used)]

mod cancel;
mod conformance;
mod edges;
mod faults;
mod processes;

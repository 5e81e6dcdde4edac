//! The Redis store, on Redis and Valkey servers that the tests start.
#![allow(clippy::unwrap_used)]

mod adopt;
mod bare;
mod cancel;
mod company;
mod conformance;
mod crowd;
mod eviction;
mod faults;
mod given;
mod hostile;
mod late;
mod manners;
mod many;
mod model;
mod oracle;
mod processes;
mod shares;
mod tls;
mod together;
mod values;

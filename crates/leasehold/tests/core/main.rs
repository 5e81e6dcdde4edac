//! The lock types and the client, over the memory store or over every store.
#![allow(clippy::unwrap_used)]

mod all;
mod blocking;
mod cache;
mod cancel;
mod cells;
mod cells_cancel;
mod conformance;
mod convert;
mod detached;
mod doctor;
mod election;
mod events;
mod eviction;
mod fencing;
mod hostile;
mod janitor;
mod kinds;
mod latch;
mod log;
mod loss;
mod meeting;
mod memory;
mod mutex;
mod once;
mod rate;
mod remote;
mod rwlock;
mod scope;
mod secrets;
mod semaphore;
mod shutdown;
mod style;
mod wall_clock;

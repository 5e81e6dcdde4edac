//! The kinds of lock, each a typed front of a [`Share`](crate::Share).

pub mod all;
pub mod election;
pub mod latch;
pub mod mutex;
pub mod once;
mod options;
pub mod rwlock;
pub mod scope;
pub mod semaphore;

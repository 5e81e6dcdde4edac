//! Long runs of random operations with crashes, faults and moved clocks. The history of each run is
//! checked.
#![allow(clippy::unwrap_used)]

mod all_chaos;
mod cache_stampede;
mod cells_attack;
mod chaos;
mod file_chaos;
mod quorum_chaos;
mod rate_attack;
mod redis_chaos;
mod rwlock_attack;
mod semaphore_attack;

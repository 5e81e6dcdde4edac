//! The command `leasehold`.
#![allow(clippy::unwrap_used)]

mod commands;
mod common;
mod doctor;
mod elect;
mod evict;
mod latch;
mod messages;
mod operators;
mod password;
mod quorum;
mod rate;
mod run;
mod run_edges;
mod run_forks;
mod run_kinds;
mod run_lost;
mod run_once;
mod run_terminal;
mod shared;

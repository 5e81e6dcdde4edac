//! The quorum store, on servers that the tests start, and a model of its rules.
#![allow(clippy::unwrap_used)]

mod clocks;
mod conformance;
mod model;
mod rules;

//! What needs no lock: values and numbers that are changed in one step.

#[cfg(not(shuttle))]
pub mod cache;
pub mod store;

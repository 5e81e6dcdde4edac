//! What needs no lock: values and numbers that are changed in one step.

pub mod rate;
pub mod store;

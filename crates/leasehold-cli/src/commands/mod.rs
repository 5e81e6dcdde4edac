//! One file per command.

pub(crate) mod detached;
pub(crate) mod doctor;
pub(crate) mod evict;
pub(crate) mod exec;
pub(crate) mod latch;
pub(crate) mod look;
pub(crate) mod manual;
pub(crate) mod rate;
pub(crate) mod run;

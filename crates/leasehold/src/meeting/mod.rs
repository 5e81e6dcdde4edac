//! Where tasks of one client that want one name meet, so that one place in the store serves them all.
//!
//! Each contended name has a *room* with one *seat* and a *line*. Whoever has the seat either *asks* the store
//! (it polls the one request of this room), *holds* the lease, or is being *passed* it by the holder before. The
//! request belongs to the room, not to the task that polls it: a task that is cancelled while asking leaves the
//! request, and with it the place in the store's queue, to the next in line. No task is spawned for any of this,
//! and dropping a future settles everything on the spot.
//!
//! A pass costs no request: the next lease has the next fence of the grant's block and inherits the deadline. So
//! that other clients are served, a grant is passed on at most 15 times and for at most 10 ms.
//!
//! A future that is kept and not polled must not hold up the others. What it was passed ends with its TTL, because
//! the keeper renews only what was picked up. A seat it does not use it loses after a TTL: the keeper looks into each
//! room with a line that often. Should it be polled again, it goes to the end of the line.

mod hall;
mod key;
mod line;
mod visit;

pub(crate) use hall::{Baton, Hall};
pub(crate) use key::Key;
pub(crate) use visit::{Met, Visit};

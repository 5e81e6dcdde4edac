//! The queues in which tasks of one client wait for one name, so that one place in the store's queue serves them all.
//!
//! The head of a queue either *asks* the store (it polls the one request of the queue), *holds* the lease, or is being
//! *passed* the lease by the holder before. The request belongs to the queue, not to the task that polls it: if that task is
//! cancelled, the next waiter polls the same request and keeps its place in the store's queue. No task is spawned for this,
//! and dropping a future leaves nothing behind.
//!
//! Passing a lease costs no request: the next lease has the next fence of the grant's block and inherits the deadline. So
//! that other clients are served, a grant is passed on at most 15 times and for at most 10 ms.
//!
//! A future that is kept and not polled must not block the others. A lease that it was passed ends with its TTL, because
//! a lease is renewed only after it was picked up. If it is the head that asks, it loses its place after a TTL: the renewal
//! task checks each queue with waiters that often. If it is polled again, it goes to the end of the queue.

mod queues;
mod wait;
mod waiters;

pub(crate) use queues::LocalQueues;
pub(crate) use wait::LocalWait;

//! The local queues: tasks of one client that wait for a name share a place in the store's queue.
//!
//! The head of a queue *asks* the store (it polls the one request of the queue), *holds* the lease,
//! or is being *passed* the lease by the previous holder. The request belongs to the queue, not to
//! the task that polls it: if that task is cancelled, the next waiter polls the same request and
//! keeps its place in the store's queue. No task is spawned.
//!
//! Passing a lease costs no request: the next lease has the next fence of the grant's block and the
//! same deadline. For other clients' sake, a grant is passed on at most 15 times, within 10 ms.
//!
//! A future that is kept and not polled must not block the others. A lease passed to it ends with
//! its TTL: it is renewed only after it was picked up. A head that asks loses its place after a
//! TTL, the interval of the renewal task's checks. If polled again, it enters at the end.

mod queues;
mod wait;
mod waiters;

pub(crate) use queues::LocalQueues;
pub(crate) use wait::LocalWait;

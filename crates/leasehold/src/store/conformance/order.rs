//! Waiting: in order, woken, never past a live waiter, never behind a dead one.

use super::{Trial, always};
use crate::claim::{Share, Wait};

cases! {
    waiters_are_served_in_order_of_arrival: AWaiterIsServed, |can| can.fair && can.fenced;
    a_newcomer_does_not_pass_a_live_waiter: AWaiterIsServed, |can| can.fair;
    a_release_wakes_the_next_at_once: AWaiterIsServed, |can| can.fair && can.pushed;
    when_the_head_leaves_the_next_moves_up: AWaiterIsServed, |can| can.fair;
    a_dead_waiter_is_passed_over: NoDeadlockByDeath, |can| can.fair;
    a_wait_ends_at_its_deadline_and_leaves_nothing: AWaiterIsServed, always;
}

async fn waiters_are_served_in_order_of_arrival(t: &Trial<'_>) {
    let a = t.client().await;
    let mut mine = a.exclusive("x");
    let mut last = a.take(&mut mine).await.fence;
    let mut line = Vec::new();
    for _ in 0..5 {
        let b = t.client().await;
        line.push((b.queue(b.exclusive("x")).await, b));
        a.renew(&mine).await;
    }
    a.release(&mine).await;
    for (waiting, b) in line {
        let (ticket, grant) = b.got(waiting).await;
        assert!(grant.fence > last, "served out of order");
        last = grant.fence;
        b.release(&ticket).await;
    }
}

async fn a_newcomer_does_not_pass_a_live_waiter(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let waiting = b.queue(b.exclusive("x")).await;
    a.release(&mine).await;
    assert!(c.is_refused(&c.exclusive("x")).await, "a newcomer passed a waiter");
    let (ticket, _) = b.got(waiting).await;
    b.release(&ticket).await;
}

async fn a_release_wakes_the_next_at_once(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let waiting = b.queue(b.exclusive("x")).await;
    a.release(&mine).await;
    let released = a.now();
    b.got(waiting).await;
    // A lost reply costs its time-out; a wait for the next poll would cost a third of the TTL.
    let enough = t.subject.ttl() / 10 + b.late_window() * 8;
    assert!(b.now().since(released) < enough, "woken by a poll: {:?}", b.now().since(released));
}

async fn when_the_head_leaves_the_next_moves_up(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let head = b.exclusive("x");
    let first = b.queue(head.clone()).await;
    let second = c.queue(c.exclusive("x")).await;
    first.abort();
    b.quiet().await;
    b.release(&head).await;
    a.release(&mine).await;
    let (ticket, _) = c.got(second).await;
    c.release(&ticket).await;
}

async fn a_dead_waiter_is_passed_over(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    // Dropped and never released, like the waiter of a dead process.
    b.queue(b.exclusive("x")).await.abort();
    let waiting = c.queue(c.exclusive("x")).await;
    a.release(&mine).await;
    // At worst the dead waiter is granted just before it counts as gone, and holds for a TTL.
    let by = c.after(t.subject.ttl() * 3 + c.late_window() * 2);
    let (ticket, _) = c.got(waiting).await;
    assert!(c.now() <= by, "a dead waiter blocked the line");
    c.release(&ticket).await;
}

async fn a_wait_ends_at_its_deadline_and_leaves_nothing(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let deadline = b.after(t.subject.ttl() / 10);
    let ticket = b.exclusive("x");
    match b.store.acquire(&b.claim(&ticket, Wait::Until(deadline))).await {
        Ok(crate::Acquired::Busy(busy)) => {
            assert!(b.now() >= deadline, "gave up early");
            assert_eq!(busy.holder.map(|owner| owner.to_string()).as_deref(), Some("conformance"));
            b.quiet().await;
            if b.late_window().is_zero() {
                assert_eq!(a.waiters("x").await, 0, "a place in line was left behind");
            }
        }
        Ok(crate::Acquired::Granted(grant)) => panic!("granted beside a holder: {grant:?}"),
        Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
    }
    b.release(&ticket).await;
    a.release(&mine).await;
}

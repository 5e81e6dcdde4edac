//! Sharing: readers and writers, permits, several names at once, conversions.

use super::Trial;
use super::retrying_client::RetryingClient;
use crate::claim::{Converted, Renewed, Share, Ticket};

cases! {
    readers_share_and_a_writer_excludes: AtomicOrNothing, |can| can.shared;
    a_waiting_writer_stops_new_readers: AWaiterIsServed, |can| can.shared && can.fair;
    one_release_admits_every_reader_that_waits: AWaiterIsServed, |can| can.shared && can.fair;
    permits_never_exceed_the_limit_of_the_claim: AtomicOrNothing, |can| can.permits;
    a_light_claim_waits_behind_a_heavy_head_unless_it_barges: AWaiterIsServed, |can| can.permits && can.fair;
    a_detached_share_is_taken_up_by_one_who_does_not_know_it: OnlyTheHolder, |can| can.permits && can.shared;
    several_names_are_taken_all_or_none: AtomicOrNothing, |can| can.several_names;
    a_token_at_some_of_its_names_or_more_holds_nothing: OnlyTheHolder, |can| can.several_names;
    claims_over_several_names_in_any_order_do_not_deadlock: AWaiterIsServed, |can| can.several_names && can.fair;
    evicting_one_of_several_names_ends_the_whole_claim: LossIsAnEvent, |can| can.several_names;
    a_downgrade_lets_readers_in_without_a_gap: AtomicOrNothing, |can| can.conversions && can.shared && can.fair;
    an_upgrade_is_refused_beside_other_readers_and_never_waits: AtomicOrNothing, |can| can.conversions && can.shared;
    a_late_duplicate_of_a_conversion_changes_nothing: OnlyTheHolder, |can| can.conversions && can.shared && can.fenced;
}

async fn readers_share_and_a_writer_excludes(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let one = a.hold(&["x"], Share::Shared).await;
    let two = b.hold(&["x"], Share::Shared).await;
    assert_ne!(one.fence, two.fence, "one fence per grant");
    assert!(b.is_refused(&b.exclusive("x")).await, "a writer beside readers");
    a.release(&one).await;
    assert!(b.is_refused(&b.exclusive("x")).await, "a writer beside a reader");
    b.release(&two).await;
    let writer = a.hold(&["x"], Share::Exclusive).await;
    assert!(b.is_refused(&b.ticket(&["x"], Share::Shared)).await, "a reader beside a writer");
    a.release(&writer).await;
}

async fn a_waiting_writer_stops_new_readers(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let reader = a.hold(&["x"], Share::Shared).await;
    let writer = b.queue(b.exclusive("x")).await;
    assert!(c.is_refused(&c.ticket(&["x"], Share::Shared)).await, "readers starve the writer");
    a.release(&reader).await;
    let (ticket, _) = b.got(writer).await;
    b.release(&ticket).await;
}

async fn one_release_admits_every_reader_that_waits(t: &Trial<'_>) {
    let a = t.client().await;
    let writer = a.hold(&["x"], Share::Exclusive).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let b = t.client().await;
        readers.push((b.queue(b.ticket(&["x"], Share::Shared)).await, b));
        a.renew(&writer).await;
    }
    a.release(&writer).await;
    let mut held = Vec::new();
    for (waiting, b) in readers {
        held.push((b.got(waiting).await.0, b));
    }
    for (ticket, b) in held {
        assert!(b.release(&ticket).await, "all three held at once");
    }
}

async fn permits_never_exceed_the_limit_of_the_claim(t: &Trial<'_>) {
    let a = t.client().await;
    let two = a.hold(&["x"], RetryingClient::permits(2, 3)).await;
    assert!(a.is_refused(&a.ticket(&["x"], RetryingClient::permits(2, 3))).await, "four of three");
    let one = a.hold(&["x"], RetryingClient::permits(1, 3)).await;
    assert!(a.is_refused(&a.ticket(&["x"], RetryingClient::permits(1, 3))).await, "four of three");
    assert!(a.is_refused(&a.exclusive("x")).await, "a mutex beside permits");
    // Each claim is judged by its own limit. A lower limit evicts no holder.
    assert!(a.is_refused(&a.ticket(&["x"], RetryingClient::permits(1, 2))).await);
    let more = a.hold(&["x"], RetryingClient::permits(1, 4)).await;
    for ticket in [&two, &one, &more] {
        assert!(matches!(a.renew(ticket).await, Renewed::Until(_)), "permits are renewed like any lease");
        assert!(a.release(ticket).await);
    }
}

async fn a_light_claim_waits_behind_a_heavy_head_unless_it_barges(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let one = a.hold(&["x"], RetryingClient::permits(1, 3)).await;
    let heavy = b.queue(b.ticket(&["x"], RetryingClient::permits(3, 3))).await;
    assert!(
        a.is_refused(&a.ticket(&["x"], RetryingClient::permits(1, 3))).await,
        "a light claim passed a heavy head"
    );
    let barging = a.hold(&["x"], RetryingClient::barging(1, 3)).await;
    a.release(&barging).await;
    a.release(&one).await;
    let (ticket, _) = b.got(heavy).await;
    b.release(&ticket).await;
}

async fn a_detached_share_is_taken_up_by_one_who_does_not_know_it(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    for (short, share) in [("x", RetryingClient::permits(2, 3)), ("y", Share::Shared)] {
        let mine = a.hold(&[short], share).await;
        assert!(matches!(a.detach(&mine, t.subject.ttl()).await, Renewed::Until(_)));
        // Permits stay permits, and a shared lock stays shared.
        let beside = b.hold(&[short], if short == "x" { RetryingClient::permits(1, 3) } else { share }).await;
        assert!(b.is_refused(&b.ticket(&[short], RetryingClient::permits(1, 3))).await);
        let taken_up = Ticket { share: Share::Exclusive, fence: None, ..mine };
        assert!(matches!(b.renew(&taken_up).await, Renewed::Until(_)));
        assert!(b.release(&taken_up).await);
        assert!(b.holds_nothing(&taken_up).await);
        assert!(b.release(&beside).await);
    }
}

async fn several_names_are_taken_all_or_none(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let y = a.hold(&["y"], Share::Exclusive).await;
    assert!(b.is_refused(&b.ticket(&["x", "y"], Share::Exclusive)).await);
    assert!(b.inspect("x").await.is_none(), "half a claim was left");
    a.release(&y).await;
    let both = b.hold(&["y", "x"], Share::Exclusive).await;
    for short in ["x", "y"] {
        assert!(a.is_refused(&a.exclusive(short)).await, "{short} is held");
    }
    assert!(matches!(b.renew(&both).await, Renewed::Until(_)));
    assert!(b.release(&both).await);
    for short in ["x", "y"] {
        assert!(a.inspect(short).await.is_none(), "{short} was left");
    }
}

async fn a_token_at_some_of_its_names_or_more_holds_nothing(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let both = a.hold(&["x", "y"], Share::Exclusive).await;
    for names in [&["x"][..], &["y", "z"], &["x", "y", "z"]] {
        let others = Ticket { names: a.ticket(names, Share::Exclusive).names, ..both.clone() };
        assert!(matches!(a.renew(&others).await, Renewed::Lost(_)), "{names:?}");
        assert!(a.holds_nothing(&others).await, "{names:?}");
        for short in ["x", "y"] {
            assert!(
                b.is_refused(&b.exclusive(short)).await,
                "{short} was released by a ticket for {names:?}"
            );
        }
    }
    assert!(a.release(&both).await);
}

async fn claims_over_several_names_in_any_order_do_not_deadlock(t: &Trial<'_>) {
    let a = t.client().await;
    let all = a.hold(&["x", "y", "z"], Share::Exclusive).await;
    let mut line = Vec::new();
    for pair in [["x", "y"], ["y", "x"], ["z", "y"], ["x", "z"]] {
        let b = t.client().await;
        line.push((b.queue(b.ticket(&pair, Share::Exclusive)).await, b));
        a.renew(&all).await;
    }
    a.release(&all).await;
    for (waiting, b) in line {
        let (ticket, _) = b.got(waiting).await;
        b.release(&ticket).await;
    }
}

async fn evicting_one_of_several_names_ends_the_whole_claim(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let both = a.hold(&["x", "y"], Share::Exclusive).await;
    b.evict("y").await;
    assert!(matches!(a.renew(&both).await, Renewed::Lost(_)));
    assert!(b.inspect("x").await.is_none(), "a claim without one of its names lives on");
}

async fn a_downgrade_lets_readers_in_without_a_gap(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let mut mine = a.hold(&["x"], Share::Exclusive).await;
    let written = mine.fence;
    let reader = b.queue(b.ticket(&["x"], Share::Shared)).await;
    let Converted::Converted(read) = a.convert(&mut mine, Share::Shared).await else { panic!("held") };
    assert!(Some(read.fence) > written);
    let (ticket, _) = b.got(reader).await;
    assert!(c.is_refused(&c.exclusive("x")).await);
    b.release(&ticket).await;
    assert!(a.release(&mine).await);
}

async fn an_upgrade_is_refused_beside_other_readers_and_never_waits(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mut one = a.hold(&["x"], Share::Shared).await;
    let mut two = b.hold(&["x"], Share::Shared).await;
    assert_eq!(a.convert(&mut one, Share::Exclusive).await, Converted::Refused);
    assert_eq!(b.convert(&mut two, Share::Exclusive).await, Converted::Refused);
    b.release(&two).await;
    let Converted::Converted(grant) = a.convert(&mut one, Share::Exclusive).await else { panic!("alone") };
    assert!(Some(grant.fence) > two.fence, "a writer's fence below a reader's");
    assert!(b.is_refused(&b.ticket(&["x"], Share::Shared)).await);
    assert!(a.release(&one).await);
    assert_eq!(a.convert(&mut one, Share::Shared).await, Converted::NotHeld);
}

async fn a_late_duplicate_of_a_conversion_changes_nothing(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mut mine = a.hold(&["x"], Share::Exclusive).await;
    let mut late = mine.clone();
    a.convert(&mut mine, Share::Shared).await;
    a.convert(&mut mine, Share::Exclusive).await;
    assert_eq!(a.convert(&mut late, Share::Shared).await, Converted::NotHeld, "a writer became a reader");
    assert!(b.is_refused(&b.ticket(&["x"], Share::Shared)).await);
    assert!(matches!(a.renew(&mine).await, Renewed::Until(_)));
    a.release(&mine).await;
}

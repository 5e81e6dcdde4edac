//! One claim and its life: granted with an expiry, renewed, released, evicted, expired.

use super::retrying_client::{RetryingClient, ok};
use super::{Trial, always};
use crate::claim::{Acquired, Claim, Grant, Renewed, Share, Ticket, Wait};
use crate::event::Loss;

cases! {
    a_grant_has_an_expiry_from_its_first_moment: AtomicOrNothing, always;
    a_foreign_release_or_renewal_changes_nothing: OnlyTheHolder, always;
    a_late_release_does_not_touch_the_next_holder: OnlyTheHolder, always;
    a_renewal_proves_token_and_fence: OnlyTheHolder, |can| can.fenced;
    a_renewal_never_makes_a_claim_again: OnlyTheHolder, always;
    a_token_at_another_name_holds_nothing: OnlyTheHolder, always;
    a_detached_claim_is_renewed_and_released_by_whoever_has_its_token: OnlyTheHolder, always;
    a_detached_claim_outlives_its_client_and_not_its_ttl: NoDeadlockByDeath, always;
    a_held_claim_is_detached_for_as_long_as_is_said_from_then: NoDeadlockByDeath, always;
    a_detach_proves_token_and_fence_and_makes_nothing_again: OnlyTheHolder, |can| can.fenced;
    a_late_duplicate_of_a_detach_takes_nothing_away: NeverBelieveLonger, always;
    any_fence_of_a_block_detaches_and_is_then_the_only_one: OnlyTheHolder, |can| can.fence_blocks;
    a_dead_holder_is_free_within_its_ttl: NoDeadlockByDeath, always;
    the_store_excludes_for_as_long_as_the_holder_may_believe: NeverBelieveLonger, always;
    a_renewal_moves_the_deadline_and_never_shortens_it: NeverBelieveLonger, always;
    a_batch_is_answered_one_by_one_in_order: NeverBelieveLonger, always;
    a_repeated_acquire_gives_the_same_grant_rearmed: UnknownIsNotNo, always;
    a_release_withdraws_a_waiter: CancelAnywhere, |can| can.fair;
    fences_rise_through_release_expiry_and_eviction: FencesOnlyRise, |can| can.fenced;
    a_block_of_fences_is_given_once: FencesOnlyRise, |can| can.fence_blocks;
    what_is_shown_has_labels_and_no_secrets: SecretsStaySecret, always;
}

async fn a_grant_has_an_expiry_from_its_first_moment(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    a.hold(&["x"], Share::Exclusive).await;
    let status = b.inspect("x").await.unwrap_or_else(|| panic!("a held name is shown"));
    assert_eq!(status.holders.len(), 1);
    assert!(status.holders[0].remaining <= a.ttl.as_duration(), "{status:?}");
    // The holder does not renew.
    b.hold(&["x"], Share::Exclusive).await;
}

async fn a_foreign_release_or_renewal_changes_nothing(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let foreign = Ticket { fence: mine.fence, ..b.exclusive("x") };
    assert!(b.holds_nothing(&foreign).await);
    assert_eq!(b.renew(&foreign).await, Renewed::Lost(Loss::Taken));
    assert!(b.is_refused(&b.exclusive("x")).await);
    assert!(matches!(a.renew(&mine).await, Renewed::Until(_)));
    assert!(a.release(&mine).await);
    assert!(a.holds_nothing(&mine).await);
}

async fn a_late_release_does_not_touch_the_next_holder(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let expired = a.hold(&["x"], Share::Exclusive).await;
    let next = b.hold(&["x"], Share::Exclusive).await;
    assert!(a.holds_nothing(&expired).await);
    assert_eq!(a.renew(&expired).await, Renewed::Lost(Loss::Taken));
    assert!(a.is_refused(&a.exclusive("x")).await);
    assert!(matches!(b.renew(&next).await, Renewed::Until(_)));
}

async fn a_renewal_proves_token_and_fence(t: &Trial<'_>) {
    let a = t.client().await;
    let mut mine = a.exclusive("x");
    let grant = a.take(&mut mine).await;
    let wrong = Ticket { fence: Some(ok(grant.fence.plus(1))), ..mine.clone() };
    assert!(matches!(a.renew(&wrong).await, Renewed::Lost(_)));
    assert!(matches!(a.renew(&mine).await, Renewed::Until(_)));
}

async fn a_renewal_never_makes_a_claim_again(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let evicted = b.evict("x").await;
    assert!(evicted.holders.len() <= 1);
    assert_eq!(a.renew(&mine).await, Renewed::Lost(Loss::Deleted));
    assert!(b.inspect("x").await.is_none());
    b.hold(&["x"], Share::Exclusive).await;
}

async fn a_token_at_another_name_holds_nothing(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let elsewhere = Ticket { names: a.name("y").into(), fence: None, ..mine.clone() };
    assert_eq!(a.renew(&elsewhere).await, Renewed::Lost(Loss::Deleted));
    assert!(a.holds_nothing(&elsewhere).await);
    assert!(b.is_refused(&b.exclusive("x")).await, "released by a ticket for another name");
    assert!(a.release(&mine).await);
}

async fn take_detached(client: &RetryingClient, ticket: &Ticket) -> Grant {
    let claim = Claim { detached: true, ..client.claim(ticket, Wait::Never) };
    let Acquired::Granted(grant) = client.acquire(&claim).await else { panic!("a free name is granted") };
    client.quiet().await;
    grant
}

async fn a_detached_claim_is_renewed_and_released_by_whoever_has_its_token(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.exclusive("x");
    let first = take_detached(&a, &mine).await.valid_until;
    drop(a);
    b.sleep(t.subject.ttl() / 2).await;
    // The token alone proves the claim, and another token does not.
    assert_eq!(b.renew(&b.exclusive("x")).await, Renewed::Lost(Loss::Taken));
    let Renewed::Until(renewed) = b.renew(&mine).await else { panic!("held, and not renewed") };
    assert!(renewed > first, "a renewal moved nothing");
    b.store.clock().sleep_until(first.plus(b.ttl.drift() * 2)).await;
    assert!(b.is_refused(&b.exclusive("x")).await, "renewed, and gone with its first TTL");
    assert!(b.release(&mine).await);
    assert!(b.holds_nothing(&mine).await);
    assert!(matches!(b.renew(&mine).await, Renewed::Lost(_)));
}

async fn a_detached_claim_outlives_its_client_and_not_its_ttl(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let grant = take_detached(&a, &a.exclusive("x")).await;
    drop(a);
    let by = b.after(b.ttl.as_duration() + b.late_window() * 2 + t.subject.ttl() / 3);
    assert!(b.is_refused_until(grant.valid_until, "x").await, "gone with its client");
    b.hold(&["x"], Share::Exclusive).await;
    assert!(b.now() <= by, "a detached claim kept its name for longer than its TTL");
}

async fn a_held_claim_is_detached_for_as_long_as_is_said_from_then(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let (sooner, mut later) = (a.hold(&["sooner"], Share::Exclusive).await, a.exclusive("later"));
    let kept = a.take(&mut later).await.valid_until;
    let (half, longer) = (t.subject.ttl() / 2, t.subject.ttl() * 2);
    let Renewed::Until(until) = a.detach(&later, longer).await else { panic!("held, and not detached") };
    assert!(until > kept, "detached for longer, and not moved");
    let Renewed::Until(until) = a.detach(&sooner, half).await else { panic!("held, and not detached") };
    assert!(until <= a.after(half), "believed for longer than it was detached for");
    let by = b.after(half + b.late_window() * 2 + t.subject.ttl() / 3);
    drop(a);
    assert!(b.is_refused_until(until, "sooner").await, "gone with its client");
    b.hold(&["sooner"], Share::Exclusive).await;
    assert!(b.now() <= by, "it has the end that it had before");
    b.store.clock().sleep_until(kept.plus(b.ttl.drift() * 2)).await;
    assert!(b.is_refused(&b.exclusive("later")).await, "gone with its client, or with its first TTL");
    assert!(b.release(&later).await);
}

async fn a_detach_proves_token_and_fence_and_makes_nothing_again(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mut mine = a.exclusive("x");
    let grant = a.take(&mut mine).await;
    let ttl = t.subject.ttl() / 2;
    let foreign = Ticket { fence: mine.fence, ..b.exclusive("x") };
    assert_eq!(b.detach(&foreign, ttl).await, Renewed::Lost(Loss::Taken));
    let wrong = Ticket { fence: Some(ok(grant.fence.plus(1))), ..mine.clone() };
    assert!(matches!(a.detach(&wrong, ttl).await, Renewed::Lost(_)));
    let elsewhere = Ticket { names: a.name("y").into(), ..mine.clone() };
    assert_eq!(a.detach(&elsewhere, ttl).await, Renewed::Lost(Loss::Deleted));
    assert!(matches!(a.detach(&mine, ttl).await, Renewed::Until(_)));
    // A client that takes up a detached claim may know its token only.
    let bare = Ticket { fence: None, ..mine.clone() };
    assert!(matches!(b.detach(&bare, ttl).await, Renewed::Until(_)));
    assert!(matches!(b.renew(&mine).await, Renewed::Until(_)), "a ticket without a fence changes none");
    assert!(b.release(&mine).await);
    assert_eq!(a.detach(&mine, ttl).await, Renewed::Lost(Loss::Deleted));
    assert!(b.inspect("x").await.is_none(), "a detach made a claim again");
}

async fn a_late_duplicate_of_a_detach_takes_nothing_away(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let short = t.subject.ttl() / 4;
    a.detach(&mine, short).await;
    let Renewed::Until(extended) = b.renew(&mine).await else { panic!("held, and not extended") };
    a.detach(&mine, short).await;
    assert!(b.is_refused_until(extended, "x").await, "shortened under the client that had extended it");
    // A claim that was detached from the start behaves alike.
    let taken = a.exclusive("y");
    let until = take_detached(&a, &taken).await.valid_until;
    a.detach(&taken, short).await;
    assert!(b.is_refused_until(until, "y").await, "shortened a detached claim");
}

async fn any_fence_of_a_block_detaches_and_is_then_the_only_one(t: &Trial<'_>) {
    let a = t.client().await;
    let mut mine = a.exclusive("x");
    let claim = Claim { fences: 16, ..a.claim(&mine, Wait::Never) };
    let Acquired::Granted(grant) = a.acquire(&claim).await else { panic!("a free name is granted") };
    a.quiet().await;
    mine.fence = Some(ok(grant.fence.plus(5)));
    let beyond = Ticket { fence: Some(ok(grant.fence.plus(16))), ..mine.clone() };
    assert!(matches!(a.detach(&beyond, t.subject.ttl()).await, Renewed::Lost(_)));
    for _ in 0..2 {
        assert!(matches!(a.detach(&mine, t.subject.ttl()).await, Renewed::Until(_)));
    }
    assert!(matches!(a.renew(&mine).await, Renewed::Until(_)));
    for other in [grant.fence, ok(grant.fence.plus(6))] {
        let other = Ticket { fence: Some(other), ..mine.clone() };
        assert!(matches!(a.renew(&other).await, Renewed::Lost(_)), "a fence that is not its own");
    }
    assert!(a.release(&mine).await);
}

async fn a_dead_holder_is_free_within_its_ttl(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    a.hold(&["x"], Share::Exclusive).await;
    let by = b.after(a.ttl.as_duration() + a.late_window() * 2 + t.subject.ttl() / 3);
    let waiting = b.queue(b.exclusive("x")).await;
    b.got(waiting).await;
    assert!(b.now() <= by, "a dead holder kept its name for longer than its TTL");
}

async fn the_store_excludes_for_as_long_as_the_holder_may_believe(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mut mine = a.exclusive("x");
    let sent = a.now();
    let claim = a.claim(&mine, Wait::Never);
    let Acquired::Granted(grant) = a.acquire(&claim).await else { panic!("a free name is granted") };
    mine.fence = Some(grant.fence);
    assert!(grant.valid_until > sent, "granted, and valid for no time");
    assert!(grant.valid_until <= a.now().plus(a.ttl.validity()), "valid for longer than TTL less drift");
    // The latest time to ask and get an answer before the deadline.
    let margin = a.ttl.drift() + a.late_window() * 2;
    b.store.clock().sleep_until(grant.valid_until.minus(margin)).await;
    let probe = b.exclusive("x");
    match b.store.acquire(&b.claim(&probe, Wait::Never)).await {
        Ok(Acquired::Granted(_)) => assert!(b.now() > grant.valid_until, "two could believe"),
        Ok(Acquired::Busy(_)) => {}
        Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
    }
    b.release(&probe).await;
}

async fn a_renewal_moves_the_deadline_and_never_shortens_it(t: &Trial<'_>) {
    let a = t.client().await;
    let mut mine = a.exclusive("x");
    let granted = a.take(&mut mine).await.valid_until;
    a.sleep(t.subject.ttl() / 10).await;
    let Renewed::Until(renewed) = a.renew(&mine).await else { panic!("held, and not renewed") };
    assert!(renewed > granted, "a renewal moved nothing");
    let short = RetryingClient::new(a.store.clone(), t.subject.ttl() / 4, t.prefix.clone());
    let Renewed::Until(still) = short.renew(&mine).await else { panic!("held, and not renewed") };
    assert!(a.is_refused_until(renewed, "x").await, "a shorter renewal shortened the claim");
    assert!(still <= renewed.plus(a.ttl.drift()), "believed for longer than granted");
}

async fn a_batch_is_answered_one_by_one_in_order(t: &Trial<'_>) {
    let a = t.client().await;
    let mut tickets = Vec::new();
    for i in 0..7 {
        let ticket = a.hold(&[&i.to_string()], Share::Exclusive).await;
        if i % 2 == 1 {
            a.release(&ticket).await;
        }
        tickets.push((ticket, a.ttl));
    }
    let answers = a.store.renew(&tickets).await;
    assert_eq!(answers.len(), tickets.len());
    for (i, answer) in answers.iter().enumerate() {
        match answer {
            Ok(Renewed::Until(_)) => assert_eq!(i % 2, 0, "renewed what was released"),
            Ok(Renewed::Lost(_)) => assert_eq!(i % 2, 1, "lost what is held"),
            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
        }
    }
    assert!(a.store.renew(&[]).await.is_empty());
}

async fn a_repeated_acquire_gives_the_same_grant_rearmed(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mut mine = a.exclusive("x");
    let first = a.take(&mut mine).await;
    a.sleep(t.subject.ttl() / 2).await;
    let again = a.take(&mut mine).await;
    assert_eq!(again.fence, first.fence, "one grant, two fences");
    assert!(again.valid_until > first.valid_until, "not re-armed");
    // The TTL of the first answer has ended, that of the second has not.
    a.store.clock().sleep_until(first.valid_until.plus(a.ttl.drift() * 2)).await;
    assert!(b.is_refused(&b.exclusive("x")).await, "the client counts a TTL that the store did not give");
}

async fn a_release_withdraws_a_waiter(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let theirs = b.exclusive("x");
    let waiting = b.queue(theirs.clone()).await;
    let elsewhere = Ticket { names: b.name("y").into(), ..theirs.clone() };
    assert!(b.holds_nothing(&elsewhere).await);
    assert_eq!(a.waiters("x").await, 1, "a token withdraws nothing at other names");
    // A dropped future alone does not give up its place.
    waiting.abort();
    b.quiet().await;
    b.release(&theirs).await;
    assert_eq!(a.waiters("x").await, 0);
    assert!(a.release(&mine).await);
    assert!(a.inspect("x").await.is_none());
}

async fn fences_rise_through_release_expiry_and_eviction(t: &Trial<'_>) {
    let a = t.client().await;
    let mut last = 0;
    for how in ["release", "expire", "evict", "evict nobody", "release"] {
        let mut ticket = a.exclusive("x");
        let fence = a.take(&mut ticket).await.fence.get();
        assert!(fence > last, "fence {fence} after {last}, before {how}");
        last = fence;
        match how {
            "release" => assert!(a.release(&ticket).await),
            "expire" => {}
            "evict" => drop(a.evict("x").await),
            _ => {
                a.release(&ticket).await;
                a.evict("x").await;
                last += 1;
            }
        }
    }
}

async fn a_block_of_fences_is_given_once(t: &Trial<'_>) {
    let a = t.client().await;
    let mine = a.exclusive("x");
    let claim = Claim { fences: 16, ..a.claim(&mine, Wait::Never) };
    let Acquired::Granted(grant) = a.acquire(&claim).await else { panic!("a free name is granted") };
    assert_eq!(grant.fences, 16);
    let Acquired::Granted(again) = a.acquire(&claim).await else { panic!("held by this token") };
    assert_eq!((again.fence, again.fences), (grant.fence, 16), "a repeat gave another block");
    a.quiet().await;
    a.release(&mine).await;
    let next = a.hold(&["x"], Share::Exclusive).await;
    assert!(next.fence >= Some(ok(grant.fence.plus(16))), "two holders share a fence");
}

async fn what_is_shown_has_labels_and_no_secrets(t: &Trial<'_>) {
    let a = t.client().await;
    let mine = a.hold(&["x"], Share::Exclusive).await;
    let secret = mine.token.expose()[..32].to_owned();
    let shown = format!("{:?} {:?} {mine:?} {:?}", a.inspect("x").await, a.list(&t.prefix).await, a.store);
    assert!(shown.contains("conformance"), "the label is shown");
    assert!(!shown.contains(&secret), "the secret is shown");
    assert_eq!(a.list(&t.prefix).await.len(), 1);
    assert!(a.list("no such prefix:").await.is_empty());
}

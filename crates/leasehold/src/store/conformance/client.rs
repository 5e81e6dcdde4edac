//! The store under a whole client: leases that are renewed, lost, released, cancelled.

use std::time::Duration;

use super::retrying_client::{RetryingClient, ok};
use super::{Trial, always};
use crate::claim::Names;
use crate::connect::Options;
use crate::error::Error;
use crate::event::{Event, Loss};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::sync::{self, Arc, Mutex};
use crate::token::Token;

cases! {
    a_held_lease_outlives_its_ttl: NeverBelieveLonger, always;
    a_lease_that_is_not_renewed_is_lost_at_its_deadline: NeverBelieveLonger, always;
    an_evicted_holder_hears_of_it_and_its_release_is_an_error: LossIsAnEvent, always;
    work_is_cancelled_and_rolled_back_when_its_lease_is_lost: LossIsAnEvent, always;
    a_detached_lease_is_taken_up_by_another_client: NoDeadlockByDeath, always;
    a_cancelled_wait_leaves_nothing_behind: CancelAnywhere, always;
    tasks_of_two_clients_exclude_each_other: AWaiterIsServed, always;
    what_the_store_cannot_do_is_refused_before_it_is_sent: BadInputClearError, always;
}

/// The time that an event may take on a busy machine.
const EVENTS_WITHIN: Duration = Duration::from_secs(10);

fn locks_over(client: &RetryingClient) -> Locks {
    ok(Options::default().ttl(client.ttl.as_duration()).owner("client").over(client.store.clone()))
}

async fn lock(client: &RetryingClient, locks: &Locks, short: &str) -> Lease {
    let mutex = locks.mutex(client.name(short)).wait(client.ttl.as_duration() * 4);
    let lease = client.insist(|| mutex.lock()).await;
    client.quiet().await;
    lease
}

/// Ignores a release without an answer, which is no loss.
fn let_go(end: crate::Result<()>) {
    if let Err(error) = end {
        assert!(error.is_outcome_unknown(), "{error}");
    }
}

async fn a_held_lease_outlives_its_ttl(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let locks = locks_over(&a);
    let lease = lock(&a, &locks, "x").await;
    for _ in 0..6 {
        a.sleep(t.subject.ttl() / 2).await;
        assert!(lease.is_valid(), "{:?}", lease.loss());
        assert!(b.is_refused(&b.exclusive("x")).await);
    }
    let_go(lease.release().await);
    locks.settled().await;
}

async fn a_lease_that_is_not_renewed_is_lost_at_its_deadline(t: &Trial<'_>) {
    let a = t.client().await;
    let locks = locks_over(&a);
    let mutex = locks.mutex(a.name("x")).no_renewal();
    let lease = a.insist(|| mutex.lock()).await;
    // The time first: read after it, what remains ends no later than the lease.
    let (now, proof) = (a.now(), lease.proof());
    let deadline = now.plus(lease.remaining());
    assert_eq!(lease.lost().await, Loss::Expired);
    assert!(a.now() >= deadline);
    assert!(!proof.is_valid() && proof.remaining().is_zero());
    assert!(matches!(lease.release().await, Err(Error::Lost { reason: Loss::Expired, .. })));
}

async fn an_evicted_holder_hears_of_it_and_its_release_is_an_error(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let heard: Arc<Mutex<Vec<(Names, Loss)>>> = Arc::default();
    let notes = heard.clone();
    let options = Options::default().ttl(a.ttl.as_duration()).on_event(move |event| {
        if let Event::Lost { names, reason, .. } = event {
            sync::lock(&notes).push((names, reason));
        }
        async {}
    });
    let locks = ok(options.over(a.store.clone()));
    let lease = lock(&a, &locks, "x").await;
    let by = b.after(t.subject.ttl());
    b.evict("x").await;
    assert_eq!(lease.lost().await, Loss::Deleted);
    assert!(b.now() <= by, "told later than a renewal interval (and its retries) allow");
    assert!(matches!(lease.release().await, Err(Error::Lost { reason: Loss::Deleted, .. })));
    // Events are sent by a task of their own. A second one would come soon.
    let heard = || sync::lock(&heard).clone();
    let by = a.after(EVENTS_WITHIN);
    while heard().is_empty() && a.now() < by {
        a.sleep(Duration::from_millis(1)).await;
    }
    a.sleep(Duration::from_millis(1)).await;
    assert_eq!(heard(), [(a.name("x").into(), Loss::Deleted)], "one loss, one event");
}

async fn work_is_cancelled_and_rolled_back_when_its_lease_is_lost(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let locks = locks_over(&a);
    let work = Arc::new(());
    let part_of_work = work.clone();
    let lease = lock(&a, &locks, "x").await;
    b.evict("x").await;
    let mut rolled_back = None;
    let end = lease
        .run_or_rollback(
            |_| async move {
                let _kept = part_of_work;
                std::future::pending::<()>().await
            },
            |setback| {
                rolled_back = Some((setback.reason, setback.output));
                async {}
            },
        )
        .await;
    assert!(matches!(end, Err(Error::Lost { reason: Loss::Deleted, .. })), "{end:?}");
    assert_eq!(rolled_back, Some((Loss::Deleted, None)));
    assert_eq!(Arc::strong_count(&work), 1, "the work goes on");
}

async fn a_detached_lease_is_taken_up_by_another_client(t: &Trial<'_>) {
    let [a, b, c] = t.clients().await;
    let (ours, theirs) = (locks_over(&a), locks_over(&b));
    let mutex = ours.mutex(a.name("x"));
    let lease = a.insist(|| mutex.lock_detached()).await;
    a.quiet().await;
    assert!(lease.remaining() <= a.ttl.validity());
    let note = lease.token().expose().to_owned();
    drop((lease, mutex));
    ours.close().await;
    drop((ours, a));
    let mut lease = ok(theirs.detached(b.name("x"), ok(Token::parse(&note))));
    for _ in 0..3 {
        b.sleep(t.subject.ttl() / 2).await;
        while let Err(error) = lease.extend(t.subject.ttl()).await {
            assert!(error.is_outcome_unknown(), "{error}");
        }
        assert!(c.is_refused(&c.exclusive("x")).await);
    }
    let_go(lease.release().await);
    theirs.settled().await;
    let lease = ok(theirs.detached(b.name("x"), ok(Token::parse(&note))));
    match lease.release().await {
        Err(Error::Lost { reason: Loss::Gone, .. }) => {}
        Err(error) if error.is_outcome_unknown() => {}
        end => panic!("released twice: {end:?}"),
    }
    theirs.settled().await;
}

async fn a_cancelled_wait_leaves_nothing_behind(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    let (ours, theirs) = (locks_over(&a), locks_over(&b));
    let lease = lock(&a, &ours, "x").await;
    let mutex = theirs.mutex(b.name("x"));
    match b.store.clock().until(b.after(t.subject.ttl() / 20), mutex.lock()).await {
        Some(Ok(lease)) => panic!("granted beside a holder: {lease:?}"),
        Some(Err(error)) => assert!(error.is_outcome_unknown(), "{error}"),
        None => {}
    }
    theirs.settled().await;
    assert_eq!(a.waiters("x").await, 0, "a place in line was left behind");
    let_go(lease.release().await);
    ours.settled().await;
    a.quiet().await;
    assert!(a.inspect("x").await.is_none());
}

async fn tasks_of_two_clients_exclude_each_other(t: &Trial<'_>) {
    let [a, b] = t.clients().await;
    // The protected resource, which takes note of fences.
    let seen: Arc<Mutex<u64>> = Arc::default();
    let mut tasks = Vec::new();
    for client in [&a, &b] {
        let locks = locks_over(client);
        for _ in 0..3 {
            let (client, locks, seen) = (client.clone(), locks.clone(), seen.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..2 {
                    let lease = lock(&client, &locks, "x").await;
                    let mine = lease.fence().get();
                    let look = || *sync::lock(&seen);
                    if lease.is_valid() {
                        assert!(look() < mine || !client.capabilities().fenced, "a fence did not rise");
                        *sync::lock(&seen) = mine;
                        client.sleep(Duration::from_millis(1)).await;
                        assert!(look() == mine || !lease.is_valid(), "two held at once");
                    }
                    let_go(lease.release().await);
                }
                locks.settled().await;
            }));
        }
    }
    for task in tasks {
        if let Err(error) = task.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn what_the_store_cannot_do_is_refused_before_it_is_sent(t: &Trial<'_>) {
    let a = t.client().await;
    let locks = locks_over(&a);
    assert_eq!(locks.capabilities(), a.capabilities());
    for bad in ["", "a{b", "a\nb", "a/../b"] {
        let error = locks.mutex(bad).lock().await.map(drop);
        assert!(matches!(error, Err(Error::Invalid { what: "name", .. })), "{bad:?}: {error:?}");
    }
    let error = locks.mutex("x").ttl(Duration::ZERO).lock().await.map(drop);
    assert!(matches!(error, Err(Error::Invalid { what: "TTL", .. })), "{error:?}");
    let request = |share, names: &[&str]| crate::acquire::Request {
        names: a.ticket(names, share).names,
        share,
        owner: crate::Owner::this_process(),
        ttl: a.ttl,
        renews: false,
        max_hold: None,
        acquire_timeout: None,
        min_validity: Some(Duration::ZERO),
        strict_order: true,
        queue_hash: Default::default(),
        is_internal: false,
    };
    let can = a.capabilities();
    for (offered, share, names) in [
        (can.shared, crate::Share::Shared, &["x"][..]),
        (can.permits, RetryingClient::permits(1, 2), &["x"]),
        // Taken one by one, if the store cannot take them in one step.
        (true, crate::Share::Exclusive, &["x", "y"]),
    ] {
        let refused = matches!(locks.client.check(&request(share, names)), Err(Error::Unsupported { .. }));
        assert_eq!(refused, !offered, "{share:?} of {names:?}");
    }
}

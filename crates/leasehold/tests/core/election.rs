//! One leader at a time: who it is, who is next, and what observers see.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::stores::{on_a_server, on_every_store, plain_client, waiting};
use common::{ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Leader, Locks, Loss};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

fn everywhere<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    on_every_store(&claim);
    on_a_server("", &claim);
    on_a_server("?scripts=off", &claim);
}

fn seen(leader: &Option<Leader>) -> (&str, Option<u64>) {
    leader.as_ref().map_or(("nobody", None), |it| (it.owner.as_str(), it.term.map(|term| term.get())))
}

#[test]
fn whoever_campaigns_leads_in_turn_and_observers_see_each_term() {
    everywhere(|a, b| async move {
        let election = |locks: &Locks| locks.election("x").look_every(ms(10));
        let mut changes = election(&b).leader_changed();
        assert_eq!(changes.next().await.unwrap(), None);
        assert_eq!(election(&a).leader().await.unwrap(), None);
        let first = election(&a).owner("one").campaign().await.unwrap();
        assert_eq!(seen(&changes.next().await.unwrap()), ("one", Some(first.term().get())));
        let second = tokio::spawn(election(&b).owner("two").campaign());
        tokio::time::sleep(ms(50)).await;
        assert!(!second.is_finished());
        assert_eq!(seen(&election(&b).leader().await.unwrap()).0, "one");
        // Two candidates in one client are two.
        let term = first.term();
        first.resign().await.unwrap();
        let second = second.await.unwrap().unwrap();
        assert!(second.term() > term);
        assert_eq!(seen(&changes.next().await.unwrap()), ("two", Some(second.term().get())));
        let third = tokio::spawn(election(&b).owner("two").campaign());
        tokio::time::sleep(ms(50)).await;
        let term = second.term();
        drop(second);
        let third = third.await.unwrap().unwrap();
        assert!(third.term() > term, "the same leader, another term");
        assert_eq!(seen(&changes.next().await.unwrap()), ("two", Some(third.term().get())));
        third.resign().await.unwrap();
        assert_eq!(changes.next().await.unwrap(), None);
    });
}

#[test]
fn a_leader_that_is_deposed_hears_of_it_and_the_next_one_leads() {
    everywhere(|a, b| async move {
        let leader = a.election("x").ttl(TTL).campaign().await.unwrap();
        let next = tokio::spawn(b.election("x").ttl(TTL).campaign());
        tokio::time::sleep(ms(50)).await;
        b.evict("x").await.unwrap();
        assert!(matches!(leader.lost().await, Loss::Deleted | Loss::Taken));
        let next = next.await.unwrap().unwrap();
        assert!(next.term() > leader.term());
        assert!(matches!(leader.resign().await, Err(Error::Lost { .. })));
        assert!(next.is_valid());
        // A leader that cannot renew leads no longer than its TTL.
        next.resign().await.unwrap();
    });
}

#[test]
fn candidates_lead_in_order_of_arrival() {
    on_every_store(|a, b| async move {
        let leader = a.election("x").campaign().await.unwrap();
        let mut tasks = Vec::new();
        for (number, locks) in [&b, &a, &b].into_iter().enumerate() {
            tasks.push(waiting(&a, "x", locks.election("x").owner(format!("c{number}")).campaign()).await);
        }
        leader.resign().await.unwrap();
        for (number, task) in tasks.into_iter().enumerate() {
            let leader = task.await.unwrap().unwrap();
            assert_eq!(seen(&a.election("x").leader().await.unwrap()).0, format!("c{number}"));
            leader.resign().await.unwrap();
        }
    });
}

#[tokio::test(start_paused = true)]
async fn observing_asks_no_more_often_than_was_said() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let mut changes = locks.election("x").leader_changed();
    changes.next().await.unwrap();
    let start = tokio::time::Instant::now();
    let (leader, seen) = tokio::join!(
        async {
            tokio::time::sleep(ms(3_300)).await;
            locks.election("x").campaign().await.unwrap()
        },
        changes.next()
    );
    assert!(seen.unwrap().is_some());
    assert!((3_990..4_010).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    // An outage ends nothing.
    store.hang();
    assert!(changes.next().await.is_err());
    store.hangs.store(false, Ordering::SeqCst);
    leader.resign().await.unwrap();
    assert_eq!(changes.next().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_can_only_exclude_has_elections_and_bad_values_are_told() {
    let (_, locks) = plain_client();
    let leader = locks.election("x").owner("one").campaign().await.unwrap();
    assert_eq!(seen(&locks.election("x").leader().await.unwrap()).0, "one");
    let error = locks.election("x").wait(ms(20)).campaign().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let lease = leader.into_lease();
    lease.release().await.unwrap();
    assert!(matches!(locks.election("a{b").campaign().await, Err(Error::Invalid { .. })));
    assert!(matches!(locks.election("a{b").leader().await, Err(Error::Invalid { .. })));
    assert!(matches!(locks.election("x").ttl(secs(0)).campaign().await, Err(Error::Invalid { .. })));
}

#[test]
fn the_same_without_async() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let election = locks.election("x").owner("one").look_every(ms(10));
    let mut changes = election.leader_changed();
    assert!(changes.next().unwrap().is_none());
    let leader = election.campaign().unwrap();
    assert_eq!(changes.next().unwrap().unwrap().term, Some(leader.term()));
    leader.resign().unwrap();
    assert!(election.leader().unwrap().is_none());
}

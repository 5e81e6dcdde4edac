//! Eviction: the holder is told at once, one of several holders is evicted, and an operator learns when the holder's work has
//! ended.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::time::Duration;

use common::quorum_nodes::{CALM, QuorumNodes};
use common::stores::on_every_store_and_server;
use common::{ms, secs};
use leasehold::{Departure, Locks, Loss};
use leasehold_lab::{Kind, Server};
use tokio::time::Instant;

/// A third of it, after which a holder that is not told renews its lease, is far longer than `AT_ONCE`.
const TTL: Duration = Duration::from_secs(50);
const AT_ONCE: Duration = Duration::from_secs(8);

/// Runs it for two clients of each store, `redlock:` among them.
fn on_every_store_and_a_quorum<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    on_every_store_and_server(&claim);
    let fleet = QuorumNodes::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { claim(fleet.client("a", CALM).await, fleet.client("b", CALM).await).await });
}

#[test]
fn an_evicted_holder_is_told_at_once() {
    on_every_store_and_a_quorum(|a, b| async move {
        let lease = a.mutex("x").ttl(TTL).lock().await.unwrap();
        let bystander = a.mutex("y").ttl(TTL).lock().await.unwrap();
        let start = Instant::now();
        assert_eq!(b.evict("x").await.unwrap().holders.len(), 1);
        assert_eq!(lease.lost().await, Loss::Deleted);
        let elapsed = start.elapsed();
        println!("{}: told after {elapsed:?}", a.capabilities().store);
        assert!(elapsed < AT_ONCE, "{}: told after {elapsed:?}", a.capabilities().store);
        assert!(bystander.is_valid());
        bystander.release().await.unwrap();
    });
}

/// Where a lease holds several names, it is told whichever of them is taken away.
#[test]
fn a_holder_of_several_names_is_told_at_once() {
    on_every_store_and_server(|a, b| async move {
        let lease = a.all(["x", "y"]).ttl(TTL).lock().await.unwrap();
        let departures = b.departures();
        let start = Instant::now();
        let evicted = b.evict("y").await.unwrap();
        assert_eq!(lease.lost().await, Loss::Deleted);
        drop(lease);
        assert_eq!(departures.of("y", &evicted).await.unwrap()[0].how, Departure::Confirmed);
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    });
}

#[test]
fn one_of_several_holders_is_evicted_by_its_fence() {
    on_every_store_and_server(|a, b| async move {
        let first = a.semaphore("x", 3).ttl(TTL).acquire().await.unwrap();
        let second = a.semaphore("x", 3).ttl(TTL).acquire().await.unwrap();
        let third = b.semaphore("x", 3).ttl(TTL).acquire().await.unwrap();
        let start = Instant::now();
        let evicted = b.evict_holder("x", second.fence()).await.unwrap();
        let fences: Vec<_> = evicted.holders.iter().map(|holder| holder.fence.unwrap()).collect();
        assert_eq!(fences, [second.fence()]);
        // The name is still held, by the others.
        assert!(matches!(second.lost().await, Loss::Taken | Loss::Deleted));
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        // The permit is free, and the others have theirs.
        let next = b.semaphore("x", 3).ttl(TTL).try_acquire().await.unwrap().expect("a permit is free");
        assert!(next.fence() > third.fence());
        assert!(a.semaphore("x", 3).try_acquire().await.unwrap().is_none());
        assert!(b.evict_holder("x", second.fence()).await.unwrap().holders.is_empty(), "it holds nothing");
        assert_eq!(b.inspect("x").await.unwrap().unwrap().holders.len(), 3);
        for lease in [first, third, next] {
            lease.release().await.unwrap();
        }
        drop(second);
    });
}

#[test]
fn a_holder_alone_is_evicted_by_its_fence() {
    on_every_store_and_a_quorum(|a, b| async move {
        let earlier = a.mutex("x").ttl(TTL).lock().await.unwrap();
        let old = earlier.fence();
        earlier.release().await.unwrap();
        let lease = a.mutex("x").ttl(TTL).lock().await.unwrap();
        assert!(b.evict_holder("x", old).await.unwrap().holders.is_empty());
        assert!(b.mutex("x").try_lock().await.unwrap().is_none(), "it is held as before");
        let evicted = b.evict_holder("x", lease.fence()).await.unwrap();
        assert_eq!(evicted.holders[0].owner.as_str(), "a");
        assert!(evicted.holders[0].remaining > TTL / 2, "{evicted:?}");
        assert_eq!(lease.lost().await, Loss::Deleted);
    });
}

#[test]
fn an_operator_learns_that_the_work_of_an_evicted_holder_has_ended() {
    on_every_store_and_a_quorum(|a, b| async move {
        let store = a.capabilities().store;
        let lease = a.mutex("x").ttl(TTL).lock().await.unwrap();
        let start = Instant::now();
        let departures = b.departures();
        let evicted = b.evict("x").await.unwrap();
        lease.lost().await;
        let mut waiting = std::pin::pin!(departures.of("x", &evicted));
        let early = tokio::time::timeout(ms(200), &mut waiting).await;
        assert!(early.is_err(), "{store}: the work goes on: {early:?}");
        drop(lease);
        let departed = waiting.await.unwrap();
        assert_eq!(departed.len(), 1);
        assert_eq!(
            (departed[0].how, departed[0].holder.owner.as_str()),
            (Departure::Confirmed, "a"),
            "{store}"
        );
        assert!(start.elapsed() < AT_ONCE, "{store}: {:?}", start.elapsed());
    });
}

/// A holder that lets go before it knows of the eviction has ended all the same.
#[test]
fn a_release_that_meets_an_eviction_confirms_the_end_too() {
    on_every_store_and_a_quorum(|a, b| async move {
        for is_dropped in [false, true] {
            let lease = a.mutex("x").ttl(TTL).no_renewal().lock().await.unwrap();
            let start = Instant::now();
            let departures = b.departures();
            let evicted = b.evict("x").await.unwrap();
            match is_dropped {
                true => drop(lease),
                false => drop(lease.release().await.unwrap_err()),
            }
            let departed = departures.of("x", &evicted).await.unwrap();
            assert_eq!(departed[0].how, Departure::Confirmed, "{}", a.capabilities().store);
            assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        }
    });
}

#[test]
fn a_holder_that_does_not_confirm_its_end_is_waited_for_until_its_lease_has_run_out() {
    on_every_store_and_a_quorum(|a, b| async move {
        let lease = a.mutex("x").ttl(secs(2)).no_renewal().lock().await.unwrap();
        let departures = b.departures();
        let evicted = b.evict("x").await.unwrap();
        let left = lease.remaining();
        let start = Instant::now();
        let departed = departures.of("x", &evicted).await.unwrap();
        assert_eq!(departed[0].how, Departure::Expired, "{}", a.capabilities().store);
        assert!(!lease.is_valid(), "{left:?} were left, and {:?} have passed", start.elapsed());
    });
}

/// A client without scripts cannot hear notices, but it sends them.
#[tokio::test]
async fn a_holder_that_is_evicted_by_a_client_without_scripts_is_told_at_once() {
    let server = Server::start(Kind::Redis).unwrap();
    let a = leasehold::connect(&server.url()).await.unwrap();
    let b = leasehold::connect(&format!("{}?scripts=off", server.url())).await.unwrap();
    let lease = a.mutex("x").ttl(TTL).lock().await.unwrap();
    let start = Instant::now();
    assert_eq!(b.evict_holder("x", lease.fence()).await.unwrap().holders.len(), 1);
    assert_eq!(lease.lost().await, Loss::Deleted);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    let (one, two) =
        (a.rwlock("y").ttl(TTL).read().await.unwrap(), a.rwlock("y").ttl(TTL).read().await.unwrap());
    assert_eq!(b.evict_holder("y", one.fence()).await.unwrap().holders.len(), 1);
    assert_eq!(one.lost().await, Loss::Taken);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert!(two.is_valid());
    assert!(b.evict_holder("y", one.fence()).await.unwrap().holders.is_empty());
    two.release().await.unwrap();
}

#[tokio::test]
async fn a_forged_notice_costs_a_renewal_and_no_lease() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let lease = locks.mutex("x").ttl(TTL).lock().await.unwrap();
    let renewals = || server.calls().unwrap().get("pexpire").copied().unwrap_or(0);
    let before = renewals();
    for text in ["evicted\nlock:y", "evicted\nx", "ended\n1\nlock:x", "", "evicted", "evicted\nlock:x"] {
        server.command(&["PUBLISH", "{lock:}:notices", text]).unwrap();
    }
    // The last of them has the lease renewed at once.
    let start = Instant::now();
    while renewals() == before {
        assert!(start.elapsed() < AT_ONCE, "the notice was not heard");
        tokio::time::sleep(ms(2)).await;
    }
    assert!(lease.is_valid());
    assert_eq!(renewals(), before + 1, "the others concern no lease");
    lease.release().await.unwrap();
}

#[test]
fn the_blocking_api_evicts_one_holder_and_waits_for_its_end() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").ttl(TTL).lock().unwrap();
    let departures = locks.departures();
    let evicted = locks.evict_holder("x", lease.fence()).unwrap();
    drop(lease);
    assert_eq!(departures.of("x", &evicted).unwrap()[0].how, Departure::Confirmed);
}

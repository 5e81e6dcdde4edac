//! Closing a client: bounded in time whatever the store does, and after a drain that lets running work finish.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::time::{Duration, Instant};

use common::stores::{on_every_store_and_server, waiting};
use common::{ms, secs};
use leasehold::{Error, Locks, Loss};
use leasehold_lab::{Kind, Server};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(3_000);

/// Puts a server out of action while a client holds leases and waits for others, and closes the client.
async fn closed_without_a_server(
    out_of_action: impl Fn(&Server),
    close: impl AsyncFnOnce(&Locks),
) -> Duration {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let other = leasehold::connect(&server.url()).await.unwrap();
    let mut held = Vec::new();
    for i in 0..8 {
        held.push(locks.mutex(format!("held:{i}")).lock().await.unwrap());
    }
    let taken = other.mutex("taken").lock().await.unwrap();
    let waiter = waiting(&locks, "taken", locks.mutex("taken").lock()).await;
    out_of_action(&server);
    let start = Instant::now();
    close(&locks).await;
    let lasted = start.elapsed();
    for lease in held {
        assert_eq!(lease.loss(), Some(Loss::Closed));
    }
    assert!(matches!(waiter.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(locks.mutex("x").lock().await, Err(Error::Closed)));
    drop(taken);
    lasted
}

/// The leases have 30 s to live, and so long a close without a limit lasts.
#[tokio::test]
async fn close_is_bounded_while_the_server_is_stopped() {
    let lasted =
        closed_without_a_server(|server| server.pause().unwrap(), async |locks| locks.close().await).await;
    assert!(lasted < secs(15), "{lasted:?}");
}

#[tokio::test]
async fn close_is_bounded_while_the_server_is_down() {
    let lasted =
        closed_without_a_server(|server| server.kill().unwrap(), async |locks| locks.close().await).await;
    assert!(lasted < secs(15), "{lasted:?}");
}

#[tokio::test]
async fn close_within_a_time_says_whether_the_store_has_everything_back() {
    for out_of_action in [|server: &Server| server.pause().unwrap(), |server: &Server| server.kill().unwrap()]
    {
        let close = async |locks: &Locks| assert!(!locks.close_within(ms(500)).await);
        let lasted = closed_without_a_server(out_of_action, close).await;
        assert!(lasted >= ms(500) && lasted < secs(5), "{lasted:?}");
    }
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    assert!(locks.close_within(secs(60)).await);
    assert_eq!(lease.loss(), Some(Loss::Closed));
    let other = leasehold::connect(&server.url()).await.unwrap();
    assert!(other.mutex("x").try_lock().await.unwrap().is_some());
}

#[test]
fn a_drain_lets_running_work_finish_and_grants_no_new_lock() {
    on_every_store_and_server(|a, b| async move {
        let lease = a.mutex("x").ttl(TTL).lock().await.unwrap();
        let counted = a.owner("job").mutex("y").ttl(TTL).lock().await.unwrap();
        let taken = b.mutex("taken").lock().await.unwrap();
        let in_store = waiting(&b, "taken", a.mutex("taken").strict_order().lock()).await;
        let behind = tokio::spawn(a.mutex("x").ttl(TTL).lock());
        tokio::time::sleep(ms(20)).await;
        let drained = tokio::spawn({
            let a = a.clone();
            async move { a.drain(secs(100)).await }
        });
        // Those who wait are told, and nobody gets in any more.
        for waiter in [in_store, behind] {
            let error = waiter.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Closed), "{error}");
        }
        assert!(matches!(a.mutex("z").try_lock().await, Err(Error::Closed)));
        assert!(matches!(a.semaphore("z", 2).acquire().await, Err(Error::Closed)));
        assert!(matches!(a.mutex("z").lock_detached().await, Err(Error::Closed)));
        // The cleanup task withdraws the claim of the waiter.
        let waiters = async || b.inspect("taken").await.unwrap().map_or(0, |status| status.waiters.len());
        let since = Instant::now();
        while waiters().await > 0 {
            assert!(since.elapsed() < secs(30), "the waiter has not left the queue");
            tokio::time::sleep(ms(5)).await;
        }
        taken.release().await.unwrap();
        assert!(b.mutex("taken").try_lock().await.unwrap().is_some());
        // Running work goes on: leases are renewed, and values, limits and caches are there.
        tokio::time::sleep(TTL + TTL / 2).await;
        assert!(lease.is_valid() && counted.is_valid() && !drained.is_finished());
        let again = a.owner("job").mutex("y").lock().await.unwrap();
        assert_eq!(a.cells().counter("n").ttl(secs(60)).add(1).await.unwrap(), 1);
        assert!(a.rate_limit("n").max(1).per(ms(10)).wait_for(1, secs(10)).await.unwrap().allowed);
        let loaded =
            a.cache("c").get_or_load("k", secs(60), || async { Ok::<_, std::io::Error>(vec![7]) }).await;
        assert_eq!(loaded.unwrap(), [7]);
        a.cells().counter("n").reset().await.unwrap();
        a.cache("c").invalidate("k").await.unwrap();
        // The last release ends it.
        drop(again);
        counted.release().await.unwrap();
        lease.release().await.unwrap();
        assert!(drained.await.unwrap());
        assert!(b.mutex("x").try_lock().await.unwrap().is_some());
    });
}

#[test]
fn a_drain_that_takes_too_long_leaves_what_is_held() {
    on_every_store_and_server(|a, b| async move {
        let lease = a.mutex("x").lock().await.unwrap();
        assert!(!a.drain(ms(50)).await);
        assert!(lease.is_valid() && b.mutex("x").try_lock().await.unwrap().is_none());
        assert!(a.close_within(secs(60)).await);
        assert_eq!(lease.loss(), Some(Loss::Closed));
        assert!(b.mutex("x").try_lock().await.unwrap().is_some());
        assert!(a.drain(secs(60)).await, "nothing is held");
    });
}

#[test]
fn code_that_is_not_async_has_the_same() {
    let locks = leasehold::blocking::connect("memory:").unwrap();
    let lease = locks.mutex("x").lock().unwrap();
    assert!(!locks.drain(ms(1)).unwrap());
    assert!(matches!(locks.mutex("y").lock(), Err(Error::Closed)));
    lease.release().unwrap();
    assert!(locks.drain(secs(60)).unwrap() && locks.close_within(secs(60)).unwrap());
}

/// A run that is being recorded is running work: a process that exits before its record runs the job again.
#[tokio::test]
async fn a_drain_waits_for_a_run_that_is_being_recorded() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let turn = locks.once("nightly").per(secs(3_600)).take().await.unwrap().unwrap();
    server.pause().unwrap();
    let mut recording = Box::pin(turn.done());
    assert!(common::polled_once(recording.as_mut()).await.is_pending());
    assert!(!locks.drain(ms(200)).await, "a record is under way");
    server.resume().unwrap();
    recording.await.unwrap();
    assert!(locks.drain(secs(60)).await);
}

//! Writers become readers, and readers writers, without a gap: who is let in, who is refused, and what is left where no
//! answer came.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::stores::{in_line, on_every_store, on_every_store_and_server, plain_client, waiting};
use common::{Behaviour, ScriptedStore, client, ms, scaled, secs};
use leasehold::{Clock, Error, Event, Lease, Loss, Options, Share, Upgrade};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

async fn upgraded(lease: Lease) -> Lease {
    match lease.upgrade().await.unwrap() {
        Upgrade::Granted(lease) => lease,
        Upgrade::Refused(lease) => panic!("refused: {lease:?}"),
    }
}

async fn refused(lease: Lease) -> Lease {
    match lease.upgrade().await.unwrap() {
        Upgrade::Granted(lease) => panic!("granted: {lease:?}"),
        Upgrade::Refused(lease) => lease,
    }
}

#[test]
fn a_writer_becomes_a_reader_and_lets_readers_in_but_no_writer() {
    on_every_store_and_server(|a, b| async move {
        let writer = a.rwlock("x").owner("import").write().await.unwrap();
        let (before, proof) = (writer.fence(), writer.proof());
        let behind = waiting(&a, "x", b.rwlock("x").read()).await;
        let next = waiting(&a, "x", b.rwlock("x").strict_order().write()).await;
        let reader = writer.downgrade().await.unwrap();
        assert!(reader.fence() > before && reader.is_valid());
        assert_eq!(proof.loss(), Some(Loss::Released));
        let beside = behind.await.unwrap().unwrap();
        let status = in_line(&a, "x", 1).await;
        assert_eq!(status.holders.len(), 2, "{status:?}");
        assert!(status.holders.iter().all(|holder| holder.share == Share::Shared), "{status:?}");
        let mine = status.holders.iter().find(|holder| holder.owner.as_str() == "import").unwrap();
        assert_eq!(mine.fence, Some(reader.fence()));
        assert!(!next.is_finished(), "a writer came in between");
        beside.release().await.unwrap();
        reader.release().await.unwrap();
        next.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// There is no moment in which the next in line could have it.
#[test]
fn a_writer_that_waits_first_does_not_get_it_in_between() {
    on_every_store_and_server(|a, b| async move {
        let writer = a.rwlock("x").write().await.unwrap();
        let next = waiting(&a, "x", b.rwlock("x").write()).await;
        let mut lease = writer;
        let mut fence = lease.fence();
        for _ in 0..10 {
            lease = lease.downgrade().await.unwrap();
            assert!(lease.fence() > fence);
            fence = lease.fence();
            lease = upgraded(lease).await;
            assert!(lease.fence() > fence);
            fence = lease.fence();
            assert!(!next.is_finished());
        }
        lease.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap();
    });
}

#[test]
fn two_readers_who_want_to_write_are_both_refused_at_once_and_keep_what_they_have() {
    on_every_store_and_server(|a, b| async move {
        let one = a.rwlock("x").ttl(TTL).read().await.unwrap();
        let two = b.rwlock("x").ttl(TTL).read().await.unwrap();
        let before = [(one.fence(), one.proof()), (two.fence(), two.proof())];
        let (one, two) = tokio::join!(refused(one), refused(two));
        for (lease, (fence, proof)) in [&one, &two].into_iter().zip(before) {
            assert_eq!(lease.fence(), fence);
            assert!(lease.is_valid() && proof.is_valid(), "{:?}", proof.loss());
        }
        // They are renewed as before.
        tokio::time::sleep(TTL + TTL / 4).await;
        assert!(one.is_valid() && two.is_valid(), "{:?}, {:?}", one.loss(), two.loss());
        two.release().await.unwrap();
        let writer = upgraded(one).await;
        assert!(b.rwlock("x").try_read().await.unwrap().is_none());
        tokio::time::sleep(TTL + TTL / 4).await;
        assert!(writer.is_valid(), "{:?}", writer.loss());
        writer.release().await.unwrap();
    });
}

#[test]
fn what_is_that_already_comes_back_as_it_is() {
    on_every_store(|a, _| async move {
        let reader = a.rwlock("x").read().await.unwrap();
        let fence = reader.fence();
        let reader = reader.downgrade().await.unwrap();
        assert_eq!((reader.fence(), reader.is_valid()), (fence, true));
        reader.release().await.unwrap();
        let writer = a.mutex("x").lock().await.unwrap();
        let fence = writer.fence();
        let writer = upgraded(writer).await;
        assert_eq!((writer.fence(), writer.is_valid()), (fence, true));
        writer.release().await.unwrap();
        let permit = a.semaphore("x", 2).acquire().await.unwrap();
        let error = permit.upgrade().await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    });
}

#[test]
fn a_lease_that_was_lost_is_not_converted() {
    on_every_store_and_server(|a, b| async move {
        for is_known in [false, true] {
            let writer = a.rwlock("x").ttl(TTL).write().await.unwrap();
            b.evict("x").await.unwrap();
            if is_known {
                writer.lost().await;
            }
            let other = b.rwlock("x").write().await.unwrap();
            let error = writer.downgrade().await.unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            a.settled().await;
            assert!(other.is_valid());
            other.release().await.unwrap();
        }
    });
}

/// The store has less than 10 ms left of the claim when it converts it: the writer's deadline comes from that, not from the
/// shortest TTL. The next writer waits in the queue, so the store admits it as soon as the claim expires.
#[test]
fn an_upgrade_near_the_end_of_a_lease_never_leaves_two_valid_writers() {
    on_every_store_and_server(|a, b| async move {
        let start = std::time::Instant::now();
        let (mut upgrades, mut two_writers) = (0, 0);
        for attempt in 0.. {
            if upgrades >= scaled(500) || start.elapsed() > secs(60) {
                break;
            }
            let rwlock = a.rwlock("x").ttl(ms(40)).no_renewal().min_validity(ms(0));
            let Ok(reader) = rwlock.read().await else { continue };
            let next = tokio::spawn(b.rwlock("x").write());
            tokio::time::sleep(reader.remaining().saturating_sub(ms(1 + attempt % 5))).await;
            let writer = match reader.upgrade().await {
                Ok(Upgrade::Granted(writer)) => Some(writer),
                Ok(Upgrade::Refused(_)) | Err(_) => None,
            };
            let next = next.await.unwrap().unwrap();
            upgrades += u64::from(writer.is_some());
            two_writers += u64::from(writer.is_some_and(|writer| writer.is_valid()) && next.is_valid());
            next.release().await.unwrap();
        }
        println!("{upgrades} upgrades near the end of a lease, {two_writers} with two valid writers");
        assert!(upgrades > 0, "no upgrade was granted");
        assert_eq!(two_writers, 0, "of {upgrades} upgrades");
    });
}

/// Tasks of one client that wait for the writer to pass it on ask the store instead, once it reads.
#[tokio::test(start_paused = true)]
async fn local_tasks_behind_a_writer_are_served_when_the_reader_lets_go() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let writer = locks.rwlock("x").write().await.unwrap();
    let rwlock = locks.rwlock("x");
    let next = tokio::spawn(async move { rwlock.write().await.unwrap() });
    tokio::time::sleep(ms(1)).await;
    let reader = writer.downgrade().await.unwrap();
    in_line(&locks, "x", 1).await;
    let fence = reader.fence();
    // A writer that was a reader is not passed on either.
    let writer = upgraded(reader).await;
    writer.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_holding_goes_on_counting() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let start = tokio::time::Instant::now();
    let writer = locks.rwlock("x").max_hold(secs(60)).write().await.unwrap();
    tokio::time::sleep(secs(40)).await;
    let reader = writer.downgrade().await.unwrap();
    tokio::time::sleep(secs(19)).await;
    assert!(reader.is_valid());
    assert_eq!(reader.lost().await, Loss::HoldLimit);
    assert!(start.elapsed() <= ms(60_010), "{:?}", start.elapsed());
    let no_cap = locks.rwlock("x").no_renewal().ttl(secs(10)).write().await.unwrap();
    let reader = no_cap.downgrade().await.unwrap();
    assert_eq!(reader.lost().await, Loss::Expired, "nobody renews what was not renewed before");
}

/// What a store does with a conversion, and what the caller is told; after each, nothing is left.
#[tokio::test(start_paused = true)]
async fn without_an_answer_it_is_held_no_more_and_given_back() {
    for mood in [Behaviour::Fails, Behaviour::Hangs, Behaviour::SlowlyFails(1_000), Behaviour::Slow(8_000)] {
        let rule = match mood {
            Behaviour::Fails => {
                |call: &str, _: &str| if call == "convert" { Behaviour::Fails } else { Behaviour::Answers }
            }
            Behaviour::Hangs => {
                |call: &str, _: &str| if call == "convert" { Behaviour::Hangs } else { Behaviour::Answers }
            }
            Behaviour::Slow(_) => |call: &str, _: &str| {
                if call == "convert" { Behaviour::Slow(8_000) } else { Behaviour::Answers }
            },
            _ => |call: &str, _: &str| {
                if call == "convert" { Behaviour::SlowlyFails(1_000) } else { Behaviour::Answers }
            },
        };
        let store = ScriptedStore::by(Clock::tokio(), ms(0), rule);
        let locks = client(&store, "a");
        for writes in [true, false] {
            let rwlock = locks.rwlock("x");
            let start = tokio::time::Instant::now();
            let (proof, error) = match writes {
                true => {
                    let lease = rwlock.write().await.unwrap();
                    (lease.proof(), lease.downgrade().await.map(drop).unwrap_err())
                }
                false => {
                    let lease = rwlock.read().await.unwrap();
                    (lease.proof(), lease.upgrade().await.map(drop).unwrap_err())
                }
            };
            let what = if writes { "downgrade" } else { "upgrade" };
            assert!(matches!(&error, Error::Unknown { what: told, .. } if *told == what), "{error:?}");
            assert!(error.to_string().contains("it is held no more"), "{error}");
            assert!(start.elapsed() <= ms(5_001), "{:?}", start.elapsed());
            assert_eq!(proof.loss(), Some(Loss::Released));
            locks.settled().await;
            assert!(locks.inspect("x").await.unwrap().is_none(), "{mood:?}: something is left");
        }
    }
}

/// The lease's own deadline comes before a store that takes too long.
#[tokio::test(start_paused = true)]
async fn an_answer_after_the_deadline_is_a_loss() {
    let slow =
        |call: &str, _: &str| if call == "convert" { Behaviour::Slow(2_000) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
    let locks = client(&store, "a");
    let writer = locks.rwlock("x").ttl(secs(1)).write().await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none());
}

/// The renewal is executed behind the conversion, finds a fence that is no more, and its answer is there before the
/// conversion's.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_overtaken_by_the_conversion_loses_nothing() {
    let slow = |call: &str, _: &str| if call == "renew" { Behaviour::Slow(100) } else { Behaviour::Answers };
    for answered_ms in [0, 400] {
        let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
        let locks = client(&store, "a");
        let mut lease = locks.rwlock("x").ttl(secs(3)).read().await.unwrap();
        store.grant_late_ms.store(answered_ms, Ordering::SeqCst);
        for round in 0..20 {
            let renewals = store.renewals.load(Ordering::SeqCst);
            while store.renewals.load(Ordering::SeqCst) == renewals {
                tokio::time::sleep(ms(10)).await;
            }
            lease = match round % 2 {
                0 => upgraded(lease).await,
                _ => lease.downgrade().await.unwrap(),
            };
            tokio::time::sleep(ms(150)).await;
            assert!(lease.is_valid(), "round {round}: {:?}", lease.loss());
        }
        lease.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn closing_the_client_in_the_middle_gives_it_back() {
    let slow =
        |call: &str, _: &str| if call == "convert" { Behaviour::Slow(100) } else { Behaviour::Answers };
    let store = ScriptedStore::by(Clock::tokio(), ms(0), slow);
    let (locks, other) = (client(&store, "a"), client(&store, "b"));
    let writer = locks.rwlock("x").write().await.unwrap();
    let (end, ()) = tokio::join!(writer.downgrade(), async {
        tokio::time::sleep(ms(50)).await;
        locks.close().await;
    });
    assert!(matches!(end, Err(Error::Lost { reason: Loss::Closed, .. })), "{end:?}");
    assert!(other.inspect("x").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_says_so() {
    let (_, locks) = plain_client();
    let writer = locks.rwlock("x").write().await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plain store does not offer downgrade: it cannot change a claim without a gap; let go, and ask again"
    );
    locks.settled().await;
    assert!(locks.inspect("x").await.unwrap().is_none(), "whatever the error, it is held no more");
}

/// One lease ends and another begins: what is counted stays even.
#[tokio::test(start_paused = true)]
async fn each_lease_is_acquired_and_released_once() {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hook = told.clone();
    let store = ScriptedStore::new(Clock::tokio());
    let locks = Options::default()
        .on_event(move |event| {
            hook.lock().unwrap().push(match event {
                Event::Acquired { fence, .. } => ("acquired", fence.get()),
                Event::Released { fence, .. } => ("released", fence.get()),
                Event::Lost { fence, .. } => ("lost", fence.get()),
                _ => ("other", 0),
            });
            std::future::ready(())
        })
        .over(store.clone())
        .unwrap();
    let reader = locks.rwlock("x").write().await.unwrap().downgrade().await.unwrap();
    let other = locks.rwlock("x").read().await.unwrap();
    let reader = refused(reader).await;
    other.release().await.unwrap();
    upgraded(reader).await.release().await.unwrap();
    locks.close().await;
    let told = told.lock().unwrap().clone();
    let expected = [
        ("acquired", 1),
        ("released", 1),
        ("acquired", 2),
        ("acquired", 3),
        ("released", 3),
        ("released", 2),
        ("acquired", 4),
        ("released", 4),
    ];
    assert_eq!(told, expected);
}

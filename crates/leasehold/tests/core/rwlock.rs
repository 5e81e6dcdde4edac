//! Readers and writers: who shares, who waits for whom, and what is left of those who gave up.

use leasehold_testkit as common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::stores::{in_line, on_every_store, plain_client, waiting};
use common::{ScriptedStore, client, ms, secs};
use leasehold::{Clock, Error, Loss, Share};

/// Long beside what a store needs for its turns, and short enough to be waited for.
const TTL: Duration = Duration::from_millis(1_500);

#[test]
fn readers_hold_it_together_and_a_writer_alone() {
    on_every_store(|a, b| async move {
        // Two of one client, and one of another.
        let readers = [
            a.rwlock("x").read().await.unwrap(),
            a.rwlock("x").try_read().await.unwrap().unwrap(),
            b.rwlock("x").read().await.unwrap(),
        ];
        let status = a.inspect("x").await.unwrap().unwrap();
        assert!(status.holders.iter().all(|holder| holder.share == Share::Shared), "{status:?}");
        assert_eq!(status.holders.len(), 3);
        let mut newest = readers[0].fence();
        for reader in &readers[1..] {
            assert!(reader.fence() > newest, "one fence per reader");
            newest = reader.fence();
        }
        for reader in readers {
            assert!(a.rwlock("x").try_write().await.unwrap().is_none());
            assert!(b.rwlock("x").try_write().await.unwrap().is_none());
            reader.release().await.unwrap();
        }
        let writer = b.rwlock("x").try_write().await.unwrap().unwrap();
        assert!(writer.fence() > newest);
        for locks in [&a, &b] {
            assert!(locks.rwlock("x").try_read().await.unwrap().is_none());
            assert!(locks.rwlock("x").try_write().await.unwrap().is_none());
        }
        writer.release().await.unwrap();
    });
}

#[test]
fn busy_names_a_holder_for_readers_and_writers() {
    on_every_store(|a, b| async move {
        let reader = a.rwlock("x").owner("report").read().await.unwrap();
        let error = b.rwlock("x").wait(ms(20)).write().await.unwrap_err();
        assert!(error.to_string().starts_with("`x` is held by report for another "), "{error}");
        reader.release().await.unwrap();
        let writer = a.rwlock("x").owner("import").write().await.unwrap();
        let error = b.rwlock("x").wait(ms(20)).read().await.unwrap_err();
        assert!(matches!(&error, Error::Busy { waited, .. } if *waited >= ms(20)), "{error:?}");
        assert!(error.to_string().starts_with("`x` is held by import for another "), "{error}");
        let error = b.rwlock("x").wait(ms(0)).read().await.unwrap_err();
        assert!(matches!(&error, Error::Busy { waited, .. } if waited.is_zero()), "{error:?}");
        writer.release().await.unwrap();
    });
}

#[test]
fn a_waiting_writer_stops_new_readers_and_those_behind_it_come_in_together() {
    on_every_store(|a, b| async move {
        let first = a.rwlock("x").read().await.unwrap();
        let writer = waiting(&a, "x", b.rwlock("x").write()).await;
        assert!(a.rwlock("x").try_read().await.unwrap().is_none(), "a reader passed a writer");
        let mut behind = Vec::new();
        for locks in [&a, &a, &b] {
            behind.push(waiting(&a, "x", locks.rwlock("x").read()).await);
        }
        let before = first.fence();
        first.release().await.unwrap();
        let writer = writer.await.unwrap().unwrap();
        assert!(writer.fence() > before);
        let status = in_line(&a, "x", 3).await;
        assert_eq!((status.holders.len(), status.holders[0].share), (1, Share::Exclusive));
        writer.release().await.unwrap();
        let mut readers = Vec::new();
        for task in behind {
            readers.push(task.await.unwrap().unwrap());
        }
        assert!(readers.iter().all(|reader| reader.is_valid()));
        assert_eq!(a.inspect("x").await.unwrap().unwrap().holders.len(), 3);
        for reader in readers {
            reader.release().await.unwrap();
        }
    });
}

#[test]
fn to_write_and_to_lock_a_mutex_are_the_same() {
    on_every_store(|a, b| async move {
        let writer = a.rwlock("x").write().await.unwrap();
        assert!(b.mutex("x").try_lock().await.unwrap().is_none());
        writer.release().await.unwrap();
        let holder = b.mutex("x").lock().await.unwrap();
        assert!(a.rwlock("x").try_write().await.unwrap().is_none());
        assert!(a.rwlock("x").try_read().await.unwrap().is_none());
        holder.release().await.unwrap();
        let reader = a.rwlock("x").read().await.unwrap();
        assert!(b.mutex("x").try_lock().await.unwrap().is_none());
        reader.release().await.unwrap();
    });
}

/// Writers of one client meet as those of a mutex do; readers have nothing to pass on.
#[tokio::test(start_paused = true)]
async fn writers_of_one_client_pass_it_on_and_readers_ask_the_store() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let writer = locks.rwlock("x").write().await.unwrap();
    let (rwlock, mutex) = (locks.rwlock("x"), locks.mutex("x"));
    let next = tokio::spawn(async move { rwlock.write().await.unwrap().release().await });
    let last = tokio::spawn(async move { mutex.lock().await.unwrap().release().await });
    tokio::time::sleep(ms(1)).await;
    assert!(locks.inspect("x").await.unwrap().unwrap().waiters.is_empty(), "they wait at the meeting");
    writer.release().await.unwrap();
    next.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
    assert_eq!(store.acquires.load(Ordering::SeqCst), 2, "one claim served both who waited");

    let writer = locks.rwlock("x").write().await.unwrap();
    let strict = waiting(&locks, "x", locks.rwlock("x").strict_order().write()).await;
    let reader = waiting(&locks, "x", locks.rwlock("x").read()).await;
    writer.release().await.unwrap();
    strict.await.unwrap().unwrap().release().await.unwrap();
    let reader = reader.await.unwrap().unwrap();
    assert_eq!(store.acquires.load(Ordering::SeqCst), 5);
    let fence = reader.fence();
    reader.release().await.unwrap();
    let next = locks.rwlock("x").read().await.unwrap();
    assert!(next.fence() > fence);
    assert_eq!(store.acquires.load(Ordering::SeqCst), 6, "a reader's share is not passed on");
}

#[test]
fn whoever_gives_up_waiting_leaves_nothing_and_lets_the_next_in() {
    on_every_store(|a, b| async move {
        let first = a.rwlock("x").read().await.unwrap();
        let writer = waiting(&a, "x", b.rwlock("x").write()).await;
        let reader = waiting(&a, "x", a.rwlock("x").read()).await;
        writer.abort();
        // Without the writer nothing stands between the two readers.
        let second = reader.await.unwrap().unwrap();
        assert!(first.is_valid());
        first.release().await.unwrap();
        let mut gone = Vec::new();
        let writer = waiting(&a, "x", b.rwlock("x").write()).await;
        for locks in [&a, &b] {
            gone.push(waiting(&a, "x", locks.rwlock("x").read()).await);
        }
        gone.push(writer);
        for task in gone {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        a.settled().await;
        b.settled().await;
        let status = a.inspect("x").await.unwrap().unwrap();
        assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "{status:?}");
        second.release().await.unwrap();
    });
}

#[test]
fn readers_are_renewed_and_each_hears_of_its_loss() {
    on_every_store(|a, b| async move {
        let one = a.rwlock("x").ttl(TTL).read().await.unwrap();
        let two = b.rwlock("x").ttl(TTL).read().await.unwrap();
        tokio::time::sleep(TTL).await;
        assert!(one.is_valid() && two.is_valid(), "{:?}, {:?}", one.loss(), two.loss());
        assert_eq!(b.evict("x").await.unwrap().holders.len(), 2);
        assert_eq!((one.lost().await, two.lost().await), (Loss::Deleted, Loss::Deleted));
        assert!(matches!(one.release().await, Err(Error::Lost { reason: Loss::Deleted, .. })));
        drop(two);
        // One that is not renewed ends by itself, and leaves the other alone.
        let one = a.rwlock("x").ttl(ms(100)).no_renewal().read().await.unwrap();
        let two = b.rwlock("x").read().await.unwrap();
        assert_eq!(one.lost().await, Loss::Expired);
        assert!(two.is_valid());
        two.release().await.unwrap();
        let writer = a.rwlock("x").wait(secs(10)).write().await.unwrap();
        writer.release().await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_share_refuses_readers_and_has_writers() {
    let (store, locks) = plain_client();
    for error in
        [locks.rwlock("x").read().await.unwrap_err(), locks.rwlock("x").try_read().await.unwrap_err()]
    {
        assert_eq!(error.to_string(), "the plain store does not offer shared locks: it cannot count readers");
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0, "nothing was sent");
    locks.rwlock("x").write().await.unwrap().release().await.unwrap();
    locks.rwlock("x").try_write().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn its_options_are_those_of_a_mutex() {
    let store = ScriptedStore::new(Clock::tokio());
    let locks = client(&store, "a");
    let rwlock = locks.rwlock("x").ttl(secs(9)).max_hold(secs(60)).min_validity(secs(1));
    assert_eq!(format!("{rwlock:?}"), "RwLock { name: Name(x), ttl: Ttl(9000 ms), .. }");
    for lease in [rwlock.read().await.unwrap(), rwlock.read().await.unwrap()] {
        assert_eq!(lease.lost().await, Loss::HoldLimit);
    }
    let writer = rwlock.write().await.unwrap();
    assert_eq!(writer.lost().await, Loss::HoldLimit);
    let asked = store.acquires.load(Ordering::SeqCst);
    for (bad, what) in [
        (locks.rwlock("a{b"), "name"),
        (locks.rwlock("x").ttl(ms(1)), "TTL"),
        (locks.rwlock("x").owner(""), "owner"),
        (locks.rwlock("x").max_hold(ms(0)), "max_hold"),
        (locks.rwlock("x").ttl(secs(1)).min_validity(secs(2)), "min_validity"),
    ] {
        for end in [bad.read().await, bad.write().await] {
            let error = end.unwrap_err();
            assert!(matches!(&error, Error::Invalid { what: found, .. } if found.contains(what)), "{error}");
        }
    }
    assert_eq!(store.acquires.load(Ordering::SeqCst), asked, "nothing was sent");
    locks.close().await;
    assert!(matches!(locks.rwlock("x").read().await, Err(Error::Closed)));
}

//! A latch: closed until so many have counted, whoever dies meanwhile.

use leasehold_testkit as common;

use std::time::Duration;

use common::stores::{on_every_store, plain_client};
use common::{ms, secs};
use leasehold::{Error, Locks};
use leasehold_lab::{Cut, Kind, Proxy, Server};

#[test]
fn it_opens_when_the_last_has_counted_and_stays_open() {
    on_every_store(|a, b| async move {
        let (mine, theirs) = (a.latch("x", 3), b.latch("x", 3));
        assert_eq!(theirs.missing().await.unwrap(), 3);
        let waiting: Vec<_> = [&a, &b, &b]
            .map(|locks| {
                let latch = locks.latch("x", 3);
                tokio::spawn(async move { latch.wait().await })
            })
            .into();
        assert_eq!(mine.count_down().await.unwrap(), 2);
        assert_eq!(theirs.count_down().await.unwrap(), 1);
        assert!(!theirs.wait_for(ms(20)).await.unwrap(), "one is missing");
        assert!(waiting.iter().all(|task| !task.is_finished()), "one is missing");
        assert_eq!(mine.count_down().await.unwrap(), 0);
        for task in waiting {
            task.await.unwrap().unwrap();
        }
        // Whoever comes late finds it open; counting on changes nothing.
        assert_eq!(theirs.count_down().await.unwrap(), 0);
        assert!(theirs.wait_for(Duration::ZERO).await.unwrap());
        theirs.reset().await.unwrap();
        assert_eq!(mine.missing().await.unwrap(), 3, "a new one");
        assert!(!mine.wait_for(Duration::ZERO).await.unwrap());
    });
}

#[test]
fn whoever_counts_under_a_name_counts_once() {
    on_every_store(|a, b| async move {
        let (mine, theirs) = (a.latch("x", 2), b.latch("x", 2));
        for latch in [&mine, &theirs, &mine] {
            assert_eq!(latch.count_down_as("worker-1").await.unwrap(), 1);
        }
        assert_eq!(theirs.count_down_as("worker-2").await.unwrap(), 0);
        assert_eq!(mine.count_down_as("worker-2").await.unwrap(), 0);
        mine.reset().await.unwrap();
    });
}

#[test]
fn many_at_once_are_all_counted() {
    on_every_store(|a, b| async move {
        const COUNT: u32 = 40;
        let tasks: Vec<_> = (0..COUNT)
            .map(|number| {
                let latch = if number % 2 == 0 { &a } else { &b }.latch("x", COUNT);
                tokio::spawn(async move { latch.count_down().await.unwrap() })
            })
            .collect();
        b.latch("x", COUNT).wait().await.unwrap();
        let mut missing = Vec::new();
        for task in tasks {
            missing.push(task.await.unwrap());
        }
        missing.sort_unstable();
        assert_eq!(missing, (0..COUNT).collect::<Vec<_>>(), "each of them was one more");
        a.latch("x", COUNT).reset().await.unwrap();
    });
}

#[test]
fn two_counts_for_one_name_are_an_error_and_so_is_bad_input() {
    on_every_store(|a, b| async move {
        a.latch("x", 3).count_down().await.unwrap();
        for error in [
            b.latch("x", 2).count_down().await.unwrap_err(),
            b.latch("x", 2).wait().await.unwrap_err(),
            b.latch("x", 2).missing().await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(text.contains("invalid count of a latch `2`: `x` was made for 3"), "{text}");
        }
        a.latch("x", 3).reset().await.unwrap();
        for latch in [a.latch("", 1), a.latch("x", 0), a.latch("x", 10_001), a.latch("x", 1).kept_for(ms(1))]
        {
            assert!(matches!(latch.wait().await, Err(Error::Invalid { .. })), "{latch:?}");
            assert!(matches!(latch.count_down().await, Err(Error::Invalid { .. })), "{latch:?}");
        }
        let latch = a.latch("x", 1);
        assert!(matches!(latch.count_down_as("a\nb").await, Err(Error::Invalid { .. })));
        assert_eq!(latch.missing().await.unwrap(), 1, "nothing was counted");
    });
}

#[test]
fn it_is_forgotten_when_nobody_has_counted_for_long() {
    on_every_store(|a, b| async move {
        let kept_for = ms(300);
        a.latch("x", 1).kept_for(kept_for).count_down().await.unwrap();
        assert_eq!(b.latch("x", 1).missing().await.unwrap(), 0);
        while b.latch("x", 1).missing().await.unwrap() == 0 {
            tokio::time::sleep(kept_for / 10).await;
        }
        // A name is free for another count then.
        assert_eq!(b.latch("x", 2).kept_for(kept_for).count_down().await.unwrap(), 1);
        b.latch("x", 2).reset().await.unwrap();
    });
}

#[test]
fn a_closed_client_waits_no_more() {
    on_every_store(|a, b| async move {
        let latch = b.latch("x", 1);
        let waiting = tokio::spawn(async move { latch.wait().await });
        tokio::time::sleep(ms(5)).await;
        b.close().await;
        assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
        assert!(matches!(b.latch("x", 1).count_down().await, Err(Error::Closed)));
        drop(a);
    });
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_values_says_so() {
    let (_store, locks) = plain_client();
    let error = locks.latch("x", 1).count_down().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the plain store does not offer a latch: it keeps no values beside its locks"
    );
    assert!(matches!(locks.latch("x", 1).wait().await, Err(Error::Unsupported { .. })));
}

async fn connected(url: &str) -> Locks {
    leasehold::connect(url).await.unwrap()
}

/// Through everything a network does, nobody is counted twice and nobody is forgotten.
#[tokio::test]
async fn counting_through_a_bad_network_counts_once_each() {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = std::sync::Arc::new(Proxy::to(server.addr()).unwrap());
    let bad = connected(&format!("{}?timeout=200", proxy.url())).await;
    let good = connected(&server.url()).await;
    const COUNT: u32 = 30;
    let waiter = good.latch("x", COUNT);
    let waiting = tokio::spawn(async move { waiter.wait().await });
    let mut last = COUNT;
    for number in 0..COUNT {
        // Cut once, at another moment each time: before it is asked, on the way there, on the way back.
        let cutting = tokio::spawn({
            let proxy = proxy.clone();
            async move {
                tokio::time::sleep(Duration::from_micros(u64::from(number) * 100)).await;
                proxy.cut(Cut::Reset).unwrap();
            }
        });
        let missing = bad.latch("x", COUNT).count_down().await.unwrap();
        cutting.await.unwrap();
        assert_eq!(missing, last - 1, "number {number}");
        last = missing;
    }
    tokio::time::timeout(secs(30), waiting).await.unwrap().unwrap().unwrap();
}

/// Without scripts there is nothing to keep it with.
#[tokio::test]
async fn a_server_without_scripts_has_no_latches() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = connected(&format!("{}?scripts=off", server.url())).await;
    assert!(matches!(locks.latch("x", 1).count_down().await, Err(Error::Unsupported { .. })));
}

/// A server that restarts and forgets is a new latch; one that comes back with its data is the same, and waiters notice both.
#[tokio::test]
async fn a_waiter_goes_on_through_an_outage() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = connected(&server.url()).await;
    let waiter = locks.latch("x", 2);
    let waiting = tokio::spawn(async move { waiter.wait().await });
    locks.latch("x", 2).count_down_as("one").await.unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    let other = connected(&server.url()).await;
    other.latch("x", 2).count_down_as("one").await.unwrap();
    assert!(!waiting.is_finished());
    other.latch("x", 2).count_down_as("two").await.unwrap();
    tokio::time::timeout(secs(30), waiting).await.unwrap().unwrap().unwrap();
}

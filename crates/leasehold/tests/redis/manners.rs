//! `redis:` with `yield_every`: whoever polls for a key that ours keep busy gets its turns, and ours keep their order.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{ms, secs};
use leasehold::Error;
use leasehold_lab::{Kind, Server};

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 60;

/// Reads, waits, adds one: whoever does so beside another loses a count.
async fn count(counter: &AtomicU64) {
    let before = counter.load(Ordering::SeqCst);
    tokio::time::sleep(ms(1)).await;
    counter.store(before + 1, Ordering::SeqCst);
}

/// A library that takes the key as most do, every 3 ms. Says how often it had it.
async fn poller(url: String, counter: Arc<AtomicU64>, is_over: Arc<AtomicBool>) -> u64 {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut turns = 0;
    while !is_over.load(Ordering::SeqCst) {
        let mut set = redis::cmd("SET");
        set.arg("lock:hot").arg("theirs").arg("NX").arg("PX").arg(60_000);
        let answer: redis::Value = set.query_async(&mut connection).await.unwrap();
        if answer == redis::Value::Okay {
            count(&counter).await;
            turns += 1;
            let () = redis::cmd("DEL").arg("lock:hot").query_async(&mut connection).await.unwrap();
        }
        tokio::time::sleep(ms(3)).await;
    }
    turns
}

/// How many turns somebody else gets on a key that some clients of ours keep busy.
async fn turns_of_another(kind: Kind, parameters: &str) -> u64 {
    let server = Server::start(kind).unwrap();
    let (counter, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(leasehold::connect(&format!("{}{parameters}", server.url())).await.unwrap());
    }
    // All of them are in line before it begins.
    let first = clients[0].mutex("hot").lock().await.unwrap();
    let ours = clients.iter().map(|locks| {
        let (locks, counter) = (locks.clone(), counter.clone());
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let lease = locks.mutex("hot").lock().await.unwrap();
                count(&counter).await;
                lease.release().await.unwrap();
            }
        })
    });
    let ours: Vec<_> = ours.collect();
    while clients[0].inspect("hot").await.unwrap().unwrap().waiters.len() < CLIENTS as usize - 1 {}
    let other = tokio::spawn(poller(server.url(), counter.clone(), is_over.clone()));
    first.release().await.unwrap();
    for task in ours {
        task.await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    let turns = other.await.unwrap();
    assert_eq!(counter.load(Ordering::SeqCst), CLIENTS * ROUNDS + turns, "{kind:?}: the count is exact");
    turns
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_polls_gets_its_turns_and_without_it_hardly_any() {
    for kind in Kind::ALL {
        let (with, without) =
            tokio::join!(turns_of_another(kind, "?yield_every=10"), turns_of_another(kind, ""));
        println!(
            "{kind:?}: {with} turns of another with `yield_every=10`, {without} without, beside {}",
            CLIENTS * ROUNDS
        );
        assert!(with >= 12, "{kind:?}: {with}, of 18 moments");
        assert!(without * 3 <= with, "{kind:?}: {without} without, {with} with");
    }
}

#[tokio::test]
async fn ours_keep_their_order() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let url = format!("{}?yield_every=1", server.url());
        let locks = leasehold::connect(&url).await.unwrap();
        let first = locks.mutex("x").lock().await.unwrap();
        let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for number in 0..4 {
            let (url, ended) = (url.clone(), ended.clone());
            tasks.push(tokio::spawn(async move {
                let locks = leasehold::connect(&url).await.unwrap();
                let lease = locks.mutex("x").lock().await.unwrap();
                ended.send(number).unwrap();
                lease.release().await.unwrap();
                locks.close().await;
            }));
            while locks.inspect("x").await.unwrap().unwrap().waiters.len() <= number {}
        }
        first.release().await.unwrap();
        for number in 0..4 {
            let next = tokio::time::timeout(secs(20), order.recv()).await.expect("nobody is forgotten");
            assert_eq!(next, Some(number), "{kind:?}");
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_name_that_is_left_free_is_ours_again_after_a_moment_and_nothing_stays() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let locks = leasehold::connect(&format!("{}?yield_every=2", server.url())).await.unwrap();
        for round in 1..=6 {
            let lease = locks.mutex("x").wait(secs(20)).lock().await.unwrap();
            lease.release().await.unwrap();
            let is_off = server.command(&["EXISTS", "{lock:x}:yield"]).unwrap().int() == Some(1);
            assert_eq!(is_off, round % 2 == 0, "{kind:?}: every second time, for a moment");
        }
        while server.command(&["DBSIZE"]).unwrap().int() != Some(1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn how_often_is_a_number() {
    for count in ["0", "-1", "often", "", "1000001"] {
        let error =
            leasehold::connect(&format!("redis://127.0.0.1:1/?yield_every={count}")).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{count}: {error}");
    }
}

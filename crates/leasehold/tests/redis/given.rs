//! `redis:` over a connection that is not ours: the conformance suite, and what becomes of those who wait.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::sync::Arc;

use async_trait::async_trait;
use common::cases::every_case_it_can_holds;
use common::{ms, opened, secs};
use leasehold::store::conformance::Subject;
use leasehold::store::redis::Redis;
use leasehold::{Error, Locks, Options, Store};
use leasehold_lab::{Kind, Proxy, Server, Setup};
use redis::aio::MultiplexedConnection;

async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn locks(url: &str) -> Locks {
    let store = Redis::with_connection(connection(url).await, "").await.unwrap();
    Options::default().over(Arc::new(store)).unwrap()
}

struct OnServer(String);

#[async_trait]
impl Subject for OnServer {
    async fn open(&self) -> Arc<dyn Store> {
        let wire = connection(&self.0).await;
        Arc::new(opened(|| Redis::with_connection(wire.clone(), "timeout=500")).await)
    }

    fn ttl(&self) -> std::time::Duration {
        ms(6_000)
    }
}

async fn every_case_but_pushes_holds_on(kind: Kind, protocol: &str) {
    let server = Server::start(kind).unwrap();
    let subject = OnServer(format!("{}/?protocol={protocol}", server.url()));
    assert!(!subject.open().await.capabilities().pushed);
    assert_eq!(every_case_it_can_holds(subject).await, ["a_release_wakes_the_next_at_once"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_but_pushes_holds_on_redis() {
    every_case_but_pushes_holds_on(Kind::Redis, "resp2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_but_pushes_holds_on_valkey() {
    every_case_but_pushes_holds_on(Kind::Valkey, "resp3").await;
}

#[tokio::test]
async fn those_who_ask_and_those_who_are_told_stand_in_one_line() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let told = leasehold::connect(&server.url()).await.unwrap();
        let first = told.mutex("x").lock().await.unwrap();
        let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = Vec::new();
        for number in 0..6 {
            let locks = if number % 2 == 0 {
                locks(&server.url()).await
            } else {
                leasehold::connect(&server.url()).await.unwrap()
            };
            let ended = ended.clone();
            tasks.push(tokio::spawn(async move {
                let lease = locks.mutex("x").ttl(secs(30)).lock().await.unwrap();
                ended.send(number).unwrap();
                lease.release().await.unwrap();
            }));
            let waiting = || async { told.inspect("x").await.unwrap().unwrap().waiters.len() };
            while waiting().await <= number {
                tokio::task::yield_now().await;
            }
        }
        first.release().await.unwrap();
        for number in 0..6 {
            assert_eq!(order.recv().await, Some(number), "{kind:?}");
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_who_waits_asks_no_more_often_than_ten_times_a_second() {
    let server = Server::start(Kind::Redis).unwrap();
    let (one, other) = (locks(&server.url()).await, locks(&server.url()).await);
    let lease = one.mutex("x").ttl(secs(30)).lock().await.unwrap();
    server.forget_calls().unwrap();
    other.mutex("x").ttl(secs(30)).wait(secs(2)).lock().await.unwrap_err();
    let calls = server.calls().unwrap();
    let asked = calls.get("evalsha").unwrap_or(&0) + calls.get("eval").unwrap_or(&0);
    // Few, on a machine that is busy with other things.
    assert!((5..=30).contains(&asked), "{asked} in 2 s: 20 at the most, and some at first");
    lease.release().await.unwrap();
}

#[tokio::test]
async fn one_who_is_cancelled_leaves_nothing_behind() {
    let server = Server::start(Kind::Valkey).unwrap();
    let (one, other) = (locks(&server.url()).await, locks(&server.url()).await);
    let lease = one.mutex("x").lock().await.unwrap();
    let waits = other.mutex("x");
    tokio::select! {
        got = waits.lock() => panic!("{got:?}"),
        () = async { while one.inspect("x").await.unwrap().unwrap().waiters.is_empty() {} } => {}
    }
    lease.release().await.unwrap();
    other.close().await;
    while one.inspect("x").await.unwrap().is_some() {}
    assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), Some(1), "the fence alone");
}

#[tokio::test]
async fn a_connection_that_is_gone_for_good_is_not_waited_for() {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let near = locks(&server.url()).await;
    let far = locks(&format!("redis://{}", proxy.addr())).await;
    let _lease = near.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn({
        let far = far.clone();
        async move { far.mutex("x").ttl(secs(1)).lock().await }
    });
    while near.inspect("x").await.unwrap().unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    drop(proxy);
    let error = tokio::time::timeout(secs(20), waiter).await.expect("it ends").unwrap().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_connection_that_comes_back_keeps_its_place_in_line() {
    let server = Setup::new(Kind::Redis).durable().start().unwrap();
    let near = leasehold::connect(&server.url()).await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let manager = redis::aio::ConnectionManager::new(client).await.unwrap();
    let store = Redis::with_connection(manager, "").await.unwrap();
    let far = Options::default().over(Arc::new(store)).unwrap();
    let lease = near.mutex("x").ttl(secs(30)).lock().await.unwrap();
    let waiter = tokio::spawn({
        let far = far.clone();
        async move { far.mutex("x").ttl(secs(30)).lock().await.unwrap().fence() }
    });
    while near.inspect("x").await.unwrap().unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    server.restart().unwrap();
    while !near.inspect("x").await.is_ok_and(|status| status.unwrap().waiters.len() == 1) {}
    let fence = lease.fence();
    lease.release().await.unwrap();
    assert!(tokio::time::timeout(secs(20), waiter).await.expect("it is its turn").unwrap() > fence);
}

#[tokio::test]
async fn parameters_are_those_of_the_url() {
    let server = Server::start(Kind::Redis).unwrap();
    let connection = connection(&server.url()).await;
    let store = Redis::with_connection(connection.clone(), "prefix=jobs:&timeout=500").await.unwrap();
    let locks = Options::default().over(Arc::new(store)).unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    assert_eq!(server.command(&["EXISTS", "jobs:x"]).unwrap().int(), Some(1));
    lease.release().await.unwrap();
    for (parameters, words) in [
        ("timeout=soon", "write milliseconds"),
        ("prefix={", "no braces"),
        ("colour=blue", "there is no such parameter"),
        ("prefix", "write prefix=VALUE"),
        ("ca=/etc/ca.pem", "TLS is the affair of whoever made the connection"),
    ] {
        let error = Redis::with_connection(connection.clone(), parameters).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(words), "{error}");
    }
}

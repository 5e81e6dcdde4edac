//! The connection itself: nothing of it stays behind, and nobody is stormed.

use std::time::{Duration, Instant};

use leasehold::store::redis::Redis;
use leasehold::{Error, Store};
use leasehold_lab::{Kind, Proxy, Reply, Server};

use super::{client, ms, open, until, until_reachable};

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// How many there are beside the lab's own.
fn clients(server: &Server) -> usize {
    let Reply::Bulk(list) = server.command(&["CLIENT", "LIST"]).unwrap() else {
        panic!("no list of clients")
    };
    String::from_utf8(list).unwrap().lines().filter(|line| !line.contains("user=lab")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_connection_that_fails_is_a_clear_error_and_leaves_no_task() {
    let server = Server::start(Kind::Redis).unwrap();
    let (url, silent) = (server.url(), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    server.stop().unwrap();
    let before = tasks();
    let error = Redis::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let error = Redis::open("redis+unix:///nowhere/at/all").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    // One that accepts and says nothing.
    let began = Instant::now();
    let url = format!("redis://{}?timeout=100", silent.local_addr().unwrap());
    let error = Redis::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < ms(1_500), "{:?}", began.elapsed());
    until("no task is left", || tasks() <= before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_dropped_leaves_no_task_and_no_connection() {
    let server = Server::start(Kind::Redis).unwrap();
    let before = tasks();
    {
        let store = open(&server.url()).await;
        let locks = client(&store, "a");
        let held = locks.mutex("x").lock().await.unwrap();
        let waiter = tokio::spawn(client(&store, "b").mutex("x").lock());
        super::until_waiting(&server, "x", 1).await;
        assert_eq!(clients(&server), 1, "one connection, whatever is waited for");
        waiter.abort();
        held.release().await.unwrap();
        locks.close().await;
    }
    until("no connection is left", || clients(&server) == 0).await;
    until("no task is left", || tasks() <= before).await;
    // Also while it looks for its server.
    let store = open(&server.url()).await;
    server.stop().unwrap();
    store.inspect(&"x".parse().unwrap()).await.unwrap_err();
    drop(store);
    until("no task is left", || tasks() <= before).await;
}

/// Nobody is there who answers: attempts become rare, and do not stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_not_stormed_and_is_found_again() {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = open(&proxy.url()).await;
    server.kill().unwrap();
    let before = proxy.counts().connections;
    tokio::time::sleep(ms(2_000)).await;
    let tried = proxy.counts().connections - before;
    // 20 ms, and twice as much each time, up to a second; half of that at least.
    assert!((3..=12).contains(&tried), "{tried} attempts in two seconds");
    server.restart().unwrap();
    let began = Instant::now();
    until_reachable(&store).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// One that lets everybody in and throws them out again is not stormed either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_does_not_last_is_made_again_with_a_pause() {
    let server = Server::start(Kind::Redis).unwrap();
    let store = open(&server.url()).await;
    let began = Instant::now();
    let mut killed = 0;
    while began.elapsed() < ms(2_000) {
        match server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap() {
            Reply::Int(n) => killed += n,
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(ms(1)).await;
    }
    assert!((3..=12).contains(&killed), "{killed} connections in two seconds");
    until_reachable(&store).await;
}

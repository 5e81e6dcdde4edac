//! Values on a Redis server: prefixes that isolate them, and values that are too large.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use common::secs;
use common::stores::{on_every_store_and_server, waiting};
use leasehold::{Error, Fence, Locks, Options};
use leasehold_lab::{Kind, Reply, Server};

fn keys(server: &Server) -> Vec<String> {
    let Reply::Array(keys) = server.command(&["KEYS", "*"]).unwrap() else { panic!("no list of keys") };
    keys.iter().filter_map(|key| key.text().map(str::to_owned)).collect()
}

async fn with_prefix(server: &Server, prefix: &str) -> Locks {
    leasehold::connect(&format!("{}?prefix={prefix}", server.url())).await.unwrap()
}

/// Uses each kind of value once, as one who has the server to itself.
async fn use_every_value(locks: &Locks, fence: u64) {
    let cells = locks.cells();
    assert_eq!(cells.counter("n").add(1).await.unwrap(), 1);
    assert_eq!(cells.counter("short").ttl(secs(60)).add(1).await.unwrap(), 1);
    let cell = cells.bytes("x");
    assert!(cell.set_if_absent(&b"mine".to_vec()).await.unwrap());
    assert_eq!(cell.update(|value| value.unwrap().repeat(2)).await.unwrap().value.unwrap(), b"minemine");
    assert_eq!(cell.get().await.unwrap().unwrap(), b"minemine");
    // Under a lower fence each time, which is stale for a cell that others have written.
    cells.bytes("fenced").set_fenced(Fence::new(fence).unwrap(), &b"mine".to_vec()).await.unwrap();
    let script = cells.script("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    assert_eq!(script.call().counter("n").arg(1).run::<i64>().await.unwrap(), 2);
    let latch = locks.latch("ready", 1);
    assert_eq!(latch.missing().await.unwrap(), 1);
    // Told of the change, on a channel of its own.
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    latch.count_down().await.unwrap();
    waiting.await.unwrap().unwrap();
    for limit in [
        locks.rate_limit("mails"),
        locks.rate_limit("mails").fixed_window(),
        locks.rate_limit("mails").gcra(1),
    ] {
        assert!(limit.max(1).per(secs(600)).take(1).await.unwrap().allowed);
    }
    let loads = AtomicU64::new(0);
    let load = || async {
        loads.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(b"loaded".to_vec())
    };
    let cached = locks.cache("pages").get_or_load("/", secs(600), load).await.unwrap();
    assert_eq!((cached.as_slice(), loads.into_inner()), (&b"loaded"[..], 1));
}

#[tokio::test]
async fn a_prefix_isolates_values_limits_caches_locks_and_fences() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::start(kind).unwrap();
        let clients = [
            with_prefix(&server, "a:").await,
            with_prefix(&server, "b:").await,
            with_prefix(&server, "").await,
        ];
        let default = leasehold::connect(&server.url()).await.unwrap();
        let mut held = Vec::new();
        for (fence, locks) in (1..=100).rev().zip(clients.iter().chain([&default])) {
            use_every_value(locks, fence).await;
            held.push(locks.mutex("x").try_lock().await.unwrap().unwrap());
            // A lock that is called as a value is another thing.
            held.push(locks.mutex("elsewhere").try_lock().await.unwrap().unwrap());
        }
        for locks in &clients[..2] {
            locks.settled().await;
            let listed = locks.list("", 100).await.unwrap();
            let names: Vec<&str> = listed.iter().map(|status| status.name.as_str()).collect();
            assert_eq!(names, ["elsewhere", "x"], "only its own locks, and no value");
            assert_eq!(locks.cells().counter("n").get().await.unwrap(), 2);
            let lease = locks.mutex("counter:n").try_lock().await.unwrap().unwrap();
            lease.release().await.unwrap();
            assert_eq!(locks.cells().counter("n").get().await.unwrap(), 2);
        }
        drop(held);
    }
}

/// So that one rule of an ACL, `~a:* ~{a:*`, is for everything.
#[tokio::test]
async fn every_key_of_a_prefix_begins_with_it_and_without_one_the_names_are_plain() {
    let server = Server::start(Kind::Redis).unwrap();
    use_every_value(&with_prefix(&server, "a:").await, 7).await;
    let used = keys(&server);
    assert!(used.iter().all(|key| key.starts_with("a:") || key.starts_with("{a:")), "{used:?}");
    assert!(used.contains(&"a:{counter:n}".to_owned()), "{used:?}");
    server.command(&["FLUSHALL"]).unwrap();
    // The prefix that it has anyway is none.
    for locks in [leasehold::connect(&server.url()).await.unwrap(), with_prefix(&server, "lock:").await] {
        server.command(&["FLUSHALL"]).unwrap();
        use_every_value(&locks, 7).await;
        let used = keys(&server);
        for key in ["counter:n", "cell:x", "{cell:fenced}:fence", "latch:ready", "rate:mails:fixed:600000"] {
            assert!(used.contains(&key.to_owned()), "{key}: {used:?}");
        }
    }
}

#[tokio::test]
async fn a_prefix_isolates_locks_without_scripts_and_on_a_quorum() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let places: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let quorum = format!("redlock:{}?quarantine=off&timeout=3000", places.join(","));
    for url in [format!("{}?scripts=off", servers[0].url()), quorum] {
        let mut held = Vec::new();
        for prefix in ["a:", "b:"] {
            let locks = leasehold::connect(&format!("{url}&prefix={prefix}")).await.unwrap();
            held.push(locks.mutex("x").try_lock().await.unwrap().expect("another prefix holds it"));
            assert_eq!(locks.list("", 100).await.unwrap().len(), 1, "{url}");
        }
        for lease in held {
            lease.release().await.unwrap();
        }
    }
}

/// Whether the server has cut a client because it owed it too much.
fn has_cut_a_client(server: &Server) -> bool {
    server.log().contains("output buffer limits")
}

/// The connection that hears of grants is subscribed, and a server cuts that one where it owes it more than 32 MB.
#[tokio::test]
async fn a_large_value_of_another_program_is_read_and_cuts_no_connection() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&format!("{}?timeout=30000", server.url())).await.unwrap();
    let other = leasehold::connect(&server.url()).await.unwrap();
    let lease = other.mutex("x").lock().await.unwrap();
    let waiter = waiting(&other, "x", locks.mutex("x").lock()).await;
    let large = vec![b'x'; 40 << 20];
    server.command(&[b"SET".as_slice(), b"cell:large", &large]).unwrap();
    let cell = locks.cells().bytes("large");
    assert!(cell.get().await.unwrap().unwrap() == large);
    let script = locks.cells().script("return redis.call('GET', KEYS[1])");
    assert!(script.call().cell("large").run::<Vec<u8>>().await.unwrap() == large);
    assert!(!has_cut_a_client(&server), "{}", server.log());
    lease.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn many_values_read_at_once_cut_no_connection() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&format!("{}?timeout=30000", server.url())).await.unwrap();
    let value = vec![b'x'; 1 << 20];
    locks.cells().bytes("x").set(&value).await.unwrap();
    let reads = (0..128).map(|_| {
        let cell = locks.cells().bytes("x");
        async move { cell.get().await.map(|value| value.unwrap().len()) }
    });
    for read in futures_util::future::join_all(reads).await {
        assert_eq!(read.unwrap(), value.len());
    }
    assert!(!has_cut_a_client(&server), "{}", server.log());
}

#[test]
fn a_value_that_is_too_large_is_refused_before_anything_is_sent() {
    on_every_store_and_server(|a, b| async move {
        let (most, large) = (vec![0; Options::MAX_VALUE_BYTES], vec![0; Options::MAX_VALUE_BYTES + 1]);
        let cell = a.cells().bytes("x");
        let refused = [
            cell.set(&large).await,
            cell.set_if_absent(&large).await.map(drop),
            cell.compare_and_set(&vec![], &large).await.map(drop),
            cell.set_fenced(Fence::new(1).unwrap(), &large).await,
            cell.update(|_| large.clone()).await.map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert!(matches!(error, Error::Invalid { what: "value", .. }), "{error}");
            assert!(error.to_string().contains("at most 1048576 bytes"), "{error}");
        }
        assert!(b.cells().bytes("x").get().await.unwrap().is_none());
        cell.set(&most).await.unwrap();
        assert!(b.cells().bytes("x").get().await.unwrap().unwrap() == most);
        cell.delete().await.unwrap();
        // A cache gives it to its caller, and keeps nothing.
        let load = || async { Ok::<_, Infallible>(large.clone()) };
        assert!(a.cache("c").get_or_load("k", secs(60), load).await.unwrap() == large);
        assert!(b.cache("c").get("k").await.unwrap().is_none());
    });
}

#[tokio::test]
async fn how_large_a_value_may_be_is_an_option() {
    let locks = Options::default().max_value_bytes(3).connect("memory:").await.unwrap();
    let cell = locks.cells().bytes("x");
    cell.set(&b"abc".to_vec()).await.unwrap();
    assert!(matches!(cell.set(&b"abcd".to_vec()).await, Err(Error::Invalid { .. })));
    assert_eq!(cell.get().await.unwrap().unwrap(), b"abc");
}

//! Claims about two clients that hold on every store: `memory:` in paused time, `file:`, servers.

use std::pin::Pin;
use std::sync::Arc;

use leasehold::store::memory::Memory;
use leasehold::{Clock, Locks, Status, Store};

use super::{client, ms, paused_runtime, secs};

/// A claim about two clients, boxed so that the code that runs claims is compiled once.
type Claim<'a> = &'a dyn Fn(Locks, Locks) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs the claim on each store, and asserts that no lease is left.
pub fn on_every_store<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    in_memory_and_on_disk(&|a, b| Box::pin(claim(a, b)));
}

pub fn on_every_store_and_server<F: Future<Output = ()>>(claim: impl Fn(Locks, Locks) -> F) {
    on_every_store(&claim);
    on_a_server("", claim);
}

/// Runs the claim on a Redis server, with options for its URL.
pub fn on_a_server<F: Future<Output = ()>>(options: &str, claim: impl Fn(Locks, Locks) -> F) {
    on_redis(options, &|a, b| Box::pin(claim(a, b)));
}

fn in_memory_and_on_disk(claim: Claim<'_>) {
    paused_runtime().block_on(async {
        let store = Arc::new(Memory::new(Clock::tokio()));
        checked(claim, client(&store, "a"), client(&store, "b")).await;
    });
    let home = super::home_in_memory("stores");
    runtime().block_on(async {
        let a = on_disk(home.path(), "a").await;
        checked(claim, a, on_disk(home.path(), "b").await).await;
    });
}

fn on_redis(options: &str, claim: Claim<'_>) {
    let server = leasehold_lab::Server::start(leasehold_lab::Kind::Redis).unwrap();
    let url = format!("{}{options}", server.url());
    runtime().block_on(async {
        let a = leasehold::Options::default().owner("a").connect(&url).await.unwrap();
        let b = leasehold::Options::default().owner("b").connect(&url).await.unwrap();
        checked(claim, a, b).await;
    });
}

async fn checked(claim: Claim<'_>, a: Locks, b: Locks) {
    // The time-out finds a client that waits for itself.
    tokio::time::timeout(secs(120), claim(a.clone(), b.clone())).await.expect("it comes to its end");
    a.settled().await;
    b.settled().await;
    let left = a.list("", 10).await.unwrap();
    assert!(left.is_empty(), "left in the store: {left:#?}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client with its own file store, as in another process.
pub async fn on_disk(path: &std::path::Path, owner: &str) -> Locks {
    client(&Arc::new(leasehold::store::file::File::open(path).await.unwrap()), owner)
}

/// Returns when `count` waiters are in the store's queue.
pub async fn in_line(locks: &Locks, name: &str, count: usize) -> Status {
    let since = tokio::time::Instant::now();
    loop {
        match locks.inspect(name).await.unwrap() {
            Some(status) if status.waiters.len() == count => return status,
            status => assert!(since.elapsed() < secs(10), "not {count} in line for {name}: {status:?}"),
        }
        tokio::time::sleep(ms(1)).await;
    }
}

/// Spawns a request, and returns when it waits in the queue.
pub async fn waiting<T: Send + 'static>(
    locks: &Locks,
    name: &str,
    request: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let before = locks.inspect(name).await.unwrap().map_or(0, |status| status.waiters.len());
    let task = tokio::spawn(request);
    in_line(locks, name, before + 1).await;
    task
}

/// A store that reports no capabilities, and its client.
pub fn plain_client() -> (Arc<super::ScriptedStore>, Locks) {
    let store = super::ScriptedStore::new(Clock::tokio());
    store.is_plain.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(!store.capabilities().shared);
    (store.clone(), client(&store, "a"))
}

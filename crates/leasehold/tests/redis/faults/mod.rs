//! What goes wrong around `redis:`, brought about on real servers: the network, the server itself, rights, and the
//! connection.
#![cfg(target_os = "linux")]

mod access;
mod clock;
mod connection;
mod line;
mod log;
mod network;
mod roles;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::store::redis::Redis;
use leasehold::{
    Acquired, Claim, Grant, Locks, Names, Options, Owner, Share, Store, Ticket, Token, Ttl, Wait,
};
use leasehold_lab::{Kind, Proxy, Reply, Server};

/// How long a request may take in these tests, in ms.
const TIMEOUT_MS: u64 = 250;

/// What is bound to happen has happened by then, on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A store at this URL that does not wait long.
async fn open(url: &str) -> Arc<Redis> {
    let joint = if url.contains('?') { '&' } else { '?' };
    Arc::new(Redis::open(&format!("{url}{joint}timeout={TIMEOUT_MS}")).await.unwrap())
}

fn client(store: &Arc<Redis>, owner: &str) -> Locks {
    Options::default().owner(owner).over(store.clone()).unwrap()
}

/// A server, a bad network in front of it, a store behind that network and one that has a better way. Both know that the
/// server knows the scripts.
async fn behind_a_proxy() -> (Server, Proxy, Arc<Redis>, Arc<Redis>) {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let (store, other) = (open(&proxy.url()).await, open(&server.url()).await);
    warm(&other).await;
    (server, proxy, store, other)
}

/// Has the server know every script, so that a request is one message.
async fn warm(store: &Redis) {
    let first = claim("warm", ms(5_000), Wait::Never);
    let grant = granted(store, &first).await;
    let ticket = Ticket { fence: Some(grant.fence), ..first.ticket };
    assert!(store.renew(&[(ticket.clone(), first.ttl)]).await[0].is_ok());
    store.convert(&ticket, Share::Shared).await.unwrap();
    let token_only = Ticket { fence: None, ..ticket };
    store.detach(&token_only, first.ttl).await.unwrap();
    store.inspect(token_only.names.first()).await.unwrap();
    store.release(&token_only).await.unwrap();
    store.evict(token_only.names.first()).await.unwrap();
}

fn claim(name: &str, ttl: Duration, wait: Wait) -> Claim {
    let token = Token::fresh(&Owner::new("tester").unwrap()).unwrap();
    let ticket = Ticket {
        names: Names::new([name.parse().unwrap()]).unwrap(),
        token,
        share: Share::Exclusive,
        fence: None,
    };
    Claim { ticket, ttl: Ttl::new(ttl).unwrap(), wait, fences: 1, detached: false }
}

async fn granted(store: &Redis, claim: &Claim) -> Grant {
    match store.acquire(claim).await.unwrap() {
        Acquired::Granted(grant) => grant,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

/// What the server has at the main key of a name, past everything: the fence of whoever holds it alone.
fn fence_at(server: &Server, name: &str) -> Option<u64> {
    let value = server.command(&["GET", &format!("lock:{name}")]).unwrap();
    value.text().map(|value| u64::from_str_radix(value.rsplit_once('#').unwrap().1, 16).unwrap())
}

fn int(server: &Server, command: &[&str]) -> i64 {
    match server.command(command).unwrap() {
        Reply::Int(n) => n,
        other => panic!("{command:?}: {other:?}"),
    }
}

/// Whether nothing but the highest fence is left of any name.
fn is_empty(server: &Server) -> bool {
    let Reply::Array(keys) = server.command(&["KEYS", "*"]).unwrap() else { panic!("no list of keys") };
    keys.iter().all(|key| key.text() == Some("{lock:}:fence"))
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Waits until so many stand in line for a name.
async fn until_waiting(server: &Server, name: &str, count: i64) {
    let line = format!("{{lock:{name}}}:line");
    until("in line", || int(server, &["LLEN", &line]) == count).await;
}

/// Waits until so many stand in line for a name, and the one behind this store knows that it does: answers come in order.
async fn until_known(server: &Server, store: &Redis, name: &str, count: i64) {
    until_waiting(server, name, count).await;
    store.inspect(&name.parse().unwrap()).await.unwrap();
}

/// Asks until the store can be reached again.
async fn until_reachable(store: &Redis) {
    soon(async { while store.inspect(&"unused".parse().unwrap()).await.is_err() {} }).await;
}

/// What a future gives, which has to be soon enough.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

//! The conformance suite on `redis:`, against real servers.

use leasehold_testkit as common;

use std::sync::Arc;

use async_trait::async_trait;
use common::cases::{every_case_holds, every_case_it_can_holds, not_offered_by};
use common::{ms, opened};
use leasehold::store::conformance::Subject;
use leasehold::store::redis::{self, Redis};
use leasehold::{Capabilities, Store};
use leasehold_lab::{Kind, Server};

pub(crate) struct OnServer(pub(crate) String);

#[async_trait]
impl Subject for OnServer {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(opened(|| Redis::open(&self.0)).await)
    }

    fn ttl(&self) -> std::time::Duration {
        ms(6_000)
    }
}

/// As `connect` opens it.
struct WithoutScripts(String);

#[async_trait]
impl Subject for WithoutScripts {
    async fn open(&self) -> Arc<dyn Store> {
        opened(|| redis::open(&self.0)).await
    }

    fn ttl(&self) -> std::time::Duration {
        ms(6_000)
    }
}

async fn every_case_holds_on(kind: Kind) {
    let server = Server::start(kind).unwrap();
    every_case_holds(OnServer(format!("{}?timeout=500", server.url()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_redis() {
    every_case_holds_on(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_valkey() {
    every_case_holds_on(Kind::Valkey).await;
}

/// A queue, a hand-over, shares, several names, values and rate limits: the store cannot do them without scripts.
fn need_scripts() -> Vec<&'static str> {
    let mut can = Capabilities::none("redis");
    (can.fenced, can.fence_blocks) = (true, true);
    not_offered_by(&can)
}

/// What needs scripts is left out, and nothing else.
async fn every_case_holds_without_scripts_on(kind: Kind) {
    let server = Server::start(kind).unwrap();
    let skipped =
        every_case_it_can_holds(WithoutScripts(format!("{}?timeout=500&scripts=off", server.url()))).await;
    assert_eq!(skipped, need_scripts());
    let calls = server.calls().unwrap();
    assert!(!calls.keys().any(|command| command.starts_with("eval")), "{calls:?}");
    assert_eq!(calls.contains_key("delifeq"), kind == Kind::Valkey, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_without_scripts_on_redis() {
    every_case_holds_without_scripts_on(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_without_scripts_on_valkey() {
    every_case_holds_without_scripts_on(Kind::Valkey).await;
}

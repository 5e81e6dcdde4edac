//! The conformance suite on `redis:`, against real servers.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::cases::every_case_holds;
use common::ms;
use leasehold::Store;
use leasehold::store::conformance::Subject;
use leasehold::store::redis::Redis;
use leasehold_lab::{Kind, Server};

struct OnServer(String);

#[async_trait]
impl Subject for OnServer {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(Redis::open(&self.0).await.unwrap())
    }

    fn ttl(&self) -> std::time::Duration {
        ms(3_000)
    }
}

async fn every_case_holds_on(kind: Kind) {
    let server = Server::start(kind).unwrap();
    every_case_holds(OnServer(format!("{}?timeout=150", server.url()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_redis() {
    every_case_holds_on(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_valkey() {
    every_case_holds_on(Kind::Valkey).await;
}

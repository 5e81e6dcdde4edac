//! The conformance suite on `file:`, in one process and across processes.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use common::ms;
use common::remote::{self, Remote};
use leasehold::Store;
use leasehold::store::conformance::{self, Subject};
use leasehold::store::file::File;
use tokio::task::JoinSet;

struct InOneProcess(PathBuf);

#[async_trait]
impl Subject for InOneProcess {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(File::open(&self.0).await.unwrap())
    }

    fn ttl(&self) -> std::time::Duration {
        ms(1_500)
    }
}

/// Each client's store is in one of several processes, in turn.
struct AcrossProcesses(Vec<Remote>, std::sync::atomic::AtomicUsize);

impl AcrossProcesses {
    async fn new(directory: &Path, processes: usize) -> Self {
        let mut children = Vec::new();
        for _ in 0..processes {
            children.push(Remote::spawn(directory.to_str().unwrap()).await);
        }
        AcrossProcesses(children, Default::default())
    }
}

#[async_trait]
impl Subject for AcrossProcesses {
    async fn open(&self) -> Arc<dyn Store> {
        let turn = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(self.0[turn % self.0.len()].clone())
    }

    fn ttl(&self) -> std::time::Duration {
        ms(1_500)
    }
}

/// All cases side by side: each has names of its own.
async fn every_case_holds(subject: impl Subject + 'static) {
    let subject = Arc::new(subject);
    let mut running = JoinSet::new();
    for case in conformance::cases() {
        let subject = subject.clone();
        running.spawn(async move { (case.name, conformance::run(&*subject, case).await) });
    }
    let mut held = 0;
    while let Some(ended) = running.join_next().await {
        let (name, ran) = ended.unwrap();
        assert!(ran, "{name} was skipped");
        held += 1;
    }
    println!("{held} cases hold");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_in_one_process() {
    let home = common::home("one_process");
    every_case_holds(InOneProcess(home.path().to_owned())).await;
}

#[test]
fn remote_worker() {
    remote::serve(|work| async move { Arc::new(File::open(work).await.unwrap()) as Arc<dyn Store> });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_across_processes() {
    let home = common::home("across_processes");
    every_case_holds(AcrossProcesses::new(home.path(), 5).await).await;
}

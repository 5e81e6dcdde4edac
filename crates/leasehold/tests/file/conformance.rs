//! The conformance suite on `file:`, in one process and across processes.

use leasehold_testkit as common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use common::cases::every_case_holds;
use common::child::ChildTest;
use common::child_test;
use common::ms;
use common::remote::{self, Remote};
use leasehold::Store;
use leasehold::store::conformance::Subject;
use leasehold::store::file::File;

struct InOneProcess(PathBuf);

#[async_trait]
impl Subject for InOneProcess {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(File::open(&self.0).await.unwrap())
    }

    fn ttl(&self) -> std::time::Duration {
        ms(3_000)
    }
}

/// Each client's store is in one of several processes, in turn.
struct AcrossProcesses(Vec<Remote>, std::sync::atomic::AtomicUsize);

impl AcrossProcesses {
    async fn new(directory: &Path, processes: usize) -> Self {
        let mut children = Vec::new();
        for _ in 0..processes {
            children.push(Remote::spawn(REMOTE_WORKER, directory.to_str().unwrap()).await);
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
        ms(3_000)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_in_one_process() {
    let home = common::home_in_memory("one_process");
    every_case_holds(InOneProcess(home.path().to_owned())).await;
}

const REMOTE_WORKER: ChildTest = child_test!(remote_worker);

#[test]
fn remote_worker() {
    remote::serve(|work| async move { Arc::new(File::open(work).await.unwrap()) as Arc<dyn Store> });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_across_processes() {
    let home = common::home_in_memory("across_processes");
    every_case_holds(AcrossProcesses::new(home.path(), 5).await).await;
}

#[tokio::test]
async fn a_store_is_found_by_its_url() {
    let home = common::home("url");
    let path = home.path().display();
    for url in [
        format!("file:{path}/a"),
        format!("file://{path}/a"),
        format!("FILE:{path}/a"),
        format!("file://localhost{path}/a"),
    ] {
        let locks = leasehold::connect(&url).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        assert_eq!(locks.capabilities().store, "file");
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "all of them are one directory");
    for odd in ["a b", "a%20b", "a~", "a#b", "ä", "a'b\"c"] {
        leasehold::connect(&format!("file:{path}/{odd}")).await.unwrap();
        assert!(home.path().join(odd).join("locks.db").is_file(), "the path is taken as it is: {odd}");
    }
    for (bad, why) in [
        ("file://elsewhere/a", "on this machine"),
        ("file://a", "on this machine"),
        ("file:a\0b", "zero bytes"),
        ("file:/a?b=c", "there is no such parameter; it is one of shared"),
        ("file:/a?shared=some", "it is `shared=group` or `shared=all`"),
        ("file:?shared=all", "name the directory that users share"),
        ("file:~alice/a", "`~USER` is not expanded"),
    ] {
        let error = leasehold::connect(bad).await.unwrap_err();
        assert!(
            matches!(error, leasehold::Error::Invalid { .. }) && error.to_string().contains(why),
            "{error}"
        );
    }
}

#[test]
fn code_that_is_not_async_shares_it() {
    let home = common::home("blocking");
    let open = || leasehold::blocking::connect(&format!("file:{}", home.path().display())).unwrap();
    let (a, b) = (open(), open());
    let lease = a.mutex("x").lock().unwrap();
    assert!(b.mutex("x").try_lock().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| b.mutex("x").lock().unwrap().fence());
        let fence = lease.fence();
        lease.release().unwrap();
        assert!(waiting.join().unwrap() > fence);
    });
}

/// On a clock that is set back, and where the log was lost with the power: it still rises.
#[tokio::test]
async fn the_fence_rises_whatever_the_wall_clock_says_and_ends_at_its_limit() {
    let home = common::home("fence");
    let locks = leasehold::connect(&format!("file:{}", home.path().display())).await.unwrap();
    let first = locks.mutex("x").lock().await.unwrap();
    let now_us = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    assert!(u128::from(first.fence().get()) > now_us - 60_000_000, "it follows the clock");
    let db = rusqlite::Connection::open(home.path().join("locks.db")).unwrap();
    // As if all of it had been written by a clock an hour ahead.
    let ahead = first.fence().get() + 3_600_000_000;
    db.execute("UPDATE meta SET last = ?1", [ahead as i64]).unwrap();
    assert_eq!(locks.mutex("y").lock().await.unwrap().fence().get(), ahead + 1);
    db.execute("UPDATE meta SET last = ?1", [i64::MAX - 1]).unwrap();
    assert_eq!(locks.mutex("z").lock().await.unwrap().fence().get(), i64::MAX as u64);
    let error = locks.mutex("w").lock().await.unwrap_err();
    assert!(error.to_string().contains("limit of 2^63"), "{error}");
    first.release().await.unwrap();
}

//! A store in another process is the store it is in its own: the conformance suite on one behind a line, and the line
//! itself.

use leasehold_testkit as common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::child::ChildTest;
use common::child_test;
use common::remote::{self, Remote, crossed};
use common::{ms, secs, sleep};
use futures_util::FutureExt;
use leasehold::store::conformance::{self, Subject};
use leasehold::store::memory::Memory;
use leasehold::{
    Acquired, Busy, Claim, Clock, Deadline, Error, Loss, Name, Names, Owner, Released, Share, Store, Ticket,
    Token, Ttl, Wait,
};
use tokio::task::JoinSet;

const REMOTE_WORKER: ChildTest = child_test!(remote_worker);

/// Does its work only as the child of the tests below.
#[test]
fn remote_worker() {
    remote::serve(|work| async move {
        assert_eq!(work, "memory");
        Arc::new(Memory::new(Clock::system().unwrap())) as Arc<dyn Store>
    });
}

/// One store in one child; each client has a handle on it.
struct InAChild(Remote);

#[async_trait]
impl Subject for InAChild {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn ttl(&self) -> Duration {
        secs(1)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_in_another_process_holds_every_promise() {
    let subject = Arc::new(InAChild(Remote::spawn(REMOTE_WORKER, "memory").await));
    let mut cases = JoinSet::new();
    for case in conformance::cases() {
        let subject = subject.clone();
        // All at once: each case uses names of its own, and most of its time is waiting.
        cases.spawn(async move { (case.name, conformance::run(&*subject, case).await) });
    }
    while let Some(ended) = cases.join_next().await {
        let (name, ran) = ended.unwrap();
        assert!(ran, "memory can do everything, but `{name}` was skipped");
    }
    println!("{} cases hold", conformance::cases().count());
}

fn claim(ttl: Duration, wait: Wait) -> Claim {
    let token = Token::fresh(&Owner::new("test").unwrap()).unwrap();
    let names = Name::new("x").unwrap().into();
    let ticket = Ticket { names, token, share: Share::Exclusive, fence: None };
    Claim { ticket, ttl: Ttl::new(ttl).unwrap(), wait, fences: 1, detached: false }
}

async fn is_granted(store: &Remote, claim: &Claim) -> bool {
    matches!(store.acquire(claim).await.unwrap(), Acquired::Granted(_))
}

#[tokio::test]
async fn when_the_process_is_killed_there_is_no_answer() {
    let store = Remote::spawn(REMOTE_WORKER, "memory").await;
    let held = claim(secs(30), Wait::Never);
    assert!(is_granted(&store, &held).await);
    let (waiting, other) = (claim(secs(30), Wait::Forever), store.clone());
    let waiting = tokio::spawn(async move { other.acquire(&waiting).await.map(drop) });
    while store.inspect(held.ticket.names.first()).await.unwrap().unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    store.kill();
    let gone = Error::Unreachable { store: "memory", why: "the process is gone".into() };
    assert_eq!(waiting.await.unwrap(), Err(gone.clone()), "a call under way");
    assert_eq!(store.release(&held.ticket).await, Err(gone.clone()), "a later one");
    let due = [(held.ticket.clone(), held.ttl), (held.ticket, held.ttl)];
    assert_eq!(store.renew(&due).await, [Err(gone.clone()), Err(gone)], "one answer for each");
}

#[tokio::test]
async fn a_process_ends_with_the_last_handle_on_it() {
    let store = Remote::spawn(REMOTE_WORKER, "memory").await;
    let process = format!("/proc/{}", store.pid());
    drop(store.clone());
    assert!(store.list("", 1).await.unwrap().is_empty() && Path::new(&process).exists());
    drop(store);
    let clock = Clock::system().unwrap();
    let patience = clock.now().plus(secs(30));
    while Path::new(&process).exists() {
        assert!(clock.now() < patience, "a process was left behind");
        sleep(&clock, ms(5)).await;
    }
}

#[tokio::test]
async fn a_wait_that_is_dropped_ends_in_the_other_process() {
    let store = Remote::spawn(REMOTE_WORKER, "memory").await;
    let ttl = ms(500);
    for dropped in [true, false] {
        let held = claim(secs(30), Wait::Never);
        assert!(is_granted(&store, &held).await);
        let first = claim(ttl, Wait::Forever);
        let mut waiting = store.acquire(&first);
        assert!((&mut waiting).now_or_never().is_none());
        let waiting = (!dropped).then_some(waiting);
        // A waiter shows itself every third of its TTL for as long as it is polled, and is passed over if it did not.
        sleep(store.clock(), ttl * 2).await;
        assert_eq!(store.release(&held.ticket).await, Ok(Released::Released));
        let next = claim(ttl, Wait::Never);
        assert_eq!(is_granted(&store, &next).await, dropped);
        match waiting {
            Some(waiting) => assert!(matches!(waiting.await.unwrap(), Acquired::Granted(_))),
            None => drop(store.release(&next.ticket).await.unwrap()),
        }
    }
}

/// Why a line adds nothing to the `late_window`.
#[tokio::test]
async fn a_dropped_call_is_never_executed_after_a_later_one() {
    let store = Remote::spawn(REMOTE_WORKER, "memory").await;
    assert_eq!(store.capabilities().late_window, Duration::ZERO);
    for _ in 0..1_000 {
        let claim = claim(secs(30), Wait::Never);
        drop(store.acquire(&claim).now_or_never());
        store.release(&claim.ticket).await.unwrap();
        assert!(store.list("", 1).await.unwrap().is_empty(), "the acquire came after the release");
    }
}

#[test]
fn what_crosses_comes_out_the_same() {
    let origin = Deadline::FAR.minus(Duration::MAX);
    for deadline in [
        origin,
        origin.plus(Duration::new(1, 1)),
        Deadline::FAR.minus(Duration::from_nanos(1)),
        Deadline::FAR,
    ] {
        assert_eq!(crossed(&deadline), deadline);
    }
    let names = || Names::new(["b", "a"].map(|name| Name::new(name).unwrap())).unwrap();
    let busy = Busy { holder: Owner::new("ö:1").ok(), remaining: Some(Duration::MAX), waiters: 3 };
    for error in [
        Error::Busy { names: names(), busy, waited: ms(3) },
        Error::Lost { names: names(), reason: Loss::HoldLimit },
        Error::Unreachable { store: "memory", why: "on purpose".into() },
        Error::Unsupported { store: "other", what: "permits", why: "on purpose" },
        Error::invalid("name", "a\nb", ""),
        Error::Closed,
    ] {
        assert_eq!(crossed(&error), error);
    }
}

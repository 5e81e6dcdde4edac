//! `redis:`, requests that are under way at the same moment: they go as one, and what goes wrong with one of them is nothing to
//! the others.

use leasehold_testkit as common;

use common::secs;
use futures_util::future::join_all;
use leasehold::{Error, Lease, Locks};
use leasehold_lab::{Kind, Proxy, Reply, Server, Setup};

const TASKS: usize = 100;

async fn connect(url: &str) -> Locks {
    leasehold::connect(url).await.unwrap()
}

async fn lock_all(locks: &Locks, names: &[String]) -> Vec<Result<Lease, Error>> {
    join_all(names.iter().map(async |name| locks.mutex(name.as_str()).wait(secs(5)).lock().await)).await
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("together:{i:03}")).collect()
}

fn is_there(server: &Server, key: &str) -> bool {
    matches!(server.command(&["EXISTS", key]).unwrap(), Reply::Int(1))
}

#[tokio::test]
async fn those_that_ask_at_once_are_served_by_few_requests_each_with_a_fence_of_its_own() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let locks = connect(&proxy.url()).await;
        let names = names(TASKS);
        let mut highest = 0;
        for _ in 0..3 {
            let before = proxy.counts().requests;
            let leases: Vec<Lease> = lock_all(&locks, &names).await.into_iter().map(Result::unwrap).collect();
            let asked = proxy.counts().requests - before;
            assert!(asked <= TASKS as u64 / 5, "{kind:?}: {asked} requests for {TASKS} locks");
            let mut fences: Vec<u64> = leases.iter().map(|lease| lease.fence().get()).collect();
            fences.sort_unstable();
            assert!(fences[0] > highest, "{kind:?}: {} after {highest}", fences[0]);
            fences.dedup();
            assert_eq!(fences.len(), TASKS, "{kind:?}: a fence was given twice");
            highest = fences[TASKS - 1];
            for name in &names {
                assert!(is_there(&server, &format!("lock:{name}")), "{kind:?}: {name}");
            }
            let before = proxy.counts().requests;
            join_all(leases.into_iter().map(async |lease| lease.release().await.unwrap())).await;
            let asked = proxy.counts().requests - before;
            assert!(asked <= TASKS as u64 / 5, "{kind:?}: {asked} requests for {TASKS} releases");
            for name in &names {
                assert!(!is_there(&server, &format!("lock:{name}")), "{kind:?}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_is_nothing_to_the_others() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let locks = connect(&server.url()).await;
        let other = connect(&server.url()).await;
        let names = names(20);
        // One is no lock, one is held, one is held without an end.
        server.command(&["LPUSH", "lock:together:003", "a"]).unwrap();
        let held = other.mutex("together:007").lock().await.unwrap();
        server.command(&["SET", "lock:together:011", "somebody"]).unwrap();
        let freed = tokio::spawn(async move {
            other.until_waited_for("together:007").await;
            held.release().await.unwrap();
            other
        });
        let answers =
            join_all(names.iter().map(async |name| locks.mutex(name.as_str()).wait(secs(2)).lock().await))
                .await;
        let mut leases = Vec::new();
        for (name, answer) in names.iter().zip(answers) {
            match (name.as_str(), answer) {
                ("together:003", Err(Error::Refused { why, .. })) => assert!(why.contains("list"), "{why}"),
                ("together:011", Err(Error::Busy { .. })) => {}
                (_, Ok(lease)) => leases.push(lease),
                (name, Err(error)) => panic!("{kind:?}: {name}: {error}"),
            }
        }
        assert_eq!(leases.len(), 18, "{kind:?}");
        freed.await.unwrap();
        // Of those to be given back one is gone, and one is waited for.
        let waiter = connect(&server.url()).await;
        let waits = tokio::spawn(async move {
            let lease = waiter.mutex("together:001").lock().await.unwrap();
            (waiter, lease.fence())
        });
        locks.until_waited_for("together:001").await;
        let first = leases.iter().find(|lease| lease.name().as_str() == "together:001").unwrap().fence();
        server.command(&["DEL", "lock:together:005"]).unwrap();
        let names: Vec<String> = leases.iter().map(|lease| lease.name().to_string()).collect();
        let ends = join_all(leases.into_iter().map(Lease::release)).await;
        for (name, end) in names.iter().zip(ends) {
            match (name.as_str(), end) {
                ("together:005", Err(Error::Lost { .. })) => {}
                ("together:005", end) => panic!("{kind:?}: {end:?}"),
                (name, end) => end.unwrap_or_else(|error| panic!("{kind:?}: {name}: {error}")),
            }
        }
        let (_waiter, fence) = waits.await.unwrap();
        assert!(fence > first, "{kind:?}");
    }
}

#[tokio::test]
async fn a_key_that_is_not_allowed_is_refused_alone() {
    for kind in Kind::ALL {
        let rule = "~lock:together:00* ~{lock:* &{lock:}* +@all";
        let server = Setup::new(kind).user("locks", &format!("on >pass-word {rule}")).start().unwrap();
        let url = server.url().replacen("://", "://locks:pass-word@", 1);
        let locks = connect(&url).await;
        let answers = lock_all(&locks, &names(20)).await;
        for (i, answer) in answers.iter().enumerate() {
            match answer {
                Ok(_) => assert!(i < 10, "{kind:?}: {i} was granted"),
                Err(Error::Refused { why, .. }) => {
                    assert!(i >= 10 && why.contains("NOPERM"), "{kind:?}: {i}: {why}")
                }
                Err(error) => panic!("{kind:?}: {i}: {error}"),
            }
        }
    }
}

trait Waits {
    async fn until_waited_for(&self, name: &str);
}

impl Waits for Locks {
    async fn until_waited_for(&self, name: &str) {
        let waited_for = async {
            while self.inspect(name).await.unwrap().is_none_or(|status| status.waiters.is_empty()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(secs(20), waited_for).await.expect("somebody waits");
    }
}

//! The file store at its edges: files removed by a sweeper, a making cut short, no thread to be had, a messenger that dies.

use leasehold_testkit as common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::remote::{self, Remote};
use common::{home_in_memory, ms, secs};
use futures_util::FutureExt;
use leasehold::store::file::File;
use leasehold::{
    Acquired, Claim, Name, Names, Owner, Released, Renewed, Share, Store, Ticket, Token, Ttl, Wait,
};

fn claim_of(names: &[&str], share: Share, ttl: Duration, wait: Wait) -> Claim {
    let token = Token::fresh(&Owner::new("test").unwrap()).unwrap();
    let names = Names::new(names.iter().map(|name| Name::new(name).unwrap())).unwrap();
    let ticket = Ticket { names, token, share, fence: None };
    Claim { ticket, ttl: Ttl::new(ttl).unwrap(), wait, fences: 1, detached: false }
}

fn claim(name: &str, ttl: Duration, wait: Wait) -> Claim {
    claim_of(&[name], Share::Exclusive, ttl, wait)
}

async fn granted(store: &dyn Store, claim: &Claim) -> bool {
    matches!(store.acquire(claim).await.unwrap(), Acquired::Granted(_))
}

fn signal(pid: u32, signal: &str) {
    assert!(std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

const REMOTE_WORKER: ChildTest = child_test!(remote_worker);

#[test]
fn remote_worker() {
    remote::serve(|work| async move { Arc::new(File::open(work).await.unwrap()) as Arc<dyn Store> });
}

/// A file that is not there is taken for a death.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_holder_whose_file_was_removed_goes_on_holding() {
    let home = home_in_memory("swept");
    let (a, b) = (File::open(home.path()).await.unwrap(), File::open(home.path()).await.unwrap());
    let held = claim("x", secs(30), Wait::Never);
    assert!(granted(&a, &held).await);
    for file in std::fs::read_dir(home.path().join("clients")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let second = claim("x", secs(30), Wait::Never);
    assert!(!granted(&b, &second).await, "two holders at once");
    assert!(matches!(a.renew(&[(held.ticket.clone(), held.ttl)]).await[0], Ok(Renewed::Until(_))));
}

/// The whole folder was removed, and a third process comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_holder_whose_folder_was_removed_goes_on_holding() {
    let home = home_in_memory("swept_folder");
    let a = File::open(home.path()).await.unwrap();
    let held = claim("x", secs(30), Wait::Never);
    assert!(granted(&a, &held).await);
    std::fs::remove_dir_all(home.path().join("clients")).unwrap();
    let b = File::open(home.path()).await.unwrap();
    let second = claim("x", secs(30), Wait::Never);
    assert!(!granted(&b, &second).await, "two holders at once");
}

/// Killed while the store is made for the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_making_was_cut_short_can_be_opened() {
    let mut bricked = Vec::new();
    for round in 0..400u64 {
        let home = home_in_memory("cut");
        let mut child = Remote::command(REMOTE_WORKER, home.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let database = home.path().join("locks.db");
        let patience = Instant::now();
        while !database.exists() && patience.elapsed() < secs(5) {}
        let until = Instant::now() + Duration::from_micros(round * 15);
        while Instant::now() < until {}
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "a child ended before it was killed: {ended:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        if let Err(error) = File::open(home.path()).await {
            bricked.push((round * 15, error.to_string()));
        }
    }
    assert!(bricked.is_empty(), "killed after so many us: {bricked:#?}");
}

/// The pool of blocking threads is taken, and one call once found the gate closed.
#[test]
fn a_busy_pool_of_threads_does_not_end_the_store() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let home = home_in_memory("pool");
    runtime.block_on(async {
        let store = File::open(home.path()).await.unwrap();
        let held = claim("x", secs(30), Wait::Never);
        assert!(granted(&store, &held).await);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let blocker = tokio::task::spawn_blocking(move || ended.recv().is_ok());
        // Somebody else is inside for a moment.
        let gate = std::fs::File::open(home.path().join("gate")).unwrap();
        gate.lock().unwrap();
        let first = store.renew(&[(held.ticket.clone(), held.ttl)]).await;
        println!("while the gate was closed: {first:?}");
        gate.unlock().unwrap();
        // From here on the gate is open, and nobody is in the way.
        let mut failed = Vec::new();
        for _ in 0..3 {
            if let Err(error) = &store.renew(&[(held.ticket.clone(), held.ttl)]).await[0] {
                failed.push(error.to_string());
            }
        }
        drop(end);
        blocker.await.unwrap();
        assert!(failed.is_empty(), "{failed:#?}");
    });
}

/// More processes than are watched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_is_heard_of_beyond_the_most_that_are_watched() {
    let home = home_in_memory("watched");
    let waiting = Arc::new(File::open(home.path()).await.unwrap());
    let mut holders = Vec::new();
    for i in 0..258 {
        let holder = File::open(home.path()).await.unwrap();
        let name = format!("n{i}");
        assert!(granted(&holder, &claim(&name, secs(60), Wait::Never)).await);
        holders.push(holder);
        let next = claim(&name, secs(60), Wait::Forever);
        let waiting = waiting.clone();
        let task = tokio::spawn(async move { waiting.acquire(&next).await });
        while waiting_count(&holders[i], &name).await == 0 {
            tokio::task::yield_now().await;
        }
        if i < 257 {
            continue;
        }
        drop(holders.pop());
        let heard = tokio::time::timeout(secs(3), task).await;
        assert!(heard.is_ok(), "the death of number {i} was not heard of within 3 s");
    }
}

async fn waiting_count(store: &dyn Store, name: &str) -> usize {
    store.inspect(&Name::new(name).unwrap()).await.unwrap().map_or(0, |status| status.waiters.len())
}

/// Whoever opens a store buries the dead and admits the next; its own opening is then given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_admitted_by_an_opening_that_was_given_up_hears_of_it() {
    let home = home_in_memory("given_up");
    let work = home.path().to_str().unwrap();
    let (holder, waiter) =
        (Remote::spawn(REMOTE_WORKER, work).await, Remote::spawn(REMOTE_WORKER, work).await);
    assert!(granted(&holder, &claim("x", secs(30), Wait::Never)).await);
    let next = claim("x", secs(30), Wait::Forever);
    let (theirs, asked) = (waiter.clone(), next.clone());
    let task = tokio::spawn(async move { theirs.acquire(&asked).await });
    while waiting_count(&holder, "x").await == 0 {
        tokio::time::sleep(ms(5)).await;
    }
    tokio::time::sleep(ms(50)).await;
    // The waiter stands still for a moment, so that it is not the one who buries.
    signal(waiter.pid(), "-STOP");
    holder.kill();
    let mut opening = Box::pin(File::open(home.path()));
    let _ = (&mut opening).now_or_never();
    drop(opening);
    tokio::time::sleep(ms(300)).await;
    signal(waiter.pid(), "-CONT");
    let heard = tokio::time::timeout(secs(3), task).await;
    assert!(heard.is_ok(), "free, granted, and not told for 3 s");
}

/// A releaser that dies between its commit and its poke. What it leaves is what is written here by hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_admitted_by_one_who_died_before_telling_it_hears_of_it() {
    let home = home_in_memory("untold");
    let work = home.path().to_str().unwrap();
    let (holder, waiter) = (Remote::spawn(REMOTE_WORKER, work).await, File::open(home.path()).await.unwrap());
    assert!(granted(&holder, &claim("x", secs(30), Wait::Never)).await);
    let next = claim("x", secs(30), Wait::Forever);
    let asked = next.clone();
    let waiter = Arc::new(waiter);
    let theirs = waiter.clone();
    let task = tokio::spawn(async move { theirs.acquire(&asked).await });
    while waiting_count(&holder, "x").await == 0 {
        tokio::time::sleep(ms(5)).await;
    }
    tokio::time::sleep(ms(50)).await;
    // The commit of the holder's release, byte for byte, without its poke.
    let db = rusqlite::Connection::open(home.path().join("locks.db")).unwrap();
    db.execute_batch(
        "BEGIN IMMEDIATE;
         DELETE FROM holding WHERE name = 'x';
         UPDATE meta SET last = last + 1;
         INSERT INTO holding SELECT name, token, share, take, most, (SELECT last FROM meta), fences,
            shows_until, ttl_ms, client, detached, 1, several FROM waiting WHERE name = 'x';
         DELETE FROM waiting WHERE name = 'x';
         COMMIT",
    )
    .unwrap();
    holder.kill();
    let heard = tokio::time::timeout(secs(3), task).await;
    assert!(heard.is_ok(), "granted, and not told for 3 s");
}

/// Some of the names of a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_shown_at_some_of_its_names_changes_nothing() {
    let home = home_in_memory("some_names");
    let memory = leasehold::store::memory::Memory::new(leasehold::Clock::system().unwrap());
    let file = File::open(home.path()).await.unwrap();
    for store in [&memory as &dyn Store, &file] {
        let held = claim_of(&["a", "b"], Share::Exclusive, secs(30), Wait::Never);
        assert!(granted(store, &held).await);
        let some = Ticket { names: Name::new("a").unwrap().into(), ..held.ticket.clone() };
        let name = store.capabilities().store;
        assert_eq!(store.release(&some).await, Ok(Released::NotHeld), "{name}");
        assert!(!granted(store, &claim("a", secs(30), Wait::Never)).await, "{name}: `a` was given away");
        assert!(matches!(store.renew(&[(held.ticket, held.ttl)]).await[0], Ok(Renewed::Until(_))), "{name}");
    }
}

/// The gate is removed, so the next call opens the store anew; and whoever made that call goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_opening_anew_that_its_caller_gave_up_costs_nobody_a_lease() {
    for round in 0..20 {
        let home = home_in_memory("given_up_anew");
        let (ours, theirs) = (File::open(home.path()).await.unwrap(), File::open(home.path()).await.unwrap());
        let held = claim("x", secs(30), Wait::Never);
        assert!(granted(&ours, &held).await);
        std::fs::remove_file(home.path().join("gate")).unwrap();
        // Given up at its first await, and a moment later than that.
        let given_up = tokio::time::timeout(Duration::from_micros(round * 200), ours.list("", 1)).await;
        tokio::time::sleep(ms(50)).await;
        assert!(!granted(&theirs, &claim("x", secs(30), Wait::Never)).await, "two hold it: {given_up:?}");
        let renewed = ours.renew(&[(held.ticket.clone(), held.ttl)]).await;
        assert!(matches!(renewed[0], Ok(Renewed::Until(_))), "round {round}: {renewed:?}");
    }
}

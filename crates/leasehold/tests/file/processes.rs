//! The file store among processes that count, hammer, are killed, and are stopped.

use leasehold_testkit as common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::worker::{Worker, listen, play, say};
use common::{home, home_in_memory, ms, run, scaled, secs};
use futures_util::FutureExt;
use leasehold::store::file::File;
use leasehold::store::intercept::{Call, Execution, Intercept};
use leasehold::{Deadline, Error, Fence, Locks, Loss, Options, Result, Store};
use rustix::process::{Pid, Signal, kill_process};

/// One test at a time: they load the machine, and look at how long things take.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

async fn open(home: &Path) -> Locks {
    leasehold::connect(&format!("file:{}", home.join("store").display())).await.unwrap()
}

fn database(home: &Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(home.join("store/locks.db")).unwrap();
    db.busy_timeout(secs(5)).unwrap();
    db
}

fn count(home: &Path, table: &str) -> i64 {
    database(home).query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

fn is_whole(home: &Path) {
    let verdict: String = database(home).query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

const WORKER: ChildTest = child_test!(worker);

/// What the workers do.
#[test]
fn worker() {
    play(|role, home| {
        let (role, argument) = role.split_once(' ').unwrap_or((role, ""));
        if std::process::id() < 10 {
            say("in a namespace");
        }
        match role {
            "count" => run(increments(home, argument.parse().unwrap())),
            "unguarded" => unguarded_increments(home, argument.parse().unwrap()),
            "hammer" => run(hammer(home, secs(argument.parse().unwrap()))),
            "hold" => run(hold(home)),
            "churn" => run(churn(home)),
            "crowd" => run(crowd(home, argument.parse().unwrap())),
            "pause" => run(pause(home)),
            "bequeath" => run(bequeath(home)),
            other => panic!("no role `{other}`"),
        }
    });
}

// ---- counting ----

/// Reads, adds one, writes: what goes wrong without a lock. The file has the count and the fence of the last write.
fn increment(home: &Path, fence: u64) {
    let path = home.join("counter");
    let text = fs::read_to_string(&path).unwrap();
    let (count, last) = text.split_once(' ').unwrap_or(("0", "0"));
    let (count, last): (u64, u64) = (count.parse().unwrap_or(0), last.parse().unwrap_or(0));
    assert!(fence == 0 || fence > last, "fence {fence} writes after {last}");
    fs::write(&path, format!("{} {fence}", count + 1)).unwrap();
}

fn counted(home: &Path) -> u64 {
    fs::read_to_string(home.join("counter")).unwrap().split(' ').next().unwrap().parse().unwrap_or(0)
}

async fn increments(home: &Path, times: u64) {
    let locks = open(home).await;
    say("ready");
    listen();
    for _ in 0..times {
        let lease = locks.mutex("counter").lock().await.unwrap();
        increment(home, lease.fence().get());
        lease.release().await.unwrap();
    }
    locks.close().await;
}

fn unguarded_increments(home: &Path, times: u64) {
    say("ready");
    listen();
    (0..times).for_each(|_| increment(home, 0));
}

fn all_at_once(role: &str, home: &Path, processes: usize) -> Vec<Worker> {
    let mut workers: Vec<Worker> = (0..processes).map(|_| Worker::start(WORKER, role, home)).collect();
    workers.iter_mut().for_each(|worker| assert_eq!(worker.hear(), "ready"));
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    workers
}

#[test]
fn eight_processes_count_exactly_with_rising_fences() {
    let _alone = alone();
    let home = home("count");
    fs::write(home.path().join("counter"), "0 0").unwrap();
    let times = scaled(2_000).max(1_000);
    let start = Instant::now();
    let workers = all_at_once(&format!("count {times}"), home.path(), 8);
    workers.into_iter().for_each(Worker::ended_well);
    assert_eq!(counted(home.path()), 8 * times, "an increment was lost");
    println!("8 processes, {times} increments each: exact, in {:?}", start.elapsed());
    is_whole(home.path());
    assert_eq!((count(home.path(), "holding"), count(home.path(), "waiting")), (0, 0));

    // The same without the lock: this test is able to see a lost update.
    fs::write(home.path().join("counter"), "0 0").unwrap();
    let workers = all_at_once("unguarded 2000", home.path(), 8);
    workers.into_iter().for_each(Worker::ended_well);
    assert!(counted(home.path()) < 8 * 2_000, "nothing is lost without a lock, so nothing was shown");
}

// ---- hammering ----

async fn hammer(home: &Path, duration: Duration) {
    let locks = open(home).await;
    say("ready");
    listen();
    let (start, mut last, mut stall, mut taken) = (Instant::now(), Instant::now(), Duration::ZERO, 0);
    while start.elapsed() < duration {
        locks.mutex("hammered").lock().await.unwrap().release().await.unwrap();
        stall = stall.max(last.elapsed());
        last = Instant::now();
        taken += 1;
    }
    say(format!("{taken} {}", stall.as_micros()));
    locks.close().await;
}

#[test]
fn eight_processes_that_hammer_get_equal_shares_and_nobody_stalls() {
    let _alone = alone();
    let home = home_in_memory("hammer");
    let seconds = scaled(30).max(3);
    let mut workers = all_at_once(&format!("hammer {seconds}"), home.path(), 8);
    let told: Vec<(u64, u64)> = workers
        .iter_mut()
        .map(|worker| {
            let told = worker.hear();
            let (taken, stall_us) = told.split_once(' ').unwrap();
            (taken.parse().unwrap(), stall_us.parse().unwrap())
        })
        .collect();
    workers.into_iter().for_each(Worker::ended_well);
    let (least, most) =
        (told.iter().map(|it| it.0).min().unwrap(), told.iter().map(|it| it.0).max().unwrap());
    let stall = Duration::from_micros(told.iter().map(|it| it.1).max().unwrap());
    let sum: u64 = told.iter().map(|it| it.0).sum();
    println!(
        "8 processes, {seconds} s: {} hand-overs a second, shares {least} to {most}, longest stall {stall:?}",
        sum / seconds
    );
    assert!(most <= 2 * least, "shares from {least} to {most}");
    assert!(stall <= ms(500), "stalled for {stall:?}");
    is_whole(home.path());
}

// ---- killed ----

async fn hold(home: &Path) {
    let locks = open(home).await;
    let lease = locks.mutex("x").lock().await.unwrap();
    say(lease.fence());
    std::future::pending::<()>().await
}

async fn in_line(locks: &Locks, name: &str, waiters: usize) {
    let patience = Instant::now() + secs(60);
    while locks.inspect(name).await.unwrap().is_none_or(|status| status.waiters.len() < waiters) {
        assert!(Instant::now() < patience, "nobody came to wait");
        // `inspect` reads every waiter: asked for more often, it would keep a long queue from growing.
        tokio::time::sleep(ms(if waiters > 100 { 50 } else { 1 })).await;
    }
}

/// Each holder is killed while this process waits; how long that took each time.
fn killed_holders(home: &Path, rounds: u64, start: fn(ChildTest, &str, &Path) -> Worker) -> Vec<Duration> {
    run(async {
        let locks = open(home).await;
        let mut took = Vec::new();
        for _ in 0..rounds {
            let mut holder = start(WORKER, "hold", home);
            let dead: u64 = holder.hear().parse().unwrap();
            let mutex = locks.mutex("x");
            let waiting = tokio::spawn(async move { (mutex.lock().await, Instant::now()) });
            in_line(&locks, "x", 1).await;
            let killed = Instant::now();
            holder.kill();
            let (lease, held) = waiting.await.unwrap();
            let lease = lease.unwrap();
            took.push(held.duration_since(killed));
            assert!(lease.fence().get() > dead, "the fence fell");
            lease.release().await.unwrap();
            is_whole(home);
        }
        locks.close().await;
        took
    })
}

fn killed_holders_are_followed_at_once(what: &str, rounds: u64, start: fn(ChildTest, &str, &Path) -> Worker) {
    let home = home("killed");
    let mut took = killed_holders(home.path(), rounds, start);
    took.sort();
    println!(
        "{rounds} holders killed ({what}): the next holds after {:?} at the median, {:?} at most",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    // The TTL is 30 s, and a waiter looks by itself every 10 s: this is neither.
    assert!(took[took.len() - 1] < secs(5), "waited for {:?}", took[took.len() - 1]);
    assert_eq!((count(home.path(), "holding"), count(home.path(), "waiting")), (0, 0));
    run(async { open(home.path()).await.close().await });
    let left: Vec<_> = fs::read_dir(home.path().join("store/clients")).unwrap().collect();
    assert!(left.is_empty(), "files of the dead are left: {left:?}");
}

#[test]
fn the_next_holds_long_before_the_ttl_of_a_killed_holder() {
    let _alone = alone();
    killed_holders_are_followed_at_once("plain", scaled(500).max(50), Worker::start);
}

#[test]
fn the_next_holds_long_before_the_ttl_of_a_holder_killed_in_another_pid_namespace() {
    let _alone = alone();
    killed_holders_are_followed_at_once(
        "in another PID namespace",
        scaled(500).max(50),
        Worker::start_in_namespace,
    );
}

const CHURNED: [&str; 3] = ["a", "b", "c"];

/// Spends most of its time in transactions.
async fn churn(home: &Path) {
    let locks = open(home).await;
    say("ready");
    loop {
        for name in CHURNED {
            locks.mutex(name).lock().await.unwrap().release().await.unwrap();
        }
    }
}

/// Stops it at some point; if the gate is shut then, it is inside, and else it goes on. How often that took.
fn stop_inside(churning: &Worker, gate: &fs::File) -> u64 {
    for tries in 1.. {
        churning.stop();
        if gate.try_lock().is_err() {
            return tries;
        }
        gate.unlock().unwrap();
        churning.signal(Signal::CONT);
        std::thread::sleep(Duration::from_micros(100 + tries % 7 * 131));
    }
    unreachable!()
}

#[test]
fn a_process_stopped_in_the_middle_of_a_transaction_costs_others_time_and_is_named() {
    let _alone = alone();
    let home = home("stopped_inside");
    run(async {
        let locks = open(home.path()).await;
        let lease = locks.mutex("held").ttl(secs(1)).lock().await.unwrap();
        let gate = fs::File::open(home.path().join("store/gate")).unwrap();
        let mut churning = Worker::start(WORKER, "churn", home.path());
        churning.hear();
        stop_inside(&churning, &gate);
        let stopped = Instant::now();
        let error = locks.mutex("a").lock().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        let culprit = format!("process {} has been in the middle of a change", churning.pid());
        assert!(error.to_string().contains(&culprit), "{error}");
        // What could not be renewed is not believed in.
        assert_eq!(lease.lost().await, Loss::Unreachable);
        assert!(stopped.elapsed() < secs(10), "it took {:?}", stopped.elapsed());
        churning.signal(Signal::CONT);
        locks.mutex("held").lock().await.unwrap().release().await.unwrap();
        drop(churning);
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
        is_whole(home.path());
        locks.close().await;
    });
}

#[test]
fn a_process_killed_in_the_middle_of_a_transaction_harms_nobody() {
    let _alone = alone();
    let home = home("mid_transaction");
    run(async {
        let locks = open(home.path()).await;
        let gate = fs::File::open(home.path().join("store/gate")).unwrap();
        let rounds = scaled(500).max(50);
        let mut tries = 0;
        for _ in 0..rounds {
            let mut churning = Worker::start(WORKER, "churn", home.path());
            churning.hear();
            tries += stop_inside(&churning, &gate);
            churning.kill();
            let start = Instant::now();
            for name in CHURNED {
                locks.mutex(name).lock().await.unwrap().release().await.unwrap();
            }
            assert!(start.elapsed() < secs(5), "locked out for {:?}", start.elapsed());
            is_whole(home.path());
        }
        println!("{rounds} killed inside a transaction, found by stopping them {tries} times");
        locks.close().await;
    });
}

// ---- a crowd ----

async fn crowd(home: &Path, waiters: usize) {
    let locks = open(home).await;
    let waiting: Vec<_> = (0..waiters)
        .map(|_| {
            let mutex = locks.mutex("x").strict_order();
            tokio::spawn(async move {
                // On a busy machine the last of so many requests may wait for the store for more than 2 s.
                while matches!(mutex.lock().await.map(std::mem::forget), Err(Error::Unreachable { .. })) {}
            })
        })
        .collect();
    say("ready");
    for task in waiting {
        let _ = task.await;
    }
}

#[test]
fn when_a_process_with_ten_thousand_waiters_is_killed_the_living_are_served() {
    let _alone = alone();
    const CROWD: usize = 10_000;
    let home = home("crowd");
    run(async {
        let (a, b) = (open(home.path()).await, open(home.path()).await);
        let held = a.mutex("x").lock().await.unwrap();
        // One stands before the crowd, two behind it, of two clients.
        let before = tokio::spawn(a.mutex("x").strict_order().lock());
        in_line(&a, "x", 1).await;
        let mut crowd = Worker::start(WORKER, &format!("crowd {CROWD}"), home.path());
        crowd.hear();
        in_line(&a, "x", CROWD + 1).await;
        // They are awaited in this order below, so they have to queue in this order.
        let first_behind = tokio::spawn(a.mutex("x").strict_order().lock());
        in_line(&a, "x", CROWD + 2).await;
        let behind = [first_behind, tokio::spawn(b.mutex("x").strict_order().lock())];
        in_line(&a, "x", CROWD + 3).await;
        assert_eq!(count(home.path(), "waiting"), CROWD as i64 + 3);
        let start = Instant::now();
        crowd.kill();
        held.release().await.unwrap();
        before.await.unwrap().unwrap().release().await.unwrap();
        for waiting in behind {
            waiting.await.unwrap().unwrap().release().await.unwrap();
        }
        println!("the living behind {CROWD} dead waiters were served after {:?}", start.elapsed());
        assert!(start.elapsed() < secs(5), "served after {:?}", start.elapsed());
        assert_eq!((count(home.path(), "holding"), count(home.path(), "waiting")), (0, 0));
        is_whole(home.path());
        a.close().await;
        b.close().await;
    });
}

// ---- stopped ----

/// A resource that refuses whoever comes with a fence below one it has seen.
fn fenced_write(home: &Path, fence: Fence, what: &str) -> bool {
    let path = home.join("resource");
    let guard = fs::File::create(home.join("resource.guard")).unwrap();
    guard.lock().unwrap();
    let last = fs::read_to_string(&path).unwrap_or_default();
    let last: u64 = last.split(' ').next().unwrap().parse().unwrap_or(0);
    let accepted = fence.get() >= last;
    if accepted {
        fs::write(&path, format!("{fence} {what}")).unwrap();
    }
    accepted
}

/// Holds `x`, and starts something that inherits its lifeline.
async fn bequeath(home: &Path) {
    let locks = open(home).await;
    let lease = locks.mutex("x").ttl(secs(600)).lock().await.unwrap();
    let lifeline = locks.lifeline().unwrap().unwrap();
    rustix::io::fcntl_setfd(&lifeline, rustix::io::FdFlags::empty()).unwrap();
    let mut heir = std::process::Command::new("sleep");
    heir.arg("1000").stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    say(heir.spawn().unwrap().id());
    listen();
    drop(lease);
}

#[test]
fn what_a_dead_process_started_keeps_its_locks_until_it_is_gone_too() {
    let _alone = alone();
    let home = home("bequeath");
    let mut holder = Worker::start(WORKER, "bequeath", home.path());
    let heir = Pid::from_raw(holder.hear().parse().unwrap()).unwrap();
    run(async {
        let locks = open(home.path()).await;
        let waits = tokio::spawn(locks.mutex("x").wait(secs(60)).lock());
        holder.kill();
        for _ in 0..3 {
            assert!(locks.mutex("x").strict_order().try_lock().await.unwrap().is_none(), "its heir lives");
        }
        assert!(!waits.is_finished());
        kill_process(heir, Signal::KILL).unwrap();
        // Long before the TTL is over.
        drop(waits.await.unwrap().unwrap());
    });
}

/// A file store that notes when it is asked to renew.
#[derive(Debug)]
struct Noted {
    store: Arc<dyn Store>,
    last_renewal: Mutex<Option<Deadline>>,
    renewals: AtomicU64,
}

impl Intercept for Noted {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.store
    }

    async fn intercept<T: Send, E>(&self, call: Call, execute: E) -> Result<T>
    where
        E: Fn(Arc<dyn Store>) -> Execution<T> + Send + Sync,
    {
        if call.method == "renew" {
            *self.last_renewal.lock().unwrap() = Some(self.clock().now());
            self.renewals.fetch_add(1, Ordering::SeqCst);
        }
        execute(self.store.clone()).await
    }

    fn passes_notices_and_values(&self) -> bool {
        false
    }
}

const PAUSED_TTL: Duration = Duration::from_millis(600);

async fn pause(home: &Path) {
    let store: Arc<dyn Store> = Arc::new(File::open(home.join("store")).await.unwrap());
    let clock = store.clock().clone();
    let store = Arc::new(Noted { store, last_renewal: Mutex::default(), renewals: AtomicU64::default() });
    let locks = Options::default().ttl(PAUSED_TTL).over(store.clone()).unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    // It lives by its renewals for a while.
    tokio::time::sleep(PAUSED_TTL * 2).await;
    assert!(lease.is_valid() && store.renewals.load(Ordering::SeqCst) > 0);
    assert!(fenced_write(home, lease.fence(), "before"));
    say(lease.fence());
    // Looks at nothing until a stretch is missing from its life.
    let mut before = clock.now();
    let stopped = loop {
        std::thread::sleep(ms(1));
        let now = clock.now();
        if now.since(before) > PAUSED_TTL {
            break before;
        }
        before = now;
    };
    // The first look, and the first poll.
    let (valid, lost) = (lease.is_valid(), lease.lost().now_or_never());
    let renewed_since =
        store.last_renewal.lock().unwrap().is_some_and(|renewal| renewal > stopped.plus(ms(50)));
    let written = fenced_write(home, lease.fence(), "after");
    say(format!("valid {valid}, lost {lost:?}, renewed {renewed_since}, written {written}"));
    assert!(lease.release().await.is_err());
}

#[test]
fn a_holder_stopped_beyond_its_ttl_knows_at_its_first_look() {
    let _alone = alone();
    let home = home_in_memory("pause");
    run(async {
        let locks = open(home.path()).await;
        let mut holder = Worker::start(WORKER, "pause", home.path());
        let stale: u64 = holder.hear().parse().unwrap();
        let waiting = tokio::spawn(locks.mutex("x").lock());
        in_line(&locks, "x", 1).await;
        holder.stop();
        let lease = waiting.await.unwrap().unwrap();
        assert!(lease.fence().get() > stale);
        assert!(fenced_write(home.path(), lease.fence(), "the next"));
        tokio::time::sleep(PAUSED_TTL * 2).await;
        holder.signal(Signal::CONT);
        let expired = Loss::Expired;
        assert_eq!(
            holder.hear(),
            format!("valid false, lost {:?}, renewed false, written false", Some(expired))
        );
        assert!(lease.is_valid());
        lease.release().await.unwrap();
        holder.ended_well();
        locks.close().await;
    });
}

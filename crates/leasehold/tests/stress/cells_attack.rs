//! 64 clients in four processes change one value: by a counter, and optimistically. Not one change is lost, and the optimistic
//! ones say how often they were tried. The same attack by plain reads and writes loses some.
#![cfg(all(feature = "redis", feature = "file", feature = "json", target_os = "linux"))]

use leasehold_testkit as common;

use std::path::Path;
use std::time::Instant;

use common::child::ChildTest;
use common::child_test;
use common::worker::{Worker, listen, play, say};
use common::{home_in_memory, scaled};
use futures_util::future::join_all;
use leasehold::Locks;
use leasehold_lab::{Kind, Server};

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 64;

/// Of each client: 2,000 at full scale.
const UPDATES: u64 = 2_000;

/// So many in a row that are overtaken would be a fault, not bad luck.
const TRIES: u32 = 10_000;

/// What one process did.
#[derive(Default)]
struct Done {
    updates: u64,
    tries: u64,
    most: u32,
}

const WORKER: ChildTest = child_test!(worker);

#[test]
fn worker() {
    play(|role, home| {
        let (what, updates) = role.split_once(' ').unwrap();
        let url = std::fs::read_to_string(home.join("url")).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(work(what, updates.parse().unwrap(), &url));
    });
}

/// A client of its own. A server that is too busy is asked again.
async fn connect(url: &str) -> Locks {
    loop {
        match leasehold::connect(url).await {
            Ok(locks) => return locks,
            Err(error) => assert!(error.is_outcome_unknown(), "{error}"),
        }
    }
}

async fn work(what: &str, updates: u64, url: &str) {
    // Of a file store one process has one client to speak of: more would be more tasks, and no more contention.
    let shared_by = if url.starts_with("file:") { 4 } else { 1 };
    let clients = CLIENTS / PROCESSES;
    let connections = join_all((0..clients / shared_by).map(|_| connect(url))).await;
    say("ready");
    listen();
    let done = join_all((0..clients).map(|client| {
        let (locks, what) = (connections[(client / shared_by) as usize].clone(), what.to_owned());
        tokio::spawn(async move {
            let mut done = Done::default();
            while done.updates < updates {
                let tries = change(&locks, &what).await;
                done = Done {
                    updates: done.updates + 1,
                    tries: done.tries + u64::from(tries),
                    most: done.most.max(tries),
                };
            }
            done
        })
    }));
    let done: Vec<Done> = done.await.into_iter().map(Result::unwrap).collect();
    let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
    let most = done.iter().map(|done| done.most).max().unwrap();
    say(format!("{} {} {most}", sum(|done| done.updates), sum(|done| done.tries)));
}

/// One more; says how often it was tried.
async fn change(locks: &Locks, what: &str) -> u32 {
    let cells = locks.cells();
    let cell = cells.cell::<u64>("x").tries(TRIES);
    match what {
        "counter" => {
            cells.counter("x").add(1).await.unwrap();
            1
        }
        "optimistic" => cell.update(|seen| seen.unwrap_or(0) + 1).await.unwrap().tries,
        "unguarded" => {
            let seen = cell.get().await.unwrap().unwrap_or(0);
            cell.set(&(seen + 1)).await.unwrap();
            1
        }
        other => panic!("no role `{other}`"),
    }
}

fn attack(home: &Path, what: &str, updates: u64) -> Done {
    let mut workers: Vec<Worker> =
        (0..PROCESSES).map(|_| Worker::start(WORKER, &format!("{what} {updates}"), home)).collect();
    for worker in &mut workers {
        assert_eq!(worker.hear(), "ready");
    }
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    let mut all = Done::default();
    for mut worker in workers {
        let said = worker.hear();
        let [updates, tries, most] = said.split(' ').collect::<Vec<_>>().try_into().unwrap();
        all.updates += updates.parse::<u64>().unwrap();
        all.tries += tries.parse::<u64>().unwrap();
        all.most = all.most.max(most.parse().unwrap());
        worker.ended_well();
    }
    all
}

/// All of it on one store.
fn nothing_is_lost_on(store: &str, url: &str, updates: u64) {
    let home = home_in_memory("cells_attack");
    std::fs::write(home.path().join("url"), url).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locks = runtime.block_on(connect(url));
    let cells = locks.cells();

    let start = Instant::now();
    let counted = attack(home.path(), "counter", updates);
    assert_eq!(counted.updates, CLIENTS * updates);
    assert_eq!(runtime.block_on(cells.counter("x").get()).unwrap() as u64, counted.updates, "on {store}");
    let took = start.elapsed();
    println!("{store}: a counter, {} times in {took:.1?}: exact", counted.updates);

    let start = Instant::now();
    let updated = attack(home.path(), "optimistic", updates);
    assert_eq!(updated.updates, CLIENTS * updates);
    let value = runtime.block_on(cells.cell::<u64>("x").get()).unwrap();
    assert_eq!(value, Some(updated.updates), "on {store}");
    assert!(updated.tries > updated.updates, "nobody was ever in the way: this proves nothing");
    println!(
        "{store}: an optimistic cell, {} times in {:.1?}: exact; {:.2} tries each, {} at most",
        updated.updates,
        start.elapsed(),
        updated.tries as f64 / updated.updates as f64,
        updated.most
    );

    // The negative control: the same, read and written.
    runtime.block_on(cells.cell::<u64>("x").delete()).unwrap();
    let lost = (1..=20).find_map(|_| {
        runtime.block_on(cells.cell::<u64>("x").delete()).unwrap();
        let written = attack(home.path(), "unguarded", updates.min(200)).updates;
        let value = runtime.block_on(cells.cell::<u64>("x").get()).unwrap().unwrap();
        (value < written).then_some((written - value, written))
    });
    let (lost, of) = lost.expect("plain reads and writes lose updates, or this proves nothing");
    println!("{store}: read and written without a guard, {lost} of {of} were lost");
}

#[test]
fn nothing_is_lost_on_redis() {
    let server = Server::start(Kind::Redis).unwrap();
    nothing_is_lost_on("redis", &server.url(), scaled(UPDATES));
}

/// Where the whole proof is not asked for, the other server does a quarter of it.
#[test]
fn nothing_is_lost_on_valkey() {
    let server = Server::start(Kind::Valkey).unwrap();
    let updates = scaled(UPDATES);
    nothing_is_lost_on(
        "valkey",
        &server.url(),
        if updates < UPDATES { (updates / 4).max(1) } else { updates },
    );
}

#[test]
fn nothing_is_lost_in_files() {
    let home = home_in_memory("cells_attack_files");
    nothing_is_lost_on("file", &format!("file:{}", home.path().display()), scaled(UPDATES));
}

//! `redis:` under a crowd: what a hand-over costs, in which order it goes, and what is left on the server.

use leasehold_testkit as common;

use std::path::Path;

use common::child::ChildTest;
use common::child_test;
use common::record;
use common::worker::{Worker, listen, play, say};
use common::{home, ms, run, scaled, secs};
use leasehold::Locks;
use leasehold_lab::{Kind, Proxy, Server};

const PROCESSES: usize = 4;

const WORKER: ChildTest = child_test!(worker);

/// What the workers do.
#[test]
fn worker() {
    play(|role, home| {
        let (role, arguments) = role.split_once(' ').unwrap();
        let numbers: Vec<u64> = arguments.split(' ').map(|number| number.parse().unwrap()).collect();
        match role {
            "takes_turns" => run(takes_turns(home, numbers[0], numbers[1])),
            other => panic!("no role `{other}`"),
        }
    });
}

async fn open(home: &Path) -> Locks {
    let url = std::fs::read_to_string(home.join("url")).unwrap();
    leasehold::connect(&url).await.unwrap()
}

/// So many clients, each of which locks so many times; says each fence.
async fn takes_turns(home: &Path, clients: u64, rounds: u64) {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(open(home).await);
    }
    say("ready");
    listen();
    let tasks: Vec<_> = all
        .into_iter()
        .map(|locks| {
            tokio::spawn(async move {
                let mut fences = Vec::new();
                for _ in 0..rounds {
                    let lease = locks.mutex("turns").lock().await.unwrap();
                    fences.push(lease.fence().get());
                    lease.release().await.unwrap();
                }
                (fences, locks)
            })
        })
        .collect();
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done.iter().flat_map(|(fences, _)| fences).for_each(say);
    say("done");
    listen();
}

/// Returns the requests per hand-over. By the server's record, no grant passes a client that came earlier: a client that the
/// system keeps from its processor is late, and not passed.
fn crowd(clients: u64, rounds: u64) -> f64 {
    let home = home(&format!("crowd_{clients}"));
    let server = record::recording(Kind::Redis);
    let proxy = Proxy::to(server.addr()).unwrap();
    std::fs::write(home.path().join("url"), proxy.url()).unwrap();
    let each = clients / PROCESSES as u64;
    let role = format!("takes_turns {each} {rounds}");
    let mut workers: Vec<Worker> =
        (0..PROCESSES).map(|_| Worker::start(WORKER, &role, home.path())).collect();
    workers.iter_mut().for_each(|worker| assert_eq!(worker.hear(), "ready"));
    let before = proxy.counts().requests;
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    let mut fences: Vec<u64> = Vec::new();
    for worker in &mut workers {
        loop {
            let line = worker.hear();
            let Ok(fence) = line.parse() else { break };
            fences.push(fence);
        }
    }
    let requests = proxy.counts().requests - before;
    workers.iter_mut().for_each(|worker| worker.tell("end"));
    workers.into_iter().for_each(Worker::ended_well);
    let total = each * PROCESSES as u64 * rounds;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len() as u64, total);
    let recorded = record::of_server(&server, "turns", 1, &[]);
    assert!(recorded.overtaken.is_empty(), "{:#?}", recorded.overtaken);
    assert_eq!((recorded.grants, recorded.too_many), (total, 0));
    assert!(recorded.from_the_line * 2 > total, "too few had to wait: {recorded:?}");
    requests as f64 / total as f64
}

#[test]
fn a_hand_over_costs_the_same_whoever_waits_and_goes_in_order() {
    let few = crowd(12, scaled(2_000).max(100));
    let many = crowd(64, scaled(500).max(30));
    let most = crowd(scaled(1_000).max(200) / 4 * 4, 10);
    println!("requests per hand-over: {few:.2} with 12 clients, {many:.2} with 64, {most:.2} with the most");
    assert!(many <= 3.0, "{many}");
    // The last ones of a run wait for nobody, and a few are asked again.
    assert!(most <= few + 0.5, "{most} with many, {few} with few");
}

#[test]
fn short_lived_names_leave_nothing_on_the_server() {
    let server = Server::start(Kind::Redis).unwrap();
    let names = scaled(1_000_000).min(1_000_000);
    run(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
        let before = server.command(&["DBSIZE"]).unwrap().int().unwrap();
        let tasks: Vec<_> = (0..64_u64)
            .map(|task| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    for name in (task..names).step_by(64) {
                        let lease = locks.mutex(format!("short:{name}")).ttl(secs(5)).lock().await.unwrap();
                        // Some are let go, some forgotten by a client that is closed.
                        if name % 10 == 0 { std::mem::forget(lease) } else { lease.release().await.unwrap() }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        locks.close().await;
        let start = std::time::Instant::now();
        while server.command(&["DBSIZE"]).unwrap().int().unwrap() > before {
            assert!(start.elapsed() < secs(60), "keys are left");
            tokio::time::sleep(ms(50)).await;
        }
    });
}

#[test]
fn a_held_lock_takes_little_of_the_servers_memory() {
    const HELD: u64 = 20_000;
    let server = Server::start(Kind::Redis).unwrap();
    let used = || server.info("memory").unwrap()["used_memory"].parse::<u64>().unwrap();
    run(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
        let before = used();
        let mut leases = Vec::new();
        for name in 0..HELD {
            // With the prefix a key of 17 bytes, and a label of 12.
            let mutex = locks.mutex(format!("order:{name:06}")).owner("host-7:12345").ttl(secs(600));
            leases.push(mutex.lock().await.unwrap());
        }
        let each = (used() - before) / HELD;
        println!("{each} bytes per held lock");
        assert!(each <= 210, "{each} bytes per held lock");
        locks.close().await;
    });
}

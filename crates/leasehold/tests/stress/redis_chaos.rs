//! `redis:` while connections are killed, scripts forgotten and the server killed and started again: nobody gets in beside
//! another, and nobody waits for ever.

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Dice, home, ms, scaled, secs};
use leasehold_lab::{Kind, Server, Setup};

const CLIENTS: usize = 6;
const TASKS_EACH: usize = 3;
const TTL: Duration = Duration::from_secs(6);

/// Does something bad every so often, until it is over; says how often the server was started again.
fn disturb(server: &Server, is_over: &AtomicBool) -> u32 {
    let mut dice = Dice(11);
    let mut restarts = 0;
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(ms(50 + dice.below(250)));
        // What is gone already cannot be killed.
        let _ = match dice.below(6) {
            0 => server.command(&["CLIENT", "KILL", "TYPE", "normal"]).map(drop),
            1 => server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).map(drop),
            2 | 3 => server.command(&["SCRIPT", "FLUSH"]).map(drop),
            4 => {
                server.kill().unwrap();
                std::thread::sleep(ms(dice.below(150)));
                restarts += 1;
                server.restart()
            }
            _ => {
                server.pause().unwrap();
                std::thread::sleep(ms(dice.below(400)));
                server.resume()
            }
        };
    }
    restarts
}

#[test]
fn nobody_gets_in_beside_another_and_nobody_waits_for_ever() {
    let longest = chaos(Kind::Redis, &["on"]);
    // A grant to a client that was just cut off lasts a TTL at worst, and a poll is never further away than a third of that.
    assert!(longest < TTL + TTL / 3 + secs(2), "{longest:?}");
}

/// There is no order among these.
#[test]
fn nobody_gets_in_beside_another_without_scripts() {
    chaos(Kind::Valkey, &["off"]);
}

#[test]
fn nobody_gets_in_beside_another_with_scripts_and_without() {
    chaos(Kind::Redis, &["on", "off"]);
}

/// Clients that use scripts or do not, in turn. Says how long the longest of them waited.
fn chaos(kind: Kind, scripts: &[&str]) -> Duration {
    let home = home("redis_chaos");
    let server = Setup::new(kind).durable().start().unwrap();
    let counter = home.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let (is_over, counted) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    let longest = Arc::new(AtomicU64::new(0));
    let restarts = std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(&server, &is_over));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let until = Instant::now() + Duration::from_millis(scaled(60_000).max(10_000));
            let mut tasks = Vec::new();
            for number in 0..CLIENTS {
                let scripts = scripts[number % scripts.len()];
                let url = format!("{}?timeout=300&scripts={scripts}", server.url());
                let locks = loop {
                    match leasehold::connect(&url).await {
                        Ok(locks) => break locks,
                        Err(_) => tokio::time::sleep(ms(20)).await,
                    }
                };
                for _ in 0..TASKS_EACH {
                    let (locks, counter, counted, longest) =
                        (locks.clone(), counter.clone(), counted.clone(), longest.clone());
                    tasks.push(tokio::spawn(async move {
                        while Instant::now() < until {
                            let asked = Instant::now();
                            // An error is a definite "not held"; so it is asked for again.
                            let Ok(lease) = locks.mutex("chaos").ttl(TTL).lock().await else {
                                tokio::time::sleep(ms(5)).await;
                                continue;
                            };
                            longest.fetch_max(asked.elapsed().as_millis() as u64, Ordering::Relaxed);
                            let count: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                            tokio::task::yield_now().await;
                            assert!(lease.is_valid(), "the server was never gone for so long");
                            std::fs::write(&counter, (count + 1).to_string()).unwrap();
                            counted.fetch_add(1, Ordering::Relaxed);
                            let _ = lease.release().await;
                        }
                    }));
                }
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
        is_over.store(true, Ordering::Relaxed);
        disturbing.join().unwrap()
    });
    let (counted, longest) = (counted.load(Ordering::Relaxed), longest.load(Ordering::Relaxed));
    println!("scripts {scripts:?}: {counted} counted, {restarts} restarts, the longest wait {longest} ms");
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), counted.to_string());
    assert!(counted > 100 && restarts > 0, "something happened");
    ms(longest)
}

//! Processes that die or stand still on one Redis: what they held is free in time, and what they write afterwards is refused.
#![cfg(target_os = "linux")]

use leasehold_testkit as common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::worker::{Worker, listen, play, say};
use common::{home_in_memory, ms, run, scaled, secs};
use leasehold::{Error, Fence, Locks};
use leasehold_lab::{Kind, Server};
use rustix::process::Signal;

/// Long beside what a busy machine needs for a renewal, and short enough to be waited for.
const TTL: Duration = Duration::from_secs(2);

/// For what a busy machine may add to what is promised.
const SLACK: Duration = Duration::from_secs(5);

const WORKER: ChildTest = child_test!(worker);

#[test]
fn worker() {
    play(|role, home| {
        run(async {
            let locks = open(home).await;
            match role {
                "holder" => holds(&locks).await,
                "crowd" => crowds(&locks, home).await,
                other => panic!("no role `{other}`"),
            }
        });
    });
}

async fn open(home: &Path) -> Locks {
    leasehold::connect(&std::fs::read_to_string(home.join("url")).unwrap()).await.unwrap()
}

/// A server, and a directory that says where it is.
fn server(kind: Kind) -> (Server, common::Home) {
    let (server, home) = (Server::start(kind).unwrap(), home_in_memory("redis_processes"));
    std::fs::write(home.path().join("url"), server.url()).unwrap();
    (server, home)
}

/// Takes the lock, and says what it believes each time it is asked.
async fn holds(locks: &Locks) {
    let lease = locks.mutex("x").ttl(TTL).lock().await.unwrap();
    say(lease.fence());
    loop {
        match listen().as_str() {
            "valid?" => say(lease.is_valid()),
            "lost?" => {
                // Looked at once, without waiting for anything.
                let lost = std::pin::pin!(lease.lost());
                let lost = futures_util::future::poll_immediate(lost).await;
                say(lost.map_or("no".to_owned(), |reason| reason.to_string()));
            }
            "release" => {
                say(match lease.release().await {
                    Ok(()) => "released".to_owned(),
                    Err(error @ Error::Lost { .. }) => format!("lost: {error}"),
                    Err(error) => error.to_string(),
                });
                return;
            }
            other => panic!("`{other}` is not asked"),
        }
    }
}

/// What is protected: it takes a write with a fence as high as any before.
#[derive(Default)]
struct Resource(u64);

impl Resource {
    fn write(&mut self, fence: Fence) -> bool {
        let is_taken = fence.get() >= self.0;
        self.0 = self.0.max(fence.get());
        is_taken
    }
}

fn fence(text: &str) -> Fence {
    Fence::new(text.parse().unwrap()).unwrap()
}

#[test]
fn what_a_killed_process_held_is_free_within_its_ttl_and_the_next_fence_is_higher() {
    for kind in Kind::ALL {
        let (_server, home) = server(kind);
        run(async {
            let locks = open(home.path()).await;
            let mut holder = Worker::start(WORKER, "holder", home.path());
            let held = fence(&holder.hear());
            let waiting = tokio::spawn({
                let mutex = locks.mutex("x").ttl(TTL);
                async move { mutex.lock().await.unwrap() }
            });
            // It is renewed for as long as its holder lives.
            tokio::time::sleep(TTL + TTL / 2).await;
            assert!(!waiting.is_finished(), "{kind:?}: its holder lives");
            holder.kill();
            let killed = Instant::now();
            let lease = waiting.await.unwrap();
            assert!(killed.elapsed() <= TTL + SLACK, "{kind:?}: after {:?}", killed.elapsed());
            assert!(lease.fence() > held, "{kind:?}");
            lease.release().await.unwrap();
        });
    }
}

#[test]
fn a_process_that_stood_still_knows_it_when_it_wakes_and_its_write_is_refused() {
    for kind in Kind::ALL {
        let (_server, home) = server(kind);
        // Stopped while it holds; and between its look at the lease and its write.
        for looks_first in [false, true] {
            let mut resource = Resource::default();
            let mut holder = Worker::start(WORKER, "holder", home.path());
            let stale = fence(&holder.hear());
            assert!(resource.write(stale));
            if looks_first {
                holder.tell("valid?");
                assert_eq!(holder.hear(), "true");
            }
            holder.stop();
            run(async {
                let lease = open(home.path()).await.mutex("x").ttl(secs(60)).lock().await.unwrap();
                assert!(resource.write(lease.fence()), "{kind:?}");
                assert!(lease.fence() > stale);
                if looks_first {
                    // What it saw was true, and is no more: only the fence is left.
                    assert!(!resource.write(stale), "{kind:?}: a stale write");
                }
                holder.signal(Signal::CONT);
                for (question, answer) in
                    [("valid?", "false"), ("lost?", "its deadline passed without renewal")]
                {
                    holder.tell(question);
                    assert_eq!(holder.hear(), answer, "{kind:?}: {question}");
                }
                assert!(!resource.write(stale), "{kind:?}: a stale write");
                holder.tell("release");
                let said = holder.hear();
                assert!(said.starts_with("lost: "), "{kind:?}: {said}");
                assert!(lease.is_valid(), "{kind:?}: the next holder is untouched");
                lease.extend(secs(60)).await.unwrap();
                lease.release().await.unwrap();
            });
            holder.ended_well();
        }
    }
}

const PROCESSES: u64 = 10;

/// Many who wait, each in a place of its own.
async fn crowds(locks: &Locks, home: &Path) {
    let count: u64 = std::fs::read_to_string(home.join("count")).unwrap().parse().unwrap();
    let mutex = locks.mutex("x").ttl(secs(10)).strict_order();
    let waiting: Vec<_> = (0..count)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move {
                let lease = mutex.lock().await.unwrap();
                let fence = lease.fence();
                lease.release().await.unwrap();
                fence
            })
        })
        .collect();
    say("all ask");
    let mut fences = Vec::new();
    for task in waiting {
        fences.push(task.await.unwrap());
    }
    fences.sort_unstable();
    fences.dedup();
    say(fences.len());
    locks.close().await;
}

#[test]
fn of_a_crowd_of_waiters_nine_in_ten_die_and_the_living_are_served() {
    let (server, home) = server(Kind::Redis);
    let each = scaled(1_000);
    std::fs::write(home.path().join("count"), each.to_string()).unwrap();
    run(async {
        let locks = open(home.path()).await;
        let lease = locks.mutex("x").ttl(secs(60)).lock().await.unwrap();
        let mut crowd: Vec<Worker> =
            (0..PROCESSES).map(|_| Worker::start(WORKER, "crowd", home.path())).collect();
        crowd.iter_mut().for_each(|worker| assert_eq!(worker.hear(), "all ask"));
        let length = || server.command(&["LLEN", "{lock:x}:line"]).unwrap().int().unwrap();
        let since = Instant::now();
        while length() < i64::try_from(PROCESSES * each).unwrap() {
            assert!(since.elapsed() < secs(60), "{} in line", length());
            tokio::time::sleep(ms(5)).await;
        }
        // The one that lives is neither the first nor the last in line.
        let mut living = crowd.remove(crowd.len() / 2);
        crowd.iter().for_each(Worker::kill);
        drop(crowd);
        let killed = Instant::now();
        lease.release().await.unwrap();
        assert_eq!(living.hear(), each.to_string(), "all of them, each once");
        println!(
            "{} waiters, {} of them dead: the living served after {:?}",
            PROCESSES * each,
            (PROCESSES - 1) * each,
            killed.elapsed()
        );
        // The dead are taken out of the line when they would have had to show themselves.
        let since = Instant::now();
        loop {
            let lease = locks.mutex("x").ttl(ms(500)).lock().await.unwrap();
            lease.release().await.unwrap();
            if length() == 0 {
                break;
            }
            assert!(since.elapsed() < secs(60), "{} dead in line", length());
            tokio::time::sleep(ms(100)).await;
        }
        let keys = ["EXISTS", "lock:x", "{lock:x}:line", "{lock:x}:wait", "{lock:x}:away"];
        while server.command(&keys).unwrap().int() != Some(0) {
            assert!(since.elapsed() < secs(60), "something is left of the dead");
            tokio::time::sleep(ms(20)).await;
        }
        living.ended_well();
    });
}

#[test]
fn at_its_limit_the_fence_is_an_error_and_below_it_every_digit_counts() {
    const LAST: u64 = (1 << 53) - 1;
    for kind in Kind::ALL {
        let (server, home) = server(kind);
        run(async {
            let locks = open(home.path()).await;
            server.command(&["SET", "{lock:}:fence", &format!("{:x}", LAST - 2)]).unwrap();
            for expected in [LAST - 1, LAST] {
                let lease = locks.mutex("x").lock().await.unwrap();
                assert_eq!(lease.fence().get(), expected, "{kind:?}");
                lease.extend(secs(30)).await.unwrap();
                lease.release().await.unwrap();
            }
            for _ in 0..2 {
                let error = locks.mutex("x").wait(secs(5)).lock().await.unwrap_err();
                assert!(matches!(error, Error::Refused { .. }), "{kind:?}: {error:?}");
                let error = locks.mutex("x").try_lock().await.unwrap_err();
                assert!(error.to_string().contains("limit"), "{kind:?}: {error}");
            }
            locks.settled().await;
            assert_eq!(server.command(&["EXISTS", "lock:x", "{lock:x}:line"]).unwrap().int(), Some(0));
            let last = server.command(&["GET", "{lock:}:fence"]).unwrap();
            assert_eq!(last.text(), Some(format!("{LAST:x}").as_str()), "{kind:?}");
        });
    }
}

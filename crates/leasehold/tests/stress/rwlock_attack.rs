//! Readers and writers under attack: clients in four processes that are killed at random while their wall clocks are moved. No
//! reader beside a writer, by what the clients believed; the same judge sees a lock that looks first and locks then. And
//! readers who follow one another without a gap keep no writer out.

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::crash_load::{Plan, Post};
use common::disk::SOON;
use common::history::{History, Judged, Part, stamp};
use common::record::{self, Verdict};
use common::worker::play;
use common::{Dice, home_in_memory, ms, run, scaled, secs};
use futures_util::future::join_all;
use leasehold::store::file::File;
use leasehold_lab::{Client, Kind, Server};

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 32;

/// On Redis, the dead keep theirs for as long.
const TTL: Duration = Duration::from_millis(500);

/// In a file store they must not: so long would nobody wait.
const LONG: Duration = Duration::from_secs(60);

const WORKER: ChildTest = child_test!(worker);

/// What the workers do.
#[test]
fn worker() {
    play(|role, home| {
        let [what, label, seed] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let post = Arc::new(Post::new(home, label, seed));
        match what {
            "leases" => run(leases(post)),
            "naive" => naive(&post),
            other => panic!("no role `{other}`"),
        }
    });
}

/// Of ten who ask, two write.
fn part(dice: &mut Dice) -> Part {
    if dice.below(10) < 2 { Part::All } else { Part::Reader }
}

/// Clients who read and write, until they are killed.
async fn leases(post: Arc<Post>) {
    let ttl = if post.url().starts_with("file:") { LONG } else { TTL };
    let clients = post.clients(CLIENTS / PROCESSES).await.into_iter().map(|(locks, mut dice)| {
        let post = post.clone();
        tokio::spawn(async move {
            let rwlock = locks.rwlock("x").ttl(ttl).owner(&post.label);
            loop {
                let part = part(&mut dice);
                let answer = match (part, dice.below(8)) {
                    (Part::All, 0) => rwlock.try_write().await,
                    (Part::All, _) => rwlock.write().await.map(Some),
                    (_, 0) => rwlock.try_read().await,
                    _ => rwlock.read().await.map(Some),
                };
                let keep_for = |dice| match dice {
                    // Some for so long that they are renewed, or that others run into them.
                    0..2 => Some(TTL / 2),
                    2..100 => Some(ms(1)),
                    _ => None,
                };
                post.keep(part, answer, &mut dice, keep_for).await;
            }
        })
    });
    drop(join_all(clients).await);
}

/// Says what came out, and how long a writer took to get in once all were dead.
fn attack(store: &str, url: &str, role: &str, grants: u64, lasts: Duration) -> (Judged, Duration) {
    let home = home_in_memory("rwlock");
    std::fs::write(home.path().join("url"), url).unwrap();
    let (role, lives_ms) = (role.to_owned(), (1_000, 20_000));
    let plan = Plan { worker: WORKER, role, processes: PROCESSES, moved_s: 60, lives_ms, grants, lasts };
    let since = Instant::now();
    let lives = plan.carry_out(home.path());
    let took = since.elapsed();
    let last = lives.last().unwrap().killed.unwrap().boot_ns;
    let back = run(async {
        let locks = leasehold::connect(url).await.unwrap();
        // It looks by itself every third of its TTL, whoever was to watch those who hold it.
        let writer = locks.rwlock("x").ttl(TTL).wait(secs(50)).write().await.unwrap();
        let back = Duration::from_nanos(stamp() - last);
        writer.release().await.unwrap();
        locks.close().await;
        back
    });
    let history = History::read(&lives);
    let judged = history.judged(0);
    println!(
        "{store}: {} acquisitions in {took:.1?}, {} kills; {} beside somebody they exclude; up to {} readers at once; a writer \
         got in {} ms after the last kill; {} requests failed",
        judged.grants,
        lives.len(),
        judged.too_many,
        judged.readers_most,
        back.as_millis(),
        history.failed.len()
    );
    assert!(lives.len() as u64 > PROCESSES && judged.grants as u64 >= grants, "too calm to prove anything");
    (judged, back)
}

fn nobody_beside_a_writer(store: &str, url: &str, grants: u64, back_within: Duration) {
    let (judged, back) = attack(store, url, "leases", grants, secs(3));
    assert_eq!(judged.too_many, 0, "{judged:?}");
    assert!(judged.readers_most > 2, "readers read together");
    assert!(back < back_within, "a writer waited {back:?} for the dead");
}

#[test]
fn no_reader_beside_a_writer_on_redis() {
    let server = Server::start(Kind::Redis).unwrap();
    nobody_beside_a_writer("Redis", &server.url(), scaled(200_000), TTL + SOON);
}

#[test]
fn no_reader_beside_a_writer_in_files() {
    let home = home_in_memory("rwlock_store");
    let url = format!("file:{}", home.path().display());
    nobody_beside_a_writer("file", &url, scaled(200_000), SOON);
}

// ---- a lock that looks first and locks then ----

/// Two keys: how many read, and who writes.
fn naive(post: &Post) {
    let addr = post.url().trim_start_matches("redis://").parse().unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS / PROCESSES {
            scope.spawn(move || {
                let mut redis = Client::tcp(addr).unwrap();
                let mut dice = Dice(post.seed + client);
                let mut ask = |command: &[&str]| redis.command(command).unwrap();
                loop {
                    // With pauses, and as many writers as readers, so that each finds it free now and then.
                    std::thread::sleep(ms(dice.below(4)));
                    let part = if dice.below(2) == 0 { Part::All } else { Part::Reader };
                    let is_in = match part {
                        Part::All => {
                            ask(&["GET", "readers"]).text().unwrap_or("0") == "0"
                                && ask(&["SET", "writer", "me", "NX", "PX", "1000"]).is_ok()
                        }
                        _ => {
                            ask(&["EXISTS", "writer"]).int() == Some(0)
                                && ask(&["INCR", "readers"]).int().is_some()
                        }
                    };
                    if !is_in {
                        continue;
                    }
                    let key = post.journal.begin(part, ms(1_000));
                    post.count();
                    std::thread::sleep(ms(1));
                    post.journal.end(key, stamp());
                    match part {
                        Part::All => ask(&["DEL", "writer"]),
                        _ => ask(&["DECR", "readers"]),
                    };
                }
            });
        }
    });
}

#[test]
fn the_judge_sees_a_reader_beside_a_writer() {
    let server = Server::start(Kind::Redis).unwrap();
    let (judged, _) = attack("look first, lock then", &server.url(), "naive", 500, secs(3));
    assert!(judged.too_many > 0, "{judged:?}");
}

// ---- readers without a gap ----

const READERS: u64 = 16;
const WRITERS: u64 = 2;

/// Readers who read again as soon as they have read, each longer than it takes the next to begin; and writers among them.
fn stream(url: &str) {
    let is_over = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    run(async {
        let mut tasks = Vec::new();
        for number in 0..READERS + WRITERS {
            let locks = leasehold::connect(url).await.unwrap();
            let (is_over, written) = (is_over.clone(), written.clone());
            tasks.push(tokio::spawn(async move {
                let mut dice = Dice(number);
                while !is_over.load(Ordering::SeqCst) {
                    if number < READERS {
                        let lease = locks.rwlock("x").read().await.unwrap();
                        tokio::time::sleep(ms(2 + dice.below(6))).await;
                        lease.release().await.unwrap();
                    } else {
                        let writer = tokio::time::timeout(secs(60), locks.rwlock("x").write()).await;
                        writer.expect("a writer starves").unwrap().release().await.unwrap();
                        written.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(ms(dice.below(10))).await;
                    }
                }
                locks.close().await;
            }));
        }
        while written.load(Ordering::SeqCst) < scaled(2_000) && tasks.iter().all(|task| !task.is_finished()) {
            tokio::time::sleep(ms(5)).await;
        }
        is_over.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn a_writer_is_served(store: &str, verdict: &Verdict) {
    println!(
        "{store}: {} grants, {} of them from a line of at most {}; up to {} readers at once; at most {} were admitted \
         between a writer's arrival and its turn; {} overtaken",
        verdict.grants,
        verdict.from_the_line,
        verdict.line_most,
        verdict.readers_most,
        verdict.readers_before_a_writer,
        verdict.overtaken.len()
    );
    assert_eq!(verdict.too_many, 0, "{verdict:?}");
    assert!(verdict.overtaken.is_empty(), "overtaken: {:#?}", verdict.overtaken);
    // Those who stood in line before it, each of them once.
    assert!(verdict.readers_before_a_writer <= READERS, "{}", verdict.readers_before_a_writer);
    assert!(u64::from(verdict.readers_most) > READERS / 2, "readers read together: {verdict:?}");
}

#[test]
fn readers_without_a_gap_keep_no_writer_out_on_redis() {
    let server = record::recording(Kind::Redis);
    // Nobody is to be turned away because the machine is busy.
    stream(&format!("{}?timeout=20000", server.url()));
    a_writer_is_served("Redis", &record::of_server(&server, "x", 0, &[]));
}

#[test]
fn readers_without_a_gap_keep_no_writer_out_in_files() {
    let home = home_in_memory("rwlock_stream");
    run(async { drop(File::open(home.path()).await.unwrap()) });
    record::record_in(home.path());
    stream(&format!("file:{}", home.path().display()));
    a_writer_is_served("file", &record::of_files(home.path(), "x", 0, &[]));
}

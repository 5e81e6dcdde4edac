//! Sixteen tasks in four processes lock pairs of names at random, in whatever order, give up now and then, and are killed:
//! nobody waits for ever, nobody has a name beside another, and no part of a pair is left.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::worker::{self, Worker};
use common::{Dice, home_in_memory, ms, scaled, secs};
use leasehold::{Fence, Locks};
use leasehold_lab::{Kind, Server};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const PROCESSES: usize = 4;
const TASKS: u64 = 4;

/// What a killed process held is free after this, where only the TTL frees it.
const TTL: Duration = Duration::from_secs(2);

/// Whoever waits for longer waits for ever: some are killed meanwhile, each of which may cost a TTL.
const SERVED_WITHIN: Duration = Duration::from_secs(40);

/// What only the holder of a name may write to.
struct Page {
    file: File,
}

impl Page {
    fn of(home: &Path, name: &str) -> Self {
        let file = File::options().append(true).create(true).open(home.join(format!("page_{name}"))).unwrap();
        Page { file }
    }

    /// One write each, so that what was written before a kill is whole.
    fn write(&self, what: &str, fence: Fence) {
        (&self.file).write_all(format!("{what} {fence}\n").as_bytes()).unwrap();
    }
}

/// One task: pairs, until it is told to stop. Gives how many it had.
async fn pairs(locks: Locks, home: std::path::PathBuf, seed: u64, until: Instant) -> u64 {
    let mut dice = Dice(seed);
    let mut had = 0;
    while Instant::now() < until {
        let one = dice.below(6) as usize;
        let other = (one + 1 + dice.below(5) as usize) % 6;
        let pair = [NAMES[one], NAMES[other]];
        let asked = locks.all(pair).ttl(TTL).lock();
        // Some give up, wherever they are.
        let patience =
            if dice.below(5) == 0 { Duration::from_micros(dice.below(5_000)) } else { SERVED_WITHIN };
        let Ok(lease) = tokio::time::timeout(patience, asked).await else {
            assert!(patience < SERVED_WITHIN, "{pair:?} was not to be had in {SERVED_WITHIN:?}");
            continue;
        };
        let lease = lease.unwrap();
        let pages = pair.map(|name| Page::of(&home, name));
        pages.iter().for_each(|page| page.write("begin", lease.fence()));
        tokio::time::sleep(Duration::from_micros(dice.below(2_000))).await;
        // A machine that stands still for a TTL is not what this is about.
        if lease.is_valid() {
            pages.iter().for_each(|page| page.write("end", lease.fence()));
        }
        had += 1;
        match dice.below(3) {
            0 => drop(lease),
            _ => drop(lease.release().await),
        }
    }
    had
}

const WORKER: ChildTest = child_test!(worker);

#[test]
fn worker() {
    worker::play(|role, home| {
        let mut words = role.split(' ');
        let url = words.next().unwrap().to_owned();
        let seed: u64 = words.next().unwrap().parse().unwrap();
        let until = Instant::now() + ms(words.next().unwrap().parse().unwrap());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let had = runtime.block_on(async {
            let locks = leasehold::connect(&url).await.unwrap();
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let (locks, home) = (locks.clone(), home.to_owned());
                    tokio::spawn(pairs(locks, home, seed * 100 + task, until))
                })
                .collect();
            let mut had = 0;
            for task in tasks {
                had += task.await.unwrap();
            }
            locks.close().await;
            had
        });
        worker::say(had);
    });
}

/// What was written to one page: each holder by itself, with a fence above all before.
fn judge(home: &Path, name: &str) -> u64 {
    let page = std::fs::read_to_string(home.join(format!("page_{name}"))).unwrap_or_default();
    let (mut highest, mut holders) = (0, 0);
    for line in page.lines() {
        let (what, fence) = line.split_once(' ').unwrap();
        let fence: u64 = fence.parse().unwrap();
        match what {
            "begin" => {
                assert!(fence > highest, "{name}: {fence} begins after {highest}");
                (highest, holders) = (fence, holders + 1);
            }
            _ => assert_eq!(fence, highest, "{name}: another came in between"),
        }
    }
    holders
}

fn chaos(url: &str, home: &Path) -> (u64, u64) {
    let length = ms(scaled(60_000));
    let over = Instant::now() + length;
    let mut dice = Dice(5);
    let mut start = |left: Duration| {
        Worker::start(WORKER, &format!("{url} {} {}", dice.below(1 << 32), left.as_millis()), home)
    };
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start(length)).collect();
    let mut which = Dice(6);
    let mut kills = 0;
    while over.saturating_duration_since(Instant::now()) > ms(2_000) {
        std::thread::sleep(ms(700 + which.below(1_300)));
        let at = which.below(PROCESSES as u64) as usize;
        workers[at].kill();
        kills += 1;
        workers[at] = start(over.saturating_duration_since(Instant::now()));
    }
    let mut had = 0;
    for mut worker in workers {
        had += worker.hear().parse::<u64>().unwrap();
        worker.ended_well();
    }
    (had, kills)
}

/// Nothing is held, and nobody waits, once the last of the killed has been forgotten.
fn nothing_is_left(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = leasehold::connect(url).await.unwrap();
        let since = Instant::now();
        loop {
            let left = locks.list("", 100).await.unwrap();
            if left.is_empty() {
                break;
            }
            assert!(since.elapsed() < TTL * 2 + secs(5), "left: {left:#?}");
            tokio::time::sleep(ms(20)).await;
        }
        // And all of them are to be had at once.
        let all = locks.all(NAMES).try_lock().await.unwrap().expect("all are free");
        all.release().await.unwrap();
        locks.close().await;
    });
}

fn proven(what: &str, url: &str, home: &Path) {
    let (had, kills) = chaos(url, home);
    nothing_is_left(url);
    let holders: u64 = NAMES.iter().map(|name| judge(home, name)).sum();
    // Each of the killed may have had others wait for a TTL, so there need not be many.
    assert!(had > 0 && holders > 100 && holders >= 2 * had, "{had} pairs, {holders} holders of names");
    println!("{what}: {had} pairs by those who lived, {} in all, {kills} processes killed", holders / 2);
}

#[test]
fn pairs_in_any_order_on_the_file_store() {
    let home = home_in_memory("all_chaos");
    proven("file", &format!("file:{}", home.path().join("store").display()), home.path());
}

#[test]
fn pairs_in_any_order_on_a_server() {
    let home = home_in_memory("all_chaos");
    let server = Server::start(Kind::Redis).unwrap();
    proven("redis", &server.url(), home.path());
}

/// One after the other, in the order of the names.
#[test]
fn pairs_in_any_order_on_a_server_that_takes_one_at_a_time() {
    let home = home_in_memory("all_chaos");
    let server = Server::start(Kind::Redis).unwrap();
    proven("redis without scripts", &format!("{}?scripts=off", server.url()), home.path());
}

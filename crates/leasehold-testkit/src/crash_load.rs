//! A load of client processes that are killed and restarted while their wall clocks move, and an
//! observer that samples the store.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Lease, Locks, Result};

use super::child::ChildTest;
use super::clock_shim::WallClock;
use super::history::{Journal, Killed, Life, Part, stamp};
use super::worker::Worker;
use super::{Dice, ms};

const STUCK_AFTER: Duration = Duration::from_secs(900);

pub struct Plan {
    pub worker: ChildTest,
    /// A worker's role, to which its label and its seed are added.
    pub role: String,
    pub processes: u64,
    /// The greatest offset of a wall clock in seconds, either way.
    pub moved_s: u64,
    /// The shortest and the longest life; a slot's first process lives at most twice the shortest.
    pub lives_ms: (u64, u64),
    /// The load ends, and all processes are killed, after this many grants and after `lasts`.
    pub grants: u64,
    pub lasts: Duration,
}

impl Plan {
    /// Runs the load. Returns the lives in the order of their kills.
    pub fn carry_out(&self, home: &Path) -> Vec<Life> {
        fs::create_dir(home.join("journals")).unwrap();
        fs::write(count_in(home), "").unwrap();
        let (is_over, lives) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for slot in 0..self.processes {
                let (is_over, lives) = (&is_over, &lives);
                scope.spawn(move || self.come_and_go(home, slot, is_over, lives));
            }
            let since = Instant::now();
            while grants_in(home) < self.grants || since.elapsed() < self.lasts {
                if lives.is_poisoned() || since.elapsed() > STUCK_AFTER {
                    break;
                }
                std::thread::sleep(ms(5));
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert!(grants_in(home) >= self.grants, "stuck at {} grants", grants_in(home));
        let mut lives = lives.into_inner().unwrap();
        lives.sort_by_key(|life: &Life| life.killed.map(|killed| killed.boot_ns));
        lives
    }

    fn come_and_go(&self, home: &Path, slot: u64, is_over: &AtomicBool, lives: &Mutex<Vec<Life>>) {
        let mut dice = Dice(slot);
        for number in 0.. {
            let label = format!("w{slot}.{number}");
            let clock = WallClock::new();
            let move_clock = |dice: &mut Dice| {
                clock.set(dice.below(2 * self.moved_s + 1) as i64 - self.moved_s as i64);
            };
            move_clock(&mut dice);
            let role = format!("{} {label} {}", self.role, slot * 1_000_000 + number * 1_000);
            let worker = Worker::start_under(&clock, self.worker, &role, home);
            let (shortest, longest) = self.lives_ms;
            let longest = if number == 0 { 2 * shortest } else { longest };
            let dies = Instant::now() + ms(shortest + dice.below(longest - shortest));
            while Instant::now() < dies && !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(ms(5 + dice.below(20)));
                move_clock(&mut dice);
            }
            let journal = journal_in(home, &label);
            let mut lives = lives.lock().unwrap();
            // Before the kill, so that the process believed in every counted lease.
            lives.push(Life { label, journal, killed: Some(Killed::now()) });
            worker.kill_alive();
            if is_over.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

fn journal_in(home: &Path, label: &str) -> PathBuf {
    home.join("journals").join(label)
}

fn count_in(home: &Path) -> PathBuf {
    home.join("count")
}

fn grants_in(home: &Path) -> u64 {
    fs::metadata(count_in(home)).unwrap().len()
}

/// The state that the clients of a worker share.
pub struct Post {
    pub home: PathBuf,
    pub label: String,
    pub seed: u64,
    pub journal: Journal,
    count: fs::File,
}

impl Post {
    /// From now on a panic in any thread aborts the process, which the load notices.
    pub fn new(home: &Path, label: &str, seed: &str) -> Self {
        let says = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            says(info);
            std::process::abort();
        }));
        let count = fs::OpenOptions::new().append(true).open(count_in(home)).unwrap();
        Post {
            home: home.to_owned(),
            label: label.to_owned(),
            seed: seed.parse().unwrap(),
            journal: Journal::new(&journal_in(home, label)),
            count,
        }
    }

    /// Connects a client, again if the store is too busy.
    pub async fn connect(&self, url: &str) -> Locks {
        loop {
            match leasehold::connect(url).await {
                Ok(locks) => return locks,
                Err(error) => self.journal.failed(error),
            }
        }
    }

    pub fn url(&self) -> String {
        fs::read_to_string(self.home.join("url")).unwrap()
    }

    /// Connects clients, each with its own dice. On a file store, four share a connection; each
    /// still waits in the queue on its own.
    pub async fn clients(&self, count: u64) -> Vec<(Locks, Dice)> {
        let url = self.url();
        let shared_by = if url.starts_with("file:") { 4 } else { 1 };
        let mut clients: Vec<(Locks, Dice)> = Vec::new();
        for client in 0..count {
            let locks = match clients.last() {
                Some((locks, _)) if client % shared_by > 0 => locks.clone(),
                _ => self.connect(&url).await,
            };
            clients.push((locks, Dice(self.seed + client)));
        }
        clients
    }

    /// Records the outcome of a request. Keeps a granted lease for a random time or none, then
    /// releases it, or drops it in one of ten cases.
    pub async fn keep(
        &self,
        part: Part,
        answer: Result<Option<Lease>>,
        dice: &mut Dice,
        keep_for: impl FnOnce(u64) -> Option<Duration>,
    ) {
        let lease = match answer {
            Ok(Some(lease)) => lease,
            Ok(None) => return,
            Err(error) => {
                self.journal.failed(error);
                return tokio::time::sleep(ms(10)).await;
            }
        };
        let key = self.journal.begin(part, lease.remaining());
        self.count();
        match keep_for(dice.below(2_000)) {
            Some(time) => tokio::time::sleep(time).await,
            None => tokio::task::yield_now().await,
        }
        let now = stamp();
        // After a loss, the end noted by `begin` counts.
        if lease.is_valid() {
            self.journal.end(key, now);
        }
        match dice.below(10) {
            0 => drop(lease),
            _ => drop(lease.release().await),
        }
    }

    pub fn count(&self) {
        (&self.count).write_all(b"+").unwrap();
    }
}

#[derive(Debug, Default)]
pub struct Seen {
    pub samples: u64,
    pub permits_most: u32,
    /// The last time at which each label was seen to hold permits.
    last: HashMap<String, u64>,
}

impl Seen {
    /// Samples the permits of each label until `is_over`.
    pub fn watch(is_over: &AtomicBool, mut look: impl FnMut() -> Vec<(String, u32)>) -> Self {
        let mut seen = Seen::default();
        while !is_over.load(Ordering::SeqCst) {
            let at = stamp();
            let holders = look();
            seen.samples += 1;
            seen.permits_most = seen.permits_most.max(holders.iter().map(|(_, take)| take).sum());
            seen.last.extend(holders.into_iter().map(|(label, _)| (label, at)));
            std::thread::sleep(Duration::from_micros(200));
        }
        seen
    }

    /// Returns the longest time that a killed process still held permits, and the number of such
    /// processes.
    pub fn dead_for(&self, lives: &[Life]) -> (Duration, usize) {
        let late = lives.iter().filter_map(|life| {
            let last = self.last.get(&life.label)?;
            last.checked_sub(life.killed?.boot_ns).map(Duration::from_nanos)
        });
        let late: Vec<Duration> = late.collect();
        (late.iter().max().copied().unwrap_or_default(), late.len())
    }
}

pub fn label_of(token: &str) -> String {
    let label = token.split_once('@').map_or("", |(_, label)| label);
    label.split('#').next().unwrap().to_owned()
}

//! The leases that clients of several processes believed in, written to journals and judged
//! afterwards, on the machine's clock, which is the same in every process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds on CLOCK_BOOTTIME.
pub fn stamp() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    All,
    Reader,
    Permits(u32),
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Begin { key: u64, from: u64, until: u64, part: Part },
    End { key: u64, until: u64 },
    Failed { why: String },
}

#[derive(Debug, Default, Clone, Copy)]
pub struct Sum {
    pub all: u32,
    pub readers: u32,
    pub permits: u32,
}

impl Sum {
    pub fn add(&mut self, part: Part) {
        match part {
            Part::All => self.all += 1,
            Part::Reader => self.readers += 1,
            Part::Permits(take) => self.permits += take,
        }
    }

    fn remove(&mut self, part: Part) {
        match part {
            Part::All => self.all -= 1,
            Part::Reader => self.readers -= 1,
            Part::Permits(take) => self.permits -= take,
        }
    }

    /// Returns true if these holders may share the name.
    pub fn fits(self, limit: u32) -> bool {
        let kinds = [self.all, self.readers, self.permits].iter().filter(|count| **count > 0).count();
        kinds <= 1 && self.all <= 1 && self.permits <= limit
    }
}

/// The journal of one process. Each line is one write, so that a kill loses no earlier line.
pub struct Journal {
    file: fs::File,
    lines: AtomicU64,
}

impl Journal {
    pub fn new(path: &Path) -> Self {
        let file = fs::OpenOptions::new().append(true).create_new(true).open(path).unwrap();
        Journal { file, lines: AtomicU64::new(0) }
    }

    fn write(&self, line: &Line) {
        let line = serde_json::to_string(line).unwrap();
        (&self.file).write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Notes a lease from now on, for `remaining` unless [`end`](Self::end) gets the returned key.
    pub fn begin(&self, part: Part, remaining: Duration) -> u64 {
        let (key, from) = (self.lines.fetch_add(1, Ordering::Relaxed), stamp());
        let until = from.saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
        self.write(&Line::Begin { key, from, until, part });
        key
    }

    /// Notes the end of a lease. Call it before the request that ends the lease.
    pub fn end(&self, key: u64, was_held_until: u64) {
        self.write(&Line::End { key, until: was_held_until });
    }

    pub fn failed(&self, why: impl std::fmt::Display) {
        self.write(&Line::Failed { why: why.to_string() });
    }
}

#[derive(Debug)]
pub struct Life {
    /// The owner label in the tokens of this process.
    pub label: String,
    pub journal: PathBuf,
    pub killed: Option<Killed>,
}

/// A time just before the kill, on two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Killed {
    pub boot_ns: u64,
    pub wall_us: u64,
}

impl Killed {
    pub fn now() -> Self {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Killed { boot_ns: stamp(), wall_us: wall.as_micros() as u64 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Held {
    part: Part,
    from: u64,
    until: u64,
}

#[derive(Debug, Default)]
pub struct History {
    held: Vec<Held>,
    pub failed: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Judged {
    pub grants: usize,
    /// Grants that do not fit beside the other holders.
    pub too_many: usize,
    pub permits_most: u32,
    pub readers_most: u32,
}

impl History {
    pub fn read(lives: &[Life]) -> Self {
        let mut history = History::default();
        lives.iter().for_each(|life| history.add(life));
        history
    }

    fn add(&mut self, life: &Life) {
        let text = fs::read_to_string(&life.journal).unwrap_or_default();
        let mut held = std::collections::BTreeMap::new();
        // The kill may have truncated the last line.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match serde_json::from_str(line).unwrap() {
                Line::Begin { key, from, until, part } => {
                    let ended = life.killed.map_or(u64::MAX, |killed| killed.boot_ns);
                    held.insert(key, Held { part, from, until: until.min(ended) });
                }
                // Later than the first end after a renewal, earlier after a release.
                Line::End { key, until } => held.get_mut(&key).unwrap().until = until,
                Line::Failed { why } => self.failed.push(why),
            }
        }
        self.held.extend(held.into_values());
    }

    pub fn judged(&self, limit: u32) -> Judged {
        let mut judged = Judged { grants: self.held.len(), ..Judged::default() };
        let mut moments: Vec<(u64, bool, Part)> = Vec::new();
        for held in self.held.iter().filter(|held| held.from < held.until) {
            moments.push((held.from, true, held.part));
            moments.push((held.until, false, held.part));
        }
        // At equal times, ends come first.
        moments.sort_by_key(|(at, begins, _)| (*at, *begins));
        let mut now = Sum::default();
        for (_, begins, part) in moments {
            if !begins {
                now.remove(part);
                continue;
            }
            now.add(part);
            judged.too_many += usize::from(!now.fits(limit));
            judged.permits_most = judged.permits_most.max(now.permits);
            judged.readers_most = judged.readers_most.max(now.readers);
        }
        judged
    }
}

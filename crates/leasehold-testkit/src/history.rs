//! What clients of several processes believed, written down as it happened and judged afterwards: when each of them held
//! what, on the machine's clock, which is the same in every process.

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

/// The part of a name that one holder has.
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

/// The sum of the parts of all holders of a name.
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

    /// Returns true if they may hold the name together, with so many permits.
    pub fn fits(self, limit: u32) -> bool {
        let kinds = [self.all, self.readers, self.permits].iter().filter(|count| **count > 0).count();
        kinds <= 1 && self.all <= 1 && self.permits <= limit
    }
}

/// The beliefs of the clients of one process. Each line is one write, so that what was written before a kill is whole, and
/// there.
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

    /// Notes that it is held from now on, for this time unless an end is noted. Returns the key for that.
    pub fn begin(&self, part: Part, remaining: Duration) -> u64 {
        let (key, from) = (self.lines.fetch_add(1, Ordering::Relaxed), stamp());
        let until = from.saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
        self.write(&Line::Begin { key, from, until, part });
        key
    }

    /// Notes that it was held until this moment. To be called before the request that ends it.
    pub fn end(&self, key: u64, was_held_until: u64) {
        self.write(&Line::End { key, until: was_held_until });
    }

    /// Notes a request without an answer.
    pub fn failed(&self, why: impl std::fmt::Display) {
        self.write(&Line::Failed { why: why.to_string() });
    }
}

/// A process, with its journal and the moment of its kill.
#[derive(Debug)]
pub struct Life {
    /// Whose tokens are its own: it stands in them.
    pub label: String,
    pub journal: PathBuf,
    pub killed: Option<Killed>,
}

/// A moment before the kill, on two clocks.
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
    /// Of those, how many began beside others with whom they do not fit.
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
        // A line may have been cut off by the kill.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match serde_json::from_str(line).unwrap() {
                Line::Begin { key, from, until, part } => {
                    let ended = life.killed.map_or(u64::MAX, |killed| killed.boot_ns);
                    held.insert(key, Held { part, from, until: until.min(ended) });
                }
                // Later than was known at first, where it was renewed; earlier, where it was let go.
                Line::End { key, until } => held.get_mut(&key).unwrap().until = until,
                Line::Failed { why } => self.failed.push(why),
            }
        }
        self.held.extend(held.into_values());
    }

    /// Goes through them in the order of time.
    pub fn judged(&self, limit: u32) -> Judged {
        let mut judged = Judged { grants: self.held.len(), ..Judged::default() };
        let mut moments: Vec<(u64, bool, Part)> = Vec::new();
        for held in self.held.iter().filter(|held| held.from < held.until) {
            moments.push((held.from, true, held.part));
            moments.push((held.until, false, held.part));
        }
        // At one moment, ends come first.
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

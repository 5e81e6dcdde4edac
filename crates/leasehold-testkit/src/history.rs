//! What clients of several processes believed, written down as it happened and judged afterwards: when each of them held
//! what, on the machine's clock, which is the same in every process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Lease;

/// Nanoseconds on CLOCK_BOOTTIME.
pub fn stamp() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What somebody holds of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    Reader,
    Permits(u32),
}

impl Part {
    fn text(self) -> String {
        match self {
            Part::All => "all".to_owned(),
            Part::Reader => "reader".to_owned(),
            Part::Permits(take) => take.to_string(),
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "all" => Part::All,
            "reader" => Part::Reader,
            take => Part::Permits(take.parse().unwrap()),
        }
    }
}

/// What the holders of a name have between them.
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

    /// Whether they may hold it together, where there are so many permits.
    pub fn fits(self, limit: u32) -> bool {
        let kinds = [self.all, self.readers, self.permits].iter().filter(|count| **count > 0).count();
        kinds <= 1 && self.all <= 1 && self.permits <= limit
    }
}

/// What the clients of one process believe. Each line is one write, so that what was written before a kill is whole, and
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

    fn write(&self, line: String) {
        (&self.file).write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// It is held from now on, and for so long if nothing else is heard of it. What it returns stands for this belief.
    pub fn begin(&self, part: Part, remaining: Duration) -> u64 {
        let (key, now) = (self.lines.fetch_add(1, Ordering::Relaxed), stamp());
        let until = now.saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
        self.write(format!("begin {key} {now} {until} {}", part.text()));
        key
    }

    /// The same of a lease, which says how long it may be believed in.
    pub fn begin_lease(&self, part: Part, lease: &Lease) -> u64 {
        self.begin(part, lease.remaining())
    }

    /// It was held until now. To be called before what ends it is asked for.
    pub fn end(&self, key: u64, was_held_until: u64) {
        self.write(format!("end {key} {was_held_until}"));
    }

    /// The same of a lease; of one that was lost meanwhile, what was known at first is what counts.
    pub fn end_lease(&self, key: u64, lease: &Lease) {
        let now = stamp();
        if lease.is_valid() {
            self.end(key, now);
        }
    }

    /// Something was asked for, and there was no answer.
    pub fn failed(&self, why: impl std::fmt::Display) {
        self.write(format!("failed {why}"));
    }
}

/// One process: what it wrote down, and when it was killed.
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

/// What all of them believed.
#[derive(Debug, Default)]
pub struct History {
    held: Vec<Held>,
    pub failed: Vec<String>,
}

/// What came out.
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
            let words: Vec<&str> = line.split(' ').collect();
            let number = |i: usize| words[i].parse::<u64>().unwrap();
            match words[0] {
                "begin" => {
                    let ended = life.killed.map_or(u64::MAX, |killed| killed.boot_ns);
                    let (from, until) = (number(2), number(3).min(ended));
                    held.insert(number(1), Held { part: Part::parse(words[4]), from, until });
                }
                // Later than was known at first, where it was renewed; earlier, where it was let go.
                "end" => held.get_mut(&number(1)).unwrap().until = number(2),
                "failed" => self.failed.push(line.to_owned()),
                other => panic!("{other}"),
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

//! `leasehold run` with commands that fork: all their processes are dead before the lease's deadline.
//!
//! The command is `forker.c`, which bounds how often and how long it forks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::terminal::Terminal;
use crate::common::{Home, until};

/// As in `forker.c`.
const MAX_FORKS: i64 = 300_000;

fn forker() -> &'static Path {
    static FORKER: OnceLock<PathBuf> = OnceLock::new();
    FORKER.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forker_{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/forker.c");
        assert!(Command::new("cc").args(["-O1", "-o"]).arg(&path).arg(source).status().unwrap().success());
        path
    })
}

/// A copy of the program for one test, so that its processes can be told from those of another, and its counter.
struct Forker {
    program: String,
    counter: PathBuf,
}

impl Forker {
    fn new(home: &Home) -> Self {
        let program = home.path().join("forker");
        std::fs::copy(forker(), &program).unwrap();
        Forker { program: program.display().to_string(), counter: home.path().join("counter") }
    }

    fn forks(&self) -> i64 {
        let bytes = std::fs::read(&self.counter).unwrap();
        i64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }

    /// How many of its processes run. (A zombie has no program.)
    fn living(&self) -> usize {
        let runs = |entry: &std::fs::DirEntry| {
            std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == Path::new(&self.program))
        };
        std::fs::read_dir("/proc").unwrap().flatten().filter(runs).count()
    }

    /// Waits until none runs and none has forked meanwhile. Returns a time at which that was so.
    fn all_dead(&self) -> Instant {
        until(
            || {
                let forks = self.forks();
                self.living() == 0 && self.forks() == forks
            },
            "all processes to be dead",
        );
        Instant::now()
    }
}

/// Runs `forker KIND COUNT` under a lease that cannot be renewed. All its processes are dead before the lease's deadline.
fn all_are_dead_before_the_deadline(kind: &str, count: &str, ttl_s: u64, kill_after: &str) {
    let home = Home::in_memory();
    let forker = Forker::new(&home);
    let ttl = format!("{ttl_s}s");
    let counter = forker.counter.display().to_string();
    let args = ["run", "--ttl", &ttl, "-k", kill_after, "x", "--", &forker.program, kind, count, &counter];
    let mut running = home.start(args);
    assert_eq!(running.line(), "ready");
    // Right after a renewal, so that the deadline that was read is the last one.
    let mut deadline = Instant::now();
    until(
        || {
            deadline = home.deadline("x");
            deadline.saturating_duration_since(Instant::now()) > Duration::from_secs(ttl_s).mul_f64(0.85)
        },
        "a renewal",
    );
    // No other process gets through to the store from now on.
    let gate = File::options().write(true).open(home.store().join("gate")).unwrap();
    gate.lock().unwrap();
    let dead = forker.all_dead();
    println!("{kind} {count}: all dead {:?} before the deadline", deadline.saturating_duration_since(dead));
    assert!(dead < deadline, "{:?} after the deadline", dead - deadline);
    let (code, _, told) = running.end();
    drop(gate);
    assert_eq!(code, 79, "{told}");
    assert!(!told.contains("could not be ended"), "{told}");
    assert!(forker.forks() < MAX_FORKS, "the test's own limit did not end it");
    assert_eq!(forker.living(), 0, "nothing comes back");
}

#[test]
fn chains_of_forks_are_ended_before_the_deadline() {
    all_are_dead_before_the_deadline("chains", "20", 12, "2s");
}

#[test]
fn five_thousand_processes_are_ended_before_the_deadline() {
    all_are_dead_before_the_deadline("crowd", "5000", 12, "0");
}

#[test]
fn a_deep_tree_of_processes_is_ended_before_the_deadline() {
    all_are_dead_before_the_deadline("deep", "200", 12, "2s");
}

#[test]
fn chains_of_forks_in_the_foreground_are_ended() {
    let home = Home::in_memory();
    let forker = Forker::new(&home);
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run --max-runtime 1s -k 0 x -- ./forker chains 20 counter; echo code $?.");
    terminal.see("ready");
    terminal.see("code 124.");
    assert_eq!(forker.living(), 0);
    assert!((20..MAX_FORKS).contains(&forker.forks()));
}

//! `leasehold elect`: a command on exactly one of several processes, and on the next when that one dies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::roles::program;
use crate::common::{Home, Running, lives, scaled, until};
use leasehold_lab::{Kind, Server};
use rustix::process::Signal;

/// What a leader has written: its term, its own number, and that of its leasehold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    fence: u64,
    pid: i32,
    leasehold: u32,
}

fn parsed(line: &str) -> Option<Term> {
    let mut words = line.split(' ');
    let term = Term {
        fence: words.next()?.parse().ok()?,
        pid: words.next()?.parse().ok()?,
        leasehold: words.next()?.parse().ok()?,
    };
    Some(term)
}

/// The last line, if it is whole.
fn newest(home: &Home) -> Option<Term> {
    let mut file = std::fs::File::open(home.path().join("terms")).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(200))).ok()?;
    let mut tail = String::new();
    file.read_to_string(&mut tail).ok()?;
    let (whole, _) = tail.rsplit_once('\n')?;
    whole.lines().last().and_then(parsed)
}

/// All that leaders ever wrote, in the order in which it was written: no term is two leaders', and nobody writes after somebody
/// with a higher term. Gives how many terms there were, and how many of them broke the second.
fn terms(home: &Home) -> (usize, usize) {
    let (mut leaders, mut late) = (BTreeMap::new(), BTreeSet::new());
    let mut highest = 0;
    for line in home.read("terms").lines() {
        let term = parsed(line).unwrap();
        assert_eq!(*leaders.entry(term.fence).or_insert(term), term, "two leaders in one term");
        highest = highest.max(term.fence);
        if term.fence < highest {
            late.insert(term.fence);
        }
    }
    (leaders.len(), late.len())
}

/// Counts how often this machine stood still for so long that a leader may not have been ended in time: nobody can do
/// anything about that but what checks the fence.
struct Stalls {
    seen: Arc<AtomicUsize>,
}

impl Stalls {
    fn watch() -> Self {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::downgrade(&seen);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(seen) = counted.upgrade() {
                std::thread::sleep(Duration::from_millis(5));
                if last.elapsed() > Duration::from_millis(250) {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                last = Instant::now();
            }
        });
        Stalls { seen }
    }

    fn count(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

fn candidate(home: &Home, store: &str, leads: &str) -> Running {
    let args = ["elect", "-q", "--ttl", "1200ms", "-k", "50ms", "--store", store, "office", "--", leads];
    home.start(args)
}

/// Three candidates; the leader's leasehold is killed without a warning, again and again, and another takes its place. Gives
/// how long it took until the next one led: half of the times, and the longest.
fn killed_again_and_again(home: &Home, store: &str, kills: u64) -> (Duration, Duration) {
    let leads = program(home, "leads");
    let stalls = Stalls::watch();
    let mut candidates: Vec<Running> = (0..3).map(|_| candidate(home, store, &leads)).collect();
    until(|| newest(home).is_some(), "the first leader");
    let mut times = Vec::new();
    while times.len() < kills as usize {
        let leader = newest(home).unwrap();
        let at = candidates.iter().position(|candidate| candidate.child.id() == leader.leasehold);
        let at = at.unwrap_or_else(|| panic!("{leader:?} is none of the candidates"));
        let killed = Instant::now();
        candidates[at].child.kill().unwrap();
        candidates[at].child.wait().unwrap();
        until(|| newest(home).is_some_and(|term| term.fence > leader.fence), "the next leader");
        times.push(killed.elapsed());
        assert!(!lives(leader.pid), "the command has outlived its leasehold");
        candidates[at] = candidate(home, store, &leads);
    }
    drop(candidates);
    let (terms, late) = terms(home);
    assert!(terms as u64 > kills, "{terms} terms");
    let stalls = stalls.count();
    println!(
        "{terms} terms, {late} of which went on beside a later one; the machine stood still {stalls} times"
    );
    assert!(
        late <= stalls,
        "{late} terms went on beside a later one; the machine stood still {stalls} times"
    );
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

#[test]
fn a_leader_that_is_killed_is_replaced_at_once_on_the_file_store() {
    let home = Home::in_memory();
    let store = format!("file:{}", home.path().join("store").display());
    let (half, longest) = killed_again_and_again(&home, &store, scaled(100));
    println!("file: the next one led after {half:?} (median), {longest:?} (longest)");
}

#[test]
fn a_leader_that_is_killed_is_replaced_within_its_ttl_on_a_server() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    let (half, longest) = killed_again_and_again(&home, &server.url(), scaled(100));
    println!("redis: the next one led after {half:?} (median), {longest:?} (longest); the TTL is 1.2 s");
}

#[test]
fn a_command_that_ends_is_started_again_after_a_pause_and_a_signal_ends_it_all() {
    let home = Home::in_memory();
    let mut elect = home.start(["elect", "x", "--", "sh", "-c", "echo $LEASEHOLD_FENCE; exit 3"]);
    let first: u64 = elect.line().parse().unwrap();
    let ended = Instant::now();
    let second: u64 = elect.line().parse().unwrap();
    assert!(second > first, "{second} after {first}");
    assert!(ended.elapsed() >= Duration::from_millis(900), "{:?}", ended.elapsed());
    // It has resigned, and pauses.
    until(|| home.run("inspect x").0 == 0, "it to resign");
    elect.signal(Signal::TERM);
    let (code, _, said) = elect.end();
    assert_eq!(code, 143, "{said}");
    assert!(said.contains("`sh` ended with exit code 3. Campaigning for `x` again in 1.0 s"), "{said}");
    assert_eq!(home.run("inspect x").0, 0, "nobody leads");
}

#[test]
fn a_signal_goes_to_the_command_and_ends_the_campaign() {
    let home = Home::in_memory();
    let mut elect = home.start([
        "elect",
        "x",
        "--",
        "sh",
        "-c",
        // A shell says that its child was terminated, which is its own affair.
        "exec 2>/dev/null; trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done",
    ]);
    assert_eq!(elect.line(), "ready");
    elect.signal(Signal::TERM);
    let (code, out, said) = elect.end();
    assert_eq!((code, out.as_str(), said.as_str()), (5, "", ""));
    // Also while it waits for its turn.
    let mut leader = home.start(["elect", "x", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(leader.line(), "ready");
    let next = home.start(["elect", "x", "--", "echo", "never"]);
    until(|| home.run("inspect x").1.contains("1. in line"), "the second candidate");
    next.signal(Signal::INT);
    let (code, out, _) = next.end();
    assert_eq!((code, out.as_str()), (130, ""));
}

#[test]
fn whoever_is_deposed_stops_its_command_and_campaigns_again() {
    let home = Home::in_memory();
    let mut elect = home.start(["elect", "--ttl", "3s", "x", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let first = elect.pid();
    assert_eq!(home.run("evict --yes x").0, 0);
    let second = elect.pid();
    assert!(second != first && !lives(first) && lives(second));
    elect.signal(Signal::TERM);
    let (code, _, said) = elect.end();
    assert_eq!(code, 143, "{said}");
    assert!(said.contains("the lease was lost. Campaigning for `x` again in "), "{said}");
}

#[test]
fn once_and_what_cannot_be_run_end_it() {
    let home = Home::in_memory();
    for (line, code, told) in [
        ("elect --once x -- sh -c true", 0, ""),
        ("elect --once x -- false", 1, ""),
        ("elect x -- no_such_program", 127, "cannot run `no_such_program`"),
        ("elect x -- /", 126, "cannot run `/`"),
        ("elect x", 64, "COMMAND"),
        ("elect --ttl 1s x -- true", 64, "use 2s or more"),
        ("elect --store file:/proc/x x -- true", 69, "/proc/x"),
    ] {
        let (ended, out, said) = home.run(line);
        assert_eq!((ended, out.as_str()), (code, ""), "{line}: {said}");
        assert!(said.contains(told), "{line}: {said}");
    }
}

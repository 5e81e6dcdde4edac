//! `redlock:` while nodes are killed, stopped, started anew and cut off: no two leases are valid at once, fences are all different and
//! rise, and nothing is left behind. While clocks are set: fences are all different and rise, and whoever is late is refused by
//! what it writes to.

use leasehold_testkit as common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::child_test;
use common::quorum_nodes::{QuorumNodes, as_child, is_child, set_clock};
use common::{Dice, ms, scaled, secs};
use leasehold::{Lease, Locks};
use leasehold_lab::{Reply, Server};

const CLIENTS: u64 = 32;
const NAMES: u64 = 48;
const TTL: Duration = Duration::from_secs(1);

/// A node that forgot has no vote for 1.8 s.
const PARAMETERS: &str = "max_ttl=1000&skew=400&timeout=150&retry_delay=40&retry_count=5";
const QUARANTINE: Duration = Duration::from_millis(1_800);

/// Clocks are set by up to 4 s, and may be 5 s apart. Nobody forgets anything.
const WITH_CLOCKS: &str = "max_ttl=1000&skew=5000&quarantine=off&timeout=150&retry_delay=40&retry_count=5";

/// Below full scale it ends after this long, however little a busy machine got done: with enough faults, and some thousand leases.
const SHORT: Duration = Duration::from_secs(60);
const SHORT_LEAST: u64 = 500;

/// One lease, by its holder's own clock.
#[derive(Debug, Clone, Copy)]
struct Record {
    asked: Instant,
    granted: Instant,
    /// Until when it was seen to be valid.
    valid: Instant,
    fence: u64,
}

/// What all of them did, by name.
#[derive(Default)]
struct History(Mutex<BTreeMap<u64, Vec<Record>>>);

/// What is protected: it refuses a fence below one it has seen.
#[derive(Default)]
struct Resource {
    highest: AtomicU64,
    refused: AtomicU64,
}

impl Resource {
    fn accepts(&self, fence: u64) -> bool {
        let is_good = self.highest.fetch_max(fence, Ordering::SeqCst) <= fence;
        self.refused.fetch_add(u64::from(!is_good), Ordering::SeqCst);
        is_good
    }
}

/// Holds a lease for a while, looking at it; says until when it was valid.
async fn hold(lease: &Lease, resource: &Resource, long: bool, has_clocks: bool) -> Instant {
    let mut valid = Instant::now();
    let until = valid + if long { TTL * 3 / 4 } else { Duration::ZERO };
    loop {
        if !lease.is_valid() {
            return valid;
        }
        let is_accepted = resource.accepts(lease.fence().get());
        valid = Instant::now();
        if !lease.is_valid() {
            return valid;
        }
        if !is_accepted {
            assert!(has_clocks, "a valid lease has a stale fence");
            // It may not do anything any more, and will be told.
            return valid;
        }
        if valid >= until {
            return valid;
        }
        tokio::time::sleep(ms(5)).await;
    }
}

/// What all clients share.
struct Run {
    history: History,
    resources: Vec<Resource>,
    count: AtomicU64,
    has_clocks: bool,
    is_enough: AtomicBool,
    is_over: AtomicBool,
}

async fn client(number: u64, locks: Locks, run: &Run) {
    let mut dice = Dice(number + 1);
    while !run.is_over.load(Ordering::Relaxed) {
        let name = dice.below(NAMES);
        let asked = Instant::now();
        // An error is a definite "not held"; so it is asked for again.
        let Ok(lease) = locks.mutex(format!("chaos-{name}")).ttl(TTL).wait(secs(2)).lock().await else {
            tokio::time::sleep(ms(5 + dice.below(20))).await;
            continue;
        };
        let granted = Instant::now();
        let is_long = dice.below(if run.has_clocks { 20 } else { 400 }) == 0;
        let valid = hold(&lease, &run.resources[name as usize], is_long, run.has_clocks).await;
        let fence = lease.fence().get();
        run.history.0.lock().unwrap().entry(name).or_default().push(Record { asked, granted, valid, fence });
        run.count.fetch_add(1, Ordering::Relaxed);
        // Some are let go in the background.
        if dice.below(8) > 0 {
            let _ = lease.release().await;
        }
    }
    locks.close().await;
}

/// Hurts a node every so often until there was enough of it, and all is over.
fn disturb(fleet: &QuorumNodes, wanted: u64, run: &Run) -> BTreeMap<&'static str, u64> {
    let mut dice = Dice(7);
    let mut faults: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut forgot: VecDeque<Instant> = VecDeque::new();
    while !run.is_over.load(Ordering::Relaxed) {
        std::thread::sleep(ms(20 + dice.below(160)));
        let node = &fleet.nodes[dice.below(5) as usize];
        while forgot.front().is_some_and(|since| since.elapsed() > QUARANTINE + ms(300)) {
            forgot.pop_front();
        }
        // With three out of the vote nobody gets anything, which is right and shows little: mostly one, and two now and then.
        let may_forget = !run.has_clocks && forgot.len() as u64 <= dice.below(8) / 7;
        let what = match dice.below(6) {
            0..=2 if run.has_clocks => "clock",
            0 if may_forget => "kill",
            1 if may_forget => "restart",
            2 if may_forget => "flush",
            3 => "cut",
            _ => "stop",
        };
        match what {
            // One, or so many that a second holder is possible by time.
            "clock" => {
                let (first, count) = (dice.below(5) as usize, if dice.below(2) == 0 { 1 } else { 3 });
                let ahead_s = dice.below(5) as i64 - 2;
                for place in (first..first + count).map(|place| place % 5) {
                    set_clock(&fleet.nodes[place], ahead_s);
                }
            }
            "kill" | "restart" => {
                if what == "kill" {
                    node.kill().unwrap();
                    std::thread::sleep(ms(dice.below(100)));
                }
                node.restart().unwrap();
                forgot.push_back(Instant::now());
            }
            "flush" => {
                node.command(&["FLUSHALL"]).unwrap();
                forgot.push_back(Instant::now());
            }
            "cut" => {
                node.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
                node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
                node.command(&["SCRIPT", "FLUSH"]).unwrap();
            }
            _ => {
                node.pause().unwrap();
                std::thread::sleep(ms(dice.below(250)));
                node.resume().unwrap();
            }
        }
        *faults.entry(what).or_default() += 1;
        if faults.values().sum::<u64>() >= wanted {
            run.is_enough.store(true, Ordering::Relaxed);
        }
    }
    faults
}

/// B9, and whether two were ever valid at once.
fn check(history: &History) -> u64 {
    let mut overlaps = 0;
    for (name, records) in &mut *history.0.lock().unwrap() {
        let fences: BTreeSet<u64> = records.iter().map(|record| record.fence).collect();
        assert_eq!(fences.len(), records.len(), "two grants of {name} share a fence");
        // Whoever asked after another's grant was complete has a higher fence.
        let mut by_grant = records.clone();
        by_grant.sort_by_key(|record| record.granted);
        records.sort_by_key(|record| record.asked);
        let (mut granted, mut highest) = (by_grant.iter().peekable(), 0);
        for record in &*records {
            while let Some(earlier) = granted.next_if(|earlier| earlier.granted <= record.asked) {
                highest = highest.max(earlier.fence);
            }
            assert!(record.fence > highest, "of {name}: {} was granted after {highest}", record.fence);
        }
        for pair in by_grant.windows(2) {
            overlaps += u64::from(pair[1].granted < pair[0].valid);
        }
    }
    overlaps
}

fn left(node: &Server) -> usize {
    match node.command(&["KEYS", "lock:chaos-*"]).unwrap() {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    }
}

fn chaos(parameters: &str, has_clocks: bool, wanted: u64, faults_wanted: u64) {
    let fleet = QuorumNodes::start(5);
    let run = Run {
        history: History::default(),
        resources: (0..NAMES).map(|_| Resource::default()).collect(),
        count: AtomicU64::new(0),
        has_clocks,
        is_enough: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    let is_whole = scaled(10) >= 10;
    let since = Instant::now();
    let faults = std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(&fleet, faults_wanted, &run));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let connected = (0..CLIENTS).map(|number| {
                let (url, run) = (fleet.url(parameters), &run);
                async move {
                    let locks = loop {
                        match leasehold::connect(&url).await {
                            Ok(locks) => break locks,
                            Err(_) => tokio::time::sleep(ms(20)).await,
                        }
                    };
                    client(number, locks, run).await;
                }
            });
            let watch = async {
                let count = || run.count.load(Ordering::Relaxed);
                let is_time = || !is_whole && since.elapsed() > SHORT && count() >= SHORT_LEAST;
                while !run.is_enough.load(Ordering::Relaxed) || count() < wanted && !is_time() {
                    tokio::time::sleep(ms(20)).await;
                }
                run.is_over.store(true, Ordering::Relaxed);
            };
            tokio::join!(futures_util::future::join_all(connected), watch);
        });
        disturbing.join().unwrap()
    });
    let overlaps = check(&run.history);
    let refused: u64 = run.resources.iter().map(|resource| resource.refused.load(Ordering::SeqCst)).sum();
    println!(
        "{} acquisitions by {CLIENTS} clients in {:?}, {faults:?}; {overlaps} overlaps, {refused} stale fences refused",
        run.count.load(Ordering::Relaxed),
        since.elapsed(),
    );
    assert!(has_clocks || overlaps == 0, "two leases were valid at once");
    assert!(
        !has_clocks || !is_whole || refused > 0,
        "no stale fence was ever tried: what refuses them was not put to the test"
    );
    let patience = Instant::now() + TTL + secs(10);
    while fleet.nodes.iter().map(left).sum::<usize>() > 0 {
        assert!(Instant::now() < patience, "something was left behind");
        std::thread::sleep(ms(20));
    }
}

#[test]
fn no_two_are_valid_at_once_and_every_fence_is_above_those_before() {
    chaos(PARAMETERS, false, scaled(200_000), scaled(500));
}

#[cfg(target_os = "linux")]
#[test]
fn by_clocks_that_are_set_every_fence_is_still_above_those_before() {
    if !is_child() {
        return as_child(child_test!(by_clocks_that_are_set_every_fence_is_still_above_those_before));
    }
    chaos(WITH_CLOCKS, true, scaled(20_000), scaled(200));
}

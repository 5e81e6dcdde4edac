//! The conformance suite on `memory:`, bare and behind a bad network with many seeds.

use leasehold_testkit as common;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::scaled;
use leasehold::store::conformance::{self, Promise, Subject};
use leasehold::store::faulty::{Faulty, Plan};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Store};

/// A memory store, each client behind its own bad line to it.
struct Stormy {
    store: Arc<Memory>,
    seed: u64,
    lines: Mutex<Vec<Faulty>>,
}

impl Stormy {
    fn new(seed: u64, clock: Clock) -> Self {
        Stormy { store: Arc::new(Memory::new(clock)), seed, lines: Mutex::default() }
    }

    fn trace(&self) -> Vec<String> {
        self.lines.lock().unwrap().iter().flat_map(Faulty::trace).collect()
    }
}

#[async_trait]
impl Subject for Stormy {
    async fn open(&self) -> Arc<dyn Store> {
        let mut lines = self.lines.lock().unwrap();
        let plan = Plan::stormy(self.seed.wrapping_mul(1_000_003) + lines.len() as u64);
        let line = Faulty::new(self.store.clone(), plan);
        lines.push(line.clone());
        Arc::new(line)
    }
}

struct Bare(Arc<Memory>);

#[async_trait]
impl Subject for Bare {
    async fn open(&self) -> Arc<dyn Store> {
        self.0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn memory_holds_every_promise() {
    let report = conformance::check(&Bare(Arc::new(Memory::new(Clock::tokio())))).await;
    assert!(report.skipped.is_empty(), "memory can do everything: {:?}", report.skipped);
    println!("{} cases hold", report.passed.len());
}

#[test]
fn each_promise_is_named_by_a_case() {
    let named: std::collections::BTreeSet<u8> = conformance::cases().map(|case| case.promise as u8).collect();
    assert_eq!(named, (1..=Promise::SecretsStaySecret as u8).collect());
}

/// Runs the whole suite with this seed on a runtime of its own, and returns the trace.
fn storm(seed: u64) -> Vec<String> {
    let (runtime, clock) = common::leaping_runtime();
    let subject = Stormy::new(seed, clock);
    runtime.block_on(async {
        let report = conformance::check(&subject).await;
        assert!(report.skipped.is_empty());
    });
    subject.trace().iter().map(|line| strip(line)).collect()
}

#[test]
fn memory_behind_a_bad_network_holds_every_promise_for_every_seed() {
    let seeds = scaled(10_000).max(2_000);
    common::in_parallel(seeds, |seed| {
        let outcome = std::panic::catch_unwind(|| storm(seed));
        assert!(outcome.is_ok(), "seed {seed} fails");
    });
    println!("{seeds} seeds, {} cases each", conformance::cases().count());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let seeds = scaled(500).max(50);
    common::in_parallel(seeds, |seed| {
        let (first, second) = (storm(seed), storm(seed));
        assert!(first.len() > 100, "a trace of {} calls", first.len());
        for (n, (a, b)) in first.iter().zip(&second).enumerate() {
            assert_eq!(a, b, "seed {seed}, line {n}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    });
    assert_ne!(storm(1), storm(2));
}

/// Names carry a random part, so that trials on a shared server do not meet.
fn strip(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(':') {
        out.push_str(before);
        let is_random = after.len() >= 13
            && after.as_bytes()[12] == b':'
            && after[..12].bytes().all(|b| b.is_ascii_hexdigit());
        rest = if is_random { &after[13..] } else { after };
        out.push(':');
    }
    out + rest
}

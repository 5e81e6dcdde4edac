//! The Redis store beside the memory store: the same random operations on both, and the same answers. The test knows the
//! [`Store`] trait and nothing else of either: no key, no script.
//!
//! A sequence has some names, three clients and up to 24 claims: exclusive, shared, and permits. After each operation the
//! answers are compared, and for each name who holds it, in the order of the fences, and who waits, in order. A claim that the
//! memory store grants has to be granted by the server within [`PATIENCE`]. That no other claim is granted is what the server
//! says when it is asked for the state of the name.
//!
//! What may differ, and why:
//!
//! - Fences: each store has numbers of its own. Compared are their order at each name, the sizes of blocks, and whether a
//!   repeated request has the fence that it had.
//! - The holder that a busy answer names, of several: the contract has no order for them. It is checked that it is one.
//! - The waiters that a busy answer counts, for a claim of several names: the contract does not say at which of them.
//! - The order of grants at different names: the contract has an order for each name.
//! - Deadlines: the memory store has a clock of its own. Each store is checked by itself, against the TTLs it was asked for.
//! - Several names in one claim: only where both stores can. Such a claim is never barging: which of the names that an operation
//!   frees is served first is up to the store, and a barging claim of one may then pass that of another.
//! - `adopt`: the memory store has nothing that it could adopt.
//!
//! What is left out, and why:
//!
//! - A token that is shown at other names by an acquire: the contract binds a token to what it claimed first.
//! - A request that is dropped and not withdrawn: when it is executed is not known, and a real client withdraws it.
//! - The withdrawal of a claim that waits, and the release of one that has waited, by another client than its own: a request of
//!   its own client may be under way, and would be a new claim. A real client does neither. (`Subject::drain` is for forced
//!   releases, which any client may send.)

mod answer;
mod case;
mod generator;
mod operation;
mod plan;
mod reference;
mod shrink;
mod side;
mod subject;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use leasehold::store::memory::Memory;
use leasehold::store::redis;
use leasehold::{Capabilities, Clock, Store};
use leasehold_lab::{Kind, Server};
use leasehold_testkit::{Dice, scaled};

use case::Case;
use generator::{CLAIMS, Generator, OPERATIONS};
use operation::Operation;
use plan::{CLIENTS, Plan};

/// How long an answer may take that has to come: a busy machine takes seconds for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a claim waits that waits briefly.
const BRIEF: Duration = Duration::from_millis(3);

/// How many sequences are under way at the same time, so that the requests of a client go to the server together.
const AT_ONCE: usize = 48;

/// The environment variable with the seed of a sequence to run alone, with its trace.
const SEED: &str = "LEASEHOLD_ORACLE_SEED";

/// A sequence that failed.
struct Failure {
    seed: u64,
    plan: Plan,
    operations: Vec<Operation>,
    trace: String,
}

/// Three clients of a server, and what both stores can do.
struct Bench {
    clients: Vec<Arc<dyn Store>>,
    can: Capabilities,
    /// How many operations have been compared.
    compared: AtomicU64,
}

impl Bench {
    async fn new(server: &Server) -> Bench {
        // A request may take long on a busy machine: that is not what fails this test.
        let url = format!("{}?timeout=60000", server.url());
        let clients = join_all((0..CLIENTS).map(|_| redis::open(&url))).await;
        let clients: Vec<Arc<dyn Store>> = clients.into_iter().map(Result::unwrap).collect();
        let mut can = clients[0].capabilities();
        let reference = Memory::new(Clock::manual()).capabilities();
        can.several_names &= reference.several_names;
        can.fence_blocks &= reference.fence_blocks;
        can.conversions &= reference.conversions;
        can.permits &= reference.permits;
        can.shared &= reference.shared;
        can.fair &= reference.fair;
        Bench { clients, can, compared: AtomicU64::new(0) }
    }

    /// One sequence, and its trace.
    async fn play(&self, seed: u64) -> Result<String, Failure> {
        let mut dice = Dice(seed);
        let plan = Plan::new(&mut dice, &self.can, CLAIMS);
        let mut case = Case::new(&plan, &format!("{seed}:"), &self.clients, PATIENCE);
        let mut generator = Generator { dice, can: &self.can };
        let mut operations = Vec::new();
        let failure = |operations, trace| Failure { seed, plan: plan.clone(), operations, trace };
        for number in 0..OPERATIONS {
            let operation = generator.next(number, &case);
            operations.push(operation.clone());
            if case.step(&operation).await.is_err() {
                return Err(failure(operations, case.trace()));
            }
            self.compared.fetch_add(1, Ordering::Relaxed);
        }
        match case.finish().await {
            Ok(()) => Ok(case.trace()),
            Err(left) => Err(failure(operations, format!("{}\n{left}", case.trace()))),
        }
    }

    async fn fail(&self, kind: Kind, failure: Failure) -> ! {
        let Failure { seed, plan, operations, trace } = failure;
        let prefix = format!("{seed}:shrunk:");
        let shrunk = shrink::shrunk(&plan, &operations, &prefix, &self.clients).await;
        let count = operations.len();
        match shrunk {
            Some(shrunk) => panic!("{kind:?}, {SEED}={seed}, {count} operations. Shortest:\n{shrunk}"),
            None => panic!("{kind:?}, {SEED}={seed}, {count} operations. Does not fail again:\n{trace}"),
        }
    }
}

/// Plays so many operations on a server.
async fn agrees(kind: Kind, operations: u64, first_seed: u64) {
    let server = Server::start(kind).unwrap();
    let bench = Bench::new(&server).await;
    let since = Instant::now();
    if let Ok(seed) = std::env::var(SEED) {
        match bench.play(seed.parse().unwrap()).await {
            Ok(trace) => return println!("{trace}"),
            Err(failure) => bench.fail(kind, failure).await,
        }
    }
    let sequences = operations.div_ceil(OPERATIONS as u64);
    let seeds = stream::iter(first_seed..first_seed + sequences);
    let mut played = seeds.map(|seed| bench.play(seed)).buffer_unordered(AT_ONCE);
    let compared = || bench.compared.load(Ordering::Relaxed);
    while let Some(outcome) = played.next().await {
        if let Err(failure) = outcome {
            drop(played);
            println!("{kind:?}: {} operations before the first difference", compared());
            bench.fail(kind, failure).await;
        }
    }
    let (operations, elapsed) = (compared(), since.elapsed());
    println!(
        "{kind:?}: {sequences} sequences, {operations} operations in {elapsed:.1?}, {:.0} a second",
        operations as f64 / elapsed.as_secs_f64()
    );
}

/// How many operations each server has: half of 1,000,000 at full scale, a fiftieth of that elsewhere.
fn operations() -> u64 {
    if scaled(1_000) < 1_000 { 10_000 } else { scaled(500_000) }
}

#[tokio::test]
async fn redis_grants_the_same_claims_in_the_same_order_as_the_memory_store() {
    agrees(Kind::Redis, operations(), 0).await;
}

#[tokio::test]
async fn valkey_grants_the_same_claims_in_the_same_order_as_the_memory_store() {
    agrees(Kind::Valkey, operations(), 1 << 32).await;
}

//! Clients that lock, wait, give up, extend, drop, release and evict at random over a bad network, for many seeds; and
//! a judge that sees every lease: no two valid at once, no fence that does not rise, nothing left at the end.

use leasehold_testkit as common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Dice, client, in_parallel, leaping_runtime, ms, scaled, secs, sleep, within};
use leasehold::store::faulty::{Faulty, Plan};
use leasehold::store::memory::Memory;
use leasehold::{Clock, Error, Lease, Locks, Proof, Store};

/// Sees every lease from the moment it is handed out.
#[derive(Default)]
struct Judge {
    in_use: Mutex<Vec<Proof>>,
    /// An operator takes the name from its holders now and then. They hear of it a renewal later, so two may be
    /// valid at once; everything else holds.
    evicts: bool,
    written: Mutex<u64>,
    leases: Mutex<u64>,
    lost: Mutex<u64>,
}

impl Judge {
    /// A lease begins: nobody else's may be valid.
    fn begin(&self, lease: &Lease) {
        *self.leases.lock().unwrap() += 1;
        let mut in_use = self.in_use.lock().unwrap();
        for other in in_use.iter() {
            // No await in between, and time stands still: both looks are at the same instant.
            assert!(
                self.evicts || !(other.is_valid() && lease.is_valid()),
                "{other:?} and {lease:?} are both valid"
            );
        }
        in_use.retain(Proof::is_valid);
        in_use.push(lease.proof());
    }

    /// The protected resource: it takes a write only with a fence that is not below one it has seen.
    fn write(&self, lease: &Lease) {
        let mut written = self.written.lock().unwrap();
        let fence = lease.fence().get();
        if lease.is_valid() && !self.evicts {
            assert!(fence >= *written, "a valid lease has a stale fence: {fence} after {written}");
        }
        *written = fence.max(*written);
    }
}

async fn one_task(clock: Clock, locks: Locks, mut dice: Dice, judge: Arc<Judge>) {
    for _ in 0..6 {
        let mut mutex = locks.mutex("x").ttl(ms(300)).min_validity(Duration::ZERO);
        match dice.below(6) {
            0 => mutex = mutex.no_renewal(),
            1 => mutex = mutex.max_hold(ms(100 + dice.below(400))),
            2 => mutex = mutex.strict_order(),
            _ => {}
        }
        // Some lose patience in the middle, by a deadline or by being dropped.
        let lease = match dice.below(5) {
            0 => mutex.try_lock().await,
            1 => mutex.wait(ms(dice.below(200))).lock().await.map(Some),
            2 => within(&clock, ms(dice.below(200)), mutex.lock()).await.transpose(),
            _ => mutex.lock().await.map(Some),
        };
        let lease = match lease {
            Ok(Some(lease)) => lease,
            Ok(None) | Err(Error::Busy { .. } | Error::Unreachable { .. } | Error::Late { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        judge.begin(&lease);
        judge.write(&lease);
        for _ in 0..dice.below(4) {
            sleep(&clock, ms(dice.below(150))).await;
            judge.write(&lease);
        }
        match dice.below(8) {
            0 if judge.evicts => drop(locks.evict("x").await),
            1 => drop(lease.extend(ms(100 + dice.below(600))).await),
            _ => {}
        }
        judge.write(&lease);
        let proof = lease.proof();
        match dice.below(4) {
            0 => drop(lease),
            1 => drop(within(&clock, ms(dice.below(30)), lease.release()).await),
            _ => match lease.release().await {
                Ok(()) | Err(Error::Unknown { .. }) => {}
                Err(Error::Lost { .. }) => *judge.lost.lock().unwrap() += 1,
                Err(error) => panic!("{error}"),
            },
        }
        assert!(!proof.is_valid(), "valid after its end");
    }
}

fn chaos(seed: u64) -> (u64, u64) {
    let (runtime, clock) = leaping_runtime();
    runtime.block_on(async {
        let store = Arc::new(Memory::new(clock.clone()));
        let judge = Arc::new(Judge { evicts: seed % 4 == 3, ..Judge::default() });
        let mut tasks = Vec::new();
        let mut clients = Vec::new();
        for c in 0..3u64 {
            let plan = Plan { lost_requests: 40, lost_replies: 40, ..Plan::stormy(seed * 31 + c) };
            let locks = client(&Arc::new(Faulty::new(store.clone(), plan)), "chaos");
            for t in 0..4 {
                let dice = Dice(seed.wrapping_mul(7_919) + c * 100 + t);
                tasks.push(tokio::spawn(one_task(clock.clone(), locks.clone(), dice, judge.clone())));
            }
            clients.push(locks);
        }
        for task in tasks {
            // Every task comes to its end: no wake-up is lost, nobody waits for ever.
            let end = within(&clock, secs(600), task).await.unwrap_or_else(|| panic!("stuck"));
            end.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        for locks in &clients {
            locks.settled().await;
        }
        // A late duplicate holds a name for a TTL at worst.
        sleep(&clock, ms(1_000)).await;
        let left = store.list("", 10).await.unwrap();
        assert!(left.is_empty(), "left in the store: {left:#?}");
        judge.in_use.lock().unwrap().clear();
        drop(clients);
        // Requests and replies that are still on their way arrive.
        sleep(&clock, ms(200)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
        (*judge.leases.lock().unwrap(), *judge.lost.lock().unwrap())
    })
}

#[test]
fn no_seed_brings_two_valid_leases_or_a_stale_fence_or_residue() {
    let seeds = scaled(10_000).max(2_000);
    let (leases, lost) = (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
    in_parallel(seeds, |seed| {
        let outcome = std::panic::catch_unwind(|| chaos(seed));
        let (l, x) = outcome.unwrap_or_else(|_| panic!("seed {seed} fails"));
        leases.fetch_add(l, std::sync::atomic::Ordering::Relaxed);
        lost.fetch_add(x, std::sync::atomic::Ordering::Relaxed);
    });
    let (leases, lost) = (leases.into_inner(), lost.into_inner());
    println!("{seeds} seeds, {leases} leases, {lost} of them lost before their release");
    assert!(lost * 100 > leases, "too calm to prove anything: {lost} of {leases} lost");
}

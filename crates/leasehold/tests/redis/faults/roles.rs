//! A master and its replica change roles while clients stay connected to both. No connection is cut and no write is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use leasehold::{Lease, Locks, Proof};
use leasehold_lab::{Kind, Server, Setup};
use leasehold_testkit::{Dice, scaled};

use super::{PATIENCE, ms};

const CLIENTS_PER_SERVER: u64 = 6;

/// After a role change the holder cannot release, so the next waiter is served when the TTL of the holder is over. A waiter
/// with a longer TTL believes a grant that it is told of then. So half of the clients have a short TTL and half a long one,
/// and the roles change while those with a short one hold the locks.
const SHORT_TTL_MS: u64 = 300;
const LONG_TTL_MS: u64 = 4_000;

fn has_short_ttl(who: u64) -> bool {
    (who / 2).is_multiple_of(2)
}

/// The leases that were granted for one lock, in the order in which their holders registered them.
#[derive(Default)]
struct Judge {
    leases: Mutex<Vec<(u64, Proof)>>,
    grants: AtomicU64,
}

impl Judge {
    /// Fails if another lease is valid together with this one, or if its fence is not higher than those before.
    ///
    /// A lease that became invalid never becomes valid again. So a lease that is valid before and after the look at another
    /// valid lease was valid at the same moment.
    fn register(&self, who: u64, lease: &Lease) -> Result<(), String> {
        let mut leases = self.leases.lock().unwrap();
        self.grants.fetch_add(1, Ordering::Relaxed);
        for (other, proof) in leases.iter() {
            if lease.is_valid() && proof.is_valid() && lease.is_valid() {
                return Err(format!(
                    "clients {other} and {who} hold {} together, fences {} and {}",
                    lease.names(),
                    proof.fence().get(),
                    lease.fence().get()
                ));
            }
        }
        if let Some((other, proof)) = leases.last()
            && lease.is_valid()
            && proof.fence() >= lease.fence()
        {
            return Err(format!("client {who} has a fence that is not above that of client {other}"));
        }
        // Only the highest fence and what may still be valid are needed.
        leases.retain(|(_, proof)| proof.is_valid());
        leases.push((who, lease.proof()));
        Ok(())
    }

    fn is_held_for_a_short_time(&self) -> bool {
        let leases = self.leases.lock().unwrap();
        leases.last().is_some_and(|(who, proof)| has_short_ttl(*who) && proof.is_valid())
    }
}

/// The three ways in which a waiter is served: an exclusive lock of one name, a permit, several names.
async fn lock(locks: &Locks, which: usize, ttl_ms: u64) -> leasehold::Result<Lease> {
    match which {
        0 => locks.mutex("one").ttl(ms(ttl_ms)).wait(ms(5_000)).lock().await,
        1 => locks.semaphore("permit", 1).ttl(ms(ttl_ms)).wait(ms(5_000)).acquire().await,
        _ => locks.all(["first", "second"]).ttl(ms(ttl_ms)).wait(ms(5_000)).lock().await,
    }
}

/// Makes the replica the master and the master its replica, after the replica has every write.
fn change_roles(master: &Server, replica: &Server) {
    let port = |server: &Server| server.addr().port().to_string();
    let offset = |server: &Server| server.info("replication").unwrap()["master_repl_offset"].clone();
    let received = || replica.info("replication").unwrap().get("slave_repl_offset").cloned();
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(ms(1));
        }
    };
    assert!(master.command(&["CLIENT", "PAUSE", "20000", "WRITE"]).unwrap().is_ok());
    wait_for("the replica has every write", &|| received() == Some(offset(master)));
    assert!(replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap().is_ok());
    assert!(master.command(&["REPLICAOF", "127.0.0.1", &port(replica)]).unwrap().is_ok());
    assert!(master.command(&["CLIENT", "UNPAUSE"]).unwrap().is_ok());
    wait_for("the new replica follows", &|| {
        master.info("replication").unwrap().get("master_link_status").is_some_and(|link| link == "up")
    });
}

async fn no_two_leases_are_valid_at_once(kind: Kind) {
    let first = Setup::new(kind).line("masteruser lab").line("masterauth any").start().unwrap();
    let second = Setup::new(kind).replica_of(&first).start().unwrap();
    let servers = [first, second];
    let judges: Arc<[Judge; 3]> = Arc::default();
    let (failure, is_over) = (Arc::new(Mutex::new(None::<String>)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for who in 0..2 * CLIENTS_PER_SERVER {
        let locks = leasehold::connect(&servers[who as usize % 2].url()).await.unwrap();
        for which in 0..3 {
            let (locks, judges) = (locks.clone(), judges.clone());
            let (failure, is_over) = (failure.clone(), is_over.clone());
            tasks.push(tokio::spawn(async move {
                let mut dice = Dice(who * 3 + which as u64);
                let ttl_ms = if has_short_ttl(who) { SHORT_TTL_MS } else { LONG_TTL_MS };
                while !is_over.load(Ordering::Relaxed) {
                    // A replica refuses the request of a client that does not wait any more; that is not judged here.
                    let Ok(lease) = lock(&locks, which, ttl_ms).await else { continue };
                    if let Err(why) = judges[which].register(who, &lease) {
                        failure.lock().unwrap().get_or_insert(why);
                        is_over.store(true, Ordering::Relaxed);
                    }
                    tokio::time::sleep(ms(dice.below(40))).await;
                    let _ = lease.release().await;
                }
                locks
            }));
        }
    }
    let grants = || judges.each_ref().map(|judge| judge.grants.load(Ordering::Relaxed));
    let changes = scaled(100).max(5);
    for change in 0..changes {
        let (master, replica) = (&servers[change as usize % 2], &servers[(change as usize + 1) % 2]);
        let since = Instant::now();
        while !judges.iter().all(Judge::is_held_for_a_short_time) && since.elapsed() < PATIENCE {
            tokio::time::sleep(ms(1)).await;
        }
        tokio::task::block_in_place(|| change_roles(master, replica));
        // Every lock goes through several hands on the new master before the next change.
        let (before, since) = (grants(), Instant::now());
        while !is_over.load(Ordering::Relaxed) && before.iter().zip(grants()).any(|(old, new)| new < old + 8)
        {
            assert!(since.elapsed() < PATIENCE, "{kind:?}: no lock is granted: {before:?}, {:?}", grants());
            tokio::time::sleep(ms(5)).await;
        }
        let failure = failure.lock().unwrap().clone();
        assert_eq!(failure, None, "{kind:?}, after {} role changes", change + 1);
    }
    is_over.store(true, Ordering::Relaxed);
    println!("{kind:?}: {changes} role changes, {:?} grants, no two valid leases at once", grants());
    for task in tasks {
        drop(super::soon(task).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_leases_are_valid_at_once_while_redis_servers_change_roles() {
    no_two_leases_are_valid_at_once(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_leases_are_valid_at_once_while_valkey_servers_change_roles() {
    no_two_leases_are_valid_at_once(Kind::Valkey).await;
}

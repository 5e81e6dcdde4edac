//! Waiting for the lock.

use leasehold::{Clock, Lease, Locks};

use super::spec::{Kind, RunSpec};
use crate::progress::{Progress, held_names};

/// # Cancel safety
/// Dropped anywhere, it leaves nothing behind.
pub(super) async fn acquire(
    locks: Locks,
    plan: &RunSpec,
    clock: Clock,
    progress: Progress,
) -> leasehold::Result<Lease> {
    let describe = |waited| held_names(&locks, &plan.names, &plan.owner, waited);
    progress.during(&clock, lock(&locks, plan), describe).await
}

async fn lock(locks: &Locks, plan: &RunSpec) -> leasehold::Result<Lease> {
    let RunSpec { names, owner, ttl, wait, .. } = plan;
    let owner = owner.as_str();
    let Some(name) = names.only().cloned() else {
        let all = locks.all(names.into_iter().cloned()).ttl(*ttl).owner(owner);
        return match *wait {
            None => all.lock().await,
            Some(wait) => all.wait(wait).lock().await,
        };
    };
    match (plan.kind, *wait) {
        (Kind::Exclusive, None) => locks.mutex(name).ttl(*ttl).owner(owner).lock().await,
        (Kind::Exclusive, Some(wait)) => locks.mutex(name).ttl(*ttl).owner(owner).wait(wait).lock().await,
        (Kind::Shared, None) => locks.rwlock(name).ttl(*ttl).owner(owner).read().await,
        (Kind::Shared, Some(wait)) => locks.rwlock(name).ttl(*ttl).owner(owner).wait(wait).read().await,
        (Kind::Permits(permits), wait) => {
            let semaphore = locks.semaphore(name, permits.limit()).ttl(*ttl).owner(owner);
            match wait {
                None => semaphore.acquire_many(permits.take()).await,
                Some(wait) => semaphore.wait(wait).acquire_many(permits.take()).await,
            }
        }
    }
}

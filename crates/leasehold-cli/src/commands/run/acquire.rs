//! The wait of `run` for its lock.

use std::sync::Arc;

use leasehold::{Clock, Lease, Locks, Share};

use super::spec::RunSpec;
use crate::progress::{Progress, held_names};

/// Acquires the lock of `spec`, and shows the progress of the wait.
///
/// # Cancel safety
/// If dropped, it withdraws the claim.
pub(super) async fn acquire(locks: Locks, spec: Arc<RunSpec>, clock: Clock) -> leasehold::Result<Lease> {
    let &RunSpec { ref names, owner: ref label, ttl, wait, .. } = &*spec;
    let (name, owner) = (names.first(), label.as_str());
    let describe = |waited| held_names(&locks, names, label, waited);
    let acquiring = async {
        match spec.share {
            // Only an exclusive lock can have several names.
            Share::Exclusive => locks.all(names).ttl(ttl).owner(owner).wait(wait).lock().await,
            Share::Shared => locks.rwlock(name).ttl(ttl).owner(owner).wait(wait).read().await,
            Share::Permits(permits) => {
                let semaphore = locks.semaphore(name, permits.limit()).ttl(ttl).owner(owner).wait(wait);
                semaphore.acquire_many(permits.take()).await
            }
        }
    };
    Progress::new().during(&clock, acquiring, describe).await
}

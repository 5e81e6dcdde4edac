//! Shrinking: leaves operations out of a sequence that fails, as long as it still fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::Store;

use super::case::Case;
use super::operation::Operation;
use super::plan::Plan;

/// A sequence that failed has been given all the time it needs; a shorter one is shown for its brevity.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long is tried.
const LIMIT: Duration = Duration::from_secs(60);

/// How many copies are played at the same time, so that their requests go to the server together, as those of many sequences.
const COPIES: usize = 16;

/// Plays copies of a sequence, each on new names. Returns the trace of one that fails, if any does, and the number of operations
/// up to the difference.
async fn replay(
    plan: &Plan,
    operations: &[Operation],
    prefix: &str,
    clients: &[Arc<dyn Store>],
) -> Option<(String, usize)> {
    let prefixes: Vec<String> = (0..COPIES).map(|copy| format!("{prefix}{copy}:")).collect();
    let copies = prefixes.iter().map(|prefix| replay_one(plan, operations, prefix, clients));
    join_all(copies).await.into_iter().flatten().min_by_key(|(_, count)| *count)
}

async fn replay_one(
    plan: &Plan,
    operations: &[Operation],
    prefix: &str,
    clients: &[Arc<dyn Store>],
) -> Option<(String, usize)> {
    let mut case = Case::new(plan, prefix, clients, PATIENCE);
    for (number, operation) in operations.iter().enumerate() {
        // What was left out may have made it possible.
        if case.is_allowed(operation) && case.step(operation).await.is_err() {
            return Some((case.trace(), number + 1));
        }
    }
    None
}

/// The shortest trace that was found; `None` if the sequence does not fail again.
pub(super) async fn shrunk(
    plan: &Plan,
    operations: &[Operation],
    prefix: &str,
    clients: &[Arc<dyn Store>],
) -> Option<String> {
    let since = Instant::now();
    let mut tries = 0;
    let mut name = || {
        tries += 1;
        format!("{prefix}{tries}:")
    };
    let mut operations = operations.to_vec();
    let (mut shortest, count) = replay(plan, &operations, &name(), clients).await?;
    operations.truncate(count);
    loop {
        let before = operations.len();
        // The last one is what fails.
        for at in (0..operations.len().saturating_sub(1)).rev() {
            let mut fewer = operations.clone();
            fewer.remove(at);
            if let Some((trace, count)) = replay(plan, &fewer, &name(), clients).await {
                fewer.truncate(count);
                (shortest, operations) = (trace, fewer);
            }
            if since.elapsed() > LIMIT || at >= operations.len() {
                break;
            }
        }
        if operations.len() == before || since.elapsed() > LIMIT {
            return Some(shortest);
        }
    }
}

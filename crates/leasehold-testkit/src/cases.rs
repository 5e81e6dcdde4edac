//! The conformance suite, run on a store in real time.

use std::sync::Arc;

use leasehold::Capabilities;
use leasehold::store::conformance::{self, Subject};
use tokio::task::JoinSet;

pub async fn every_case_holds(subject: impl Subject + 'static) {
    let skipped = every_case_it_can_holds(subject).await;
    assert!(skipped.is_empty(), "skipped: {skipped:?}");
}

/// Returns the skipped cases, which need capabilities that the store does not have.
///
/// Cases run in parallel, as each has its own names, but not all at once: on a busy machine, too
/// many clients would need longer for their turns than their TTL.
pub async fn every_case_it_can_holds(subject: impl Subject + 'static) -> Vec<&'static str> {
    let subject = Arc::new(subject);
    let mut running = JoinSet::new();
    let at_once = Arc::new(tokio::sync::Semaphore::new(12));
    for case in conformance::cases() {
        let (subject, at_once) = (subject.clone(), at_once.clone());
        running.spawn(async move {
            let _turn = at_once.acquire().await;
            (case.name, conformance::run(&*subject, case).await)
        });
    }
    let (mut held, mut skipped) = (0, Vec::new());
    while let Some(ended) = running.join_next().await {
        let (name, ran) = ended.unwrap();
        match ran {
            true => held += 1,
            false => skipped.push(name),
        }
    }
    println!("{held} cases hold, {} skipped", skipped.len());
    skipped.sort_unstable();
    skipped
}

/// Returns the cases that a store with these capabilities skips, sorted.
pub fn not_offered_by(can: &Capabilities) -> Vec<&'static str> {
    let cases = conformance::cases().filter(|case| !case.is_offered_by(can));
    let mut names: Vec<_> = cases.map(|case| case.name).collect();
    names.sort_unstable();
    names
}

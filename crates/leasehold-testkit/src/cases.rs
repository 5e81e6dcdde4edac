//! The conformance suite on a store in real time.

use std::sync::Arc;

use leasehold::Capabilities;
use leasehold::store::conformance::{self, Subject};
use tokio::task::JoinSet;

/// Those that a store is asked, which are all of them.
pub async fn every_case_holds(subject: impl Subject + 'static) {
    let skipped = every_case_it_can_holds(subject).await;
    assert!(skipped.is_empty(), "skipped: {skipped:?}");
}

/// Says which were skipped, by name, because the store says that it cannot do what they need.
///
/// Many cases side by side: each has names of its own. Not all of them: a case opens some clients, and their TTL is to be
/// long beside the time that so many need for their turns, on a machine that is busy with other things too.
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

/// Returns the names of the cases that a store with these capabilities cannot be asked, in order.
pub fn not_offered_by(can: &Capabilities) -> Vec<&'static str> {
    let cases = conformance::cases().filter(|case| !case.is_offered_by(can));
    let mut names: Vec<_> = cases.map(|case| case.name).collect();
    names.sort_unstable();
    names
}

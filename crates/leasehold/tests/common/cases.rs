//! The conformance suite on a store in real time.

use std::sync::Arc;

use leasehold::store::conformance::{self, Subject};
use tokio::task::JoinSet;

/// Many cases side by side: each has names of its own. Not all of them: a case opens some clients, and their TTL is to be
/// long beside the time that so many need for their turns, on a machine that is busy with other things too.
pub(crate) async fn every_case_holds(subject: impl Subject + 'static) {
    every_case_holds_but(&[], subject).await;
}

/// The same for a store that cannot do everything: these are skipped, and no others.
pub(crate) async fn every_case_holds_but(skipped: &[&str], subject: impl Subject + 'static) {
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
    let mut held = 0;
    while let Some(ended) = running.join_next().await {
        let (name, ran) = ended.unwrap();
        assert_eq!(ran, !skipped.contains(&name), "{name}: whether it ran");
        held += 1;
    }
    println!("{held} cases hold");
}

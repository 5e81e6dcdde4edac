//! The suite that every store must pass, chosen by capability, not by name.
//!
//! Each case is a claim about a store and names its promise (`docs/guarantees.md`). A case panics
//! if the claim does not hold. To test another store, implement [`Subject`] and call [`check`]:
//!
//! ```
//! use std::sync::Arc;
//! use leasehold::store::{conformance, memory::Memory};
//! use leasehold::{Clock, Store};
//!
//! struct OnMemory(Arc<Memory>);
//!
//! #[async_trait::async_trait]
//! impl conformance::Subject for OnMemory {
//!     async fn open(&self) -> Arc<dyn Store> {
//!         self.0.clone()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! // In real time the suite takes some tens of TTLs (see `Subject::ttl`). With tokio's clock, time
//! // can be paused (tokio's feature `test-util`), and it takes none.
//! tokio::time::pause();
//! let report = conformance::check(&OnMemory(Arc::new(Memory::new(Clock::tokio())))).await;
//! assert!(report.skipped.is_empty());
//! # }
//! ```

/// A table of cases: the claim, its promise, and the capabilities that it needs.
macro_rules! cases {
    ($($claim:ident: $promise:ident, $needs:expr;)*) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: stringify!($claim),
            promise: super::Promise::$promise,
            needs: $needs,
            run: |trial| Box::pin($claim(trial)),
        }),*];
    };
}

mod cells;
mod claims;
mod client;
mod order;
mod rates;
mod retrying_client;
mod shares;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use crate::store::{Capabilities, Store};
use crate::sync::Arc;
use retrying_client::RetryingClient;

/// A store to examine. It may hold other things: every case uses its own names.
#[async_trait]
pub trait Subject: Send + Sync {
    /// Opens the same store for another client.
    async fn open(&self) -> Arc<dyn Store>;

    /// Returns the TTL of the cases, well above the store's delays. A case waits for a few of them.
    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// The promises, as `docs/guarantees.md` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Promise {
    AtomicOrNothing = 1,
    OnlyTheHolder = 2,
    NoDeadlockByDeath = 3,
    NeverBelieveLonger = 4,
    LossIsAnEvent = 5,
    UnknownIsNotNo = 6,
    CancelAnywhere = 7,
    FencesOnlyRise = 8,
    AWaiterIsServed = 9,
    BadInputClearError = 10,
    SecretsStaySecret = 11,
}

type Running<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A claim about a store.
pub struct Case {
    /// The claim.
    pub name: &'static str,
    /// The promise that it belongs to.
    pub promise: Promise,
    needs: fn(&Capabilities) -> bool,
    run: for<'a> fn(&'a Trial<'a>) -> Running<'a>,
}

impl Case {
    /// Returns whether a store with these capabilities offers all that the case needs.
    pub fn is_offered_by(&self, can: &Capabilities) -> bool {
        (self.needs)(can)
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:?})", self.name, self.promise)
    }
}

/// The result of an examination.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases that hold.
    pub passed: Vec<&'static str>,
    /// Cases that need a capability that the store lacks.
    pub skipped: Vec<&'static str>,
}

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    let of_locks = claims::CASES.iter().chain(order::CASES).chain(shares::CASES);
    of_locks.chain(cells::CASES).chain(rates::CASES).chain(client::CASES)
}

/// Runs every case that the capabilities allow. Panics at the first that does not hold.
///
/// # Cancel safety
/// If the future is dropped, claims stay in the store until their TTLs end.
pub async fn check(subject: &dyn Subject) -> Report {
    let mut report = Report::default();
    for case in cases() {
        match run(subject, case).await {
            true => report.passed.push(case.name),
            false => report.skipped.push(case.name),
        }
    }
    report
}

/// Runs one case. Returns `false` if the store lacks a capability that it needs.
///
/// # Cancel safety
/// As [`check`].
pub async fn run(subject: &dyn Subject, case: &Case) -> bool {
    let store = subject.open().await;
    if !case.is_offered_by(&store.capabilities()) {
        return false;
    }
    let secret = crate::Token::fresh(&crate::Owner::this_process()).unwrap_or_else(|error| panic!("{error}"));
    let prefix = format!("{}:{}:", case.name, &secret.expose()[..12]);
    let trial = Trial { subject, prefix };
    let work = async {
        (case.run)(&trial).await;
        trial.nothing_is_left().await;
    };
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        eprintln!(
            "conformance: `{}` does not hold (promise {}: {:?})",
            case.name, case.promise as u8, case.promise
        );
        std::panic::resume_unwind(panic);
    }
    true
}

struct Trial<'a> {
    subject: &'a dyn Subject,
    prefix: String,
}

impl Trial<'_> {
    async fn client(&self) -> RetryingClient {
        RetryingClient::new(self.subject.open().await, self.subject.ttl(), self.prefix.clone())
    }

    async fn clients<const N: usize>(&self) -> [RetryingClient; N] {
        let mut clients = Vec::new();
        for _ in 0..N {
            clients.push(self.client().await);
        }
        clients.try_into().unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// Checks that the store forgets all that a case did within two TTLs.
    async fn nothing_is_left(&self) {
        let client = self.client().await;
        let patience = client.after(self.subject.ttl() * 2 + client.late_window() * 2);
        loop {
            let left = client.list(&self.prefix).await;
            if left.is_empty() {
                return;
            }
            assert!(client.now() < patience, "left in the store: {left:#?}");
            client.sleep(self.subject.ttl() / 20).await;
        }
    }
}

fn always(_: &Capabilities) -> bool {
    true
}

//! The queue of the Redis store as it is planned (scripts LOCK and RENEW), explored exhaustively: every order of
//! events within the bounds of a run. The model has the rules, not the code, and needs no server.
//!
//! `state.rs` is the server, the clients and the messages under way; `scripts.rs` is one execution of a script;
//! `clients.rs` is what a client does with an answer; `steps.rs` lists the possible steps; `properties.rs` has what
//! every state must satisfy, and `schedule.rs` the fair schedule for the two properties of progress. `explorer.rs`
//! searches, by the fingerprints of `normal_form.rs`. `holds.rs` keeps all rules; `faults.rs` leaves out one at a
//! time, and has to find the counterexample. `settle.rs` is a model of its own: the fences of a batch.
//!
//! # Choices where the plan is open
//!
//! - The script publishes no push to its own caller: the answer says it.
//! - The caller counts as present at its turn, also without a subscription.
//! - An absent waiter that asks returns to the head of the queue before its ask serves the queue.
//! - An absent barging waiter behind a head that does not fit keeps its place in the queue.
//! - A grant to a barging caller removes its entry in the queue too: `serve` looks at the first entries only.
//! - An ask of a share that holds already serves the queue first, and is then re-armed.
//! - A renewal does not read `soonest`: it may re-arm a holder that has ended and that no script has purged.
//! - A release that finds nothing, away from the head, serves no queue: the head polls when the key expires.
//!
//! # What is left out
//!
//! - **Time** is counted in ticks, and all clocks go on together, except for one slow tick of a client. Every time
//!   counts down, so that there is no end of time: a run ends when there are no new states.
//! - **The network** delivers a message at any time, in any order, once, or loses it. Redis executes a request once:
//!   a repeat is a message of its own.
//! - **An answer** other than a grant is heard with the execution or, as a loss, never. A client that hears it later
//!   does until then what a client does that never hears it. A grant, and a push, is under way for any time.
//! - **Progress** is judged in states without messages under way. From any other state, such a state is reached
//!   by deliveries, which cost no fault.
//! - Clients with equal profiles are interchangeable, and have one fingerprint.
//! - Not modelled: several names, try (`t`), yield (`y`), chains (`c`), fence blocks, detached leases, conversions,
//!   steps of the server's clock, loss of the server's data, the bound of 128 serves per script.

mod clients;
mod explorer;
mod faults;
mod holds;
mod list;
mod normal_form;
mod properties;
mod schedule;
mod scripts;
mod settle;
mod state;
mod steps;

use leasehold_testkit::scaled;
use properties::PROPERTIES;
use state::{NO_FAULTS, Profile, PushCounts, Setup, Share};

const EXCLUSIVE: Profile = Profile { share: Share::Exclusive, ttl: 2, polls: false };
const POLLER: Profile = Profile { polls: true, ..EXCLUSIVE };
const READER: Profile = Profile { share: Share::Reader, ..EXCLUSIVE };
const PERMIT: Profile = Profile { share: Share::Permits { take: 1, barging: false }, ..EXCLUSIVE };
const BARGING: Profile = Profile { share: Share::Permits { take: 1, barging: true }, ..EXCLUSIVE };

/// Two clients that ask once and release. Nothing fails. Every run says what it adds.
const BARE: Setup = Setup {
    clients: &[EXCLUSIVE; 2],
    opening: 0,
    limit: 2,
    window: 16,
    attempts: 1,
    asks: 1,
    releases: 2,
    renewals: 0,
    cancels: false,
    repeats_wait: false,
    late: 1,
    stay: 1,
    here: 2,
    in_flight: 3,
    faults: NO_FAULTS,
    push_counts: PushCounts::FirstAsk,
    without: &[],
};

fn every_property() -> Vec<&'static str> {
    PROPERTIES.iter().map(|(name, _)| *name).collect()
}

/// All states of a run that has no more than this, at full scale; a tenth of them at the scale of CI.
fn within(states: usize) -> usize {
    scaled(states as u64).max(20_000) as usize
}

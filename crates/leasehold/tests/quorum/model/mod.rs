//! Redlock as Leasehold does it (rules B1 to B9 of the quorum protocol), explored exhaustively: every order of events within
//! the bounds of a run. The rules are modelled, not the code.
//!
//! `state.rs` is what there is, `rules.rs` what a node does with a message, `steps.rs` what may happen next, `properties.rs` what
//! must never be. `holds.rs` keeps all rules; `faults.rs` leaves out one at a time, and has to find what breaks.
//!
//! # What is left out, and why nothing is lost
//!
//! - **Time** is a whole number, and all clocks go on together, by one: how fast clocks drift apart is what the store takes off each lease. Within a
//!   tick everything may happen in any order, and what ends at a tick ends before anything else at that tick. All that is compared are
//!   differences of times with whole numbers, so that only which of them come out equal or larger matters.
//! - **A client** is one attempt with one token. Nothing ties two attempts of a process together but the fences it has seen, and a client here proposes
//!   any fence of those that its run allows (`leads`: at, before or after the true time), whatever it has seen: so three clients are also one that crashed and came back. A crash is to do nothing more, which every client may
//!   always choose.
//! - **The network.** What was sent stays for ever, and may arrive at any time, in any order, any number of times, or never. A renewal does the same on a node
//!   whenever it was sent, so one message stands for all; which round an answer counts for is kept.
//! - **An answer** arrives with the execution of its request, or never. To hear it later gives a client no choice that it has not if it hears it
//!   at once and acts later; so a client counts at once (a grant completed earlier only binds the others more, and is valid no shorter), and may
//!   fail to hear a yes where it then does something else: a second round, a release.
//! - **The second round** may come at any time, not only where B4 sees a chance: B4 saves messages.
//! - **A restart and a flush** are one step: both forget everything, and B6 makes both begin a quarantine. A snapshot from before a restart is not modelled.
//! - **Clock faults** of a node come in two forms: keys of locks go at any time, early or late (a leap and return between two messages); or the clock
//!   leaps, stays there, and may leap again, which moves windows, quarantines and the forgetting of fences with it. A client's own clock is right, but
//!   for one test that shows what that is worth. B8 (a holder that notices a leap) ends leases earlier: leaving it out allows more.
//! - **Symmetry**: see `Hash for State`.

mod faults;
mod holds;
mod properties;
mod rules;
mod state;
mod steps;

use std::time::Instant;

use leasehold_testkit::scaled;
use state::{NEVER, Setup, State};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use steps::Step;

/// Two clients that can do nothing but ask once; nothing fails. Every run says what it adds.
const BARE: Setup = Setup {
    ttls: &[2, 2],
    s: 1,
    quarantine: 4,
    ticks: 3,
    skews: [0; 3],
    leads: &[0],
    rounds: 1,
    renewals: false,
    repairs: false,
    releases: false,
    forgets: 0,
    any_expiry: false,
    leaps: 0,
    offsets: &[],
    remembered: NEVER,
    without: &[],
};

/// What a run came to.
struct Found {
    /// Whether there is no state that it did not see.
    whole: bool,
    /// The properties that do not hold, with the steps that show it.
    violated: Vec<(&'static str, Vec<Step>)>,
    /// What was to be seen sometimes, and was not.
    unseen: Vec<&'static str>,
}

/// All of a run that generates no more states than this, at full scale; a hundredth of it at the scale of CI.
fn within(generated: u64) -> usize {
    let part = if scaled(1_000) < 1_000 { 10 } else { 1 };
    (scaled(generated) / part) as usize
}

/// Explores what the setup allows, breadth first, until a property is violated or so many states were generated.
fn explore(name: &str, setup: Setup, at_most: usize) -> Found {
    explore_until(name, setup, HasDiscoveries::AnyFailures, at_most)
}

fn explore_until(name: &str, setup: Setup, end: HasDiscoveries, at_most: usize) -> Found {
    let start = Instant::now();
    let checker = setup.checker().target_state_count(at_most).finish_when(end).spawn_bfs().join();
    let whole = checker.state_count() < at_most;
    println!(
        "{name}: {} states ({} generated), depth {}, {:.1} s{}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64(),
        if whole { "" } else { ", not all" }
    );
    let mut found = Found { whole, violated: Vec::new(), unseen: Vec::new() };
    for property in setup.properties() {
        let path = checker.discovery(property.name);
        match (&property.expectation, path) {
            (Expectation::Always, Some(path)) => {
                let bad = |(state, _): &(State, Option<Step>)| !(property.condition)(&setup, state);
                let states = path.into_vec();
                let first = states.iter().position(bad).unwrap();
                let steps = states.into_iter().take(first).filter_map(|(_, step)| step).collect();
                found.violated.push((property.name, steps));
            }
            (Expectation::Sometimes, None) => found.unseen.push(property.name),
            _ => {}
        }
    }
    found
}

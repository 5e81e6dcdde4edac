//! Each rule left out: its counterexample has to be found, and has to be gone with the rule.

use std::collections::BTreeSet;

use stateright::HasDiscoveries;

use super::properties::{ALONE, DISTINCT, NO_ORPHAN, NO_RENEWAL, OPEN, RISING};
use super::state::{Rule, Setup};
use super::{BARE, explore, explore_until, within};

/// Holds with the rule, breaks without it.
fn breaks_without(rule: &'static [Rule; 1], property: &'static str, setup: Setup) {
    breaks(&format!("without {:?}", rule[0]), property, setup, Setup { without: rule, ..setup });
}

fn breaks(name: &str, property: &'static str, good: Setup, bad: Setup) {
    breaks_within(name, property, good, bad, usize::MAX);
}

/// The long ones: at a small scale they may end before anything is found.
fn breaks_within(name: &str, property: &'static str, good: Setup, bad: Setup, at_most: usize) {
    let found = explore(&format!("with all rules, beside \"{name}\""), good, at_most);
    assert!(found.violated.is_empty(), "with all rules: {:#?}", found.violated);
    assert!(!found.whole || found.unseen.is_empty(), "{name}: never seen: {:?}", found.unseen);
    let found = explore_until(name, bad, HasDiscoveries::AnyOf(BTreeSet::from([property])), at_most);
    if !found.whole && found.violated.is_empty() {
        println!("  nothing yet: it takes a larger scale");
        return;
    }
    let (_, steps) = found
        .violated
        .iter()
        .find(|(violated, _)| *violated == property)
        .unwrap_or_else(|| panic!("{name}: `{property}` was to break; {:?} did", found.violated));
    println!("  NOT \"{property}\", in {} steps:", steps.len());
    for step in steps {
        println!("    {step:?}");
    }
}

#[test]
fn b1_a_quarantine_by_the_claimants_ttl_lets_a_short_claim_vote_past_a_long_holder() {
    let setup = Setup { ttls: &[4, 1], quarantine: 6, ticks: 4, forgets: 1, ..BARE };
    breaks_without(&[Rule::QuarantineByMaxTtl], ALONE, setup);
}

#[test]
fn b2_a_quarantine_no_longer_than_two_windows_gives_a_fence_twice() {
    let setup = Setup { any_expiry: true, forgets: 1, ttls: &[1, 1], leads: &[-1, 1], ticks: 3, ..BARE };
    let (good, bad) = (Setup { quarantine: 3, ..setup }, Setup { quarantine: 2, ..setup });
    breaks("quarantine = 2S", DISTINCT, good, bad);
}

#[test]
fn b2_without_a_window_fences_fall_past_a_node_that_forgot() {
    let setup = Setup { any_expiry: true, forgets: 1, ttls: &[1, 1], quarantine: 3, ..BARE };
    breaks_without(&[Rule::Window], RISING, Setup { leads: &[0, 4], ..setup });
}

#[test]
fn b2_a_node_that_accepts_any_fence_gives_one_twice() {
    let setup = Setup { any_expiry: true, ticks: 0, leads: &[0, 1], ..BARE };
    breaks_without(&[Rule::Rising], DISTINCT, setup);
}

#[test]
fn b3_yeses_of_two_rounds_added_up_give_a_fence_twice() {
    let setup = Setup { any_expiry: true, ticks: 0, rounds: 2, leads: &[0, 1], ..BARE };
    breaks_without(&[Rule::CountedPerFence], DISTINCT, setup);
}

#[test]
fn b3_a_yes_to_this_token_whatever_the_fence_gives_a_fence_twice() {
    let setup = Setup { any_expiry: true, ticks: 0, rounds: 2, leads: &[0, 1], ..BARE };
    breaks_without(&[Rule::TokenAndFence], DISTINCT, setup);
}

#[test]
fn b5_a_release_that_does_not_raise_the_fence_leaves_an_orphan() {
    let setup = Setup { releases: true, ticks: 1, leads: &[0, 1], ..BARE };
    breaks_without(&[Rule::ReleaseRaises], NO_ORPHAN, setup);
}

/// As B5 was first written: one client with a clock far ahead, whose claims no node accepts, shuts the name for everybody by giving up.
#[test]
fn b5_a_release_that_raises_the_fence_past_the_window_shuts_the_node() {
    let setup = Setup { releases: true, ticks: 1, leads: &[0, 6], ..BARE };
    breaks_without(&[Rule::RaiseInWindow], OPEN, setup);
}

#[test]
fn b6_a_node_that_votes_at_once_after_a_restart_makes_two_holders() {
    breaks_without(&[Rule::Quarantine], ALONE, Setup { forgets: 1, ticks: 2, leads: &[0, 1], ..BARE });
}

/// As B6 was first written: a machine that comes up with its clock behind, is asked for a vote, and then sets its clock.
#[test]
fn b6_born_written_by_a_clock_that_is_behind_ends_the_quarantine_at_once() {
    let setup = Setup { forgets: 1, leaps: 2, offsets: &[0, -5], quarantine: 5, ttls: &[1, 1], ..BARE };
    let setup = Setup { any_expiry: true, leads: &[-1, 1], ticks: 0, ..setup };
    breaks_without(&[Rule::BornInWindow], DISTINCT, setup);
}

/// With `born` in the window, a clock that is behind by less than 2S is still believed: so much of the quarantine does not count.
#[test]
fn b6_a_quarantine_of_less_than_four_windows_is_not_enough_for_a_clock_that_is_set_after_a_restart() {
    let setup = Setup {
        forgets: 1,
        leaps: 2,
        any_expiry: true,
        offsets: &[0, -2],
        ttls: &[1, 1],
        leads: &[-1, 1],
        ..BARE
    };
    let setup = Setup { rounds: 2, ticks: 1, ..setup };
    let (good, bad) = (Setup { quarantine: 5, ..setup }, Setup { quarantine: 3, ..setup });
    breaks_within("quarantine < 4S", RISING, good, bad, within(6_000_000));
}

/// As B2 was first written: the key with the fence expires by a clock that leaps over its whole life and comes back.
#[test]
fn b2_a_fence_that_a_leap_of_the_clock_can_expire_is_given_twice() {
    let setup = Setup { leaps: 2, offsets: &[0, 6], quarantine: 3, ttls: &[1, 1], leads: &[0, 1], ..BARE };
    breaks_without(&[Rule::FenceStays], DISTINCT, Setup { ticks: 0, ..setup });
}

/// A client with a fast clock takes a fence; a node's clock goes ahead by less than most clocks would contradict.
#[test]
fn b2_a_fence_that_is_forgotten_too_soon_is_given_twice() {
    let setup = Setup { leaps: 2, offsets: &[0, 2], any_expiry: true, leads: &[-1, 1], ..BARE };
    let setup = Setup { ttls: &[1, 1], ticks: 2, ..setup };
    let (good, bad) = (Setup { remembered: 5, ..setup }, Setup { remembered: 0, ..setup });
    breaks("a fence forgotten after 0", DISTINCT, good, bad);
}

/// Not for long-lived clients' convenience: the node's clock may leap over the rest of its quarantine.
#[test]
fn b6_a_holder_that_trusts_the_nodes_clock_renews_past_the_next() {
    let setup = Setup { renewals: true, repairs: true, forgets: 1, any_expiry: true, leads: &[0, 1], ..BARE };
    let setup = Setup { leaps: 1, offsets: &[6], ttls: &[1, 1], quarantine: 5, ticks: 0, ..setup };
    let bad = Setup { without: &[Rule::HolderTimes], ..setup };
    breaks_within("without HolderTimes", NO_RENEWAL, setup, bad, within(6_000_000));
}

#[test]
fn b7_a_repaired_node_that_counts_at_once_makes_two_holders() {
    let setup = Setup { renewals: true, repairs: true, forgets: 1, ticks: 2, ..BARE };
    breaks_without(&[Rule::RepairedCountsLater], ALONE, setup);
}

#[test]
fn b7_a_repair_that_overwrites_makes_two_holders() {
    let setup = Setup { renewals: true, repairs: true, ticks: 2, ..BARE };
    breaks_without(&[Rule::RepairOnlyEmpty], ALONE, setup);
}

/// Not a rule of the nodes: what B9 says of renewals holds only for a client whose own clock goes on.
#[test]
fn b9_a_client_that_renews_past_its_deadline_comes_back_by_a_late_repair() {
    let setup = Setup { renewals: true, repairs: true, forgets: 1, any_expiry: true, ..BARE };
    let setup = Setup { s: 0, ttls: &[1, 1], quarantine: 1, ticks: 2, ..setup };
    let bad = Setup { without: &[Rule::Deadline], ..setup };
    breaks_within("without Deadline", NO_RENEWAL, setup, bad, within(3_000_000));
}

//! All rules kept: nothing breaks. Each run explores every state within its bounds, at full scale.

use super::state::Setup;
use super::{BARE, explore, within};

/// `generated` is a little more than the run generates when it is left to end.
fn holds(name: &str, setup: Setup, generated: u64) {
    let found = explore(name, setup, within(generated));
    assert!(found.violated.is_empty(), "{name}: {:#?}", found.violated);
    assert!(found.whole || within(generated) < generated as usize, "{name}: {generated} were not all");
    assert!(!found.whole || found.unseen.is_empty(), "{name}: never seen: {:?}", found.unseen);
}

const THREE: Setup = Setup { ttls: &[2, 2, 2], ..BARE };
const KEPT: Setup = Setup { renewals: true, repairs: true, forgets: 1, ..BARE };

#[test]
fn three_clients_claim() {
    holds("calm, 3 × 3, claims", Setup { leads: &[-1, 0, 1], skews: [-1, 0, 1], ..THREE }, 800_000);
}

#[test]
fn three_clients_claim_and_a_node_restarts() {
    let setup = Setup { ttls: &[2, 1, 1], ticks: 5, forgets: 1, leads: &[-1, 1], ..THREE };
    holds("calm, 3 × 3, restart", setup, 6_200_000);
}

#[test]
fn two_clients_ask_twice_and_release() {
    let setup = Setup { rounds: 2, releases: true, leads: &[0, 1], ticks: 1, ..BARE };
    holds("calm, 2 × 3, two rounds, release", setup, 1_000_000);
}

#[test]
fn two_clients_renew_and_repair_and_a_node_restarts() {
    holds("calm, 2 × 3, renewal, repair, restart", Setup { ticks: 5, ..KEPT }, 4_000_000);
}

#[test]
fn two_clients_do_all_there_is_to_do() {
    let setup = Setup { releases: true, ticks: 2, ..KEPT };
    holds("calm, 2 × 3, renewal, repair, restart, release", setup, 9_000_000);
}

#[test]
fn keys_go_at_any_time_under_three_clients() {
    let setup = Setup { any_expiry: true, leads: &[-1, 0, 1], ..THREE };
    holds("any expiry, 3 × 3, claims", setup, 800_000);
}

#[test]
fn keys_go_at_any_time_under_three_clients_and_a_node_restarts() {
    let setup =
        Setup { any_expiry: true, forgets: 1, ttls: &[1, 1, 1], quarantine: 3, leads: &[-1, 1], ..THREE };
    holds("any expiry, 3 × 3, restart", setup, 1_200_000);
}

#[test]
fn keys_go_at_any_time_under_two_clients_that_ask_twice() {
    let setup = Setup { any_expiry: true, rounds: 2, leads: &[-1, 0, 1], ticks: 2, ..BARE };
    holds("any expiry, 2 × 3, two rounds", setup, 800_000);
}

#[test]
fn keys_go_at_any_time_under_two_clients_that_renew_and_two_nodes_restart() {
    let setup = Setup { any_expiry: true, forgets: 2, ttls: &[1, 1], quarantine: 3, ticks: 4, ..KEPT };
    holds("any expiry, 2 × 3, renewal, repair, two restarts", setup, 6_000_000);
}

#[test]
fn clocks_leap_and_a_node_restarts() {
    let setup = Setup { any_expiry: true, leaps: 2, offsets: &[0, -1, -2, -6, 2, 6], forgets: 1, ..BARE };
    let setup = Setup { ttls: &[1, 1], quarantine: 5, leads: &[-1, 1], ticks: 2, ..setup };
    holds("leaps, 2 × 3, restart", setup, 6_200_000);
}

#[test]
fn clocks_leap_there_and_back_under_two_clients_that_renew_and_repair() {
    let setup = Setup { any_expiry: true, leaps: 2, offsets: &[0, 6], leads: &[0, 1], ..KEPT };
    let setup = Setup { forgets: 0, ttls: &[1, 1], quarantine: 5, ticks: 1, ..setup };
    holds("leaps, 2 × 3, renewal, repair", setup, 5_500_000);
}

#[test]
fn nodes_forget_fences_that_are_old() {
    let setup = Setup { any_expiry: true, leaps: 2, offsets: &[0, 2], leads: &[-1, 1], ..BARE };
    let setup = Setup { ttls: &[1, 1], remembered: 3, ticks: 6, ..setup };
    holds("leaps, 2 × 3, fences forgotten, claims", setup, 6_000_000);
}

#[test]
fn nodes_forget_fences_that_are_old_under_two_clients_that_renew_and_repair() {
    let setup = Setup { any_expiry: true, forgets: 0, leads: &[0, 1], ..KEPT };
    let setup = Setup { ttls: &[1, 1], remembered: 3, ticks: 6, ..setup };
    holds("any expiry, 2 × 3, fences forgotten, renewal, repair", setup, 6_000_000);
}

#[test]
fn clocks_leap_under_three_clients() {
    let setup = Setup { any_expiry: true, leaps: 2, offsets: &[0, -6, 6], leads: &[0, 1], ticks: 2, ..THREE };
    holds("leaps, 3 × 3, claims", setup, 4_000_000);
}

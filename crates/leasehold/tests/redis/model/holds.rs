//! All rules kept: every property holds. At full scale each run explores every state within its bounds.

use super::explorer::explore;
use super::state::{Faults, NO_FAULTS, Profile, Rule, Setup, Share};
use super::{BARE, BARGING, EXCLUSIVE, PERMIT, POLLER, READER, every_property, within};

/// `states` is a little more than the run has.
fn holds(name: &str, setup: Setup, states: usize) {
    let found = explore(name, &setup, &every_property(), within(states));
    assert!(found.violated.is_none(), "{name}: {:#?}", found.violated);
    assert!(found.whole || within(states) < states, "{name}: {states} were not all");
    let polls = setup.clients.iter().all(|profile| profile.polls);
    let unseen: Vec<_> = found.unseen.into_iter().filter(|name| !(polls && name.contains("push"))).collect();
    assert!(!found.whole || unseen.is_empty(), "{name}: never seen: {unseen:?}");
}

const TWO: Setup = Setup { asks: 2, cancels: true, ..BARE };
const LOSS: Faults = Faults { losses: 1, ..NO_FAULTS };
const AWAY: Faults = Faults { disconnects: 1, ..NO_FAULTS };
const CRASH: Faults = Faults { crashes: 1, ..NO_FAULTS };

#[test]
fn two_clients_ask_twice_and_cancel() {
    holds("2 exclusive", Setup { repeats_wait: true, ..TWO }, 100_000);
}

#[test]
fn two_clients_ask_twice_and_a_message_is_lost() {
    holds("2 exclusive, loss", Setup { faults: LOSS, ..TWO }, 400_000);
}

#[test]
fn two_clients_ask_twice_and_a_subscription_is_lost() {
    holds("2 exclusive, subscription lost", Setup { faults: AWAY, ..TWO }, 400_000);
}

#[test]
fn two_clients_ask_twice_and_one_crashes() {
    holds("2 exclusive, crash", Setup { faults: CRASH, ..TWO }, 400_000);
}

#[test]
fn two_clients_attempt_twice_and_a_message_is_lost() {
    let setup = Setup { attempts: 2, in_flight: 2, faults: LOSS, ..TWO };
    holds("2 exclusive, 2 attempts, loss", setup, 1_000_000);
}

#[test]
fn two_clients_renew_and_one_is_force_released() {
    let faults = Faults { forced: 1, ..NO_FAULTS };
    let setup = Setup { renewals: 1, faults, in_flight: 2, ..TWO };
    holds("2 exclusive, renewal, force-release", setup, 1_000_000);
}

#[test]
fn two_clients_and_the_server_becomes_a_replica() {
    let faults = Faults { refusals: 1, ..NO_FAULTS };
    holds("2 exclusive, writes refused", Setup { faults, ..TWO }, 400_000);
}

#[test]
fn two_clients_and_the_clock_of_one_is_slow() {
    let faults = Faults { slow_ticks: 1, ..NO_FAULTS };
    let setup = Setup { faults, in_flight: 2, ..TWO };
    holds("2 exclusive, a slow clock", setup, 400_000);
}

#[test]
fn two_clients_renew_and_a_message_and_a_subscription_are_lost() {
    let clients = &[Profile { ttl: 3, ..EXCLUSIVE }; 2];
    let faults = Faults { losses: 1, disconnects: 1, ..NO_FAULTS };
    let setup = Setup { clients, renewals: 1, in_flight: 2, faults, ..TWO };
    holds("2 exclusive, TTL 3, renewal, loss, subscription lost", setup, 1_600_000);
}

#[test]
fn three_clients_ask_twice_and_cancel() {
    let setup = Setup { clients: &[EXCLUSIVE; 3], in_flight: 2, ..TWO };
    holds("3 exclusive", setup, 600_000);
}

#[test]
fn three_clients_ask_twice_and_a_message_is_lost() {
    let setup = Setup { clients: &[EXCLUSIVE; 3], in_flight: 2, faults: LOSS, ..TWO };
    holds("3 exclusive, loss", setup, 3_800_000);
}

#[test]
fn three_clients_ask_twice_and_a_subscription_is_lost() {
    let setup = Setup { clients: &[EXCLUSIVE; 3], in_flight: 2, faults: AWAY, ..TWO };
    holds("3 exclusive, subscription lost", setup, 3_800_000);
}

#[test]
fn three_clients_ask_once_and_all_faults_happen() {
    let faults = Faults { losses: 1, disconnects: 1, crashes: 1, ..NO_FAULTS };
    let setup = Setup { clients: &[EXCLUSIVE; 3], asks: 1, in_flight: 2, faults, ..TWO };
    holds("3 exclusive, loss, subscription lost, crash", setup, 1_800_000);
}

#[test]
fn three_clients_ask_twice_and_one_loses_its_subscription_behind_a_holder() {
    let setup =
        Setup { clients: &[EXCLUSIVE; 3], opening: 3, in_flight: 2, cancels: false, faults: AWAY, ..TWO };
    holds("3 exclusive behind a holder, subscription lost", setup, 100_000);
}

#[test]
fn a_client_polls_beside_one_that_is_pushed_to_and_a_message_is_lost() {
    let setup = Setup { clients: &[EXCLUSIVE, POLLER], in_flight: 2, faults: LOSS, ..TWO };
    holds("1 pushed, 1 polling, loss", setup, 300_000);
}

#[test]
fn two_clients_poll_and_one_crashes() {
    let setup = Setup { clients: &[POLLER; 2], faults: CRASH, ..TWO };
    holds("2 polling, crash", setup, 400_000);
}

#[test]
fn two_clients_poll_beside_one_that_is_pushed_to() {
    let setup = Setup { clients: &[EXCLUSIVE, POLLER, POLLER], in_flight: 2, ..TWO };
    holds("1 pushed, 2 polling", setup, 1_700_000);
}

#[test]
fn two_readers_and_a_writer_ask_twice() {
    let setup = Setup { clients: &[READER, READER, EXCLUSIVE], in_flight: 2, ..TWO };
    holds("2 readers, 1 writer", setup, 1_800_000);
}

#[test]
fn two_readers_of_different_ttls_and_a_writer() {
    let clients = &[Profile { ttl: 3, ..READER }, READER, EXCLUSIVE];
    holds("2 readers of TTL 3 and 2, 1 writer", Setup { clients, in_flight: 2, asks: 1, ..TWO }, 200_000);
}

#[test]
fn two_readers_and_a_writer_behind_a_holder_and_one_crashes() {
    let clients = &[READER, EXCLUSIVE, READER];
    let setup = Setup { clients, opening: 3, in_flight: 2, faults: CRASH, ..TWO };
    holds("2 readers, 1 writer behind a holder, crash", setup, 300_000);
}

const BIG: Profile = Profile { share: Share::Permits { take: 2, barging: false }, ..PERMIT };

#[test]
fn fair_and_barging_permits() {
    let setup = Setup { clients: &[PERMIT, BIG, BARGING], in_flight: 2, ..TWO };
    holds("3 permits, fair and barging", setup, 3_300_000);
}

#[test]
fn fair_and_barging_permits_and_a_subscription_is_lost() {
    let setup = Setup { clients: &[PERMIT, BIG, BARGING], in_flight: 1, faults: AWAY, ..TWO };
    holds("3 permits, fair and barging, subscription lost", setup, 3_000_000);
}

#[test]
fn a_reader_and_a_permit_and_a_writer() {
    let setup = Setup { clients: &[READER, PERMIT, EXCLUSIVE], in_flight: 2, ..TWO };
    holds("1 reader, 1 permit, 1 writer", setup, 3_500_000);
}

/// The return to the queue has removed the entry from the absent list before any grant.
#[test]
fn h3_a_grant_need_not_look_into_the_absent_list_where_the_waiter_returned_before() {
    let faults = Faults { losses: 1, disconnects: 1, ..NO_FAULTS };
    let setup = Setup { faults, without: &[Rule::GrantLeavesAbsentList], ..TWO };
    holds("without GrantLeavesAbsentList", setup, 1_400_000);
}

#[test]
fn barging_permits_behind_a_head_that_does_not_fit() {
    let clients = &[PERMIT, BARGING, BIG, BARGING];
    let setup = Setup { clients, opening: 4, window: 1, in_flight: 1, cancels: false, faults: AWAY, ..TWO };
    holds("4 permits, 1 looked at, subscription lost", setup, 100_000);
}

/// As long as `w` looks for its entry, no token has two, and a release need not look for more.
#[test]
fn h2_a_release_need_not_remove_every_entry_where_wait_looks_for_its_own() {
    let without = &[Rule::ReleaseRemovesEntries];
    let faults = Faults { losses: 1, disconnects: 1, ..NO_FAULTS };
    let setup = Setup { repeats_wait: true, faults, without, ..TWO };
    holds("without ReleaseRemovesEntries", setup, 1_400_000);
    let setup = Setup { attempts: 2, in_flight: 2, ..setup };
    holds("without ReleaseRemovesEntries, 2 attempts", setup, 5_000_000);
    let setup = Setup { clients: &[READER, READER, EXCLUSIVE], in_flight: 2, without, ..TWO };
    holds("without ReleaseRemovesEntries, 2 readers, 1 writer", setup, 1_800_000);
}

/// A release goes out again until no ask can be executed: then no grant comes for a finished token.
#[test]
fn a_grant_is_given_back_only_where_a_client_ends_early() {
    let setup = Setup { faults: LOSS, without: &[Rule::GiveBack], ..TWO };
    holds("without GiveBack", setup, 400_000);
}

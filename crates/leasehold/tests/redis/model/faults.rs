//! Each rule left out: its counterexample has to be found, and has to be gone with the rule.

use super::explorer::explore;
use super::properties::*;
use super::state::{Faults, NO_FAULTS, Profile, PushCounts, Rule, Setup, Share};
use super::{BARE, BARGING, EXCLUSIVE, PERMIT, POLLER, READER, every_property};

/// The property breaks without the rule; with the rule, the states as far as that hold them all.
fn breaks_without(rule: &'static [Rule; 1], property: &'static str, setup: Setup) {
    breaks(&format!("without {:?}", rule[0]), property, setup, Setup { without: rule, ..setup });
}

fn breaks(name: &str, property: &'static str, good: Setup, bad: Setup) {
    let found = explore(name, &bad, &[property], 3_000_000);
    let Some((_, steps, state)) = found.violated else { panic!("{name}: `{property}` was to break") };
    for step in &steps {
        println!("    {step:?}");
    }
    let server = &state.server;
    println!("    => {:?}, queue {:?}, absent {:?}", server.key, server.queue, server.absent);
    let found = explore("  with it", &good, &every_property(), found.states);
    assert!(found.violated.is_none(), "with the rule: {:#?}", found.violated);
}

const TWO: &[Profile] = &[EXCLUSIVE; 2];
const THREE: &[Profile] = &[EXCLUSIVE; 3];
const ONE: &[Profile] = &[EXCLUSIVE];

const BIG: Profile = Profile { share: Share::Permits { take: 2, barging: false }, ..PERMIT };
/// Two holders of one permit each, a waiter for both, and a barging waiter for one.
const FULL: &[Profile] = &[PERMIT, BARGING, BIG, BARGING];

const AWAY: Faults = Faults { disconnects: 1, ..NO_FAULTS };
const CRASH: Faults = Faults { crashes: 1, ..NO_FAULTS };

#[test]
fn h1_a_granted_caller_that_joins_the_queue_stands_in_the_key_and_in_the_queue() {
    breaks_without(&[Rule::GrantedIsNotQueued], ONE_PLACE, Setup { clients: TWO, asks: 2, ..BARE });
}

#[test]
fn h1_a_granted_reader_that_is_granted_again_is_counted_twice() {
    let clients = &[READER, EXCLUSIVE];
    breaks_without(&[Rule::GrantedIsNotQueued], USED, Setup { clients, asks: 2, ..BARE });
}

/// The release removes the entry at the head only; the key goes to the other one.
#[test]
fn h2_a_second_entry_hands_the_key_to_a_finished_token() {
    let setup = Setup { clients: TWO, asks: 2, cancels: true, repeats_wait: true, ..BARE };
    let without = &[Rule::WaitLooksForEntry, Rule::ReleaseRemovesEntries];
    breaks("without both rules of H2", FINISHED, setup, Setup { without, ..setup });
}

/// The release alone does not make up for it: the second entry gives its waiter a second turn.
#[test]
fn h2_a_second_entry_passes_the_waiters_before_it() {
    let faults = Faults { losses: 1, ..NO_FAULTS };
    let setup = Setup { clients: TWO, asks: 2, repeats_wait: true, faults, ..BARE };
    breaks_without(&[Rule::WaitLooksForEntry], ORDER, setup);
}

/// H3 as it was first written, where a waiter returns after its ask has served the queue.
#[test]
fn h3_a_grant_that_leaves_the_callers_entry_in_the_absent_list_gives_it_two_places() {
    let setup = Setup { clients: TWO, asks: 2, faults: AWAY, ..BARE };
    let good = Setup { without: &[Rule::ReturnsBeforeServe], ..setup };
    let bad = Setup { without: &[Rule::ReturnsBeforeServe, Rule::GrantLeavesAbsentList], ..setup };
    breaks("without H3", ONE_PLACE, good, bad);
}

/// A permit fits before the head, which waits for two: the waiter returns to the head and is not granted.
#[test]
fn an_absent_waiter_that_returns_after_its_ask_served_the_queue_is_left_at_the_head() {
    let clients = &[BIG, PERMIT, PERMIT, BIG];
    let setup = Setup { clients, opening: 2, asks: 2, in_flight: 1, faults: AWAY, ..BARE };
    breaks_without(&[Rule::ReturnsBeforeServe], SERVED, setup);
}

/// The script looks at one entry only: a barging waiter behind it is granted by its own ask.
#[test]
fn h3_a_grant_to_a_barging_caller_that_leaves_its_entry_in_the_queue_is_granted_again_under_it() {
    let setup = Setup { clients: FULL, opening: 4, asks: 2, window: 1, cancels: true, ..BARE };
    breaks_without(&[Rule::GrantLeavesQueue], BACKED, setup);
}

#[test]
fn h2_a_reader_that_joins_twice_is_counted_twice() {
    let clients = &[READER, EXCLUSIVE];
    let setup = Setup { clients, asks: 2, repeats_wait: true, ..BARE };
    breaks_without(&[Rule::WaitLooksForEntry], USED, setup);
}

#[test]
fn h4_an_absent_list_without_an_expiry_stays_for_ever() {
    breaks_without(&[Rule::AbsentListExpires], EXPIRES, Setup { clients: TWO, faults: CRASH, ..BARE });
}

#[test]
fn a_grant_without_a_look_for_presence_goes_to_a_dead_waiter() {
    breaks_without(&[Rule::PresenceBeforeGrant], PROMPT, Setup { clients: THREE, faults: CRASH, ..BARE });
}

#[test]
fn a_caller_that_does_not_count_as_present_loses_its_turn() {
    let setup = Setup { clients: TWO, asks: 2, faults: AWAY, ..BARE };
    breaks_without(&[Rule::CallerIsPresent], ORDER, setup);
}

#[test]
fn a_polling_waiter_that_does_not_count_as_present_loses_its_turn() {
    breaks_without(&[Rule::HereIsPresence], ORDER, Setup { clients: &[EXCLUSIVE, POLLER], ..BARE });
}

#[test]
fn a_push_before_the_writes_grants_what_a_replica_refuses_to_write() {
    let setup = Setup { clients: TWO, faults: Faults { refusals: 1, ..NO_FAULTS }, ..BARE };
    breaks_without(&[Rule::PublishLast], BACKED, setup);
}

#[test]
fn a_push_that_counts_from_its_receipt_makes_two_holders() {
    let setup = Setup { clients: TWO, asks: 2, attempts: 2, ..BARE };
    let bad = Setup { push_counts: PushCounts::Receipt, ..setup };
    breaks("a push counts from its receipt", ALONE, setup, bad);
}

#[test]
fn a_push_that_counts_from_the_latest_ask_makes_two_holders() {
    let setup = Setup { clients: TWO, asks: 2, attempts: 2, ..BARE };
    let bad = Setup { push_counts: PushCounts::LatestAsk, ..setup };
    breaks("a push counts from the latest ask", ALONE, setup, bad);
}

#[test]
fn a_push_that_counts_from_the_latest_queued_answer_makes_two_holders() {
    let setup = Setup { clients: TWO, asks: 3, attempts: 2, ..BARE };
    let bad = Setup { push_counts: PushCounts::LatestQueuedAnswer, ..setup };
    breaks("a push counts from the latest queued answer", ALONE, setup, bad);
}

#[test]
fn a_push_that_is_not_confirmed_begins_a_lease_that_is_nearly_over() {
    let clients = &[Profile { ttl: 3, ..EXCLUSIVE }; 2];
    breaks_without(&[Rule::ConfirmBelowHalf], LONG, Setup { clients, ..BARE });
}

#[test]
fn a_grant_that_counts_from_its_receipt_makes_two_holders() {
    breaks_without(&[Rule::AnswerCountsFromSend], ALONE, Setup { clients: TWO, ..BARE });
}

#[test]
fn a_renewal_by_the_token_confirms_a_fence_that_was_overtaken() {
    let faults = Faults { forced: 1, ..NO_FAULTS };
    let setup = Setup { clients: ONE, asks: 2, renewals: 1, faults, ..BARE };
    breaks_without(&[Rule::RenewComparesFence], CONFIRMED, setup);
}

#[test]
fn a_renewal_that_creates_holds_the_key_for_a_finished_token() {
    breaks_without(&[Rule::RenewNeverCreates], NO_ORPHAN, Setup { clients: ONE, renewals: 1, ..BARE });
}

#[test]
fn a_repeated_ask_that_does_not_rearm_makes_two_holders() {
    breaks_without(&[Rule::RepeatRearms], ALONE, Setup { clients: TWO, asks: 2, ..BARE });
}

#[test]
fn a_key_that_a_shorter_reader_shortens_makes_a_writer_beside_a_reader() {
    let clients = &[Profile { ttl: 3, ..READER }, Profile { ttl: 1, ..READER }, EXCLUSIVE];
    breaks_without(&[Rule::KeyNeverShortens], ALONE, Setup { clients, ..BARE });
}

#[test]
fn a_queue_that_a_shorter_waiter_shortens_loses_places() {
    let clients = &[EXCLUSIVE, Profile { ttl: 4, ..EXCLUSIVE }, Profile { ttl: 1, ..EXCLUSIVE }];
    breaks_without(&[Rule::QueueNeverShortens], PLACE, Setup { clients, ..BARE });
}

#[test]
fn an_ask_without_not_after_holds_the_key_for_a_finished_token() {
    breaks_without(&[Rule::NotAfter], FINISHED, Setup { clients: ONE, cancels: true, ..BARE });
}

#[test]
fn an_attempt_that_ends_with_its_first_release_holds_the_key_for_a_finished_token() {
    breaks_without(&[Rule::SecondRelease], FINISHED, Setup { clients: ONE, cancels: true, ..BARE });
}

#[test]
fn a_token_that_is_used_again_loses_its_grant_to_an_old_release() {
    let setup = Setup { clients: ONE, attempts: 2, ..BARE };
    breaks_without(&[Rule::FreshToken], WANTED, setup);
}

#[test]
fn a_release_by_the_whole_value_leaves_what_a_late_ask_was_granted() {
    breaks_without(&[Rule::ReleaseByToken], FINISHED, Setup { clients: ONE, asks: 2, ..BARE });
}

#[test]
fn a_cancel_that_only_leaves_the_queue_leaves_the_grant() {
    breaks_without(&[Rule::CancelReleasesKey], FINISHED, Setup { clients: ONE, cancels: true, ..BARE });
}

#[test]
fn a_withdrawal_from_the_head_that_serves_none_leaves_a_reader_waiting_beside_readers() {
    let clients = &[READER, EXCLUSIVE, READER];
    breaks_without(&[Rule::WithdrawalServes], SERVED, Setup { clients, cancels: true, ..BARE });
}

/// GiveBack is the second net: it matters to clients that end without the second release.
#[test]
fn a_grant_that_is_not_given_back_stays_with_a_client_that_ended_early() {
    let setup = Setup { clients: ONE, cancels: true, without: &[Rule::SecondRelease], ..BARE };
    let bad = Setup { without: &[Rule::SecondRelease, Rule::GiveBack], ..setup };
    let found = explore("without SecondRelease", &setup, &[NO_ORPHAN], usize::MAX);
    assert!(found.whole && found.violated.is_none());
    let found = explore("without SecondRelease and GiveBack", &bad, &[NO_ORPHAN], usize::MAX);
    assert!(found.violated.is_some());
}

#[test]
fn a_newcomer_that_does_not_join_the_queue_passes_it() {
    breaks_without(&[Rule::NewcomerWaits], ORDER, Setup { clients: THREE, ..BARE });
}

#[test]
fn an_absent_waiter_that_returns_to_the_tail_is_passed() {
    let setup = Setup { clients: THREE, opening: 2, asks: 2, attempts: 2, faults: AWAY, ..BARE };
    breaks_without(&[Rule::AbsentReturnsToHead], ORDER, setup);
}

#[test]
fn a_newcomer_that_joins_at_the_head_passes_the_queue() {
    breaks_without(&[Rule::NewAtTail], ORDER, Setup { clients: THREE, ..BARE });
}

#[test]
fn a_reader_that_is_looked_at_behind_a_writer_passes_it() {
    let clients = &[READER, EXCLUSIVE, READER];
    breaks_without(&[Rule::BlockedHeadBlocks], ORDER, Setup { clients, asks: 2, ..BARE });
}

/// A barging waiter that was never at the head returns there, and the head waits behind it.
#[test]
fn an_absent_barging_waiter_that_is_put_aside_behind_the_head_returns_before_it() {
    let setup = Setup { clients: FULL, opening: 4, attempts: 2, asks: 2, faults: AWAY, ..BARE };
    breaks_without(&[Rule::AbsentBehindHeadStays], JUMPED, setup);
}

#[test]
fn a_holder_that_asks_again_and_is_counted_again_uses_two_permits() {
    breaks_without(&[Rule::HolderCountsOnce], USED, Setup { clients: &[PERMIT; 2], asks: 2, ..BARE });
}

#[test]
fn a_release_of_nothing_that_lowers_used_grants_past_the_limit() {
    let setup = Setup { clients: &[PERMIT; 3], limit: 1, cancels: true, ..BARE };
    breaks_without(&[Rule::ReleaseOfNothingFreesNothing], ALONE, setup);
}

#[test]
fn a_grant_that_does_not_lower_soonest_lets_a_dead_holder_count_after_its_end() {
    let clients = &[Profile { ttl: 4, ..PERMIT }, Profile { ttl: 1, ..PERMIT }, BIG];
    breaks_without(&[Rule::GrantLowersSoonest], PROMPT, Setup { clients, faults: CRASH, ..BARE });
}

#[test]
fn a_client_that_allows_for_no_drift_is_a_second_holder() {
    let faults = Faults { slow_ticks: 1, ..NO_FAULTS };
    breaks_without(&[Rule::DriftAllowance], ALONE, Setup { clients: TWO, faults, ..BARE });
}

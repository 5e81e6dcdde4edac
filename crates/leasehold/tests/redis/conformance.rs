//! The conformance suite on `redis:`, against real servers.

use leasehold_testkit as common;

use std::sync::Arc;

use async_trait::async_trait;
use common::cases::{every_case_holds, every_case_it_can_holds};
use common::{ms, opened};
use leasehold::Store;
use leasehold::store::conformance::Subject;
use leasehold::store::redis::{self, Redis};
use leasehold_lab::{Kind, Server};

struct OnServer(String);

#[async_trait]
impl Subject for OnServer {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(opened(|| Redis::open(&self.0)).await)
    }

    fn ttl(&self) -> std::time::Duration {
        ms(3_000)
    }
}

/// As `connect` opens it.
struct WithoutScripts(String);

#[async_trait]
impl Subject for WithoutScripts {
    async fn open(&self) -> Arc<dyn Store> {
        opened(|| redis::open(&self.0)).await
    }

    fn ttl(&self) -> std::time::Duration {
        ms(3_000)
    }
}

async fn every_case_holds_on(kind: Kind) {
    let server = Server::start(kind).unwrap();
    every_case_holds(OnServer(format!("{}?timeout=150", server.url()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_redis() {
    every_case_holds_on(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_on_valkey() {
    every_case_holds_on(Kind::Valkey).await;
}

/// A line, a hand-over, shares, several names, values, rate limits: what the store says that it cannot do.
const NEED_SCRIPTS: [&str; 41] = [
    "a_change_is_of_what_was_looked_at_or_none",
    "a_condition_that_does_not_hold_changes_nothing",
    "a_dead_waiter_is_passed_over",
    "a_detached_share_is_taken_up_by_one_who_does_not_know_it",
    "a_downgrade_lets_readers_in_without_a_gap",
    "a_fence_is_remembered_beyond_its_value_and_not_for_ever",
    "a_heavy_take_is_taken_whole_or_not_at_all",
    "a_late_duplicate_of_a_conversion_changes_nothing",
    "a_light_claim_waits_behind_a_heavy_head_unless_it_barges",
    "a_limit_that_nobody_uses_leaves_nothing",
    "a_newcomer_does_not_pass_a_live_waiter",
    "a_number_keeps_the_end_it_was_made_with",
    "a_release_wakes_the_next_at_once",
    "a_release_withdraws_a_waiter",
    "a_sum_that_does_not_fit_is_refused",
    "a_token_at_some_of_its_names_or_more_holds_nothing",
    "a_value_ends_with_its_time_and_not_before",
    "a_value_is_what_was_written_last",
    "a_waiting_writer_stops_new_readers",
    "a_watch_sees_what_changed_before_it_began",
    "an_older_fence_does_not_write",
    "an_upgrade_is_refused_beside_other_readers_and_never_waits",
    "claims_over_several_names_in_any_order_do_not_deadlock",
    "each_take_is_judged_by_its_own_maximum",
    "evicting_one_of_several_names_ends_the_whole_claim",
    "limits_of_other_rules_and_periods_count_apart",
    "no_period_has_more_than_its_maximum",
    "of_many_who_replace_the_same_value_one_does",
    "of_many_who_take_only_so_many_are_allowed",
    "of_many_who_write_under_fences_the_highest_stays",
    "of_many_who_write_where_nothing_is_one_does",
    "one_release_admits_every_reader_that_waits",
    "permits_never_exceed_the_limit_of_the_claim",
    "readers_share_and_a_writer_excludes",
    "several_names_are_taken_all_or_none",
    "waiters_are_served_in_order_of_arrival",
    "what_is_added_by_many_adds_up",
    "what_is_told_of_a_limit_is_true",
    "what_many_change_by_looking_adds_up",
    "when_the_head_leaves_the_next_moves_up",
    "whoever_watches_a_value_hears_of_its_changes",
];

/// What needs scripts is left out, and nothing else.
async fn every_case_holds_without_scripts_on(kind: Kind) {
    let server = Server::start(kind).unwrap();
    let skipped =
        every_case_it_can_holds(WithoutScripts(format!("{}?timeout=150&scripts=off", server.url()))).await;
    assert_eq!(skipped, NEED_SCRIPTS);
    let calls = server.calls().unwrap();
    assert!(!calls.keys().any(|command| command.starts_with("eval")), "{calls:?}");
    assert_eq!(calls.contains_key("delifeq"), kind == Kind::Valkey, "{calls:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_without_scripts_on_redis() {
    every_case_holds_without_scripts_on(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_without_scripts_on_valkey() {
    every_case_holds_without_scripts_on(Kind::Valkey).await;
}

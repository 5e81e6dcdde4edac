//! The conformance suite on `redlock:`, against five real servers.

use leasehold_testkit as common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::cases::every_case_it_can_holds;
use common::fleet::{CALM, Fleet};
use common::{ms, secs};
use leasehold::store::conformance::Subject;
use leasehold::store::quorum::Quorum;
use leasehold::{Error, Locks, Store};
use leasehold_lab::{Authority, Kind, Server, Setup};

struct OnNodes(String);

#[async_trait]
impl Subject for OnNodes {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(Quorum::open(&self.0).await.unwrap())
    }

    fn ttl(&self) -> std::time::Duration {
        ms(3_000)
    }
}

/// A line, shares, several names, values: what the store says that it does not offer.
const NOT_OFFERED: [&str; 43] = [
    "a_block_of_fences_is_given_once",
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
    "any_fence_of_a_block_detaches_and_is_then_the_only_one",
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_that_is_offered_holds() {
    let fleet = Fleet::start(5);
    let skipped = every_case_it_can_holds(OnNodes(fleet.url(CALM))).await;
    assert_eq!(skipped, NOT_OFFERED);
}

/// The least a user needs, as the page of the store has it, and all of it over TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_that_is_offered_holds_over_tls_with_the_rights_that_are_documented() {
    let page = include_str!("../../../../docs/stores/redlock.md");
    let (_, rule) = page.split_once("ACL SETUSER locks on >PASSWORD ").expect("the rule is documented");
    let rule = rule.split("```").next().unwrap().replace('\\', " ");
    let rule = rule.split_whitespace().collect::<Vec<_>>().join(" ");
    let authority = Authority::new().unwrap();
    let start = || {
        let tls = authority.server(&["127.0.0.1"]).unwrap();
        let setup = Setup::new(Kind::Redis).tls(tls).user("locks", &format!("on >c4nary {rule}"));
        setup.user("default", "off").start().unwrap()
    };
    let nodes = [start(), start(), start()];
    let places = nodes.each_ref().map(|node| format!("locks:c4nary@{}", node.tls_addr().unwrap()));
    let ca = authority.file();
    let url = format!("redlocks:{}?{CALM}&ca={}", places.join(","), ca.display());
    let skipped = every_case_it_can_holds(OnNodes(url.clone())).await;
    assert_eq!(skipped, NOT_OFFERED);
    // Whoever may less is told what is missing, by each node, and sees no password.
    for node in &nodes {
        node.command(&["ACL", "SETUSER", "locks", "-zadd"]).unwrap();
    }
    let locks = leasehold::connect(&url).await.unwrap();
    let error = locks.mutex("x").try_lock().await.unwrap_err().to_string();
    assert!(error.contains("zadd") && !error.contains("c4nary"), "{error}");
    let wrong = leasehold::connect(&url.replace("c4nary", "w4nary")).await.map(drop).unwrap_err().to_string();
    assert!(wrong.contains("password") && !wrong.contains("w4nary"), "{wrong}");
}

/// Two of five are not there from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_that_is_offered_holds_with_two_of_five_down() {
    let fleet = Fleet::start(5);
    fleet.nodes[0].kill().unwrap();
    fleet.nodes[3].kill().unwrap();
    let skipped = every_case_it_can_holds(OnNodes(fleet.url(CALM))).await;
    assert_eq!(skipped, NOT_OFFERED);
}

const NODE: &str = "
const [, , modules, ports, file, rounds] = process.argv;
const Redis = require(modules + '/ioredis');
const { default: Redlock } = require(modules + '/redlock');
const fs = require('fs');
(async () => {
  const clients = ports.split(',').map((port) => new Redis(Number(port)));
  // Between its own retries it leaves the votes of a minority where they are, and is shut out by them for a TTL: so each try is one.
  const redlock = new Redlock(clients, { retryCount: 0, automaticExtensionThreshold: 500 });
  redlock.on('error', () => {});
  const acquire = async () => {
    for (;;) {
      try {
        return await redlock.acquire(['lock:company'], 20000);
      } catch (error) {
        await new Promise((resolve) => setTimeout(resolve, 1 + Math.random() * 5));
      }
    }
  };
  for (let i = 0; i < Number(rounds); i++) {
    const lock = await acquire();
    const count = Number(fs.readFileSync(file, 'utf8'));
    await new Promise((resolve) => setTimeout(resolve, 1));
    fs.writeFileSync(file, String(count + 1));
    await lock.release();
  }
  clients.forEach((client) => client.disconnect());
})().catch((error) => { console.error(error); process.exit(1); });
";

/// The library that bears the algorithm's name, on the same nodes and the same key: nobody gets in beside another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_node_redlock_the_count_is_exact() {
    let home = common::home("quorum_company");
    let counter = home.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let fleet = Fleet::start(5);
    let exe = std::env::current_exe().unwrap();
    let company = exe.ancestors().map(|folder| folder.join("tools/company/node/node_modules"));
    let company = company.into_iter().find(|folder| folder.is_dir()).expect("`cargo xtask test` installs it");
    let rounds = common::scaled(1_000);
    let ports: Vec<String> = fleet.nodes.iter().map(|node| node.addr().port().to_string()).collect();
    let mut they = std::process::Command::new("node")
        .args(["-e", NODE, "--", ""])
        .arg(company)
        .arg(ports.join(","))
        .arg(&counter)
        .arg(rounds.to_string())
        .spawn()
        .unwrap();
    // Each asks as eagerly as the other: whoever polls meets ours free only between a release and the next claim.
    let parameters = format!("{CALM}&retry_delay=4");
    let ours = (0..2).map(|_| {
        let (url, counter) = (fleet.url(&parameters), counter.clone());
        tokio::spawn(async move {
            let locks = leasehold::connect(&url).await.unwrap();
            for _ in 0..rounds {
                let lease = locks.mutex("company").lock().await.unwrap();
                let count: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                tokio::time::sleep(std::time::Duration::from_micros(500)).await;
                std::fs::write(&counter, (count + 1).to_string()).unwrap();
                lease.release().await.unwrap();
                tokio::time::sleep(ms(1)).await;
            }
            locks.close().await;
        })
    });
    for task in ours.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let ended = tokio::task::spawn_blocking(move || they.wait().unwrap()).await.unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), (3 * rounds).to_string());
}

/// Far longer than `QUICK`: an operation that waits for the stalled node misses its bound by far.
const PATIENT: &str = "quarantine=off&timeout=20000";
const QUICK: Duration = Duration::from_secs(5);

/// Every operation of a client, while one of its three nodes is stalled.
async fn use_without_a_stalled_node(locks: &Locks, name: &str) {
    let lease = locks.mutex(name).ttl(secs(40)).lock().await.unwrap();
    let status = locks.inspect(name).await.unwrap().unwrap();
    assert_eq!(status.holders[0].nodes.unwrap().held, 2, "the stalled node has nothing");
    assert!(locks.list("", 10).await.unwrap().iter().any(|status| status.name.as_str() == name));
    let error = locks.mutex(name).owner("second").wait(ms(50)).lock().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    lease.release().await.unwrap();
    let lease = locks.mutex(name).ttl(secs(40)).lock().await.unwrap();
    assert_eq!(locks.evict(name).await.unwrap().holders.len(), 1);
    drop(lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_opens_at_a_majority_and_a_stalled_node_joins_later() {
    let fleet = Fleet::start(3);
    fleet.nodes[2].pause().unwrap();
    let start = Instant::now();
    let locks = fleet.client("a", PATIENT).await;
    use_without_a_stalled_node(&locks, "before").await;
    let held = locks.mutex("held").ttl(secs(40)).lock().await.unwrap();
    assert!(start.elapsed() < QUICK, "it waited for the stalled node: {:?}", start.elapsed());
    fleet.nodes[2].resume().unwrap();
    while fleet.count("lock:held") < 3 {
        assert!(held.is_valid(), "the node did not join");
        tokio::time::sleep(ms(5)).await;
    }
    held.release().await.unwrap();

    // A node that stalls once it has joined.
    fleet.nodes[2].pause().unwrap();
    let start = Instant::now();
    use_without_a_stalled_node(&locks, "after").await;
    locks.close().await;
    assert!(start.elapsed() < QUICK, "it waited for the stalled node: {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_shuts_this_client_out_is_named_with_its_reason() {
    let setup = || Setup::new(Kind::Redis).user("locks", "on >pass-word ~* &* +@all").user("default", "off");
    let nodes: Vec<Server> = (0..3).map(|_| setup().start().unwrap()).collect();
    let places: Vec<String> = nodes.iter().map(|node| format!("locks:pass-word@{}", node.addr())).collect();
    let url = format!("redlock:{}?{CALM}", places.join(","));
    let locks = leasehold::connect(&url).await.unwrap();
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    nodes[0].command(&["ACL", "DELUSER", "locks"]).unwrap();
    nodes[1].command(&["ACL", "SETUSER", "locks", "resetpass", ">another"]).unwrap();
    nodes[1].command(&["CLIENT", "KILL", "USER", "locks"]).unwrap();
    let since = Instant::now();
    let told = |error: &str| {
        let said = |place: usize| error.contains(&format!("{}: WRONGPASS", nodes[place].addr()));
        said(0) && said(1) && error.contains("check user and password") && !error.contains("pass-word")
    };
    loop {
        let error = locks.mutex("x").try_lock().await.map(drop).unwrap_err().to_string();
        if told(&error) {
            break;
        }
        assert!(since.elapsed() < secs(20), "{error}");
        tokio::time::sleep(ms(5)).await;
    }
    let error = locks.inspect("x").await.map(drop).unwrap_err().to_string();
    assert!(told(&error), "{error}");
    let error = leasehold::connect(&url).await.map(drop).unwrap_err().to_string();
    assert!(told(&error), "{error}");
}

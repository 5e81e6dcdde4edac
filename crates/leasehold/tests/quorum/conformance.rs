//! The conformance suite on `redlock:`, against five real servers.

use leasehold_testkit as common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::cases::{every_case_it_can_holds, not_offered_by};
use common::quorum_nodes::{CALM, QuorumNodes};
use common::{ms, secs};
use leasehold::store::conformance::Subject;
use leasehold::store::quorum::Quorum;
use leasehold::{Capabilities, Error, Locks, Store};
use leasehold_lab::{Authority, Flow, Kind, Server, Setup, Toward};

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

/// A queue, shares, several names and values: the store does not offer them.
fn not_offered() -> Vec<&'static str> {
    let mut can = Capabilities::none("redlock");
    (can.fenced, can.pushed) = (true, true);
    not_offered_by(&can)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_that_is_offered_holds() {
    let fleet = QuorumNodes::start(5);
    let skipped = every_case_it_can_holds(OnNodes(fleet.url(CALM))).await;
    assert_eq!(skipped, not_offered());
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
    assert_eq!(skipped, not_offered());
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
    let fleet = QuorumNodes::start(5);
    fleet.nodes[0].kill().unwrap();
    fleet.nodes[3].kill().unwrap();
    let skipped = every_case_it_can_holds(OnNodes(fleet.url(CALM))).await;
    assert_eq!(skipped, not_offered());
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
    let fleet = QuorumNodes::start(5);
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
    let fleet = QuorumNodes::start(3);
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

/// No renewal repairs a detached lease, and the process that acquired it may end at once. So the other nodes have four times as
/// long as the majority took.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_lease_waits_a_short_time_for_the_nodes_beyond_the_majority() {
    let fleet = QuorumNodes::behind_proxies(3);
    let locks = fleet.client("a", CALM).await;
    locks.mutex("warm-up").lock().await.unwrap().release().await.unwrap();
    for (proxy, delay_ms) in fleet.proxies.iter().zip([50, 50, 100]) {
        proxy.set(Toward::Server, Flow::Delay(ms(delay_ms)));
    }
    let lease = locks.mutex("x").ttl(secs(20)).lock_detached().await.unwrap();
    assert_eq!(fleet.count("lock:x"), 3);
    lease.release().await.unwrap();
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

//! `redlock:` rule by rule, and fault by fault, on real nodes. Where the naive algorithm lets a second holder in, it is written out
//! here and does so.

use leasehold_testkit as common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::quorum_nodes::{CALM, QuorumNodes, naive_lock};
use common::{ms, secs};
use leasehold::store::quorum::Quorum;
use leasehold::{Error, Event, Locks, Loss, NodeSaid, Options};
use leasehold_lab::{Cut, Flow, Proxy, Reply, Server, Toward};

/// A fleet whose nodes have to earn their votes: for as long as a lease may last, and a little.
const STRICT: &str = "max_ttl=2000&skew=400&timeout=1000&retry_count=1000&retry_delay=50";
const QUARANTINE: Duration = Duration::from_millis(2_800);

async fn connect(url: &str, owner: &str) -> Locks {
    Arc::new(Quorum::open(url).await.unwrap()).client(Options::default().owner(owner)).unwrap()
}

/// Waits until something is so.
async fn until(what: &str, patience: Duration, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < patience, "not within {patience:?}: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A way to the nodes that never reaches these.
fn without(fleet: &QuorumNodes, places: &[usize], parameters: &str) -> (String, Vec<Proxy>) {
    let proxies: Vec<Proxy> =
        places.iter().map(|place| Proxy::to(fleet.nodes[*place].addr()).unwrap()).collect();
    proxies.iter().for_each(|proxy| proxy.refuse().unwrap());
    let nodes: Vec<String> = fleet
        .nodes
        .iter()
        .enumerate()
        .map(|(place, node)| match places.iter().position(|other| *other == place) {
            Some(at) => proxies[at].addr().to_string(),
            None => node.addr().to_string(),
        })
        .collect();
    (format!("redlock:{}?{parameters}", nodes.join(",")), proxies)
}

/// Under a lease that three of five nodes hold, one of these forgets. The naive algorithm lets a second holder in; ours does not.
async fn one_of_three_forgets(forget: impl Fn(&Server)) {
    let fleet = QuorumNodes::start(5);
    let all: Vec<&Server> = fleet.nodes.iter().collect();
    let (url, _proxies) = without(&fleet, &[3, 4], STRICT);
    let (a, b) = (connect(&url, "a").await, fleet.client("b", STRICT).await);
    // The nodes are new: they earn their votes first, which also shows that one who waits gets there.
    let held = a.mutex("x").ttl(secs(2)).no_renewal().wait(QUARANTINE + secs(20)).lock().await.unwrap();
    let naive = naive_lock(&all[..3], "naive", "a", secs(2)).unwrap();
    let naive_until = Instant::now() + naive;
    forget(&fleet.nodes[2]);
    assert!(naive_lock(&all, "naive", "b", secs(2)).is_some(), "the naive algorithm had a second holder");
    assert!(Instant::now() < naive_until, "while the first believed in its lock; is the machine too slow?");
    let mut refused = 0;
    while held.is_valid() {
        let second = b.mutex("x").ttl(secs(2)).try_lock().await;
        let is_first_valid = held.is_valid();
        match second {
            Ok(None) => refused += 1,
            Ok(Some(second)) => {
                assert!(!is_first_valid, "two holders: {} and {}", held.fence(), second.fence())
            }
            // Two nodes that `a` did not reach earn their votes a little later than those that it waited for.
            Err(Error::Quorum { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(ms(20)).await;
    }
    assert!(refused > 0, "no try found the lock held, with votes of the two nodes that `a` did not reach");
    // And it is not shut out for good: five nodes vote again.
    let first = held.fence();
    let second = b.mutex("x").ttl(secs(2)).wait(secs(30)).lock().await.unwrap();
    assert!(second.fence() > first);
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_a_node_that_starts_anew_has_no_vote_until_what_it_forgot_has_ended() {
    one_of_three_forgets(|node| {
        node.kill().unwrap();
        node.restart().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_a_node_that_was_flushed_has_no_vote_until_what_it_forgot_has_ended() {
    one_of_three_forgets(|node| assert!(node.command(&["FLUSHALL"]).unwrap().is_ok())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_nodes_that_are_new_have_no_vote_and_the_error_says_what_to_do() {
    let fleet = QuorumNodes::start(5);
    let locks = fleet.client("a", "timeout=1000").await;
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    let Error::Quorum { needed: 3, agreed: 0, nodes, .. } = &error else { panic!("{error}") };
    assert_eq!(nodes.len(), 5);
    for node in nodes {
        let NodeSaid::Quarantined { remaining } = node.said else { panic!("{:?}", node.said) };
        assert!(remaining > secs(50) && remaining <= secs(70), "{remaining:?}");
    }
    let text = error.to_string();
    assert!(text.starts_with("3 of 5 needed, 0 granted; "), "{text}");
    assert!(text.contains("wait ") && text.contains("`?quarantine=off`"), "{text}");
    assert!(text.contains(&fleet.nodes[4].addr().to_string()), "{text}");
    assert_eq!(fleet.count("lock:x"), 0);
    // Whoever knows that they are new says so.
    let knowing = fleet.client("b", CALM).await;
    knowing.mutex("x").lock().await.unwrap().release().await.unwrap();
    // A restart does not give back what a node has not earned.
    fleet.nodes[0].restart().unwrap();
    until("greeted again", secs(20), || fleet.is_born(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_a_claim_that_outlasts_the_quarantine_is_refused() {
    let fleet = QuorumNodes::start(3);
    let locks = fleet.client("a", "quarantine=off&timeout=1000&max_ttl=5000").await;
    let error = locks.mutex("x").ttl(ms(5_001)).lock().await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { what: "TTL", .. }), "{error}");
    assert!(error.to_string().contains("max_ttl"), "{error}");
    let lease = locks.mutex("x").ttl(ms(5_000)).lock().await.unwrap();
    assert!(matches!(lease.extend(secs(6)).await, Err(Error::Invalid { what: "TTL", .. })));
    assert!(lease.is_valid());
    assert!(matches!(lease.detach(secs(6)).await, Err(Error::Invalid { what: "TTL", .. })));
    let longer = Quorum::open(&fleet.url("max_ttl=5000&skew=1000&quarantine=6999")).await.unwrap_err();
    assert!(matches!(&longer, Error::Invalid { what: "quarantine", .. }), "{longer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b2_a_fence_is_above_the_last_of_every_node_that_accepts_it_and_outlives_its_lease() {
    let fleet = QuorumNodes::start(5);
    let locks = fleet.client("a", "quarantine=off&timeout=1000&max_ttl=60000&skew=5000").await;
    let first = locks.mutex("x").lock().await.unwrap();
    let fence = first.fence();
    first.release().await.unwrap();
    // A release is answered by a majority; a node that has not released yet would keep the first lease.
    until("released everywhere", secs(10), || fleet.count("lock:x") == 0).await;
    // Three nodes have given one that is a second ahead of all clocks: two yeses are no majority, and five in the second round are.
    let ahead = fence.get() + 1_000_000;
    (0..3).for_each(|place| fleet.set_fence(place, "x", ahead));
    let second = locks.mutex("x").lock().await.unwrap();
    assert!(second.fence().get() > ahead, "{} after {ahead}", second.fence());
    // B3: all for the same fence.
    until("on every node", secs(10), || fleet.count("lock:x") == 5).await;
    let values = fleet.values("lock:x");
    assert!(values.iter().all(|value| value == &values[0]), "{values:?}");
    assert!(values[0].as_ref().unwrap().ends_with(&format!("#{:x}", second.fence().get())));
    let second_fence = second.fence().get();
    second.release().await.unwrap();
    until("released everywhere", secs(10), || fleet.count("lock:x") == 0).await;
    // A node forgets a fence when no lease of before it can be left, and not before.
    let old = |seconds: u64| fence.get() - seconds * 1_000_000;
    fleet.set_fence(0, "young", old(80));
    fleet.set_fence(0, "old", old(90));
    let patience = Instant::now() + secs(60);
    while fleet.fence(0, "old").is_some() {
        assert!(Instant::now() < patience, "remembered for ever");
        locks.mutex("other").lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(fleet.fence(0, "young"), Some(old(80)));
    for place in 0..5 {
        assert_eq!(fleet.fence(place, "x"), Some(second_fence), "after the release");
    }
    // Far ahead of all clocks there is nothing that a majority can accept.
    (0..3).for_each(|place| fleet.set_fence(place, "x", ahead + 3_600_000_000));
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(
        matches!(&error, Error::Quorum { nodes, .. } if nodes.iter().any(|node| node.said == NodeSaid::Fenced)),
        "{error}"
    );
    until("nothing is left", secs(10), || fleet.count("lock:x") == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_without_a_majority_all_is_given_back() {
    let fleet = QuorumNodes::start(5);
    let locks = fleet.client("a", CALM).await;
    for node in &fleet.nodes[..3] {
        node.command(&["SET", "lock:x", "foreign", "PX", "60000"]).unwrap();
    }
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(
        fleet.values("lock:x")[3..],
        [None, None],
        "the minority's votes were given back before busy was said"
    );
    // Nor does it matter what was there for whom.
    assert!(fleet.values("lock:x")[..3].iter().all(|value| value.as_deref() == Some("foreign")));
    let status = locks.inspect("x").await.unwrap().unwrap();
    assert_eq!(status.holders[0].owner.as_str(), "another library");
    // A key that is no lock is no vote.
    for node in &fleet.nodes[..3] {
        node.command(&["DEL", "lock:x"]).unwrap();
        node.command(&["LPUSH", "lock:x", "1"]).unwrap();
    }
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("no lock"), "{error}");
}

/// The last request of a script with so many arguments in all that a node has executed.
fn executed(node: &Server, count: usize) -> Vec<String> {
    let Reply::Array(entries) = node.command(&["SLOWLOG", "GET", "100"]).unwrap() else {
        panic!("no slow log")
    };
    let requests = entries.into_iter().filter_map(|entry| match entry {
        Reply::Array(mut parts) if parts.len() > 3 => match parts.swap_remove(3) {
            Reply::Array(args) => {
                Some(args.iter().map(|arg| arg.text().unwrap().to_owned()).collect::<Vec<_>>())
            }
            _ => None,
        },
        _ => None,
    });
    let mut found = requests.filter(|args| args[0] == "EVALSHA" && args.len() == count);
    found.next().expect("it was executed")
}

/// Which life of a server it is.
fn run_id(node: &Server) -> String {
    node.info("server").unwrap()["run_id"].trim().to_owned()
}

/// The claim is on its way to a node when its connection breaks; the release overtakes it on the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_request_that_arrives_after_its_release_takes_nothing() {
    let fleet = QuorumNodes::behind_proxies(3);
    let (first, late, proxy) = (&fleet.nodes[0], &fleet.nodes[2], &fleet.proxies[2]);
    first.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).unwrap();
    let locks = fleet.client("a", CALM).await;
    locks.mutex("warm").lock().await.unwrap().release().await.unwrap();
    until("released everywhere", secs(10), || fleet.count("lock:warm") == 0).await;
    proxy.set(Toward::Server, Flow::Hold);
    let lease = locks.mutex("x").lock().await.unwrap();
    // EVALSHA digest 2 MEMORY key, and twelve arguments, of which the first is of that node alone.
    let mut acquire = executed(first, 17);
    assert!(acquire[4] == "lock:x" && acquire[5] == run_id(first), "{acquire:?}");
    acquire[5] = run_id(late);
    proxy.cut(Cut::Reset).unwrap();
    proxy.heal().unwrap();
    lease.release().await.unwrap();
    let has_heard = || fleet.fence(2, "x").is_some();
    until("the late one has heard of the release", secs(20), has_heard).await;
    assert_eq!(fleet.count("lock:x"), 0);
    let reply = late.command(&acquire).unwrap();
    let Reply::Array(reply) = &reply else { panic!("{reply:?}") };
    assert_eq!(reply[2].text(), Some("fence"), "{reply:?}");
    assert_eq!(fleet.count("lock:x"), 0, "a late claim holds the name for a TTL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_lease_is_put_back_on_a_node_that_has_come_back_empty() {
    let fleet = QuorumNodes::start(5);
    fleet.nodes[2].command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).unwrap();
    let locks = fleet.client("a", CALM).await;
    let lease = locks.mutex("x").ttl(secs(3)).lock().await.unwrap();
    until("on every node", secs(10), || fleet.count("lock:x") == 5).await;
    let value = fleet.values("lock:x")[0].clone();
    fleet.nodes[2].command(&["DEL", "lock:x"]).unwrap();
    until("put back", secs(20), || fleet.count("lock:x") == 5).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
    assert_eq!(fleet.values("lock:x")[2], value);
    // EVALSHA digest 2 MEMORY key, and nine arguments: a repair that comes after the release puts nothing back.
    let mut repair = executed(&fleet.nodes[2], 14);
    lease.release().await.unwrap();
    until("released everywhere", secs(10), || fleet.count("lock:x") == 0).await;
    *repair.last_mut().unwrap() = i64::MAX.to_string();
    let reply = fleet.nodes[2].command(&repair).unwrap();
    assert!(matches!(&reply, Reply::Array(reply) if reply[2].int() == Some(0)), "{reply:?}");
    assert_eq!(fleet.count("lock:x"), 0, "resurrected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_nothing_is_put_back_once_the_majority_is_gone() {
    let fleet = QuorumNodes::start(5);
    let locks = fleet.client("a", CALM).await;
    let lease = locks.mutex("x").ttl(secs(3)).lock().await.unwrap();
    until("on every node", secs(10), || fleet.count("lock:x") == 5).await;
    for node in &fleet.nodes[..3] {
        node.command(&["DEL", "lock:x"]).unwrap();
    }
    let loss = tokio::time::timeout(secs(20), lease.lost()).await.unwrap();
    assert_eq!(loss, Loss::Deleted);
    assert_eq!(fleet.values("lock:x")[..3], [None, None, None]);
    assert!(matches!(lease.release().await, Err(Error::Lost { .. })));
}

/// Two of five hold it and a third has it back, but may have given a vote away in between: that is no majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_node_that_got_a_lease_back_does_not_count_until_its_quarantine_is_over() {
    let fleet = QuorumNodes::start(5);
    let (url, _proxies) = without(&fleet, &[3, 4], STRICT);
    let locks = connect(&url, "a").await;
    let lease = locks.mutex("x").ttl(secs(2)).wait(secs(30)).lock().await.unwrap();
    assert_eq!(fleet.count("lock:x"), 3);
    let value = fleet.values("lock:x")[0].clone().unwrap();
    fleet.nodes[2].kill().unwrap();
    fleet.nodes[2].restart().unwrap();
    // As a repair would.
    fleet.nodes[2].command(&["SET", "lock:x", &value, "PX", "60000"]).unwrap();
    let loss = tokio::time::timeout(secs(20), lease.lost()).await.unwrap();
    assert!(matches!(loss, Loss::Deleted | Loss::Unreachable), "{loss}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_node_killed_or_stopped_all_goes_on_and_with_three_the_error_says_which() {
    let fleet = QuorumNodes::start(5);
    let locks = fleet.client("a", "quarantine=off&timeout=200&retry_delay=50").await;
    let quick = |how: &'static str| {
        let locks = locks.clone();
        async move {
            let mut took = Vec::new();
            for _ in 0..21 {
                let start = Instant::now();
                let lease = locks.mutex("x").lock().await.unwrap();
                lease.release().await.unwrap();
                took.push(start.elapsed());
            }
            took.sort();
            println!(
                "{how}: a lock and its release take {:?} at the median, {:?} at most",
                took[10], took[20]
            );
            // Nobody waits for a node that does not answer.
            assert!(took[10] < ms(100), "{how}: {took:?}");
        }
    };
    quick("five nodes").await;
    fleet.nodes[0].kill().unwrap();
    quick("one killed").await;
    fleet.nodes[0].restart().unwrap();
    fleet.nodes[1].pause().unwrap();
    quick("one stopped").await;
    fleet.nodes[0].kill().unwrap();
    quick("one killed and one stopped").await;
    fleet.nodes[2].kill().unwrap();
    let start = Instant::now();
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(start.elapsed() < secs(3), "{:?}", start.elapsed());
    let Error::Quorum { what: "granted", needed: 3, nodes, .. } = &error else { panic!("{error}") };
    let said = |place: usize| &nodes[place].said;
    assert!(matches!(said(0), NodeSaid::NotReached { .. } | NodeSaid::NoAnswer { .. }), "{error}");
    assert!(!matches!(said(1), NodeSaid::Agreed) && !matches!(said(2), NodeSaid::Agreed), "{error}");
    let text = error.to_string();
    for node in &fleet.nodes[..3] {
        assert!(text.contains(&format!("; {}: ", node.addr())), "{text}");
    }
    // One who waits gives up as soon: after so many retries, however long it was told to wait for its turn.
    let start = Instant::now();
    let error = locks.mutex("x").wait(secs(60)).lock().await.unwrap_err();
    assert!(matches!(error, Error::Quorum { .. }), "{error}");
    assert!(start.elapsed() < secs(10), "{:?}", start.elapsed());
    // What was granted by those that are there was given back, and all goes on when they are back.
    assert_eq!(fleet.values("lock:x")[3..], [None, None]);
    fleet.nodes[1].resume().unwrap();
    fleet.nodes[2].restart().unwrap();
    let back = async {
        loop {
            match locks.mutex("x").lock().await {
                Ok(lease) => break lease,
                Err(_) => tokio::time::sleep(ms(50)).await,
            }
        }
    };
    tokio::time::timeout(secs(30), back).await.unwrap().release().await.unwrap();
    // And nothing stays behind anywhere, also not on the node that was stopped with requests on their way to it.
    until("nothing is left", secs(20), || fleet.count("lock:x") == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_costs_nothing_and_three_of_them_cost_the_lock_and_nothing_else() {
    let fleet = QuorumNodes::behind_proxies(5);
    let slow = Flow::Delay(secs(3));
    let locks = fleet.client("a", "quarantine=off&timeout=2500").await;
    fleet.proxies[4].set(Toward::Client, slow);
    fleet.proxies[4].set(Toward::Server, slow);
    let start = Instant::now();
    let lease = locks.mutex("x").ttl(secs(2)).lock().await.unwrap();
    println!("granted in {:?} beside a node that takes 6 s", start.elapsed());
    assert!(start.elapsed() < ms(1_500), "{:?}", start.elapsed());
    assert!(lease.remaining() > ms(400), "{:?}", lease.remaining());
    lease.release().await.unwrap();
    // Three: the first votes would have ended when the third comes in.
    for proxy in &fleet.proxies[2..4] {
        proxy.set(Toward::Client, slow);
    }
    let error = locks.mutex("y").ttl(secs(20)).try_lock().await.unwrap_err();
    let Error::Quorum { agreed: 2, nodes, .. } = &error else { panic!("{error}") };
    assert!(matches!(nodes[2].said, NodeSaid::TimedOut { .. }), "{error}");
    // Long before the TTL ends it.
    let since = Instant::now();
    while fleet.count("lock:y") > 0 {
        assert!(since.elapsed() < secs(12), "not released everywhere: {:?}", fleet.values("lock:y"));
        tokio::time::sleep(ms(5)).await;
    }
}

/// Node 3 joins after the claims were made, is given up when it answers none of them, and cannot be reached again. The claims
/// fail when node 4, which joins later, has not answered either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_claim_is_released_over_the_connection_on_which_a_joining_node_received_it() {
    let fleet = QuorumNodes::behind_proxies(5);
    let earlier = fleet.client("earlier", CALM).await;
    // Then every node knows the scripts.
    let lease = earlier.mutex("x").lock().await.unwrap();
    until("held everywhere", secs(10), || fleet.count("lock:x") == 5).await;
    lease.release().await.unwrap();
    until("released everywhere", secs(10), || fleet.count("lock:x") == 0).await;
    // Longer than a request may take, and shorter than a step of connecting may take.
    fleet.proxies[3].set(Toward::Server, Flow::Delay(ms(150)));
    fleet.proxies[4].set(Toward::Server, Flow::Delay(ms(300)));
    let locks = fleet.client("a", "quarantine=off&timeout=100").await;
    assert!(
        fleet.proxies[3].until(secs(10), |counts| counts.connections == 2),
        "{:?}",
        fleet.proxies[3].counts()
    );
    fleet.proxies[3].refuse().unwrap();
    fleet.proxies[1].set(Toward::Server, Flow::Swallow);
    fleet.proxies[2].set(Toward::Server, Flow::Swallow);
    let mutex = |name: &str| locks.mutex(name).ttl(secs(60));
    let (y, z) = (mutex("y"), mutex("z"));
    let claims = async { tokio::join!(y.try_lock(), z.try_lock()) };
    let arrival = until("the claims arrive", secs(30), || fleet.values("lock:y")[3].is_some());
    let ((y, z), ()) = tokio::join!(claims, arrival);
    assert!(y.is_err() && z.is_err(), "{y:?}, {z:?}");
    for name in ["lock:y", "lock:z"] {
        until(name, secs(20), || fleet.values(name)[3].is_none()).await;
    }
}

/// The answer that the node does not know the script arrives too late to send the text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_claim_is_released_on_a_node_that_does_not_know_the_script_and_answers_late() {
    let fleet = QuorumNodes::behind_proxies(3);
    let locks = fleet.client("a", "quarantine=off&timeout=500").await;
    let held = locks.mutex("x").ttl(secs(60)).lock().await.unwrap();
    until("the claim is on every node", secs(10), || fleet.count("lock:x") == 3).await;
    fleet.proxies[1].set(Toward::Server, Flow::Swallow);
    fleet.proxies[2].set(Toward::Client, Flow::Swallow);
    locks.mutex("y").ttl(secs(60)).try_lock().await.unwrap_err();
    until("released", secs(20), || fleet.values("lock:y")[2].is_none()).await;
    drop(held);
}

/// A release returns at the majority; the value may stay on a minority for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_reports_no_holder_that_only_a_minority_of_nodes_has() {
    let fleet = QuorumNodes::start(3);
    let locks = fleet.client("a", CALM).await;
    let lease = locks.mutex("x").lock().await.unwrap();
    until("held everywhere", secs(10), || fleet.count("lock:x") == 3).await;
    let (fence, value) = (lease.fence(), fleet.values("lock:x")[0].clone().unwrap());
    lease.release().await.unwrap();
    until("released everywhere", secs(10), || fleet.count("lock:x") == 0).await;
    let keep_on_one_node = || {
        fleet.nodes[1].command(&["SET", "lock:x", &value, "PX", "60000"]).unwrap();
    };
    keep_on_one_node();
    assert!(locks.evict_holder("x", fence).await.unwrap().holders.is_empty());
    until("removed by its fence", secs(10), || fleet.count("lock:x") == 0).await;
    keep_on_one_node();
    assert!(locks.evict("x").await.unwrap().holders.is_empty());
    until("removed", secs(10), || fleet.count("lock:x") == 0).await;
}

/// With more patience than a lease lasts: the majority comes, and too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_comes_after_the_ttl_is_none() {
    let fleet = QuorumNodes::behind_proxies(3);
    let locks = fleet.client("a", "quarantine=off&timeout=10000").await;
    for proxy in &fleet.proxies[1..] {
        proxy.set(Toward::Client, Flow::Delay(ms(800)));
    }
    let error = locks.mutex("x").ttl(ms(500)).try_lock().await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { why, .. } if why.contains("the TTL of 500 ms was over")),
        "{error}"
    );
    assert_eq!(fleet.count("lock:x"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_waits_is_told_and_does_not_sleep() {
    let fleet = QuorumNodes::start(5);
    let parameters = "quarantine=off&timeout=1000&retry_delay=30000";
    let (a, b) = (fleet.client("a", parameters).await, fleet.client("b", parameters).await);
    let held = a.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(b.mutex("x").lock());
    let is_in_line = || {
        let count = |node: &Server| node.command(&["ZCARD", "{lock:x}:next"]).unwrap().int().unwrap_or(0);
        fleet.nodes.iter().filter(|node| count(node) > 0).count() >= 3
    };
    until("in line", secs(10), is_in_line).await;
    held.release().await.unwrap();
    let start = Instant::now();
    let lease = tokio::time::timeout(secs(10), waiter).await.unwrap().unwrap().unwrap();
    println!("told and granted in {:?}", start.elapsed());
    lease.release().await.unwrap();
    // One who stops waiting is told nothing.
    let held = a.mutex("x").lock().await.unwrap();
    assert!(matches!(b.mutex("x").wait(ms(200)).lock().await, Err(Error::Busy { .. })));
    until("out of line", secs(10), || {
        fleet.nodes.iter().all(|node| node.command(&["EXISTS", "{lock:x}:next"]).unwrap().int() == Some(0))
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_on_a_bare_majority_is_told_of_and_shown() {
    let fleet = QuorumNodes::start(3);
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let notes = heard.clone();
    let options = Options::default().owner("a").on_event(move |event| {
        notes.lock().unwrap().push(event);
        async {}
    });
    let locks = options.connect(&fleet.url(CALM)).await.unwrap();
    let degraded = || {
        let heard = heard.lock().unwrap();
        heard.iter().filter(|event| matches!(event, Event::Degraded { held: 2, nodes: 3, .. })).count()
    };
    let lease = locks.mutex("x").ttl(secs(3)).lock().await.unwrap();
    until("on every node", secs(10), || fleet.count("lock:x") == 3).await;
    let nodes = locks.inspect("x").await.unwrap().unwrap().holders[0].nodes.unwrap();
    assert!((nodes.held, nodes.all) == (3, 3) && !nodes.is_degraded());
    assert_eq!(degraded(), 0);
    fleet.nodes[1].kill().unwrap();
    until("degraded", secs(20), || degraded() == 1).await;
    let missing = fleet.nodes[1].addr().to_string();
    assert!(
        heard
            .lock()
            .unwrap()
            .iter()
            .any(|event| matches!(event, Event::Degraded { missing: it, .. } if *it == [missing.clone()]))
    );
    let nodes = locks.inspect("x").await.unwrap().unwrap().holders[0].nodes.unwrap();
    assert!((nodes.held, nodes.all) == (2, 3) && nodes.is_degraded());
    let report = leasehold::doctor::examine(&fleet.url(CALM)).await.unwrap();
    let finding = |check: &str| report.findings.iter().find(|finding| finding.check == check).unwrap();
    assert!(finding("leases").what.contains("bare majority"), "{report:?}");
    assert!(finding("quorum").what.contains("2 of 3 nodes can vote"), "{report:?}");
    fleet.nodes[1].restart().unwrap();
    until("put back", secs(20), || fleet.count("lock:x") == 3).await;
    // It counts with the next renewal, which sets its end anew.
    let left = || fleet.nodes[1].command(&["PTTL", "lock:x"]).unwrap().int().unwrap();
    until("not renewed yet", secs(20), || left() < 2_600).await;
    until("renewed", secs(20), || left() > 2_700).await;
    fleet.nodes[1].kill().unwrap();
    until("told again", secs(20), || degraded() == 2).await;
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_and_two_names_of_one_server_are_one_vote() {
    let fleet = QuorumNodes::start(3);
    let [a, b, c] = [0, 1, 2].map(|place| fleet.nodes[place].addr().to_string());
    for (url, what) in [
        (format!("redlock:{a},{b}"), "nodes of a quorum"),
        (format!("redlock:{a},{b},{a}"), "nodes of a quorum"),
        (format!("redlock:{a},{b},{c}?quorum=1"), "quorum"),
        (format!("redlock:{a},{b},{c}?quorum=4"), "quorum"),
        (format!("redlock:{a},{b},{c}?nodes=4"), "parameter in the store URL"),
        (format!("redlock:{a},{b},{c}?timeout=soon"), "parameter in the store URL"),
        (format!("redlock:{a},{b},{c}?drift=2"), "drift"),
        (format!("redlock:{a},{b},{c}?prefix=a%7B"), "prefix"),
    ] {
        let error = leasehold::connect(&url).await.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Invalid { what: its, .. } if *its == what), "{url}: {error}");
    }
    // Another name for the first server, which can be reached only once the quorum is open.
    let second_name = Proxy::to(fleet.nodes[0].addr()).unwrap();
    let url = format!("redlock:{a},{},{b}?{CALM}", second_name.addr());
    second_name.refuse().unwrap();
    let locks = connect(&url, "a").await;
    second_name.accept().unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    assert_eq!(fleet.count("lock:x"), 2);
    lease.release().await.unwrap();
    fleet.nodes[1].kill().unwrap();
    let since = Instant::now();
    loop {
        let error = locks.mutex("x").try_lock().await.unwrap_err().to_string();
        if error.contains(&format!("it is the same server as {a}")) {
            break;
        }
        assert!(since.elapsed() < secs(20), "{error}");
        tokio::time::sleep(ms(5)).await;
    }
    // With both names reached first, it is not opened at all.
    let error = leasehold::connect(&url).await.map(drop).unwrap_err();
    assert!(matches!(&error, Error::Invalid { what: "nodes of a quorum", .. }), "{error}");
    assert!(error.to_string().contains(&a) && error.to_string().contains("name each server once"), "{error}");
    for (error, what) in [
        (locks.semaphore("s", 2).acquire().await.unwrap_err(), "permits"),
        (locks.rwlock("r").read().await.unwrap_err(), "shared locks"),
    ] {
        assert!(
            error.to_string().contains("two majorities need not have a node in common"),
            "{what}: {error}"
        );
    }
    // Nobody is there.
    fleet.nodes.iter().for_each(|node| drop(node.kill()));
    let error = leasehold::connect(&fleet.url("")).await.map(drop).unwrap_err();
    assert!(error.to_string().starts_with("2 of 3 needed, 0 reached; "), "{error}");
}

//! Nodes whose clocks are set: by one of them nobody gets in; by three of them somebody may, by time, and then the fence tells, and
//! the first holder is told.
//!
//! The clocks are moved by the shared library of `wall_clock.c` in the testkit, for a child process and the servers it starts: each reads its
//! own file, in its own directory. The child's clock is not moved.
#![cfg(target_os = "linux")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::time::Instant;

use common::child_test;
use common::quorum_nodes::{QuorumNodes, as_child, come_up_with_clock, is_child, naive_lock, set_clock};
use common::{ms, secs};
use leasehold::store::quorum::Quorum;
use leasehold::{Error, Fence, Lease, Locks, Loss, NodeSaid, Options};
use leasehold_lab::{Proxy, Server};

const CALM: &str = "quarantine=off&timeout=1000&retry_delay=50";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What is protected: it refuses a fence below one it has seen.
#[derive(Default)]
struct Resource(std::sync::Mutex<Option<Fence>>);

impl Resource {
    fn accepts(&self, fence: Fence) -> bool {
        let mut highest = self.0.lock().unwrap();
        let is_good = highest.is_none_or(|highest| fence >= highest);
        if is_good {
            *highest = Some(fence);
        }
        is_good
    }
}

/// A client that reaches these nodes only.
async fn of_these(
    fleet: &QuorumNodes,
    places: &[usize],
    owner: &str,
    parameters: &str,
) -> (Locks, Vec<Proxy>) {
    let mut proxies = Vec::new();
    let addresses = fleet.nodes.iter().enumerate().map(|(place, node)| {
        if places.contains(&place) {
            return node.addr().to_string();
        }
        let proxy = Proxy::to(node.addr()).unwrap();
        proxy.refuse().unwrap();
        proxies.push(proxy);
        proxies[proxies.len() - 1].addr().to_string()
    });
    let url = format!("redlock:{}?{parameters}", addresses.collect::<Vec<_>>().join(","));
    let store = Arc::new(Quorum::open(&url).await.unwrap());
    (store.client(Options::default().owner(owner)).unwrap(), proxies)
}

#[test]
fn by_the_clock_of_one_node_nobody_gets_in() {
    if !is_child() {
        return as_child(child_test!(by_the_clock_of_one_node_nobody_gets_in));
    }
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        let all: Vec<&Server> = fleet.nodes.iter().collect();
        let ((a, _proxies), b) =
            (of_these(&fleet, &[0, 1, 2], "a", CALM).await, fleet.client("b", CALM).await);
        let ttl = secs(4);
        let held = a.mutex("x").ttl(ttl).no_renewal().lock().await.unwrap();
        let naive_until = Instant::now() + naive_lock(&all[..3], "naive", "a", ttl).unwrap();
        set_clock(&fleet.nodes[2], 3_600);
        assert!(naive_lock(&all, "naive", "b", ttl).is_some(), "the naive algorithm has a second holder");
        assert!(
            Instant::now() < naive_until,
            "while the first believed in its lock; is the machine too slow?"
        );
        let mut refused = 0;
        while held.is_valid() {
            let second = b.mutex("x").ttl(ttl).try_lock().await.unwrap();
            let is_valid = held.is_valid();
            assert!(second.is_none() || !is_valid, "two holders");
            refused += usize::from(second.is_none());
            tokio::time::sleep(ms(20)).await;
        }
        assert!(refused > 0);
        // The others are enough, and the node with the wrong clock is in nobody's way.
        let first = held.fence();
        let second = b.mutex("x").ttl(ttl).wait(secs(20)).lock().await.unwrap();
        assert!(second.fence() > first);
        assert_eq!(fleet.values("lock:x")[2], None, "it has no vote");
        second.release().await.unwrap();
        // Two more, each another hour off: there is no fence that three of them would accept, and it is said why.
        set_clock(&fleet.nodes[3], 7_200);
        set_clock(&fleet.nodes[4], 10_800);
        let error = b.mutex("x").try_lock().await.unwrap_err();
        let Error::Quorum { nodes, .. } = &error else { panic!("{error}") };
        let off = nodes.iter().filter(|node| matches!(node.said, NodeSaid::ClockOff { .. })).count();
        assert!(off >= 3, "{error}");
        let text = error.to_string();
        assert!(text.contains("its clock is") && text.contains("NTP"), "{text}");
    });
}

/// Whoever holds it on all nodes does not lose it by one of them, whose lease is put back; a leap that it sees costs that vote once.
#[test]
fn b8_one_node_that_leaps_costs_no_lease_and_all_together_cost_every_lease() {
    if !is_child() {
        return as_child(child_test!(
            b8_one_node_that_leaps_costs_no_lease_and_all_together_cost_every_lease
        ));
    }
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        let locks = fleet.client("a", CALM).await;
        let ttl = secs(6);
        let leases: Vec<Lease> = vec![
            locks.mutex("x").ttl(ttl).lock().await.unwrap(),
            locks.mutex("y").ttl(ttl).lock().await.unwrap(),
        ];
        set_clock(&fleet.nodes[0], 3_600);
        tokio::time::sleep(ttl * 3 / 2).await;
        assert!(leases.iter().all(|lease| lease.is_valid()), "lost by one clock");
        assert_eq!((fleet.count("lock:x"), fleet.count("lock:y")), (5, 5), "put back on the node that leapt");
        // Less than a lease lasts, so that every node still has it: but our own clock may be what stood still.
        for (place, node) in fleet.nodes.iter().enumerate() {
            set_clock(node, if place == 0 { 3_602 } else { 2 });
        }
        for lease in &leases {
            let loss = tokio::time::timeout(ttl, lease.lost()).await.unwrap();
            assert_eq!(loss, Loss::Clock);
        }
        // What is taken from then on is good.
        let lease = tokio::time::timeout(secs(20), locks.mutex("x").ttl(ttl).lock()).await.unwrap().unwrap();
        tokio::time::sleep(ttl).await;
        assert!(lease.is_valid());
        lease.release().await.unwrap();
    });
}

/// Three clocks are set, by an hour or by less than what fences allow: by time there is a second holder. The resource refuses the
/// first from then on, and the first is told.
fn three_clocks_are_set_by(ahead_s: i64) {
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        let a = fleet.client("a", CALM).await;
        let resource = Resource::default();
        let ttl = secs(3);
        let first = a.mutex("x").ttl(ttl).lock().await.unwrap();
        assert!(resource.accepts(first.fence()));
        // Together, and between two renewals: one that meets some of them before and some after puts the lease back, rightly.
        let left = || fleet.nodes[4].command(&["PTTL", "lock:x"]).unwrap().int().unwrap();
        while !(2_700..2_850).contains(&left()) {
            tokio::time::sleep(ms(2)).await;
        }
        fleet.nodes[..3].iter().for_each(|node| come_up_with_clock(node, ahead_s));
        fleet.nodes[..3].iter().for_each(|node| set_clock(node, ahead_s));
        // Whoever comes new, and whoever knows the nodes from before.
        let b = fleet.client("b", CALM).await;
        let second = b.mutex("x").ttl(ttl).wait(secs(20)).lock().await.unwrap();
        let overlap = first.is_valid();
        assert!(second.fence() > first.fence(), "{} after {}", second.fence(), first.fence());
        assert!(resource.accepts(second.fence()));
        assert!(!resource.accepts(first.fence()), "the stale one was let in");
        let loss = tokio::time::timeout(ttl, first.lost()).await.unwrap();
        assert!(matches!(loss, Loss::Taken | Loss::Deleted | Loss::Clock), "{loss}");
        println!("ahead by {ahead_s} s: two held at once by time: {overlap}; the first was told: {loss}");
        second.release().await.unwrap();
        // Back, with nothing forgotten: fences go on rising as long as they may.
        let third = b.mutex("x").ttl(ttl).wait(secs(20)).lock().await.unwrap();
        assert!(resource.accepts(third.fence()));
        third.release().await.unwrap();
    });
}

#[test]
fn by_three_clocks_set_by_an_hour_the_fence_tells() {
    if !is_child() {
        return as_child(child_test!(by_three_clocks_set_by_an_hour_the_fence_tells));
    }
    three_clocks_are_set_by(3_600);
}

#[test]
fn by_three_clocks_set_by_less_than_fences_allow_the_fence_tells() {
    if !is_child() {
        return as_child(child_test!(by_three_clocks_set_by_less_than_fences_allow_the_fence_tells));
    }
    three_clocks_are_set_by(4);
}

/// A machine comes up with its clock behind, is spoken to, and then sets its clock: that is no proof of age.
#[test]
fn b6_a_node_that_comes_up_with_its_clock_behind_has_no_vote_for_as_long_as_any() {
    if !is_child() {
        return as_child(child_test!(
            b6_a_node_that_comes_up_with_its_clock_behind_has_no_vote_for_as_long_as_any
        ));
    }
    const STRICT: &str = "max_ttl=8000&skew=400&timeout=1000&retry_count=1000&retry_delay=50";
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        let (a, _proxies) = of_these(&fleet, &[0, 1, 2], "a", STRICT).await;
        let _all = fleet.client("all", STRICT).await;
        let ttl = secs(8);
        // The nodes are new, and earn their votes first.
        let held = a.mutex("x").ttl(ttl).no_renewal().wait(secs(40)).lock().await.unwrap();
        let forgetful = &fleet.nodes[2];
        forgetful.kill().unwrap();
        come_up_with_clock(forgetful, -60);
        forgetful.restart().unwrap();
        let spoken_to = || forgetful.calls().unwrap().get("evalsha").is_some_and(|calls| *calls >= 2);
        while !spoken_to() {
            tokio::time::sleep(ms(5)).await;
        }
        assert!(!fleet.is_born(2), "dated by a clock that nobody agrees with");
        set_clock(forgetful, 0);
        // Whoever knows nothing of before goes by what the node says.
        let b = fleet.client("b", STRICT).await;
        let mut refused = 0;
        while held.is_valid() {
            let second = b.mutex("x").ttl(ttl).try_lock().await.unwrap();
            assert!(second.is_none() || !held.is_valid(), "two holders");
            refused += usize::from(second.is_none());
            tokio::time::sleep(ms(20)).await;
        }
        assert!(refused > 0, "is the machine too slow?");
        assert!(fleet.is_born(2));
        let second = b.mutex("x").ttl(ttl).wait(secs(40)).lock().await.unwrap();
        assert!(second.fence() > held.fence());
    });
}

/// Three of five have given a fence that is ahead of the time, as they may. The clock of one leaps over all that it remembers, and
/// returns; with the two that never heard of it, it could give the same again.
#[test]
fn b2_a_clock_that_leaps_and_returns_makes_a_node_forget_no_fence() {
    if !is_child() {
        return as_child(child_test!(b2_a_clock_that_leaps_and_returns_makes_a_node_forget_no_fence));
    }
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        let (a, _far) = of_these(&fleet, &[0, 1, 2], "a", CALM).await;
        let (b, _near) = of_these(&fleet, &[2, 3, 4], "b", CALM).await;
        let warm = a.mutex("x").lock().await.unwrap();
        let ahead = warm.fence().get() + 4_000_000;
        warm.release().await.unwrap();
        (0..3).for_each(|place| fleet.set_fence(place, "x", ahead));
        let first = a.mutex("x").lock().await.unwrap();
        let fence = first.fence();
        assert!(fence.get() > ahead);
        first.release().await.unwrap();
        let leaps = &fleet.nodes[2];
        set_clock(leaps, 3_600);
        // Spoken to, so that what has ended by that clock is gone.
        assert!(b.mutex("x").try_lock().await.is_err(), "two of five, and one whose clock is off");
        set_clock(leaps, 0);
        let second = b.mutex("x").wait(secs(20)).lock().await.unwrap();
        assert!(second.fence() > fence, "{} after {fence}", second.fence());
    });
}

/// Two clocks of three that a client reaches are an hour ahead, and so is the fence it asks for. Nobody else is to suffer.
#[test]
fn b5_one_who_gives_up_a_fence_far_ahead_shuts_nobody_out() {
    if !is_child() {
        return as_child(child_test!(b5_one_who_gives_up_a_fence_far_ahead_shuts_nobody_out));
    }
    runtime().block_on(async {
        let fleet = QuorumNodes::start(5);
        fleet.nodes[..2].iter().for_each(|node| set_clock(node, 3_600));
        let (a, far) = of_these(&fleet, &[0, 1, 2], "a", CALM).await;
        let error = a.mutex("x").try_lock().await.unwrap_err();
        assert!(matches!(error, Error::Quorum { .. }), "{error}");
        // Those it could not reach are told later.
        far.iter().for_each(|proxy| proxy.heal().unwrap());
        let told = |place: usize| fleet.nodes[place].calls().unwrap().contains_key("evalsha");
        while !(3..5).all(told) {
            tokio::time::sleep(ms(5)).await;
        }
        let b = fleet.client("b", CALM).await;
        let lease = b.mutex("x").wait(secs(20)).lock().await.unwrap();
        lease.release().await.unwrap();
    });
}

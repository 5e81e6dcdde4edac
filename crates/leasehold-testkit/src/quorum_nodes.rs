//! The nodes of a quorum: real servers, optionally behind proxies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::store::quorum::Quorum;
use leasehold::{Locks, Options};
use leasehold_lab::{Kind, Proxy, Reply, Server};

use super::child::ChildTest;
use super::clock_shim::WallClock;

/// The parameters of most tests: new, empty nodes, and a long time-out for a busy machine.
pub const CALM: &str = "quarantine=off&timeout=1000";

/// The key that a node must not lose.
const MEMORY: &str = "{lock:}:memory";

pub struct QuorumNodes {
    pub nodes: Vec<Server>,
    pub proxies: Vec<Proxy>,
}

impl QuorumNodes {
    pub fn start(count: usize) -> Self {
        let nodes = (0..count).map(|_| Server::start(Kind::Redis).unwrap()).collect();
        QuorumNodes { nodes, proxies: Vec::new() }
    }

    pub fn behind_proxies(count: usize) -> Self {
        let started = QuorumNodes::start(count);
        let proxies = started.nodes.iter().map(|node| Proxy::to(node.addr()).unwrap()).collect();
        QuorumNodes { proxies, ..started }
    }

    pub fn url(&self, parameters: &str) -> String {
        let nodes: Vec<String> = match self.proxies.as_slice() {
            [] => self.nodes.iter().map(|node| node.addr().to_string()).collect(),
            proxies => proxies.iter().map(|proxy| proxy.addr().to_string()).collect(),
        };
        format!("redlock:{}?{parameters}", nodes.join(","))
    }

    pub async fn store(&self, parameters: &str) -> Arc<Quorum> {
        Arc::new(Quorum::open(&self.url(parameters)).await.unwrap())
    }

    pub async fn client(&self, owner: &str, parameters: &str) -> Locks {
        self.store(parameters).await.client(Options::default().owner(owner)).unwrap()
    }

    pub fn values(&self, key: &str) -> Vec<Option<String>> {
        self.nodes
            .iter()
            .map(|node| match node.command(&["GET", key]) {
                Ok(Reply::Nil) | Err(_) => None,
                Ok(reply) => Some(reply.text().unwrap().to_owned()),
            })
            .collect()
    }

    /// Returns the fence that a node stores for a name.
    pub fn fence(&self, place: usize, name: &str) -> Option<u64> {
        match self.nodes[place].command(&["ZSCORE", MEMORY, &format!("lock:{name}")]).unwrap() {
            Reply::Nil => None,
            reply => Some(reply.text().unwrap().parse().unwrap()),
        }
    }

    pub fn set_fence(&self, place: usize, name: &str, fence: u64) {
        let key = format!("lock:{name}");
        self.nodes[place].command(&["ZADD", MEMORY, &fence.to_string(), &key]).unwrap();
    }

    /// Returns true if a node stores the time since which it has lost no data.
    pub fn is_born(&self, place: usize) -> bool {
        let born = self.nodes[place].command(&["ZCOUNT", MEMORY, "-inf", "(0"]).unwrap();
        born.int() == Some(1)
    }

    /// Returns the number of nodes with a value for a key.
    pub fn count(&self, key: &str) -> usize {
        self.values(key).iter().flatten().count()
    }
}

/// Textbook Redlock: sets the same key and value on each node in turn, and needs a majority.
/// Returns the validity, or releases all nodes.
pub fn naive_lock(nodes: &[&Server], key: &str, token: &str, ttl: Duration) -> Option<Duration> {
    let start = Instant::now();
    let (ttl_ms, quorum) = (ttl.as_millis() as u64, 5 / 2 + 1);
    let set = |node: &&&Server| {
        let args = ["SET", key, token, "NX", "PX", &ttl_ms.to_string()];
        node.command(&args).is_ok_and(|reply| reply.is_ok())
    };
    let granted = nodes.iter().filter(set).count();
    let drift = ttl / 100 + Duration::from_millis(2);
    match ttl.checked_sub(start.elapsed() + drift) {
        Some(validity) if granted >= quorum => Some(validity),
        _ => {
            const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
            nodes.iter().for_each(|node| drop(node.command(&["EVAL", UNLOCK, "1", key, token])));
            None
        }
    }
}

/// The file in a server's data directory with the offset of its clock, in seconds.
const OFFSET: &str = "wall_offset";

/// Runs the calling test as a child whose servers have movable clocks.
pub fn as_child(test: ChildTest) {
    let said = WallClock::of_each(OFFSET).test(test);
    assert!(said.contains("clocks were moved"), "{said}");
    said.lines().filter(|line| line.contains("acquisitions")).for_each(|line| println!("{line}"));
}

pub fn is_child() -> bool {
    WallClock::mine().is_some()
}

/// Sets the clock with which a stopped node will start.
pub fn come_up_with_clock(node: &Server, ahead_s: i64) {
    std::fs::write(node.folder().join("data").join(OFFSET), ahead_s.to_string()).unwrap();
}

/// Sets a node's clock this many seconds ahead of ours, in a child of [`as_child`].
pub fn set_clock(node: &Server, ahead_s: i64) {
    let time = || match node.command(&["TIME"]).unwrap() {
        Reply::Array(time) => time[0].text().unwrap().parse::<i64>().unwrap(),
        other => panic!("{other:?}"),
    };
    let ours =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    come_up_with_clock(node, ahead_s);
    let off = time() - ours();
    assert!((off - ahead_s).abs() <= 1, "its clock is {off} s ahead, and not {ahead_s}");
    println!("clocks were moved");
}

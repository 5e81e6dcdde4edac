//! `redlock:` over five nodes, one task: beside the same on one node (`redis:`), and beside the library that bears the algorithm's name
//! (npm's `redlock`, where `cargo xtask test` has installed it) on the same five. All well, one node killed, one stopped. Prints medians
//! of interleaved runs, with the spread, and their ratios; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_lab::{Kind, Server};

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const PAIRS: u32 = 500;
const NODES: usize = 5;

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let name = "quorum: lock + release over five nodes, beside one";
    if !filter.is_empty() && !filter.iter().any(|word| name.contains(word.as_str())) {
        return;
    }
    let nodes: Vec<Server> = (0..NODES).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let alone = Server::start(Kind::Redis).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("\n## {name}\n");
    println!(
        "| nodes | one server, µs | five, µs | ratio | spread of the ratio | npm `redlock`, µs | five to that |"
    );
    println!("|---|---|---|---|---|---|---|");
    runtime.block_on(async {
        let places: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let url = format!("redlock:{}?quarantine=off", places.join(","));
        let one = leasehold::connect(&alone.url()).await.unwrap();
        let five = leasehold::connect(&url).await.unwrap();
        let mut peer = Peer::start(&nodes);
        measure("all well", &one, &five, &mut peer).await;
        nodes[0].kill().unwrap();
        measure("one killed", &one, &five, &mut peer).await;
        nodes[0].restart().unwrap();
        nodes[1].pause().unwrap();
        measure("one stopped", &one, &five, &mut peer).await;
        nodes[1].resume().unwrap();
    });
}

async fn measure(what: &str, one: &Locks, five: &Locks, peer: &mut Option<Peer>) {
    let (mut ones, mut fives, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    // What has just changed is found out once, and not by each.
    pairs(five, 20).await;
    for _ in 0..ROUNDS {
        ones.push(pairs(one, PAIRS).await);
        fives.push(pairs(five, PAIRS).await);
        theirs.extend(peer.as_mut().map(|peer| peer.pairs(PAIRS)));
    }
    let ratios: Vec<f64> = fives.iter().zip(&ones).map(|(five, one)| five / one).collect();
    let (least, most) = ratios.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let beside = match theirs.as_slice() {
        [] => "not installed | ".to_owned(),
        _ => format!("{:.0} | {:.2}", median(&theirs), median(&fives) / median(&theirs)),
    };
    println!(
        "| {what} | {:.0} | {:.0} | {:.2} | {least:.2} to {most:.2} | {beside} |",
        median(&ones),
        median(&fives),
        median(&ratios)
    );
}

/// What a pair takes, in µs.
async fn pairs(locks: &Locks, count: u32) -> f64 {
    let mutex = locks.mutex("bench");
    let start = Instant::now();
    for _ in 0..count {
        // A node that was just lost may cost one attempt.
        match mutex.lock().await {
            Ok(lease) => drop(lease.release().await),
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The other library, in a process of its own: it is told how many pairs, and says what one took.
struct Peer {
    process: Child,
    told: ChildStdin,
    says: BufReader<ChildStdout>,
}

const NODE: &str = "
const [, , modules, ports] = process.argv;
const Redis = require(modules + '/ioredis');
const { default: Redlock } = require(modules + '/redlock');
const clients = ports.split(',').map((port) => new Redis(Number(port)));
clients.forEach((client) => client.on('error', () => {}));
const redlock = new Redlock(clients, { retryCount: 0 });
redlock.on('error', () => {});
const lines = require('readline').createInterface({ input: process.stdin });
(async () => {
  for await (const count of lines) {
    const start = process.hrtime.bigint();
    for (let i = 0; i < Number(count); i++) {
      try {
        const lock = await redlock.acquire(['peer'], 30000);
        await lock.release();
      } catch (error) {}
    }
    console.log(Number(process.hrtime.bigint() - start) / 1e3 / Number(count));
  }
})();
";

impl Peer {
    fn start(nodes: &[Server]) -> Option<Self> {
        let exe = std::env::current_exe().unwrap();
        let modules = exe.ancestors().map(|folder| folder.join("tools/company/node/node_modules"));
        let modules = modules.into_iter().find(|folder| folder.is_dir())?;
        let ports: Vec<String> = nodes.iter().map(|node| node.addr().port().to_string()).collect();
        let mut command = Command::new("node");
        command.args(["-e", NODE, "--", ""]).arg(modules).arg(ports.join(","));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (told, says) = (process.stdin.take()?, BufReader::new(process.stdout.take()?));
        Some(Peer { process, told, says })
    }

    /// What a pair takes, in µs.
    fn pairs(&mut self, count: u32) -> f64 {
        writeln!(self.told, "{count}").unwrap();
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

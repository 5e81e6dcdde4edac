//! `redlock:` over five nodes beside the same on one node (`redis:`), one task: all well, one node killed, one stopped. Prints medians
//! of interleaved runs, with their spread, and their ratio; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

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
    println!("| nodes | one server, µs | five, µs | ratio | spread of the ratio |\n|---|---|---|---|---|");
    runtime.block_on(async {
        let places: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let url = format!("redlock:{}?quarantine=off", places.join(","));
        let (five, one) =
            (leasehold::connect(&url).await.unwrap(), leasehold::connect(&alone.url()).await.unwrap());
        measure("all well", &one, &five).await;
        nodes[0].kill().unwrap();
        measure("one killed", &one, &five).await;
        nodes[0].restart().unwrap();
        nodes[1].pause().unwrap();
        measure("one stopped", &one, &five).await;
        nodes[1].resume().unwrap();
    });
}

async fn measure(what: &str, one: &Locks, five: &Locks) {
    let (mut ones, mut fives, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // What has just changed is found out once, and not by each.
    pairs(five, 20).await;
    for _ in 0..ROUNDS {
        let (of_one, of_five) = (pairs(one, PAIRS).await, pairs(five, PAIRS).await);
        ratios.push(of_five / of_one);
        ones.push(of_one);
        fives.push(of_five);
    }
    let (least, most) = ratios.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    println!(
        "| {what} | {:.0} | {:.0} | {:.2} | {least:.2} to {most:.2} |",
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

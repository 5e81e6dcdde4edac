//! `redis:` with many leases held by one client. In a process of its own, whose processor time the
//! test measures.

use leasehold_testkit as common;

use std::time::{Duration, Instant};

use common::child_test;
use common::{ms, scaled, secs};
use leasehold_lab::{Kind, Server};

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // A hundred a second, as on every Linux that has not been told otherwise.
    Duration::from_millis(ticks * 10)
}

#[test]
fn many_leases_of_one_client_are_all_kept_at_little_cost() {
    child_test!(many_leases_of_one_client_are_all_kept_at_little_cost).in_own_process(keep_many_leases);
}

fn keep_many_leases() {
    let held = scaled(100_000);
    let kept_for = Duration::from_millis(scaled(120_000).max(30_000));
    let server = Server::start(Kind::Redis).unwrap();
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "50000"]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let mut leases = Vec::new();
        // So many at a time: a request that stands in its own client's queue for long is late too.
        for names in (0..held).collect::<Vec<_>>().chunks(500) {
            let lock = |name: &u64| tokio::spawn(locks.mutex(format!("many:{name:06}")).ttl(secs(30)).lock());
            for task in names.iter().map(lock).collect::<Vec<_>>() {
                leases.push(task.await.unwrap().unwrap());
            }
        }
        let (start, before) = (Instant::now(), cpu());
        let mut longest = Duration::ZERO;
        while start.elapsed() < kept_for {
            // Somebody else, who wants an answer meanwhile.
            let asked = Instant::now();
            server.command(&["PING"]).unwrap();
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(ms(20)).await;
        }
        let share = (cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
        let lost = leases.iter().filter(|lease| !lease.is_valid()).count();
        println!(
            "{held} leases for {kept_for:?}: {lost} lost, {:.1} % of a core, the longest PING {longest:?}",
            share * 100.0
        );
        assert_eq!(lost, 0);
        assert!(share < 0.25, "{:.1} % of a core", share * 100.0);
        let slow = server.command(&["SLOWLOG", "LEN"]).unwrap().int().unwrap();
        assert_eq!(slow, 0, "commands that kept the server for 50 ms or more");
        locks.close().await;
    });
}

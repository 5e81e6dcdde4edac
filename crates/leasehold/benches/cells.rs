//! Counters and cells on `redis:` beside the bare command through the same client library. Prints ratios of medians of
//! interleaved runs, with their spread; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use leasehold_lab::{Kind, Server};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, IntoConnectionInfo, ProtocolVersion, cmd};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const CALLS: u64 = 4_000;

/// What a server that does not compare by itself is asked.
const COMPARE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|word| name.contains(word.as_str()));
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        for tasks in [1, 64] {
            if wanted("cells: a counter beside INCRBY") {
                counter(&server, tasks);
            }
            if wanted("cells: compare and set beside the bare command") {
                compare_and_set(&server, tasks);
            }
        }
    }
}

async fn bare(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Client::open(info).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// What a call takes, in µs, with so many tasks at it.
async fn timed<F: Future<Output = ()> + 'static>(tasks: u64, work: impl Fn(u64, u64) -> F) -> f64 {
    let each = CALLS / tasks;
    let start = Instant::now();
    LocalSet::new()
        .run_until(async {
            let running: Vec<_> = (0..tasks).map(|task| spawn_local(work(task, each))).collect();
            for task in running {
                task.await.unwrap();
            }
        })
        .await;
    start.elapsed().as_secs_f64() * 1e6 / (each * tasks) as f64
}

async fn beside<A: Future<Output = f64>, B: Future<Output = f64>>(
    what: &str,
    names: [&str; 2],
    ours: impl Fn() -> A,
    theirs: impl Fn() -> B,
) {
    ours().await;
    theirs().await;
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        runs.push((ours().await, theirs().await));
    }
    let ratios: Vec<f64> = runs.iter().map(|(ours, theirs)| ours / theirs).collect();
    let of = |which: fn(&(f64, f64)) -> f64| median(&runs.iter().map(which).collect::<Vec<_>>());
    let (least, most) = ratios.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    println!("\n| {what} | µs each | ratio | spread |\n|---|---|---|---|");
    println!("| {} | {:.1} | 1 | |", names[1], of(|run| run.1));
    println!("| {} | {:.1} | {:.2} | {least:.2} to {most:.2} |", names[0], of(|run| run.0), median(&ratios));
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn run(work: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

fn counter(server: &Server, tasks: u64) {
    run(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let connection = bare(&server.url()).await;
        let ours = || {
            timed(tasks, |task, each| {
                let counter = locks.cells().counter(format!("visits:{task:06}"));
                async move {
                    for _ in 0..each {
                        counter.add(1).await.unwrap();
                    }
                }
            })
        };
        let theirs = || {
            timed(tasks, |task, each| {
                let (mut connection, key) = (connection.clone(), format!("bare:visits:{task:06}"));
                async move {
                    for _ in 0..each {
                        let _: i64 =
                            cmd("INCRBY").arg(&key).arg(1).query_async(&mut connection).await.unwrap();
                    }
                }
            })
        };
        let what = format!("{:?}: a counter, {tasks} tasks", server.kind());
        beside(&what, ["leasehold", "`INCRBY`"], ours, theirs).await;
        locks.close().await;
    });
}

fn compare_and_set(server: &Server, tasks: u64) {
    run(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let mut connection = bare(&server.url()).await;
        let digest: String =
            cmd("SCRIPT").arg("LOAD").arg(COMPARE).query_async(&mut connection).await.unwrap();
        let is_native = server.kind() == Kind::Valkey;
        let value = |number: u64| format!("value {number:020}").into_bytes();
        let ours = || {
            timed(tasks, |task, each| {
                let cell = locks.cells().bytes(format!("price:{task:06}"));
                async move {
                    cell.set(&value(0)).await.unwrap();
                    for number in 0..each {
                        assert!(cell.compare_and_set(&value(number), &value(number + 1)).await.unwrap());
                    }
                }
            })
        };
        let theirs = || {
            timed(tasks, |task, each| {
                let (mut connection, key) = (connection.clone(), format!("bare:price:{task:06}"));
                let digest = digest.clone();
                async move {
                    let _: () =
                        cmd("SET").arg(&key).arg(value(0)).query_async(&mut connection).await.unwrap();
                    for number in 0..each {
                        let (old, new) = (value(number), value(number + 1));
                        let command: Cmd = match is_native {
                            true => cmd("SET").arg(&key).arg(new).arg("IFEQ").arg(old).take(),
                            false => cmd("EVALSHA").arg(&digest).arg(1).arg(&key).arg(old).arg(new).take(),
                        };
                        let done: redis::Value = command.query_async(&mut connection).await.unwrap();
                        assert!(matches!(done, redis::Value::Okay | redis::Value::Int(1)), "{done:?}");
                    }
                }
            })
        };
        let what = format!("{:?}: compare and set, {tasks} tasks", server.kind());
        let bare = if is_native { "`SET … IFEQ`" } else { "a bare script" };
        beside(&what, ["leasehold", bare], ours, theirs).await;
        locks.close().await;
    });
}

//! A hit of a cache on `redis:`, beside a bare GET through the `redis` crate. Prints ratios of medians of interleaved runs, with
//! their spread; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::time::{Duration, Instant};

use leasehold::Cache;
use leasehold_lab::{Kind, Server};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo, ProtocolVersion, cmd};
use tokio::runtime::Builder;

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const HITS: usize = 8_000;
const TTL: Duration = Duration::from_secs(3_600);

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let title = "cache: a hit, beside a bare GET";
    if !filter.is_empty() && !filter.iter().any(|word| title.contains(word.as_str())) {
        return;
    }
    println!(
        "\n### {title}\n\n| tasks | keys | value | a hit / a GET | spread | a GET |\n|---|---|---|---|---|---|"
    );
    for (tasks, keys) in [(1, 1), (64, 64), (64, 1)] {
        for bytes in [100, 10_000] {
            compare(tasks, keys, bytes);
        }
    }
}

fn compare(tasks: usize, keys: usize, bytes: usize) {
    let server = Server::start(Kind::Redis).unwrap();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let (cache, bare) = (locks.cache("bench"), bare(&server.url()).await);
        let keys: Vec<String> = (0..keys).map(|number| format!("key-{number}")).collect();
        let mut connection = bare.clone();
        for key in &keys {
            let value = vec![b'x'; bytes];
            cmd("SET").arg(key).arg(&value).query_async::<()>(&mut connection).await.unwrap();
            let loader = || async { Ok::<_, Infallible>(value) };
            cache.get_or_load(key, TTL, loader).await.unwrap();
        }
        let (mut gets, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let get = timed(tasks, &keys, |key| get(bare.clone(), key, bytes)).await;
            let hit = timed(tasks, &keys, |key| hit(cache.clone(), key, bytes)).await;
            gets.push(get);
            ratios.push(hit / get);
        }
        ratios.sort_by(f64::total_cmp);
        gets.sort_by(f64::total_cmp);
        println!(
            "| {tasks} | {} | {bytes} B | {:.2} | {:.2} to {:.2} | {:.1} µs |",
            keys.len(),
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1],
            gets[ROUNDS / 2],
        );
        locks.close().await;
    });
}

/// As the store's own connection is made.
async fn bare(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Client::open(info).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn get(mut connection: MultiplexedConnection, key: String, bytes: usize) {
    for _ in 0..HITS / 64 {
        let value: Vec<u8> = cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
        assert_eq!(value.len(), bytes);
    }
}

async fn hit(cache: Cache, key: String, bytes: usize) {
    for _ in 0..HITS / 64 {
        let unasked = || async { panic!("it is there") };
        let value = cache.get_or_load::<Infallible, _, _>(&key, TTL, unasked).await.unwrap();
        assert_eq!(value.len(), bytes);
    }
}

/// What one of them takes, in µs, where so many tasks do it.
async fn timed<W: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    keys: &[String],
    work: impl Fn(String) -> W,
) -> f64 {
    let since = Instant::now();
    let rounds = 64 / tasks;
    for _ in 0..rounds {
        let tasks: Vec<_> =
            (0..tasks).map(|task| tokio::spawn(work(keys[task % keys.len()].clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
    since.elapsed().as_secs_f64() * 1e6 / (rounds * tasks * (HITS / 64)) as f64
}

//! `redis:` beside the bare `redis` crate, which sends the same number of requests. Prints ratios of medians of interleaved
//! runs, with their spread; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::cells::rate::Algorithm;
use leasehold::{Lease, Locks};
use leasehold_lab::{Kind, Server};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo, ProtocolVersion, cmd};
use tokio::runtime::{Builder, Runtime};

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const PAIRS: u64 = 4_000;
const HAND_OVERS: u32 = 200;

/// What a child of this program does, and where.
const ROLE: &str = "LEASEHOLD_BENCH_ROLE";
const WHERE: &str = "LEASEHOLD_BENCH_WHERE";

fn main() {
    if let Some(role) = std::env::var_os(ROLE) {
        return child(role.to_str().unwrap(), &std::env::var(WHERE).unwrap());
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|word| name.contains(word.as_str()));
    let server = Server::start(Kind::Redis).unwrap();
    let url = server.url();
    for tasks in [1, 64, 1_000] {
        if wanted("redis: uncontended lock + release, beside bare scripts") {
            uncontended(&server, tasks);
        }
    }
    for tasks in [1, 64] {
        if wanted("redis: a permit and a reader beside a mutex, uncontended") {
            shares(&server, tasks);
        }
    }
    for tasks in [1, 64] {
        if wanted("redis: a take of a rate limit, beside a bare script of INCR and PEXPIRE") {
            rates(&server, tasks);
        }
    }
    if wanted("redis: hand-over between two processes, beside a bare PING") {
        hand_over(&url);
    }
    if wanted("redis: saturated, one name, many clients, beside a bare queue-and-push script") {
        saturated(&server);
    }
    if wanted("redis: one name, many tasks of one client, with and without meeting") {
        meeting(&url);
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{least:.2} to {most:.2}")
}

// ---- uncontended ----

/// A lock with a fence and an expiry, and nothing else.
const TAKE: &str = "local f = redis.call('INCR', KEYS[2])
if redis.call('SET', KEYS[1], ARGV[1] .. '#' .. f, 'NX', 'PX', ARGV[2]) then return f else return 0 end";
const DROP: &str = "local v = redis.call('GET', KEYS[1])
if v and string.sub(v, 1, #ARGV[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    take: String,
    drop: String,
}

impl Bare {
    async fn open(url: &str) -> Self {
        let info = url.into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info =
            info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let mut connection = Client::open(info).unwrap().get_multiplexed_async_connection().await.unwrap();
        let take = cmd("SCRIPT").arg("LOAD").arg(TAKE).query_async(&mut connection).await.unwrap();
        let drop = cmd("SCRIPT").arg("LOAD").arg(DROP).query_async(&mut connection).await.unwrap();
        Bare { connection, take, drop }
    }

    async fn pair(&mut self, key: &str, token: &str) {
        let mut take = cmd("EVALSHA");
        take.arg(&self.take).arg(2).arg(key).arg("bare:fence").arg(token).arg(30_000);
        assert_ne!(take.query_async::<u64>(&mut self.connection).await.unwrap(), 0);
        let mut drop = cmd("EVALSHA");
        drop.arg(&self.drop).arg(1).arg(key).arg(token);
        assert_eq!(drop.query_async::<u64>(&mut self.connection).await.unwrap(), 1);
    }
}

/// What a pair takes, in µs: from start to end, and of the processors.
struct Cost {
    time: f64,
    client: f64,
    server: f64,
}

/// Runs `tasks` of these until all pairs are done.
async fn timed<F: Future<Output = ()> + 'static>(
    server: &Server,
    tasks: u64,
    work: impl Fn(u64, u64) -> F,
) -> Cost {
    let each = (PAIRS / tasks).max(4);
    let (busy, served) = (busy_ns(), served_ns(server));
    let start = Instant::now();
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let running: Vec<_> = (0..tasks).map(|task| tokio::task::spawn_local(work(task, each))).collect();
            for task in running {
                task.await.unwrap();
            }
        })
        .await;
    let pairs = (each * tasks) as f64;
    Cost {
        time: start.elapsed().as_secs_f64() * 1e6 / pairs,
        client: (busy_ns() - busy) / 1e3 / pairs,
        server: (served_ns(server) - served) / 1e3 / pairs,
    }
}

/// How long this process has run on a processor.
fn busy_ns() -> f64 {
    let busy = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    busy.tv_sec as f64 * 1e9 + busy.tv_nsec as f64
}

/// The same of the server's main thread.
fn served_ns(server: &Server) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", server.pid().unwrap())).unwrap();
    stat.split_whitespace().next().unwrap().parse().unwrap()
}

fn uncontended(server: &Server, tasks: u64) {
    let url = server.url();
    let runtime = runtime();
    runtime.block_on(async {
        let locks = leasehold::connect(&url).await.unwrap();
        let bare = Bare::open(&url).await;
        let ours = || {
            timed(server, tasks, |task, each| {
                let mutex = locks.mutex(format!("orders:{task:06}"));
                async move {
                    for _ in 0..each {
                        mutex.lock().await.unwrap().release().await.unwrap();
                    }
                }
            })
        };
        let theirs = || {
            timed(server, tasks, |task, each| {
                let (mut bare, key) = (bare.clone(), format!("bare:orders:{task:06}"));
                async move {
                    for _ in 0..each {
                        bare.pair(&key, "0123456789abcdef0123456789abcdef@host:12345").await;
                    }
                }
            })
        };
        ours().await;
        theirs().await;
        let mut runs = Vec::new();
        for _ in 0..ROUNDS {
            runs.push((ours().await, theirs().await));
        }
        let ratios: Vec<f64> = runs.iter().map(|(ours, theirs)| ours.time / theirs.time).collect();
        println!("\n| lock + release, {tasks} tasks | µs per pair | of the client's core | of the server's | time, ratio | spread | throughput, ratio |\n|---|---|---|---|---|---|---|");
        let of = |which: fn(&(Cost, Cost)) -> f64| median(&runs.iter().map(which).collect::<Vec<_>>());
        println!(
            "| bare scripts | {:.1} | {:.1} | {:.1} | 1 | | 1 |",
            of(|run| run.1.time),
            of(|run| run.1.client),
            of(|run| run.1.server)
        );
        println!(
            "| leasehold | {:.1} | {:.1} | {:.1} | {:.2} | {} | {:.2} |",
            of(|run| run.0.time),
            of(|run| run.0.client),
            of(|run| run.0.server),
            median(&ratios),
            spread(&ratios),
            1.0 / median(&ratios)
        );
        locks.close().await;
    });
}

// ---- shares ----

/// What it costs to hold a name beside others, where there are none.
fn shares(server: &Server, tasks: u64) {
    let runtime = runtime();
    runtime.block_on(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let pairs = |pair: fn(&Locks, String) -> BoxFuture<'static, leasehold::Result<Lease>>| {
            let locks = locks.clone();
            timed(server, tasks, move |task, each| {
                let (locks, name) = (locks.clone(), format!("orders:{task:06}"));
                async move {
                    for _ in 0..each {
                        pair(&locks, name.clone()).await.unwrap().release().await.unwrap();
                    }
                }
            })
        };
        let mutex = || pairs(|locks, name| locks.mutex(name).lock().boxed());
        let permit = || pairs(|locks, name| locks.semaphore(name, 5).acquire().boxed());
        let reader = || pairs(|locks, name| locks.rwlock(name).read().boxed());
        mutex().await;
        permit().await;
        reader().await;
        let mut runs = Vec::new();
        for _ in 0..ROUNDS {
            runs.push([mutex().await, permit().await, reader().await]);
        }
        println!("\n| acquire + release, {tasks} tasks | µs per pair | of the client's core | of the server's | time, ratio | spread | client, ratio | server, ratio |\n|---|---|---|---|---|---|---|---|");
        for (i, what) in ["mutex", "a permit", "a reader"].iter().enumerate() {
            let of = |which: fn(&Cost) -> f64| median(&runs.iter().map(|run| which(&run[i])).collect::<Vec<_>>());
            let ratios = |which: fn(&Cost) -> f64| {
                runs.iter().map(|run| which(&run[i]) / which(&run[0])).collect::<Vec<_>>()
            };
            let times = ratios(|cost| cost.time);
            println!(
                "| {what} | {:.1} | {:.1} | {:.1} | {:.2} | {} | {:.2} | {:.2} |",
                of(|cost| cost.time),
                of(|cost| cost.client),
                of(|cost| cost.server),
                median(&times),
                spread(&times),
                median(&ratios(|cost| cost.client)),
                median(&ratios(|cost| cost.server)),
            );
        }
        locks.close().await;
    });
}

// ---- rate limits ----

/// A number that gets its end when it is made, and nothing else.
const COUNT: &str = "local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// What a take costs by each rule, where it is allowed.
fn rates(server: &Server, tasks: u64) {
    let runtime = runtime();
    runtime.block_on(async {
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let bare = Bare::open(&server.url()).await;
        let count: String =
            cmd("SCRIPT").arg("LOAD").arg(COUNT).query_async(&mut bare.connection.clone()).await.unwrap();
        let theirs = || {
            timed(server, tasks, |task, each| {
                let (mut connection, count) = (bare.connection.clone(), count.clone());
                async move {
                    for _ in 0..each {
                        let mut check = cmd("EVALSHA");
                        check.arg(&count).arg(1).arg(format!("bare:mails:{task:06}")).arg(60_000);
                        assert_ne!(check.query_async::<u64>(&mut connection).await.unwrap(), 0);
                    }
                }
            })
        };
        let ours = |algorithm: Algorithm, max: u32| {
            let locks = locks.clone();
            timed(server, tasks, move |task, each| {
                let limit = locks.rate_limit(format!("mails:{task:06}"));
                let limit = limit.max(max).per(Duration::from_secs(60)).algorithm(algorithm);
                async move {
                    for _ in 0..each {
                        assert!(limit.take(1).await.unwrap().allowed);
                    }
                }
            })
        };
        const MAX: u32 = 1_000_000;
        let rules = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::Gcra { burst: MAX }];
        let mut runs = Vec::new();
        for _ in 0..=ROUNDS {
            let mut run = vec![theirs().await];
            for rule in rules {
                run.push(ours(rule, MAX).await);
            }
            runs.push(run);
        }
        // The first was for warming up.
        runs.remove(0);
        println!("\n| a take, {tasks} tasks | µs per take | of the client's core | of the server's | time, ratio | spread |\n|---|---|---|---|---|---|");
        for (i, what) in ["bare INCR and PEXPIRE", "fixed window", "sliding window", "GCRA"].iter().enumerate() {
            let of = |which: fn(&Cost) -> f64| median(&runs.iter().map(|run| which(&run[i])).collect::<Vec<_>>());
            let times: Vec<f64> = runs.iter().map(|run| run[i].time / run[0].time).collect();
            println!(
                "| {what} | {:.1} | {:.1} | {:.1} | {:.2} | {} |",
                of(|cost| cost.time),
                of(|cost| cost.client),
                of(|cost| cost.server),
                median(&times),
                spread(&times),
            );
        }
        locks.close().await;
    });
}

// ---- hand-over ----

fn spawn(role: &str, url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env(WHERE, url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn child(role: &str, url: &str) {
    runtime().block_on(async {
        let locks = leasehold::connect(url).await.unwrap();
        match role {
            "takes" => {
                // Waits for its turn, and lets go at once.
                loop {
                    let lease = locks.mutex("handed").lock().await.unwrap();
                    println!("{}", now_ns());
                    lease.release().await.unwrap();
                    // The other takes it back before this asks again.
                    std::io::stdin().read_line(&mut String::new()).unwrap();
                }
            }
            other => panic!("no role `{other}`"),
        }
    });
}

/// The machine's clock, the same in all its processes.
fn now_ns() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128
}

fn hand_over(url: &str) {
    use std::io::Write;
    let runtime = runtime();
    let mut taker = spawn("takes", url);
    let mut said = BufReader::new(taker.stdout.take().unwrap());
    let mut keys = taker.stdin.take().unwrap();
    let locks = runtime.block_on(leasehold::connect(url)).unwrap();
    let mutex = locks.mutex("handed");
    let mut line = String::new();
    // The child has it first, to be in step.
    said.read_line(&mut line).unwrap();
    let mut ours = || {
        let each: Vec<f64> = (0..HAND_OVERS)
            .map(|_| {
                let lease = runtime.block_on(mutex.lock()).unwrap();
                keys.write_all(b"\n").unwrap();
                runtime.block_on(async {
                    while locks
                        .inspect("handed")
                        .await
                        .unwrap()
                        .is_none_or(|status| status.waiters.is_empty())
                    {}
                    tokio::time::sleep(Duration::from_millis(1)).await;
                });
                let released = now_ns();
                runtime.block_on(lease.release()).unwrap();
                line.clear();
                said.read_line(&mut line).unwrap();
                (line.trim().parse::<u128>().unwrap() - released) as f64 / 1e3
            })
            .collect();
        median(&each)
    };
    let mut bare = runtime.block_on(Bare::open(url));
    let mut ping = || {
        let each: Vec<f64> = (0..HAND_OVERS)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                let start = Instant::now();
                runtime.block_on(async {
                    cmd("PING").query_async::<String>(&mut bare.connection).await.unwrap()
                });
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        median(&each)
    };
    ours();
    ping();
    let runs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (ours(), ping())).collect();
    let ratios: Vec<f64> = runs.iter().map(|(ours, ping)| ours / ping).collect();
    println!("\n| hand-over between two processes | µs | ratio | spread |\n|---|---|---|---|");
    println!("| a bare PING | {:.1} | 1 | |", median(&runs.iter().map(|run| run.1).collect::<Vec<_>>()));
    println!(
        "| release here, lock there | {:.1} | {:.2} | {} |",
        median(&runs.iter().map(|run| run.0).collect::<Vec<_>>()),
        median(&ratios),
        spread(&ratios)
    );
    taker.kill().unwrap();
    taker.wait().unwrap();
}

// ---- saturated ----

/// A lock with a fence, an expiry and a queue, whose release tells the next, and nothing else.
const QUEUE: &str = "if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return redis.call('INCR', KEYS[3]) end
redis.call('RPUSH', KEYS[2], ARGV[1]) return 0";
const PUSH: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
redis.call('PUBLISH', next, redis.call('INCR', KEYS[3])) return 1";

const CLIENTS: usize = 64;

/// Each of them locks and releases as fast as it can, until this is over: how often each.
async fn hammered<F: Future<Output = u64> + 'static>(
    server: &Server,
    clients: impl Iterator<Item = F>,
    over: Arc<std::sync::atomic::AtomicBool>,
) -> Hammered {
    const FOR: Duration = Duration::from_millis(1_500);
    let (busy, served) = (busy_ns(), served_ns(server));
    let start = Instant::now();
    let local = tokio::task::LocalSet::new();
    let counts = local
        .run_until(async {
            let running: Vec<_> = clients.map(tokio::task::spawn_local).collect();
            tokio::time::sleep(FOR).await;
            over.store(true, Ordering::Relaxed);
            let mut counts = Vec::new();
            for task in running {
                counts.push(task.await.unwrap() as f64);
            }
            counts
        })
        .await;
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    let all = counts.iter().sum::<f64>();
    Hammered {
        rate: all / start.elapsed().as_secs_f64(),
        uneven: variance.sqrt() / mean,
        client: (busy_ns() - busy) / 1e3 / all,
        server: (served_ns(server) - served) / 1e3 / all,
    }
}

/// Hand-overs per second, the coefficient of variation of the clients' shares, and what a hand-over takes of the processors, in
/// µs.
struct Hammered {
    rate: f64,
    uneven: f64,
    client: f64,
    server: f64,
}

/// One that waits in the bare queue.
struct Queued {
    connection: MultiplexedConnection,
    pushes: tokio::sync::mpsc::UnboundedReceiver<redis::PushInfo>,
    channel: String,
    queue: String,
    push: String,
}

impl Queued {
    async fn open(url: &str, number: usize) -> Self {
        let info = url.into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info =
            info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let (sender, pushes) = tokio::sync::mpsc::unbounded_channel();
        let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
        let client = Client::open(info).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let queue = cmd("SCRIPT").arg("LOAD").arg(QUEUE).query_async(&mut connection).await.unwrap();
        let push = cmd("SCRIPT").arg("LOAD").arg(PUSH).query_async(&mut connection).await.unwrap();
        let channel = format!("0123456789abcdef0123456789abcdef@{number}");
        connection.subscribe(&channel).await.unwrap();
        Queued { connection, pushes, channel, queue, push }
    }

    async fn turn(&mut self) {
        let mut queue = cmd("EVALSHA");
        queue.arg(&self.queue).arg(3).arg("bare:one").arg("bare:queue").arg("bare:fence");
        queue.arg(&self.channel).arg(30_000);
        if queue.query_async::<u64>(&mut self.connection).await.unwrap() == 0 {
            while self.pushes.recv().await.unwrap().kind != redis::PushKind::Message {}
        }
        let mut push = cmd("EVALSHA");
        push.arg(&self.push).arg(3).arg("bare:one").arg("bare:queue").arg("bare:fence");
        push.arg(&self.channel).arg(30_000);
        assert_eq!(push.query_async::<u64>(&mut self.connection).await.unwrap(), 1);
    }
}

fn saturated(server: &Server) {
    let url = &server.url();
    let runtime = runtime();
    runtime.block_on(async {
        let mut clients = Vec::new();
        let mut bare = Vec::new();
        for number in 0..CLIENTS {
            clients.push(leasehold::connect(url).await.unwrap());
            bare.push(Arc::new(tokio::sync::Mutex::new(Queued::open(url, number).await)));
        }
        let ours = || {
            let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let each = clients.iter().map(|locks| {
                let (mutex, over) = (locks.mutex("one"), over.clone());
                async move {
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        mutex.lock().await.unwrap().release().await.unwrap();
                        count += 1;
                    }
                    count
                }
            });
            hammered(server, each.collect::<Vec<_>>().into_iter(), over)
        };
        let theirs = || {
            let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let each = bare.iter().map(|bare| {
                let (bare, over) = (bare.clone(), over.clone());
                async move {
                    let mut bare = bare.lock().await;
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        bare.turn().await;
                        count += 1;
                    }
                    count
                }
            });
            hammered(server, each.collect::<Vec<_>>().into_iter(), over)
        };
        ours().await;
        theirs().await;
        let mut runs = Vec::new();
        for _ in 0..ROUNDS {
            runs.push((ours().await, theirs().await));
        }
        let ratios: Vec<f64> = runs.iter().map(|(ours, theirs)| ours.rate / theirs.rate).collect();
        println!("\n| {CLIENTS} clients, one name | hand-overs per s | ratio | spread | how uneven (coefficient of variation) | µs of the clients' core | of the server's |\n|---|---|---|---|---|---|---|");
        let of = |which: fn(&(Hammered, Hammered)) -> f64| median(&runs.iter().map(which).collect::<Vec<_>>());
        println!(
            "| bare queue and push | {:.0} | 1 | | {:.3} | {:.1} | {:.1} |",
            of(|run| run.1.rate),
            of(|run| run.1.uneven),
            of(|run| run.1.client),
            of(|run| run.1.server)
        );
        println!(
            "| leasehold | {:.0} | {:.2} | {} | {:.3} | {:.1} | {:.1} |",
            of(|run| run.0.rate),
            median(&ratios),
            spread(&ratios),
            of(|run| run.0.uneven),
            of(|run| run.0.client),
            of(|run| run.0.server)
        );
        for locks in clients {
            locks.close().await;
        }
    });
}

// ---- meeting ----

fn meeting(url: &str) {
    const TASKS: u64 = 64;
    let runtime = runtime();
    runtime.block_on(async {
        let locks: Locks = leasehold::connect(url).await.unwrap();
        let rate = |strict: bool, total: u64| {
            let mutex = locks.mutex("one");
            let mutex = if strict { mutex.strict_order() } else { mutex };
            async move {
                let done = Arc::new(AtomicU64::new(0));
                let start = Instant::now();
                let tasks: Vec<_> = (0..TASKS)
                    .map(|_| {
                        let (mutex, done) = (mutex.clone(), done.clone());
                        tokio::spawn(async move {
                            while done.fetch_add(1, Ordering::Relaxed) < total {
                                mutex.lock().await.unwrap().release().await.unwrap();
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                total as f64 / start.elapsed().as_secs_f64()
            }
        };
        let mut runs = Vec::new();
        for _ in 0..ROUNDS {
            runs.push((rate(false, 20_000).await, rate(true, 1_000).await));
        }
        let ratios: Vec<f64> = runs.iter().map(|(with, without)| with / without).collect();
        println!("\n| {TASKS} tasks of one client, one name | hand-overs per s | ratio | spread |\n|---|---|---|---|");
        println!("| each in the server's line | {:.0} | 1 | |", median(&runs.iter().map(|run| run.1).collect::<Vec<_>>()));
        println!(
            "| meeting in the client | {:.0} | {:.1} | {} |",
            median(&runs.iter().map(|run| run.0).collect::<Vec<_>>()),
            median(&ratios),
            spread(&ratios)
        );
        locks.close().await;
    });
}

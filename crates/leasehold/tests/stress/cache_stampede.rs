//! The stampede: a thousand callers in four processes, at the instant at which a value expires. One of them loads, and one more
//! for each that is killed at it; without a guard hundreds do. And a loader that was stopped writes nothing over what is newer.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::convert::Infallible;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::worker::{Worker, listen, play, say};
use common::{Home, home_in_memory, ms, run, scaled, secs};
use leasehold::cells::store::{Key, Kind as Keep, When, Write};
use leasehold::{Cache, Locks, Name, Store, Ttl};
use leasehold_lab::{Kind, Server};
use rustix::process::Signal;
use rustix::time::{ClockId, Timespec, clock_gettime};

const PROCESSES: usize = 4;
const CALLERS: usize = 1_000;

/// How long a load takes where that is measured: long beside what two cores need for a thousand callers.
const LOAD: Duration = Duration::from_secs(2);

/// How long the value lives that all of them find expired.
const TTL: Duration = Duration::from_millis(1_500);

/// How long the turn of a killed process lasts on a server.
const LOADER_TTL: Duration = Duration::from_secs(2);

/// For what a busy machine may add to what is promised.
const SLACK: Duration = Duration::from_secs(5);

const LONG: Duration = Duration::from_secs(600);

const WORKER: ChildTest = child_test!(worker);

#[test]
fn worker() {
    play(|role, home| {
        run(async {
            match role {
                "guarded" => call_all(home, guarded(home).await).await,
                "naive" => call_all(home, naive(home).await).await,
                "staller" => stall(home).await,
                other => panic!("no role `{other}`"),
            }
        });
    });
}

/// Where the test runs: a server or a directory, and a directory that says which.
struct Site {
    home: Home,
    _server: Option<Server>,
    name: &'static str,
}

fn sites(load: Duration) -> Vec<Site> {
    let (on_disk, on_server) = (home_in_memory("stampede"), home_in_memory("stampede"));
    let server = Server::start(Kind::Redis).unwrap();
    let store = on_disk.path().join("store");
    write(on_disk.path(), "url", &format!("file:{}", store.display()));
    // Only the kernel can have told that a loader is dead before this is over.
    write(on_disk.path(), "loader_ttl_ms", &(LONG.as_millis()).to_string());
    write(on_server.path(), "url", &server.url());
    write(on_server.path(), "loader_ttl_ms", &(LOADER_TTL.as_millis()).to_string());
    for home in [&on_disk, &on_server] {
        write(home.path(), "load_ms", &load.as_millis().to_string());
    }
    vec![
        Site { home: on_server, _server: Some(server), name: "redis" },
        Site { home: on_disk, _server: None, name: "file" },
    ]
}

fn write(home: &Path, file: &str, text: &str) {
    std::fs::write(home.join(file), text).unwrap();
}

fn text(home: &Path, file: &str) -> String {
    std::fs::read_to_string(home.join(file)).unwrap()
}

async fn connected(home: &Path) -> Locks {
    leasehold::connect(&text(home, "url")).await.unwrap()
}

fn cache(locks: &Locks, home: &Path) -> Cache {
    let loader_ttl = ms(text(home, "loader_ttl_ms").parse().unwrap());
    // Nobody loads before the instant of expiry.
    locks.cache("stampede").wait(LONG).early(0.0).loader_ttl(loader_ttl)
}

/// Nanoseconds of a clock that all processes share.
fn now_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

/// What is loaded: slow, and written down when it begins.
async fn load(home: &Path) -> Vec<u8> {
    let load = ms(text(home, "load_ms").parse().unwrap());
    let line = format!("{}\n", std::process::id());
    let file = std::fs::OpenOptions::new().append(true).create(true).open(home.join("loads"));
    file.unwrap().write_all(line.as_bytes()).unwrap();
    tokio::time::sleep(load).await;
    format!("loaded by {}", std::process::id()).into_bytes()
}

/// Who has begun to load.
fn loads(home: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(home.join("loads")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

type Call = std::sync::Arc<dyn Fn() -> Calling + Send + Sync>;
type Calling = std::pin::Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// A caller who asks the cache.
async fn guarded(home: &Path) -> Call {
    let (locks, home) = (connected(home).await, home.to_owned());
    let cache = cache(&locks, &home);
    // So that a round trip can be measured.
    cache.get("warm").await.unwrap();
    std::sync::Arc::new(move || {
        let (cache, home, _locks) = (cache.clone(), home.clone(), locks.clone());
        Box::pin(async move {
            let loader = || async { Ok::<_, Infallible>(load(&home).await) };
            cache.get_or_load("hot", LONG, loader).await.unwrap()
        })
    })
}

/// Where the naive callers keep their value.
fn plain() -> Key {
    Key::new(Keep::Cell, Name::new("naive").unwrap())
}

async fn plain_store(home: &Path) -> std::sync::Arc<dyn Store> {
    match text(home, "url").strip_prefix("file:") {
        Some(path) => std::sync::Arc::new(leasehold::store::file::File::open(path).await.unwrap()),
        None => leasehold::store::redis::open(&text(home, "url")).await.unwrap(),
    }
}

async fn put(store: &dyn Store, value: Vec<u8>, ttl: Duration) {
    let write = Write { when: When::Always, value: Some(value), ttl: Some(Ttl::new(ttl).unwrap()) };
    store.cells().unwrap().write(&plain(), &write).await.unwrap();
}

/// A caller who looks, loads where there is nothing, and writes: what everybody does first.
async fn naive(home: &Path) -> Call {
    let (store, home) = (plain_store(home).await, home.to_owned());
    std::sync::Arc::new(move || {
        let (store, home) = (store.clone(), home.clone());
        Box::pin(async move {
            if let Some(kept) = store.cells().unwrap().read(&plain()).await.unwrap() {
                return kept.value;
            }
            let value = load(&home).await;
            put(&*store, value.clone(), LONG).await;
            value
        })
    })
}

/// In a worker: its share of the callers, all at the instant that the test names; says what each of them got, and when.
async fn call_all(home: &Path, call: Call) {
    say(round_trip(home).await.as_micros());
    loop {
        let instant: u64 = listen().parse().unwrap();
        let tasks: Vec<_> = (0..CALLERS / PROCESSES)
            .map(|_| {
                let call = call.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_nanos(instant.saturating_sub(now_ns()))).await;
                    let since = Instant::now();
                    (call().await, since.elapsed())
                })
            })
            .collect();
        let mut values = Vec::new();
        let mut latencies = Vec::new();
        for task in tasks {
            let (value, latency) = task.await.unwrap();
            values.push(String::from_utf8(value).unwrap());
            latencies.push(latency.as_micros().to_string());
        }
        values.sort_unstable();
        values.dedup();
        say(values.join(";"));
        say(latencies.join(" "));
    }
}

/// How long one read of the store takes: the median of many.
async fn round_trip(home: &Path) -> Duration {
    let locks = connected(home).await;
    let cache = cache(&locks, home);
    let mut times = Vec::new();
    for _ in 0..100 {
        let since = Instant::now();
        cache.get("round trip").await.unwrap();
        times.push(since.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

struct Heard {
    values: Vec<String>,
    /// From the first to the last.
    latencies: Vec<Duration>,
}

fn hear(workers: &mut [Worker]) -> Heard {
    let mut heard = Heard { values: Vec::new(), latencies: Vec::new() };
    for worker in workers {
        heard.values.extend(worker.hear().split(';').map(str::to_owned));
        let latencies = worker.hear();
        heard.latencies.extend(latencies.split(' ').map(|us| Duration::from_micros(us.parse().unwrap())));
    }
    heard.values.sort_unstable();
    heard.values.dedup();
    heard.latencies.sort_unstable();
    heard
}

/// Four processes in a role, ready; and how long a round trip takes them.
fn crowd(role: &str, home: &Path) -> (Vec<Worker>, Duration) {
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| Worker::start(WORKER, role, home)).collect();
    let trips = workers.iter_mut().map(|worker| Duration::from_micros(worker.hear().parse().unwrap()));
    let trip = trips.max().unwrap();
    (workers, trip)
}

/// Has a value there that expires in a moment; says when. Loaded by the test itself, which is not counted.
async fn prime(locks: &Locks, home: &Path) -> u64 {
    let loader = || async { Ok::<_, Infallible>(b"expired".to_vec()) };
    cache(locks, home).refresh("hot", TTL, loader).await.unwrap();
    now_ns() + u64::try_from(TTL.as_nanos()).unwrap()
}

fn start(workers: &mut [Worker], instant: u64) {
    workers.iter_mut().for_each(|worker| worker.tell(&instant.to_string()));
    assert!(now_ns() < instant, "too busy a machine: the value had expired before everybody was told");
}

#[test]
fn of_a_thousand_callers_at_the_instant_of_expiry_one_loads() {
    for site in sites(LOAD) {
        let home = site.home.path();
        let (mut workers, trip) = crowd("guarded", home);
        let locks = run_here(connected(home));
        for round in 0..scaled(10) {
            let _ = std::fs::remove_file(home.join("loads"));
            let instant = run_here(prime(&locks, home));
            start(&mut workers, instant);
            let heard = hear(&mut workers);
            let loads = loads(home);
            let at = |share: f64| heard.latencies[((CALLERS - 1) as f64 * share) as usize];
            println!(
                "{}: {CALLERS} callers, {} loads; load {LOAD:?}, round trip {trip:?}; value after {:?} (half), {:?} (99 %), {:?} (all)",
                site.name,
                loads.len(),
                at(0.5),
                at(0.99),
                at(1.0),
            );
            assert_eq!(loads.len(), 1, "{}, round {round}: {loads:?}", site.name);
            assert_eq!(heard.latencies.len(), CALLERS);
            assert_eq!(heard.values, [format!("loaded by {}", loads[0])], "{}, round {round}", site.name);
            let promised = LOAD.mul_f64(1.2) + 2 * trip;
            assert!(at(0.99) <= promised, "{}: {:?} for {promised:?}", site.name, at(0.99));
        }
    }
}

#[test]
fn without_the_guard_hundreds_load() {
    for site in sites(LOAD / 4) {
        let home = site.home.path();
        let (mut workers, _) = crowd("naive", home);
        let instant = run_here(async {
            put(&*plain_store(home).await, b"expired".to_vec(), TTL).await;
            now_ns() + u64::try_from(TTL.as_nanos()).unwrap()
        });
        start(&mut workers, instant);
        hear(&mut workers);
        let loads = loads(home).len();
        println!("{}, without the guard: {CALLERS} callers, {loads} loads", site.name);
        assert!(loads >= 200, "{}: only {loads} loads", site.name);
    }
}

#[test]
fn for_each_loader_that_is_killed_one_more_loads() {
    const KILLS: usize = 2;
    // A load that is to be killed does not end by itself, however long the machine stalls.
    for site in sites(LONG) {
        let home = site.home.path();
        let (mut workers, _) = crowd("guarded", home);
        let locks = run_here(connected(home));
        let instant = run_here(prime(&locks, home));
        start(&mut workers, instant);
        let mut killed = None;
        for kills in 0..=KILLS {
            let since = Instant::now();
            while loads(home).len() == kills {
                assert!(since.elapsed() < secs(60), "{}: nobody loads after {kills} deaths", site.name);
                std::thread::sleep(ms(1));
            }
            let taken_over = killed.map(|killed: Instant| killed.elapsed());
            let promised = if site.name == "file" { Duration::ZERO } else { LOADER_TTL };
            if let Some(after) = taken_over {
                println!("{}: a killed loader was followed after {after:?}", site.name);
                assert!(after <= promised + SLACK, "{}: after {after:?}", site.name);
            }
            if kills < KILLS {
                let pid = loads(home)[kills];
                let at = workers.iter().position(|worker| worker.pid() == pid).unwrap();
                if kills + 1 == KILLS {
                    write(home, "load_ms", &(LOAD / 4).as_millis().to_string());
                }
                workers.remove(at).kill_alive();
                killed = Some(Instant::now());
            }
        }
        let heard = hear(&mut workers);
        let loads = loads(home);
        assert_eq!(loads.len(), 1 + KILLS, "{}: {loads:?}", site.name);
        assert_eq!(heard.values, [format!("loaded by {}", loads[KILLS])], "{}", site.name);
        assert_eq!(heard.latencies.len(), CALLERS / PROCESSES * (PROCESSES - KILLS));
    }
}

/// In a worker: loads until it is told to end, and says what it got.
async fn stall(home: &Path) {
    let locks = connected(home).await;
    let cache = cache(&locks, home).loader_ttl(LOADER_TTL);
    let loader = || async {
        say("begun");
        let line = tokio::task::spawn_blocking(listen).await.unwrap();
        Ok::<_, Infallible>(line.into_bytes())
    };
    let value = cache.get_or_load("hot", LONG, loader).await.unwrap();
    say(String::from_utf8(value).unwrap());
    // And from now on it sees what everybody sees.
    say(String::from_utf8(cache.get("hot").await.unwrap().unwrap()).unwrap());
    locks.close().await;
}

#[test]
fn a_loader_that_was_stopped_and_wakes_writes_nothing_over_what_is_newer() {
    for site in sites(LOAD / 4) {
        let home = site.home.path();
        let locks = run_here(connected(home));
        let mut worker = Worker::start(WORKER, "staller", home);
        assert_eq!(worker.hear(), "begun");
        worker.stop();
        let mine = cache(&locks, home).loader_ttl(LOADER_TTL);
        let newer = run_here(async {
            let loader = || async { Ok::<_, Infallible>(b"newer".to_vec()) };
            mine.get_or_load("hot", LONG, loader).await.unwrap()
        });
        assert_eq!(newer, b"newer", "{}", site.name);
        worker.tell("old");
        worker.signal(Signal::CONT);
        assert_eq!(worker.hear(), "old", "{}: its own caller has what it loaded", site.name);
        assert_eq!(worker.hear(), "newer", "{}", site.name);
        assert_eq!(run_here(mine.get("hot")).unwrap().unwrap(), b"newer", "{}", site.name);
        worker.ended_well();
    }
}

/// On one runtime of the test's own, on which its clients live.
fn run_here<T>(work: impl Future<Output = T>) -> T {
    use std::sync::OnceLock;
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    RUNTIME.get_or_init(build).block_on(work)
}

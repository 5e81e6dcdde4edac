//! `file:` beside what it is made of: bare SQLite transactions, bare datagrams. Prints ratios of medians of interleaved
//! runs, with their spread; absolute figures do not carry over to another machine or day.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold::{Clock, Locks, Options};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, params};
use tokio::runtime::{Builder, Runtime};

/// Odd, so that the median is one of the runs.
const ROUNDS: usize = 11;
const PAIRS: u32 = 3_000;
const HAND_OVERS: u32 = 100;
const DEATHS: usize = 51;

/// What a child of this program does, and where.
const ROLE: &str = "LEASEHOLD_BENCH_ROLE";
const WHERE: &str = "LEASEHOLD_BENCH_WHERE";

fn main() {
    if let Some(role) = std::env::var_os(ROLE) {
        return child(role.to_str().unwrap(), &PathBuf::from(std::env::var_os(WHERE).unwrap()));
    }
    let filter: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|word| name.contains(word.as_str()));
    let home = Home::new();
    let bare = Bare::new(&home.0.join("bare"));
    if wanted("uncontended lock + release, beside bare transactions") {
        uncontended(&home.0, &bare);
    }
    if wanted("a permit and a reader beside a mutex, uncontended") {
        shares(&home.0);
    }
    if wanted("hand-over between two processes, beside bare datagrams and transactions") {
        hand_over(&home.0, &bare);
    }
    if wanted("death of a holder, until the next one holds") {
        death(&home.0);
    }
}

/// A directory that is gone at the end.
struct Home(PathBuf);

impl Home {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench_file_{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Home(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn open(directory: &Path) -> Locks {
    Options::default().connect(&format!("file:{}", directory.display())).await.unwrap()
}

/// The two transactions of a lock and its release with nothing around them: the same tables, page size and settings.
struct Bare {
    db: Connection,
    path: PathBuf,
    frames: Arc<AtomicI32>,
    writing_back: Arc<AtomicBool>,
}

impl Bare {
    fn new(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        let path = directory.join("bare.db");
        let mut db = Connection::open(&path).unwrap();
        db.execute_batch("PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
            .unwrap();
        db.execute_batch(include_str!("../src/store/file/schema.sql")).unwrap();
        db.set_prepared_statement_cache_capacity(64);
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
        let frames = Arc::new(AtomicI32::new(0));
        let seen = frames.clone();
        db.wal_hook(Some(move |_: &mut Wal, count| {
            seen.store(count, Ordering::Relaxed);
            Ok(())
        }))
        .unwrap();
        Bare { db, path, frames, writing_back: Arc::default() }
    }

    /// The log is written back at the same length, beside those who write, as any use of it has to.
    fn write_back(&self) {
        if self.frames.load(Ordering::Relaxed) <= 8_000 || self.writing_back.swap(true, Ordering::AcqRel) {
            return;
        }
        let (path, writing_back) = (self.path.clone(), self.writing_back.clone());
        std::thread::spawn(move || {
            let db = Connection::open(path).unwrap();
            db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            writing_back.store(false, Ordering::Release);
        });
    }

    fn run(&self, sql: &str) {
        self.db.prepare_cached(sql).unwrap().raw_execute().unwrap();
    }

    /// Takes a fence and writes the holder; takes the holder out.
    fn pair(&self) {
        let (name, token) = ("orders:42", "0123456789abcdef0123456789abcdef@localhost:12345");
        self.run("BEGIN IMMEDIATE");
        let last: i64 =
            self.db.prepare_cached("SELECT last FROM meta").unwrap().query_row([], |row| row.get(0)).unwrap();
        self.db.prepare_cached("UPDATE meta SET last = ?1").unwrap().execute([last + 1]).unwrap();
        let insert = "INSERT INTO holding VALUES (?1, ?2, 0, 0, 0, ?3, 1, ?4, 30000, 77, 0, 0, 0)";
        self.db.prepare_cached(insert).unwrap().execute(params![name, token, last + 1, last + 30]).unwrap();
        self.run("COMMIT");
        self.run("BEGIN IMMEDIATE");
        let delete = "DELETE FROM holding WHERE name = ?1 AND token = ?2";
        self.db.prepare_cached(delete).unwrap().execute([name, token]).unwrap();
        self.run("COMMIT");
        self.write_back();
    }

    fn pairs(&self) -> f64 {
        let start = Instant::now();
        (0..PAIRS).for_each(|_| self.pair());
        us(start) / f64::from(PAIRS)
    }
}

fn us(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{least:.2} to {most:.2}")
}

fn uncontended(home: &Path, bare: &Bare) {
    let runtime = one_thread();
    let locks = runtime.block_on(open(&home.join("uncontended")));
    let mutex = locks.mutex("orders:42");
    let ours = || {
        runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..PAIRS {
                mutex.lock().await.unwrap().release().await.unwrap();
            }
            us(start) / f64::from(PAIRS)
        })
    };
    // Once to warm up.
    ours();
    bare.pairs();
    let runs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (ours(), bare.pairs())).collect();
    let ratios: Vec<f64> = runs.iter().map(|(ours, bare)| ours / bare).collect();
    println!("\n| uncontended, one thread | µs | ratio | spread |\n|---|---|---|---|");
    println!(
        "| two bare SQLite transactions | {:.1} | 1 | |",
        median(&runs.iter().map(|run| run.1).collect::<Vec<_>>())
    );
    println!(
        "| lock + release | {:.1} | {:.2} | {} |",
        median(&runs.iter().map(|run| run.0).collect::<Vec<_>>()),
        median(&ratios),
        spread(&ratios)
    );
}

/// What it costs to hold a name beside others, where there are none.
fn shares(home: &Path) {
    let runtime = one_thread();
    let locks = runtime.block_on(open(&home.join("shares")));
    let us_each = |pair: fn(&Locks) -> BoxFuture<'_, ()>| {
        runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..PAIRS {
                pair(&locks).await;
            }
            us(start) / f64::from(PAIRS)
        })
    };
    let mutex = || {
        us_each(|locks| {
            async { drop(locks.mutex("orders:42").lock().await.unwrap().release().await) }.boxed()
        })
    };
    let permit = || {
        us_each(|locks| {
            async { drop(locks.semaphore("orders:42", 5).acquire().await.unwrap().release().await) }.boxed()
        })
    };
    let reader = || {
        us_each(|locks| {
            async { drop(locks.rwlock("orders:42").read().await.unwrap().release().await) }.boxed()
        })
    };
    // Once to warm up.
    mutex();
    permit();
    reader();
    let runs: Vec<[f64; 3]> = (0..ROUNDS).map(|_| [mutex(), permit(), reader()]).collect();
    println!("\n| uncontended, one thread | µs | ratio | spread |\n|---|---|---|---|");
    for (i, what) in ["mutex: lock + release", "a permit: acquire + release", "a reader: read + release"]
        .iter()
        .enumerate()
    {
        let ratios: Vec<f64> = runs.iter().map(|run| run[i] / run[0]).collect();
        let each: Vec<f64> = runs.iter().map(|run| run[i]).collect();
        println!("| {what} | {:.1} | {:.2} | {} |", median(&each), median(&ratios), spread(&ratios));
    }
}

fn spawn(role: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env(WHERE, place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a child says a line.
fn line(child: &mut Child) -> String {
    use std::io::Read;
    let mut said = Vec::new();
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        said.push(byte[0]);
    }
    String::from_utf8(said).unwrap()
}

fn child(role: &str, place: &Path) {
    match role {
        "echo" => {
            let socket = UnixDatagram::bind(place.join("echo")).unwrap();
            println!("ready");
            let mut byte = [0];
            while socket.recv(&mut byte).is_ok() {
                socket.send_to(&byte, place.join("ping")).unwrap();
            }
        }
        // Takes the lock when it is handed over, says when that was, and gives it back when the other side waits.
        "taker" => one_thread().block_on(async {
            let locks = open(place).await;
            let clock = Clock::system().unwrap();
            println!("ready");
            loop {
                let lease = locks.mutex("orders:42").lock().await.unwrap();
                println!("{}", clock.now().since(clock.now().minus(Duration::MAX)).as_nanos());
                wait_for_waiter(&locks).await;
                lease.release().await.unwrap();
            }
        }),
        "hold" => one_thread().block_on(async {
            let locks = open(place).await;
            let _lease = locks.mutex("orders:42").lock().await.unwrap();
            println!("ready");
            std::future::pending::<()>().await
        }),
        other => panic!("no role `{other}`"),
    }
}

async fn wait_for_waiter(locks: &Locks) {
    while locks.inspect("orders:42").await.unwrap().is_none_or(|status| status.waiters.is_empty()) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn hand_over(home: &Path, bare: &Bare) {
    let place = home.join("hand_over");
    std::fs::create_dir_all(&place).unwrap();
    let mut echo = spawn("echo", &place);
    line(&mut echo);
    let ping = UnixDatagram::bind(place.join("ping")).unwrap();
    let echoed = || {
        let start = Instant::now();
        for _ in 0..HAND_OVERS {
            ping.send_to(&[1], place.join("echo")).unwrap();
            ping.recv(&mut [0]).unwrap();
        }
        us(start) / f64::from(HAND_OVERS)
    };

    let runtime = one_thread();
    let store = place.join("store");
    let locks = runtime.block_on(open(&store));
    let mutex = locks.mutex("orders:42");
    let mut lease = Some(runtime.block_on(mutex.lock()).unwrap());
    let mut taker = spawn("taker", &store);
    line(&mut taker);
    // From before the release until the other process has it, both timed on the machine's clock.
    let mut ours = || {
        let each: Vec<f64> = (0..HAND_OVERS)
            .map(|_| {
                let sent = runtime.block_on(async {
                    let clock = Clock::system().unwrap();
                    wait_for_waiter(&locks).await;
                    let sent = clock.now().since(clock.now().minus(Duration::MAX)).as_nanos();
                    lease.take().unwrap().release().await.unwrap();
                    lease = Some(mutex.lock().await.unwrap());
                    sent
                });
                let taken: u128 = line(&mut taker).parse().unwrap();
                taken.saturating_sub(sent) as f64 / 1e3
            })
            .collect();
        median(&each)
    };
    ours();
    echoed();
    let runs: Vec<(f64, f64, f64)> = (0..ROUNDS).map(|_| (ours(), echoed(), bare.pairs())).collect();
    taker.kill().unwrap();
    taker.wait().unwrap();
    echo.kill().unwrap();
    echo.wait().unwrap();
    let ratios: Vec<f64> = runs.iter().map(|(ours, echoed, bare)| ours / (echoed + bare)).collect();
    let column = |pick: fn(&(f64, f64, f64)) -> f64| median(&runs.iter().map(pick).collect::<Vec<_>>());
    println!("\n| between two processes | µs | ratio | spread |\n|---|---|---|---|");
    println!("| a bare datagram there and back | {:.1} | | |", column(|run| run.1));
    println!("| two bare SQLite transactions | {:.1} | | |", column(|run| run.2));
    println!("| the two together | {:.1} | 1 | |", column(|run| run.1 + run.2));
    println!(
        "| hand-over of a lock | {:.1} | {:.2} | {} |",
        column(|run| run.0),
        median(&ratios),
        spread(&ratios)
    );
}

fn death(home: &Path) {
    let place = home.join("death");
    let runtime = one_thread();
    let locks = runtime.block_on(open(&place));
    let mutex = locks.mutex("orders:42");
    let deaths: Vec<f64> = (0..DEATHS)
        .map(|_| {
            let mut holder = spawn("hold", &place);
            line(&mut holder);
            runtime.block_on(async {
                let waiting = tokio::spawn({
                    let mutex = mutex.clone();
                    async move {
                        let lease = mutex.lock().await.unwrap();
                        (Instant::now(), lease)
                    }
                });
                wait_for_waiter(&locks).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
                let killed = Instant::now();
                holder.kill().unwrap();
                let (held, lease) = waiting.await.unwrap();
                lease.release().await.unwrap();
                holder.wait().unwrap();
                held.duration_since(killed).as_secs_f64() * 1e3
            })
        })
        .collect();
    println!("\n| from SIGKILL of the holder until the next one holds | ms |\n|---|---|");
    println!("| median of {DEATHS} | {:.2} |\n| spread | {} |", median(&deaths), spread(&deaths));
}

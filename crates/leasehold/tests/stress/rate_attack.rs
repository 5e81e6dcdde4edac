//! Rate limits under attack: clients in four processes, whose wall clocks are moved by up to a minute and which are killed at
//! random, take from four limits at once. By the store's own record, never is more taken in any window than there is; and nothing is
//! left afterwards. Beside that, a limit that takes the time from its clients, which the same attack breaks; and what a fixed window lets
//! through around its end, and a sliding one does not.

use leasehold_testkit as common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::crash_load::{Plan, Post};
use common::worker::play;
use common::{Dice, Home, home_in_memory, ms, record, run, scaled, secs};
use futures_util::future::join_all;
use leasehold::cells::rate::Algorithm;
use leasehold::store::file::File;
use leasehold::{Locks, RateLimit};
use leasehold_lab::{Client, Kind, Reply, Server};
use rusqlite::Connection;

const PROCESSES: u64 = 4;
const CLIENTS: u64 = 2;
const TASKS: u64 = 6;
const HEAVIEST: u32 = 3;
const PERIOD: Duration = Duration::from_millis(250);

/// What is taken from: rule, maximum, and the most in any period.
const LIMITS: [(Algorithm, u32, u64); 4] = [
    (Algorithm::FixedWindow, 20, 20),
    (Algorithm::SlidingWindow, 20, 20),
    // So many that takes are remembered together; beside the other by its period.
    (Algorithm::SlidingWindow, 150, 150),
    (Algorithm::Gcra { burst: 5 }, 20, 20 + 5 - 1),
];

fn period_of(number: usize) -> Duration {
    if number == 2 { PERIOD * 2 } else { PERIOD }
}

fn limit(locks: &Locks, number: usize) -> RateLimit {
    let (rule, max, _) = LIMITS[number];
    locks.rate_limit("x").max(max).per(period_of(number)).algorithm(rule)
}

const WORKER: ChildTest = child_test!(worker);

/// What the workers do.
#[test]
fn worker() {
    play(|role, home| {
        let [what, label, seed] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let post = Post::new(home, label, seed);
        match what {
            "takes" => run(takes(Arc::new(post))),
            "naive" => by_its_own_clock(&post),
            other => panic!("no role `{other}`"),
        }
    });
}

/// Takes from all of the limits, until it is killed, and writes down what it was told it had.
async fn takes(post: Arc<Post>) {
    let url = post.url();
    let believed = post.home.join("believed").join(&post.label);
    let believed = Arc::new(std::fs::File::create(believed).unwrap());
    let mut tasks = Vec::new();
    for client in 0..CLIENTS {
        let locks = post.connect(&url).await;
        for task in 0..TASKS {
            let (post, locks, believed) = (post.clone(), locks.clone(), believed.clone());
            tasks.push(tokio::spawn(async move {
                let mut dice = Dice(post.seed + client * 100 + task);
                loop {
                    let number = dice.below(LIMITS.len() as u64) as usize;
                    let weight = 1 + dice.below(HEAVIEST.into()) as u32;
                    let limit = limit(&locks, number);
                    let taken = match dice.below(3) {
                        0 => limit.wait_for(weight, PERIOD).await,
                        _ => limit.take(weight).await,
                    };
                    match taken {
                        Ok(taken) if taken.allowed => {
                            (&*believed).write_all(format!("{number} {weight}\n").as_bytes()).unwrap();
                            post.count();
                        }
                        Ok(_) => tokio::time::sleep(ms(1 + dice.below(15))).await,
                        Err(error) => post.journal.failed(error),
                    }
                }
            }));
        }
    }
    drop(join_all(tasks).await);
}

// ---- the store's record ----

/// What a store wrote under one key, in order: the value, and when it was to end, in ms on the store's clock.
type Written = Vec<(String, u64)>;

enum Place {
    Server(Server),
    Files(PathBuf),
}

impl Place {
    fn url(&self) -> String {
        match self {
            Place::Server(server) => server.url(),
            Place::Files(path) => format!("file:{}", path.display()),
        }
    }

    fn record(&self) -> BTreeMap<String, Written> {
        match self {
            Place::Server(server) => of_server(server),
            Place::Files(path) => of_files(path),
        }
    }

    /// How many keys of the attack there are still.
    fn left(&self) -> i64 {
        match self {
            Place::Server(server) => server.command(&["DBSIZE"]).unwrap().int().unwrap(),
            Place::Files(path) => {
                let db = Connection::open(path.join("locks.db")).unwrap();
                db.busy_timeout(secs(10)).unwrap();
                let sql = "SELECT count(*) FROM cell WHERE key LIKE 'rate:x:%'";
                db.query_row(sql, [], |row| row.get(0)).unwrap()
            }
        }
    }
}

/// From the append-only file, in which each end is a moment of the server's clock. A number that is added to is written as it is then.
fn of_server(server: &Server) -> BTreeMap<String, Written> {
    let mut written = BTreeMap::<String, Written>::new();
    // What was added just now, and to which.
    let mut added = None;
    for command in record::commands(server) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match words[..] {
            ["SET", key, value, "PXAT", ends] => {
                written.entry(key.into()).or_default().push((value.into(), ends.parse().unwrap()));
            }
            // A window begins with the end that it gets.
            ["INCRBY", key, by] => {
                let by: u64 = by.parse().unwrap();
                let (sum, ends) =
                    written.get(key).and_then(|written| written.last().cloned()).unwrap_or_default();
                let sum = sum.parse().unwrap_or(0) + by;
                written.entry(key.into()).or_default().push((sum.to_string(), ends));
                added = Some((key.to_owned(), by));
                continue;
            }
            ["PEXPIREAT", key, ends] => {
                let last = written.get_mut(key).and_then(|written| written.last_mut()).unwrap();
                last.1 = ends.parse().unwrap();
                if let Some((to, by)) = &added
                    && to == key
                {
                    last.0 = by.to_string();
                }
            }
            ["SELECT", _] | ["MULTI"] | ["EXEC"] | ["DEL" | "UNLINK", ..] => {}
            _ => panic!("{words:?}"),
        }
        added = None;
    }
    written
}

fn record_in(home: &Path) {
    let db = Connection::open(home.join("locks.db")).unwrap();
    db.execute_batch(
        "CREATE TABLE record (number INTEGER PRIMARY KEY, key TEXT, value TEXT, ends_ms INTEGER);
         CREATE TRIGGER record_takes AFTER INSERT ON cell BEGIN
             INSERT INTO record VALUES (NULL, NEW.key, CAST(NEW.value AS TEXT), NEW.expires / 1000000); END;",
    )
    .unwrap();
}

fn of_files(home: &Path) -> BTreeMap<String, Written> {
    let db = Connection::open(home.join("locks.db")).unwrap();
    let mut select = db.prepare("SELECT key, value, ends_ms FROM record ORDER BY number").unwrap();
    let mut rows = select.query([]).unwrap();
    let mut written = BTreeMap::<String, Written>::new();
    while let Some(row) = rows.next().unwrap() {
        let ends: i64 = row.get(2).unwrap();
        written.entry(row.get(0).unwrap()).or_default().push((row.get(1).unwrap(), ends as u64));
    }
    written
}

/// By how much the machine's own clock may be corrected meanwhile. A limit's stands still then, and a server's window gets its end anew.
const CORRECTED_MS: u64 = 50;

/// What the record says of one limit.
#[derive(Debug, Default)]
struct Verdict {
    takes: usize,
    weight: u64,
    /// The most in one window.
    most: u64,
    windows: usize,
}

/// Windows one after the other: each has its own end, and none begins before the last has ended.
fn judge_fixed(written: &Written, period: Duration) -> Verdict {
    let mut verdict = Verdict { takes: written.len(), ..Verdict::default() };
    let mut window = (0, 0);
    for (value, ends) in written {
        let sum: u64 = value.parse().unwrap();
        if u128::from(ends.saturating_sub(window.1)) >= period.as_millis() {
            window = (0, *ends);
            verdict.windows += 1;
        }
        let off = ends.abs_diff(window.1);
        assert!(off < CORRECTED_MS, "a window within a window, {off} ms off");
        assert!(sum > window.0, "a take of nothing");
        verdict.weight += sum - window.0;
        window.0 = sum;
        verdict.most = verdict.most.max(sum);
    }
    verdict
}

/// When how much was taken, in µs on the store's clock: from what each take has left.
fn takes_of(written: &Written, number: usize) -> Vec<(u64, u64)> {
    let (rule, max, _) = LIMITS[number];
    let period_ms = period_of(number).as_millis() as u64;
    let part = |value: &str, from: usize, digits: usize| value[from..from + digits].parse::<u64>().unwrap();
    let mut before = String::new();
    let take = |(value, ends): &(String, u64)| {
        let ahead_us = part(value, 0, 16);
        assert!(ahead_us < CORRECTED_MS * 1_000, "nobody has set the store's clock back by {ahead_us} µs");
        // One that was refused, and only noticed that.
        if before.get(16..) == value.get(16..) {
            before.clone_from(value);
            return None;
        }
        let (at_us, weight) = match rule {
            Algorithm::SlidingWindow => {
                let last = value.len() - 26;
                let (at_us, weight) = (part(value, last, 16), part(value, last + 16, 10));
                // It is the store's own time, as its end shows: a client's is up to a minute off.
                let off = (ends - period_ms - 1).abs_diff(at_us / 1_000);
                assert!(off < 1_000, "{off} ms off: {value}");
                // Up to a hundred, each stands for itself, also at the same moment.
                let is_joined =
                    max > 100 && !before.is_empty() && part(&before, 26, 16) == part(value, 26, 16);
                let had = if is_joined { part(&before, before.len() - 10, 10) } else { 0 };
                (at_us, weight - had)
            }
            Algorithm::Gcra { .. } => {
                let (at_us, full_ns) = (part(value, 16, 16), part(value, 32, 16));
                let had = match before.is_empty() {
                    true => 0,
                    false => part(&before, 32, 16).saturating_sub((at_us - part(&before, 16, 16)) * 1_000),
                };
                let one = (period_ms * 1_000_000).div_ceil(max.into());
                assert_eq!((full_ns - had) % one, 0, "no whole takes");
                (at_us, (full_ns - had) / one)
            }
            _ => panic!("{rule:?}"),
        };
        assert!((1..=u64::from(HEAVIEST)).contains(&weight), "a take of {weight}");
        before.clone_from(value);
        Some((at_us, weight))
    };
    written.iter().filter_map(take).collect()
}

/// Of any period, wherever it begins.
fn judge_any(written: &Written, number: usize) -> Verdict {
    let takes = takes_of(written, number);
    assert!(takes.is_sorted_by_key(|(at_us, _)| *at_us), "the limit's clock goes on");
    let lasted_us = takes.last().unwrap().0 - takes[0].0;
    Verdict {
        takes: takes.len(),
        weight: takes.iter().map(|(_, weight)| weight).sum(),
        most: most_in_any(&takes, period_of(number)),
        windows: (u128::from(lasted_us) / period_of(number).as_micros()) as usize,
    }
}

/// The most in one period, of takes in µs and their weights.
fn most_in_any(takes: &[(u64, u64)], period: Duration) -> u64 {
    let period_us = period.as_micros() as u64;
    let (mut first, mut within, mut most) = (0, 0, 0);
    for (at_us, weight) in takes {
        within += weight;
        while takes[first].0 + period_us <= *at_us {
            within -= takes[first].1;
            first += 1;
        }
        most = most.max(within);
    }
    most
}

// ---- the attack ----

fn attack(home: &Home, place: &Place) {
    std::fs::write(home.path().join("url"), place.url()).unwrap();
    std::fs::create_dir(home.path().join("believed")).unwrap();
    let plan = Plan {
        worker: WORKER,
        role: "takes".to_owned(),
        processes: PROCESSES,
        moved_s: 60,
        lives_ms: (500, 2_000),
        grants: scaled(2_000),
        lasts: ms(scaled(40_000)),
    };
    let lives = plan.carry_out(home.path());
    let record = place.record();
    let mut believed = [0_u64; LIMITS.len()];
    for file in std::fs::read_dir(home.path().join("believed")).unwrap() {
        // The last line may have been cut short by a kill.
        for line in std::fs::read_to_string(file.unwrap().path()).unwrap().lines() {
            if let Some((number, weight)) = line.split_once(' ')
                && let Ok(weight) = weight.parse::<u64>()
            {
                believed[number.parse::<usize>().unwrap()] += weight;
            }
        }
    }
    for (number, (rule, max, most)) in LIMITS.into_iter().enumerate() {
        let kept = match rule {
            Algorithm::FixedWindow => "fixed",
            Algorithm::SlidingWindow => "sliding",
            _ => "gcra",
        };
        let written = &record[&format!("rate:x:{kept}:{}", period_of(number).as_millis())];
        let verdict = match rule {
            Algorithm::FixedWindow => judge_fixed(written, period_of(number)),
            _ => judge_any(written, number),
        };
        let unheard = verdict.weight.checked_sub(believed[number]).expect("what was believed is recorded");
        println!(
            "{kept}, {max} in {:?}: {} takes of {} in {} windows, {unheard} of them unheard of; at most {} of {most} in one, {} kills",
            period_of(number),
            verdict.takes,
            verdict.weight,
            verdict.windows,
            verdict.most,
            lives.len(),
        );
        assert!(verdict.most <= most, "{} of {most} in one window: {rule:?}", verdict.most);
        // As much as there is was asked for, over many boundaries; and whoever was killed had at most one answer under way for each task.
        assert!(
            verdict.most + u64::from(HEAVIEST) > u64::from(max).min(most),
            "too calm: {verdict:?}, {rule:?}"
        );
        assert!(verdict.windows >= 4, "too short: {verdict:?}, {rule:?}");
        assert!(
            unheard <= lives.len() as u64 * CLIENTS * TASKS * u64::from(HEAVIEST),
            "{unheard} unheard of"
        );
    }
    assert!(lives.len() as u64 > PROCESSES, "nobody was killed in the middle of it");
    nothing_is_left(place);
}

/// In a period or two nobody finds that there ever was a limit.
fn nothing_is_left(place: &Place) {
    let patience = Instant::now() + secs(20);
    loop {
        if let Place::Files(path) = place {
            // Files are tidied up by whoever uses them next.
            run(async {
                let locks = leasehold::connect(&format!("file:{}", path.display())).await.unwrap();
                assert!(locks.rate_limit("y").max(1_000_000).per(secs(1)).take(1).await.unwrap().allowed);
                locks.close().await;
            });
        }
        let left = place.left();
        if left == 0 {
            return;
        }
        assert!(Instant::now() < patience, "{left} keys are left");
        std::thread::sleep(PERIOD / 5);
    }
}

#[test]
fn never_too_much_in_any_window_on_redis() {
    attack(&home_in_memory("rate"), &Place::Server(record::recording(Kind::Redis)));
}

#[test]
fn never_too_much_in_any_window_on_valkey() {
    attack(&home_in_memory("rate"), &Place::Server(record::recording(Kind::Valkey)));
}

#[test]
fn never_too_much_in_any_window_in_files() {
    let home = home_in_memory("rate");
    let store = home.path().join("store");
    run(async { drop(File::open(&store).await.unwrap()) });
    record_in(&store);
    attack(&home, &Place::Files(store));
}

// ---- the same attack on a limit whose clients say what time it is ----

/// A sliding window as it is often written: of the last period by the caller's clock. Beside it, when the server let something through.
const NAIVE: &str = "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - ARGV[2])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
    local time = redis.call('TIME')
    redis.call('RPUSH', KEYS[2], string.format('%.0f', time[1] * 1000000 + time[2]))
    return 1";

const NAIVE_MAX: u32 = 20;

fn by_its_own_clock(post: &Post) {
    let url = post.url();
    let mut redis = Client::tcp(url.trim_start_matches("redis://").parse().unwrap()).unwrap();
    let (period_us, max) = (PERIOD.as_micros().to_string(), NAIVE_MAX.to_string());
    for number in 0_u64.. {
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let (now_us, member) = (wall.as_micros().to_string(), format!("{} {number}", post.label));
        let args = ["EVAL", NAIVE, "2", "naive", "record", &now_us, &period_us, &max, &member];
        match redis.command(&args).unwrap().int() {
            Some(1) => post.count(),
            _ => std::thread::sleep(ms(1)),
        }
    }
}

#[test]
fn a_limit_whose_clients_say_what_time_it_is_is_broken_by_the_same_attack() {
    let (home, server) = (home_in_memory("rate"), Server::start(Kind::Redis).unwrap());
    std::fs::write(home.path().join("url"), server.url()).unwrap();
    let plan = Plan {
        worker: WORKER,
        role: "naive".to_owned(),
        processes: PROCESSES,
        moved_s: 60,
        lives_ms: (500, 2_000),
        grants: scaled(2_000),
        lasts: ms(scaled(20_000)),
    };
    plan.carry_out(home.path());
    let Reply::Array(record) = server.command(&["LRANGE", "record", "0", "-1"]).unwrap() else { panic!() };
    let mut takes: Vec<(u64, u64)> =
        record.iter().map(|at| (at.text().unwrap().parse().unwrap(), 1)).collect();
    takes.sort_unstable();
    let most = most_in_any(&takes, PERIOD);
    println!(
        "by its clients' clocks, {NAIVE_MAX} in {PERIOD:?}: {} takes, at most {most} in one window",
        takes.len()
    );
    assert!(most > 2 * u64::from(NAIVE_MAX), "the attack is too weak to show anything: {most}");
}

// ---- around the end of a window ----

/// How much was let through in less than a period, by one who uses a window's end; nothing where the machine was too busy to show it.
async fn around_the_end(limit: &RateLimit, max: u32, period: Duration) -> Option<u32> {
    // Opens a window, if there are any, and waits until shortly before its end.
    limit.wait(1).await.unwrap();
    tokio::time::sleep(period - period / 4).await;
    let since = Instant::now();
    let mut let_through = 0;
    loop {
        let taken = limit.take(1).await.unwrap();
        match taken.allowed {
            true => let_through += 1,
            // The rest of this window; and now the next.
            false if let_through < max => {
                tokio::time::sleep(taken.retry_after).await;
                let next = limit.take(1).await.unwrap();
                let_through += u32::from(next.allowed);
                while limit.take(1).await.unwrap().allowed {
                    let_through += 1;
                }
                break;
            }
            false => break,
        }
    }
    (since.elapsed() < period).then_some(let_through)
}

async fn seen_around_the_end(locks: &Locks) {
    const MAX: u32 = 40;
    let period = secs(2);
    let limit = || locks.rate_limit("x").max(MAX).per(period);
    let (fixed, sliding) = (limit().fixed_window(), limit().sliding_window());
    for _ in 0..10 {
        let both = tokio::join!(around_the_end(&fixed, MAX, period), around_the_end(&sliding, MAX, period));
        let (Some(fixed), Some(sliding)) = both else { continue };
        println!("in less than {period:?}: {fixed} by a fixed window of {MAX}, {sliding} by a sliding one");
        assert!(sliding <= MAX, "{sliding} in one period");
        // All but the one that opened the window, and all of the next.
        assert_eq!(fixed, 2 * MAX - 1, "the burst that a fixed window is known for");
        return;
    }
    panic!("never were both seen in less than {period:?}");
}

#[test]
fn a_fixed_window_lets_twice_as_much_through_around_its_end_and_a_sliding_one_does_not() {
    let server = Server::start(Kind::Redis).unwrap();
    let home = home_in_memory("rate");
    for url in [server.url(), format!("file:{}", home.path().display())] {
        run(async {
            let locks = leasehold::connect(&url).await.unwrap();
            seen_around_the_end(&locks).await;
            locks.close().await;
        });
    }
}

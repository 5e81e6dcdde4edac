//! Permits under attack: 64 clients in four processes, whose wall clocks are moved by up to a minute and which are killed
//! at random. Never are more permits held than there are: by the store's own record of every change, by somebody who looks at
//! it all the while, and by what the clients believed. And the same attack on semaphores that take the time from their
//! clients, which it breaks.

use leasehold_testkit as common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::crash_load::{Plan, Post, Seen, label_of};
use common::disk::SOON;
use common::history::{History, Judged, Life, Part, stamp};
use common::record::{self, Verdict};
use common::worker::play;
use common::{Dice, Home, home_in_memory, ms, run, scaled, secs};
use futures_util::future::join_all;
use leasehold::store::file::File;
use leasehold_lab::{Client, Kind, Reply, Server};
use rusqlite::Connection;

const LIMIT: u32 = 5;
const PROCESSES: u64 = 4;
const CLIENTS: u64 = 64;

/// On Redis, the dead keep theirs for as long.
const TTL: Duration = Duration::from_millis(1_000);

/// In a file store they must not: so long would nobody wait.
const LONG: Duration = Duration::from_secs(60);

const WORKER: ChildTest = child_test!(worker);

/// What the workers do.
#[test]
fn worker() {
    play(|role, home| {
        let [what, how, label, seed] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let post = Arc::new(Post::new(home, label, seed));
        match what {
            "permits" => run(permits(post, how)),
            "seed" => seeds_semaphore(&post, how),
            other => panic!("no role `{other}`"),
        }
    });
}

// ---- Leasehold ----

/// Clients who take permits and let them go, until they are killed.
async fn permits(post: Arc<Post>, how: &str) {
    let ttl = if post.url().starts_with("file:") { LONG } else { TTL };
    let clients = post.clients(CLIENTS / PROCESSES).await.into_iter().map(|(locks, mut dice)| {
        let (post, how) = (post.clone(), how.to_owned());
        tokio::spawn(async move {
            loop {
                let take = 1 + dice.below(3) as u32;
                let semaphore = locks.semaphore("x", LIMIT).ttl(ttl).owner(&post.label);
                let semaphore = match how.as_str() {
                    "fair" => semaphore,
                    "barging" => semaphore.barging(),
                    _ if dice.below(2) == 0 => semaphore,
                    _ => semaphore.barging(),
                };
                let answer = match dice.below(8) {
                    0 => semaphore.try_acquire_many(take).await,
                    _ => semaphore.acquire_many(take).await.map(Some),
                };
                let keep_for = |dice| match dice {
                    // Some for so long that they are renewed.
                    0 => Some(TTL + TTL / 2),
                    short => Some(Duration::from_micros(short)),
                };
                post.keep(Part::Permits(take), answer, &mut dice, keep_for).await;
            }
        })
    });
    drop(join_all(clients).await);
}

/// Where they take them from.
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

    /// Who holds how many permits at a moment, by the store's own rule of what counts.
    fn look(&self) -> Box<dyn FnMut() -> Vec<(String, u32)> + Send> {
        match self {
            Place::Server(server) => {
                let mut client = Client::tcp(server.addr()).unwrap();
                Box::new(move || look_at_server(&mut client))
            }
            Place::Files(path) => {
                let db = Connection::open(path.join("locks.db")).unwrap();
                db.busy_timeout(secs(10)).unwrap();
                Box::new(move || look_at_files(&db))
            }
        }
    }

    fn record(&self, lives: &[Life]) -> Verdict {
        match self {
            Place::Server(server) => record::of_server(server, "x", LIMIT, lives),
            Place::Files(path) => record::of_files(path, "x", LIMIT, lives),
        }
    }
}

fn look_at_server(client: &mut Client) -> Vec<(String, u32)> {
    const HOLDERS: &str = "local t = redis.call('TIME')
        local now = string.format('%.0f', math.floor(t[1] * 1000 + t[2] / 1000))
        return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')";
    match client.command(&["EVAL", HOLDERS, "1", "lock:x"]).unwrap() {
        Reply::Array(members) => members
            .iter()
            .map(|member| {
                let (share, value) = member.text().unwrap().split_once(':').unwrap();
                let take = share.trim_start_matches('p').split('/').next().unwrap();
                (label_of(value), take.parse().unwrap())
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn look_at_files(db: &Connection) -> Vec<(String, u32)> {
    let mut select =
        db.prepare_cached("SELECT token, take FROM holding WHERE name = 'x' AND expires > ?1").unwrap();
    let now = stamp() as i64;
    let rows = select.query_map([now], |row| Ok((label_of(&row.get::<_, String>(0)?), row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

fn attack(home: &Home, place: &Place, how: &str) {
    std::fs::write(home.path().join("url"), place.url()).unwrap();
    let plan = Plan {
        worker: WORKER,
        role: format!("permits {how}"),
        processes: PROCESSES,
        moved_s: 60,
        lives_ms: (1_000, 5_000),
        grants: scaled(1_000),
        lasts: ms(scaled(30_000)),
    };
    let is_over = AtomicBool::new(false);
    let since = Instant::now();
    let (lives, seen, all_back) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| Seen::watch(&is_over, place.look()));
        let lives = plan.carry_out(home.path());
        // Everybody is dead now. All permits are to be had by whoever asks for them.
        let last = lives.last().unwrap().killed.unwrap().boot_ns;
        let all_back = run(async {
            let locks = leasehold::connect(&place.url()).await.unwrap();
            // It looks by itself every third of its TTL, whoever was to watch those who hold them.
            let semaphore = locks.semaphore("x", LIMIT).ttl(TTL).wait(secs(50));
            let all = semaphore.acquire_many(LIMIT).await.unwrap();
            let back = Duration::from_nanos(stamp() - last);
            all.release().await.unwrap();
            locks.close().await;
            back
        });
        is_over.store(true, Ordering::SeqCst);
        (lives, watching.join().unwrap(), all_back)
    });
    let took = since.elapsed();

    let history = History::read(&lives);
    let believed = history.judged(LIMIT);
    let recorded = place.record(&lives);
    let (dead_for, dead) = seen.dead_for(&lives);
    println!(
        "{how}, {}: {} grants in {took:.1?} ({} by the store's record, {} of them from a line of at most {}), {} kills, {} \
         samples; permits at most: {} recorded, {} seen, {} believed in; the dead held theirs for {} ms at most ({dead} \
         did), and all were back after {} ms; {} overtaken; {} requests failed",
        if let Place::Server(server) = place { format!("{:?}", server.kind()) } else { "file".to_owned() },
        believed.grants,
        recorded.grants,
        recorded.from_the_line,
        recorded.line_most,
        lives.len(),
        seen.samples,
        recorded.permits_most,
        seen.permits_most,
        believed.permits_most,
        dead_for.as_millis(),
        all_back.as_millis(),
        recorded.overtaken.len(),
        history.failed.len(),
    );
    assert_eq!(recorded.too_many, 0, "more than {LIMIT} permits in the store's record: {recorded:?}");
    assert!(seen.permits_most <= LIMIT, "{} permits were seen", seen.permits_most);
    assert_eq!(believed.too_many, 0, "more than {LIMIT} permits were believed in: {believed:?}");
    assert!(recorded.overtaken.is_empty(), "overtaken: {:#?}", recorded.overtaken);
    // As many as there are were in use, and the store wrote down what the clients did.
    assert_eq!((recorded.permits_most, believed.permits_most), (LIMIT, LIMIT));
    assert!(recorded.grants >= believed.grants as u64 && recorded.from_the_line * 2 > recorded.grants);
    assert!(lives.len() as u64 > PROCESSES && dead > 0 && seen.samples > 500, "too calm to prove anything");
    // What the dead had asked for is still carried out. Then it is the store's TTL, or its kernel.
    let back_within = if matches!(place, Place::Files(_)) { SOON } else { TTL + SOON };
    assert!(dead_for < back_within, "the dead held permits for {dead_for:?}");
    assert!(all_back < back_within, "not all permits were back before {all_back:?}");
}

fn on_server(kind: Kind, how: &str) {
    attack(&home_in_memory("semaphore"), &Place::Server(record::recording(kind)), how);
}

fn in_files(how: &str) {
    let home = home_in_memory("semaphore");
    let store = home.path().join("store");
    run(async { drop(File::open(&store).await.unwrap()) });
    record::record_in(&store);
    attack(&home, &Place::Files(store), how);
}

#[test]
fn no_permit_too_many_on_redis_and_first_come_first_served() {
    on_server(Kind::Redis, "fair");
}

#[test]
fn no_permit_too_many_on_redis_for_those_who_pass_others() {
    on_server(Kind::Redis, "barging");
}

#[test]
fn no_permit_too_many_on_valkey_for_both_together() {
    on_server(Kind::Valkey, "both");
}

#[test]
fn no_permit_too_many_in_files_and_first_come_first_served() {
    in_files("fair");
}

#[test]
fn no_permit_too_many_in_files_for_both_together() {
    in_files("both");
}

// ---- the semaphores of the notes, whose clients say what time it is ----

/// After so long by somebody's clock, permits are taken from their holder, in seconds.
const SEED_TIMEOUT_S: u64 = 10;

fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// As PHP's: from the clock, in hex.
fn uniqid() -> String {
    format!("{:x}", wall().as_micros())
}

fn number(reply: &Reply) -> i64 {
    reply.int().unwrap_or_else(|| panic!("{reply:?}"))
}

fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(replies) => replies,
        other => panic!("{other:?}"),
    }
}

/// The simple one: who came first, by the clients' clocks, has a permit.
fn seed_unfair(redis: &mut Client) -> Option<String> {
    let (uuid, now) = (uniqid(), wall().as_secs());
    let (limit, expired) = (i64::from(LIMIT), (now - SEED_TIMEOUT_S).to_string());
    redis.command(&["MULTI"]).unwrap();
    redis.command(&["ZREMRANGEBYSCORE", "seed", "-inf", &expired]).unwrap();
    redis.command(&["ZADD", "seed", &now.to_string(), &uuid]).unwrap();
    redis.command(&["ZRANK", "seed", &uuid]).unwrap();
    let result = list(redis.command(&["EXEC"]).unwrap());
    if number(&result[2]) < limit {
        return Some(uuid);
    }
    redis.command(&["ZREM", "seed", &uuid]).unwrap();
    None
}

/// The fair one: a counter says who came first, under a lock of its own; but the clients' clocks still say what has expired.
fn seed_fair(redis: &mut Client) -> Option<String> {
    const UNLOCK: &str =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let (uuid, now) = (uniqid(), wall().as_secs());
    if !redis.command(&["SET", "counter", &uuid, "NX", "EX", "10"]).unwrap().is_ok() {
        return None;
    }
    let (limit, expired) = (i64::from(LIMIT), (now - SEED_TIMEOUT_S).to_string());
    let count = number(&redis.command(&["INCR", "count"]).unwrap()).to_string();
    redis.command(&["MULTI"]).unwrap();
    redis.command(&["ZREMRANGEBYSCORE", "times", "-inf", &expired]).unwrap();
    redis.command(&["ZINTERSTORE", "seed", "2", "times", "seed", "WEIGHTS", "0", "1"]).unwrap();
    redis.command(&["ZADD", "times", &now.to_string(), &uuid]).unwrap();
    redis.command(&["ZADD", "seed", &count, &uuid]).unwrap();
    redis.command(&["ZRANK", "seed", &uuid]).unwrap();
    let result = list(redis.command(&["EXEC"]).unwrap());
    let is_in = number(&result[4]) < limit;
    redis.command(&["EVAL", UNLOCK, "1", "counter", &uuid]).unwrap();
    if is_in {
        return Some(uuid);
    }
    redis.command(&["ZREM", "times", &uuid]).unwrap();
    redis.command(&["ZREM", "seed", &uuid]).unwrap();
    None
}

/// Clients who use one of them, until they are killed.
fn seeds_semaphore(post: &Post, how: &str) {
    let (take, hold_ms): (fn(&mut Client) -> Option<String>, u64) = match how {
        "unfair" => (seed_unfair, 4),
        // There is a lock around it, and so it is slow.
        "fair" => (seed_fair, 100),
        other => panic!("no semaphore `{other}`"),
    };
    let addr = post.url();
    let addr = addr.trim_start_matches("redis://").parse().unwrap();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS / PROCESSES {
            scope.spawn(move || {
                let mut redis = Client::tcp(addr).unwrap();
                let mut dice = Dice(post.seed + client);
                loop {
                    let Some(uuid) = take(&mut redis) else {
                        std::thread::sleep(ms(dice.below(5)));
                        continue;
                    };
                    // It takes itself to hold a permit for as long as it does not run out, of course by its own time.
                    let key = post.journal.begin(Part::Permits(1), secs(SEED_TIMEOUT_S));
                    post.count();
                    std::thread::sleep(ms(dice.below(hold_ms)));
                    post.journal.end(key, stamp());
                    redis.command(&["ZREM", "times", &uuid]).unwrap();
                    redis.command(&["ZREM", "seed", &uuid]).unwrap();
                }
            });
        }
    });
}

fn attack_seed(how: &str, moved_s: u64) -> Judged {
    let home = home_in_memory("seed");
    let server = Server::start(Kind::Redis).unwrap();
    std::fs::write(home.path().join("url"), server.url()).unwrap();
    let plan = Plan {
        worker: WORKER,
        role: format!("seed {how}"),
        processes: PROCESSES,
        moved_s,
        // Whoever is killed keeps its permit for the time-out, and so it would be over soon.
        lives_ms: (60_000, 90_000),
        grants: scaled(1_000),
        lasts: secs(2),
    };
    let lives = plan.carry_out(home.path());
    let judged = History::read(&lives).judged(LIMIT);
    println!(
        "the notes' {how} semaphore, clocks off by up to {moved_s} s: {} grants, {} kills, {} of them too many; {} permits of \
         {LIMIT} at once",
        judged.grants,
        lives.len(),
        judged.too_many,
        judged.permits_most
    );
    judged
}

/// The judge sees it.
#[test]
fn the_semaphore_of_the_notes_gives_too_many() {
    let judged = attack_seed("unfair", 60);
    assert!(judged.too_many > 0 && judged.permits_most > LIMIT, "{judged:?}");
}

/// With a counter, clocks may differ by less than the time-out; beyond that, it takes permits from those who hold them.
#[test]
fn the_fair_semaphore_of_the_notes_gives_too_many_where_clocks_are_far_apart() {
    let near = attack_seed("fair", SEED_TIMEOUT_S / 4);
    assert_eq!(near.too_many, 0, "{near:?}");
    let far = attack_seed("fair", 60);
    assert!(far.too_many > 0 && far.permits_most > LIMIT, "{far:?}");
}

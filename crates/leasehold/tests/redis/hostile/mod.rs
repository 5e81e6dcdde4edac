//! Hostile data on a Redis server: other programs write to the keys of locks, values and rate limits. No script runs long, no
//! command fails with an error of the script language, and a forced release repairs a name.
//!
//! The tests know that the key of the lock `x` is `lock:x`, as documented for other libraries. All other keys are found by
//! listing them.
#![cfg(target_os = "linux")]

mod fuzz;
mod state;

use std::sync::Arc;
use std::time::Duration;

use leasehold::store::redis::Redis;
use leasehold::{Acquired, Claim, Error, Names, Owner, Permits, Share, Store, Ticket, Token, Ttl, Wait};
use leasehold_lab::{Kind, Reply, Server};
use state::{State, type_of};

/// Only a script whose time grows faster than its data takes this long, on a busy machine too. The goal is 5 ms.
const LONG: Duration = Duration::from_millis(250);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn start(kind: Kind) -> Server {
    let server = Server::start(kind).unwrap();
    for setting in [["slowlog-log-slower-than", "1000"], ["slowlog-max-len", "100000"]] {
        assert!(server.command(&["CONFIG", "SET", setting[0], setting[1]]).unwrap().is_ok());
    }
    server
}

/// A store whose requests have the time that a slow script takes, so that the script is what fails the test.
async fn open(server: &Server) -> Redis {
    Redis::open(&format!("{}?timeout=60000", server.url())).await.unwrap()
}

fn claim(names: &[&str], share: Share, wait: Wait) -> Claim {
    let token = Token::fresh(&Owner::new("tester").unwrap()).unwrap();
    let names = Names::new(names.iter().map(|name| name.parse().unwrap())).unwrap();
    let ticket = Ticket { names, token, share, fence: None };
    Claim { ticket, ttl: Ttl::new(ms(600_000)).unwrap(), wait, fences: 1, detached: false }
}

fn permits(take: u32, limit: u32) -> Share {
    Share::Permits(Permits::new(take, limit).unwrap())
}

/// The longest time that a script took since the last call, by the server's own measure.
fn longest_script(server: &Server) -> Duration {
    let Reply::Array(entries) = server.command(&["SLOWLOG", "GET", "-1"]).unwrap() else { panic!("no log") };
    server.command(&["SLOWLOG", "RESET"]).unwrap();
    let of_scripts = entries.iter().filter_map(|entry| {
        let Reply::Array(parts) = entry else { return None };
        let Reply::Array(command) = &parts[3] else { return None };
        let is_script = command[0].text().is_some_and(|name| name.to_ascii_lowercase().starts_with("eval"));
        is_script.then(|| Duration::from_micros(parts[2].int().unwrap().unsigned_abs()))
    });
    of_scripts.max().unwrap_or_default()
}

/// Everything that a client asks for about one name, with every share. What the answers are is another test's matter.
async fn ask_everything(store: &Redis) {
    for share in [Share::Exclusive, Share::Shared, permits(1, 2)] {
        for wait in [Wait::Never, Wait::Until(store.clock().now().plus(ms(5)))] {
            let claim = claim(&["x"], share, wait);
            let _ = store.acquire(&claim).await;
            let _ = store.renew(&[(claim.ticket.clone(), claim.ttl)]).await;
            let _ = store.release(&claim.ticket).await;
        }
    }
    store.inspect(&"x".parse().unwrap()).await.unwrap();
    store.list("", 10).await.unwrap();
}

/// 20 KB of such a value kept the server busy for 8 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_value_of_another_program_costs_no_more_time_than_to_read_it() {
    for kind in Kind::ALL {
        let server = start(kind);
        let store = open(&server).await;
        for n in [3_000, 20_000, 65_000, 1_000_000] {
            for (before, middle, after) in
                [("#", "0", "x"), ("", "#", ""), ("", "#0", "x"), ("", "\n", "#1"), ("x#1", "\n", "")]
            {
                let value = format!("{before}{}{after}", middle.repeat(n / middle.len()));
                server.command(&["SET", "lock:x", &value, "PX", "600000"]).unwrap();
                ask_everything(&store).await;
                server.command(&["FLUSHALL"]).unwrap();
                for share in ["r:", "p1/2:", "p"] {
                    let member = format!("{share}{before}{}{after}", middle.repeat(n / middle.len()));
                    server.command(&["ZADD", "lock:x", "9e15", &member]).unwrap();
                    ask_everything(&store).await;
                    server.command(&["FLUSHALL"]).unwrap();
                }
                let longest = longest_script(&server);
                assert!(
                    longest < LONG,
                    "{kind:?}: {longest:?} for {n} bytes: {before:?}, {middle:?}, {after:?}"
                );
            }
        }
    }
}

/// The script that met such an entry did not end, and could not be killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_entry_that_names_another_key_does_not_keep_a_script_running() {
    for kind in Kind::ALL {
        for ttl_ms in [50, 600_000] {
            let server = start(kind);
            let store = Redis::open(&format!("{}?timeout=1000", server.url())).await.unwrap();
            let waiter = Claim {
                ttl: Ttl::new(ms(ttl_ms)).unwrap(),
                ..claim(&["y"], Share::Exclusive, Wait::Forever)
            };
            State::with_waiters(&server, &store, &claim(&["y"], Share::Exclusive, Wait::Never), &[waiter])
                .await;
            // The queue of `y` stands in place of that of `x`, and lasts.
            for key in state::keys(&server).into_iter().filter(|key| key.contains("lock:y")) {
                server.command(&["PERSIST", &key]).unwrap();
                server.command(&["RENAME", &key, &key.replace("lock:y", "lock:x")]).unwrap();
            }
            server.command(&["DEL", "lock:x"]).unwrap();
            // A waiter with a short TTL has to show itself within its TTL and two time-outs.
            tokio::time::sleep(ms(if ttl_ms < 1_000 { 2_200 } else { 0 })).await;
            let claim = claim(&["x"], Share::Exclusive, Wait::Never);
            let answer = store.acquire(&claim).await;
            assert!(matches!(answer, Ok(Acquired::Granted(_))), "{kind:?}, {ttl_ms} ms: {answer:?}");
            assert_eq!(server.command(&["PING"]).unwrap().text(), Some("PONG"), "{kind:?}");
        }
    }
}

/// One script removes some of them, so the client asks until all are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_does_not_wait_is_granted_behind_a_long_queue_of_dead_waiters() {
    let server = start(Kind::Redis);
    let store = Redis::open(&format!("{}?timeout=1000", server.url())).await.unwrap();
    let held = claim(&["x"], Share::Exclusive, Wait::Never);
    assert!(matches!(store.acquire(&held).await, Ok(Acquired::Granted(_))));
    let short = Ttl::new(ms(50)).unwrap();
    let count = 1_500;
    let waiters: Vec<Claim> =
        (0..count).map(|_| Claim { ttl: short, ..claim(&["x"], Share::Exclusive, Wait::Forever) }).collect();
    let waiting = || match server.command(&["EVAL", LONGEST_LIST, "0"]).unwrap() {
        Reply::Int(length) => length,
        other => panic!("{other:?}"),
    };
    let all = futures_util::future::join_all(waiters.iter().map(|waiter| store.acquire(waiter)));
    let in_queue = async {
        while waiting() < count {
            tokio::time::sleep(ms(5)).await;
        }
    };
    tokio::select! {
        _ = all => panic!("it was not their turn"),
        () = in_queue => {}
    }
    store.release(&held.ticket).await.unwrap();
    // A waiter has to show itself within its TTL and two time-outs; the queue itself lasts longer.
    let since = std::time::Instant::now();
    let tried = claim(&["x"], Share::Exclusive, Wait::Never);
    while !matches!(store.acquire(&tried).await, Ok(Acquired::Granted(_))) {
        assert!(since.elapsed() < ms(20_000), "never granted");
        tokio::time::sleep(ms(50)).await;
    }
    assert!(longest_script(&server) < LONG);
}

/// How many elements the longest list of the server has.
const LONGEST_LIST: &str = "local longest = 0
    for _, key in ipairs(redis.call('KEYS', '*')) do
      if redis.call('TYPE', key).ok == 'list' then
        longest = math.max(longest, redis.call('LLEN', key))
      end
    end
    return longest";

/// Whether an answer is one that the documentation has, and says which key is in the way.
fn is_documented(error: &Error) -> bool {
    let Error::Refused { why, .. } = error else { return false };
    let documented = [
        "is no lock; use another name or prefix, or remove it",
        "force-release the lock to repair it",
        "the fence is at its limit of 2^53 - 1",
        "is no rate limit; something else is kept under its name",
        "is no number",
        "is more than",
        "; remove that key",
        // A value of the user's own key that is of another type, in the server's words.
        "WRONGTYPE Operation against a key holding the wrong kind of value",
    ];
    documented.iter().any(|words| why.contains(words)) && !why.contains("script")
}

/// Each key that belongs to a lock is overwritten in turn, with every type and with garbage of its own type.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_repairs_a_name_whose_keys_other_programs_have_overwritten() {
    let others: [&[&str]; 6] = [
        &["SET", "garbage"],
        &["RPUSH", "garbage", ""],
        &["HSET", "garbage", "garbage", "#b", "garbage"],
        &["ZADD", "9e15", "garbage"],
        &["SADD", "garbage"],
        &["XADD", "*", "field", "garbage"],
    ];
    for kind in Kind::ALL {
        let server = start(kind);
        let store = open(&server).await;
        for state in State::of_locks(&server, &store).await {
            for key in state.keys() {
                // In place of the key; and beside its content, where the type is the same.
                for (with, is_added) in others.iter().flat_map(|with| [(with, false), (with, true)]) {
                    state.restore(&server);
                    server.command(&["SET", "lock:sound", "another", "PX", "600000"]).unwrap();
                    if !is_added {
                        server.command(&["DEL", &key]).unwrap();
                    }
                    let mut command = vec![with[0], &key];
                    command.extend(&with[1..]);
                    if server.command(&command).unwrap().error().is_some() {
                        continue;
                    }
                    let what =
                        format!("{kind:?}, {}: {} with {command:?}", state.what, type_of(&server, &key));
                    let name = "x".parse().unwrap();
                    store.inspect(&name).await.unwrap_or_else(|error| panic!("inspect, {what}: {error}"));
                    let listed =
                        store.list("", 10).await.unwrap_or_else(|error| panic!("list, {what}: {error}"));
                    assert!(listed.iter().any(|status| status.name.as_str() == "sound"), "{what}");
                    let tried = claim(&["x"], Share::Exclusive, Wait::Never);
                    if let Err(error) = store.acquire(&tried).await {
                        assert!(is_documented(&error), "acquire, {what}: {error}");
                    }
                    store
                        .release(&tried.ticket)
                        .await
                        .unwrap_or_else(|error| panic!("release, {what}: {error}"));
                    match store.evict(&name).await {
                        // What is no lock at all is left alone.
                        Err(error) if key == "lock:x" => assert!(is_documented(&error), "{what}: {error}"),
                        Err(error) => panic!("evict, {what}: {error}"),
                        Ok(_) => {
                            let answer = store.acquire(&claim(&["x"], Share::Exclusive, Wait::Never)).await;
                            assert!(answer.is_ok(), "after a forced release, {what}: {answer:?}");
                        }
                    }
                }
            }
        }
    }
}

/// What cannot be read in a queue is shown, and so are the waiters beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_data_that_cannot_be_read_is_reported_beside_the_waiters() {
    let server = start(Kind::Redis);
    let store = open(&server).await;
    let held = claim(&["x"], Share::Exclusive, Wait::Never);
    let waiters = [(); 2].map(|()| claim(&["x"], Share::Exclusive, Wait::Forever));
    State::with_waiters(&server, &store, &held, &waiters).await;
    let queue = state::keys(&server).into_iter().find(|key| type_of(&server, key) == "hash").unwrap();
    server.command(&["HSET", &queue, waiters[0].ticket.token.expose(), "garbage"]).unwrap();
    let status = store.inspect(&"x".parse().unwrap()).await.unwrap().unwrap();
    let owners: Vec<&str> = status.waiters.iter().map(|waiter| waiter.owner.as_str()).collect();
    assert_eq!(owners, ["unreadable queue data; a forced release repairs it", "tester"]);
}

/// The time of the script grew with the log, which any program could write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limit_whose_key_another_program_has_filled_is_refused_at_once() {
    for kind in Kind::ALL {
        let server = start(kind);
        let locks = leasehold::connect(&format!("{}?timeout=60000", server.url())).await.unwrap();
        let limit = locks.rate_limit("x").max(1_000_000).per(Duration::from_secs(3_600));
        let _ = limit.take(1).await.unwrap();
        let key = state::keys(&server).into_iter().find(|key| key.starts_with("rate:")).unwrap();
        let log = server.command(&["GET", &key]).unwrap().text().unwrap().to_owned();
        // The same group again and again, up to 1 MB; and text of the same length.
        let group = log[log.len() - 26..].to_owned();
        for filling in [group, " ".repeat(26), "x".repeat(26), "             nan      -inf".to_owned()] {
            server.command(&["SET", &key, &format!("{log}{}", filling.repeat(40_000))]).unwrap();
            for _ in 0..5 {
                let error = limit.take(1).await.unwrap_err();
                assert!(is_documented(&error), "{kind:?}: {error}");
            }
        }
        let longest = longest_script(&server);
        assert!(longest < LONG, "{kind:?}: {longest:?}");
    }
}

/// One script looks at 512 entries, and every script begins with the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barging_claim_passes_a_queue_that_is_longer_than_a_script_looks_at() {
    let server = start(Kind::Redis);
    let store = open(&server).await;
    let held = claim(&["x"], permits(1, 10), Wait::Never);
    let waiters: Vec<Claim> = (0..600).map(|_| claim(&["x"], permits(10, 10), Wait::Forever)).collect();
    State::with_waiters(&server, &store, &held, &waiters).await;
    let share = Share::Permits(Permits::new(1, 10).unwrap().barging());
    let late = claim(&["x"], share, Wait::Forever);
    let answer = tokio::time::timeout(Duration::from_secs(20), store.acquire(&late)).await;
    let answer = answer.expect("nine permits are free").unwrap();
    assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
}

/// A forced release does not ask again: it serves the queue as far as a script may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_serves_a_waiter_behind_a_long_queue_of_dead_ones() {
    let server = start(Kind::Redis);
    let store = Arc::new(open(&server).await);
    let listeners = || match server.command(&["PUBSUB", "CHANNELS"]).unwrap() {
        Reply::Array(channels) => channels.len(),
        other => panic!("{other:?}"),
    };
    let before = listeners();
    let gone = open(&server).await;
    let held = claim(&["x"], Share::Exclusive, Wait::Never);
    let dead: Vec<Claim> = (0..600).map(|_| claim(&["x"], Share::Exclusive, Wait::Forever)).collect();
    State::with_waiters(&server, &gone, &held, &dead).await;
    drop(gone);
    let since = std::time::Instant::now();
    while listeners() > before {
        assert!(since.elapsed().as_secs() < 20, "the client has not gone");
        tokio::time::sleep(ms(1)).await;
    }
    let living = claim(&["x"], Share::Exclusive, Wait::Forever);
    let waiting = tokio::spawn({
        let (store, living) = (store.clone(), living.clone());
        async move { store.acquire(&living).await }
    });
    let name = "x".parse().unwrap();
    let waiters = async || store.inspect(&name).await.unwrap().map_or(0, |status| status.waiters.len());
    let since = std::time::Instant::now();
    while waiters().await <= dead.len() {
        assert!(since.elapsed().as_secs() < 20, "it is not queued");
        tokio::time::sleep(ms(1)).await;
    }
    store.evict(&name).await.unwrap();
    // Its own next look is minutes away.
    let answer = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it is served");
    assert!(matches!(answer.unwrap().unwrap(), Acquired::Granted(_)));
}

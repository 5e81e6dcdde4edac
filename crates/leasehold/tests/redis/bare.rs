//! `redis:` on servers that forbid scripts: chosen by itself, beside clients that use them and beside other libraries, and
//! cancelled anywhere.
#![cfg(target_os = "linux")]

use leasehold_testkit as common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::cancel_points::{Actors, OPERATIONS, at_every_await_point};
use common::{ms, scaled, secs};
use leasehold::store::redis::{self, Bare, Redis};
use leasehold::{
    Acquired, Claim, Error, Grant, Locks, Loss, Names, Options, Owner, Released, Renewed, Share, Store,
    Ticket, Token, Ttl, Wait,
};
use leasehold_lab::{Flow, Kind, Proxy, Reply, Server, Setup, Toward, Trick};

/// What is bound to happen has happened by then, on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a user needs who locks without scripts, as the documentation has it.
const RULE: &str = "resetkeys ~lock:* ~{lock:* resetchannels &{lock:}:* -@all +hello +auth +ping +time +watch +unwatch \
    +multi +exec +get +set +del +type +pttl +pexpire +scan +publish +zrange +llen +lrange +hmget";

fn off(server: &Server) -> String {
    format!("{}?scripts=off", server.url())
}

async fn bare(server: &Server) -> Arc<Bare> {
    Arc::new(Bare::open(&server.url()).await.unwrap())
}

fn claim(name: &str, ttl: Duration, wait: Wait) -> Claim {
    let token = Token::fresh(&Owner::new("tester").unwrap()).unwrap();
    let names = Names::new([name.parse().unwrap()]).unwrap();
    let ticket = Ticket { names, token, share: Share::Exclusive, fence: None };
    Claim { ticket, ttl: Ttl::new(ttl).unwrap(), wait, fences: 1, detached: false }
}

async fn granted(store: &dyn Store, claim: &Claim) -> Grant {
    match store.acquire(claim).await.unwrap() {
        Acquired::Granted(grant) => grant,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

/// Takes a name for twenty seconds.
async fn taken(store: &dyn Store, name: &str) -> Ticket {
    let claim = claim(name, secs(20), Wait::Never);
    let fence = Some(granted(store, &claim).await.fence);
    Ticket { fence, ..claim.ticket }
}

async fn is_busy(store: &dyn Store, name: &str) -> bool {
    matches!(store.acquire(&claim(name, secs(20), Wait::Never)).await.unwrap(), Acquired::Busy(_))
}

fn int(server: &Server, command: &[&str]) -> i64 {
    server.command(command).unwrap().int().unwrap()
}

fn keys(server: &Server, pattern: &str) -> Vec<String> {
    let Reply::Array(keys) = server.command(&["KEYS", pattern]).unwrap() else { panic!("no list of keys") };
    keys.iter().filter_map(|key| key.text().map(str::to_owned)).collect()
}

/// Tasks of one client take turns to raise the fence.
#[tokio::test]
async fn a_lock_future_that_is_kept_and_not_polled_does_not_block_other_locks() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&off(&server)).await.unwrap();
    let mut kept = Vec::new();
    for i in 0..6 {
        kept.push(Box::pin(locks.mutex(format!("x:{i}")).lock()));
        assert!(common::polled_once(kept[i].as_mut()).await.is_pending());
    }
    let start = Instant::now();
    let lease = loop {
        match locks.mutex("y").lock().await {
            Ok(lease) => break lease,
            Err(error) => {
                assert!(start.elapsed() < PATIENCE, "it waits for futures that nobody polls: {error}")
            }
        }
    };
    lease.release().await.unwrap();
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// A client, and whether it does without scripts.
async fn connected(url: &str) -> (Locks, bool) {
    let locks = leasehold::connect(url).await.unwrap();
    let is_bare = !locks.capabilities().fair;
    (locks, is_bare)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_scripts_are_forbidden_locks_work_without_them() {
    for kind in Kind::ALL {
        let free = Setup::new(kind);
        let by_rule = free.clone().user("default", "on nopass ~* &* +@all -@scripting");
        let by_name = free.clone().without("EVAL").without("EVALSHA");
        let by_text = free.clone().without("EVAL");
        for (setup, is_bare) in [(free, false), (by_rule, true), (by_name, true), (by_text, true)] {
            let server = setup.start().unwrap();
            let (locks, was_bare) = connected(&server.url()).await;
            assert_eq!(was_bare, is_bare, "{setup:?}");
            locks.mutex("x").lock().await.unwrap().release().await.unwrap();
            assert!(connected(&off(&server)).await.1, "as the URL says");
            // Whoever insists on scripts is told.
            let (insisting, was_bare) = connected(&format!("{}?scripts=on", server.url())).await;
            assert!(!was_bare);
            match insisting.mutex("x").try_lock().await {
                Ok(lease) => assert!(!is_bare && lease.is_some(), "{setup:?}"),
                Err(error) => {
                    assert!(is_bare && error.to_string().to_lowercase().contains("eval"), "{error}")
                }
            }
        }
    }
}

#[tokio::test]
async fn what_it_cannot_do_is_said_and_refused() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = connected(&off(&server)).await.0;
    let can = locks.capabilities();
    assert!(can.fenced && can.fence_blocks, "{can:?}");
    assert!(!can.fair && !can.pushed && !can.shared && !can.permits && !can.several_names, "{can:?}");
    assert!(matches!(locks.rwlock("x").read().await, Err(Error::Unsupported { .. })));
    assert!(matches!(locks.semaphore("x", 2).acquire().await, Err(Error::Unsupported { .. })));
    // The store itself says so too.
    let store = bare(&server).await;
    let mut shared = claim("x", secs(5), Wait::Never);
    shared.ticket.share = Share::Shared;
    assert!(matches!(store.acquire(&shared).await, Err(Error::Unsupported { .. })));
    assert!(matches!(store.convert(&shared.ticket, Share::Exclusive).await, Err(Error::Unsupported { .. })));
    for (url, word) in [("scripts=of", "auto"), ("scripts=off", "one of scripts")] {
        let error = Redis::open(&format!("{}?{url}", server.url())).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(word), "{error}");
    }
    assert!(Bare::open(&format!("{}?scripts=on", server.url())).await.is_err());
}

fn documented_rule() -> String {
    let document = include_str!("../../../../docs/stores/redis.md");
    let (_, rule) = document.split_once("ACL SETUSER plain on >PASSWORD ").expect("the rule is documented");
    let rule = rule.split("```").next().unwrap();
    rule.replace('\\', " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_rule_in_the_documentation_is_the_one_that_is_tested() {
    assert_eq!(documented_rule(), RULE.split_whitespace().collect::<Vec<_>>().join(" "));
}

/// Everything there is, on a store as `connect` opens it.
async fn everything(server: &Server) -> Result<(), Error> {
    let url = format!("redis://locks:pass-word@{}", server.addr());
    let store = redis::open(&url).await?;
    assert!(!store.capabilities().fair);
    let first = claim("x", secs(20), Wait::Never);
    let Acquired::Granted(grant) = store.acquire(&first).await? else { panic!("busy") };
    let ticket = Ticket { fence: Some(grant.fence), ..first.ticket.clone() };
    let longer = Ttl::new(secs(40)).unwrap();
    assert!(matches!(store.renew(&[(ticket.clone(), longer)]).await.remove(0)?, Renewed::Until(_)));
    assert_eq!(store.list("", 10).await?.len(), 1);
    assert_eq!(store.release(&ticket).await?, Released::Released);
    // By its token alone, held and not.
    let detached = Claim { detached: true, ..claim("x", secs(20), Wait::Never) };
    store.acquire(&detached).await?;
    assert!(matches!(store.detach(&detached.ticket, longer).await?, Renewed::Until(_)));
    assert_eq!(store.release(&detached.ticket).await?, Released::Released);
    assert_eq!(store.release(&detached.ticket).await?, Released::NotHeld);
    assert!(store.evict(ticket.names.first()).await?.holders.is_empty());
    // Those who use scripts: readers that hold, one that waits, one that is told of a release.
    let score = i64::MAX / 1_000_000;
    for command in [
        format!("ZADD lock:r {score} r:00000000000000000000000000000000@reader#1f"),
        "RPUSH {lock:w}:line 00000000000000000000000000000000@waiter".to_owned(),
    ] {
        server.command(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let token = "00000000000000000000000000000000@waiter";
    let entry = format!("x\n1\n0\n1\n{score}\n20000\n{{lock:}}:nobody\n1f\nlock:w");
    let Acquired::Busy(busy) = store.acquire(&claim("r", secs(20), Wait::Never)).await? else {
        panic!("beside a reader")
    };
    assert_eq!(busy.holder.unwrap().as_str(), "reader");
    // Dead, since nothing is known of it; alive; and told.
    let mine = claim("w", secs(20), Wait::Never);
    let Acquired::Granted(grant) = store.acquire(&mine).await? else { panic!("behind one who is dead") };
    server.command(&["HSET", "{lock:w}:wait", token, &entry]).unwrap();
    let mine = Ticket { fence: Some(grant.fence), ..mine.ticket };
    assert_eq!(store.release(&mine).await?, Released::Released);
    let Acquired::Busy(busy) = store.acquire(&claim("w", secs(20), Wait::Never)).await? else {
        panic!("past one who waits")
    };
    assert_eq!((busy.holder, busy.waiters), (None, 1));
    assert_eq!(store.inspect(&"w".parse().unwrap()).await?.unwrap().waiters.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_with_the_least_rights_and_each_that_is_missing_is_named() {
    for kind in Kind::ALL {
        let user = format!("on >pass-word {RULE}");
        let server = Setup::new(kind).user("locks", &user).user("default", "off").start().unwrap();
        everything(&server)
            .await
            .unwrap_or_else(|error| panic!("{kind:?}: {error}\n{:?}", server.command(&["ACL", "LOG"])));
        let rights = RULE.split_whitespace().filter_map(|word| word.strip_prefix('+'));
        // Whoever may not say hello or who he is does not get so far. A waiter that is not told finds out by itself.
        for right in rights.filter(|right| !["auth", "hello", "ping", "publish"].contains(right)) {
            let reset = format!("ACL SETUSER locks reset on >pass-word {RULE} -{right}");
            assert!(server.command(&reset.split_whitespace().collect::<Vec<_>>()).unwrap().is_ok());
            server.command(&["FLUSHALL"]).unwrap();
            let error = everything(&server).await.expect_err(right);
            assert!(matches!(error, Error::Refused { .. }), "{kind:?} {right}: {error}");
            assert!(
                error.to_string().to_lowercase().contains(&format!("'{right}'")),
                "{kind:?} {right}: {error}"
            );
        }
    }
}

/// Reads, lets others run, writes: whoever is in beside it loses an update.
async fn add_one(counter: &AtomicU64) {
    let count = counter.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_micros(300)).await;
    counter.store(count + 1, Ordering::SeqCst);
}

/// With scripts, without, and as another library does it: `SET NX PX`, and deleted by whoever has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_scripts_without_and_another_library_the_count_is_exact_and_fences_rise() {
    for kind in Kind::ALL {
        let server = Arc::new(Server::start(kind).unwrap());
        let (counter, highest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let rounds = scaled(1_000);
        let mut tasks = Vec::new();
        for url in [server.url(), off(&server), off(&server)] {
            let (counter, highest) = (counter.clone(), highest.clone());
            tasks.push(tokio::spawn(async move {
                let locks = leasehold::connect(&url).await.unwrap();
                for _ in 0..rounds {
                    // Short, so that nobody looks again only after seconds.
                    let lease = locks.mutex("x").ttl(secs(3)).lock().await.unwrap();
                    let before = highest.swap(lease.fence().get(), Ordering::SeqCst);
                    assert!(before < lease.fence().get(), "a fence did not rise");
                    add_one(&counter).await;
                    assert!(lease.is_valid());
                    lease.release().await.unwrap();
                }
                locks.close().await;
            }));
        }
        let (theirs, server_of_theirs) = (counter.clone(), server.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                until("free", || {
                    let set = ["SET", "lock:x", "theirs", "NX", "PX", "10000"];
                    server_of_theirs.command(&set).unwrap().is_ok()
                })
                .await;
                add_one(&theirs).await;
                assert_eq!(int(&server_of_theirs, &["DEL", "lock:x"]), 1);
            }
        }));
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(counter.load(Ordering::SeqCst), 4 * rounds, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_others_are_met_politely() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, scripted) = (bare(&server).await, Redis::open(&server.url()).await.unwrap());
        server.command(&["SET", "lock:x", "theirs"]).unwrap();
        let Acquired::Busy(busy) = store.acquire(&claim("x", ms(50), Wait::Never)).await.unwrap() else {
            panic!("stolen")
        };
        assert!(busy.holder.unwrap().as_str().contains("without an expiry"));
        assert!(is_busy(&*store, "x").await);
        server.command(&["LPUSH", "lock:y", "theirs"]).unwrap();
        let (ours, other) = (claim("y", ms(50), Wait::Never), claim("y", ms(50), Wait::Never));
        let error = store.acquire(&ours).await.unwrap_err();
        assert_eq!(error, scripted.acquire(&other).await.unwrap_err());
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert_eq!(store.release(&ours.ticket).await.unwrap(), Released::NotHeld);
        assert_eq!(store.evict(&"y".parse().unwrap()).await.unwrap_err(), error);
        assert_eq!(server.command(&["TYPE", "lock:y"]).unwrap().text(), Some("list"));
        // Readers and permits: held, and shown; whoever has such a token is told that it takes scripts.
        let mut reader = claim("z", secs(20), Wait::Never);
        reader.ticket.share = Share::Shared;
        granted(&scripted, &reader).await;
        let Acquired::Busy(busy) = store.acquire(&claim("z", ms(50), Wait::Never)).await.unwrap() else {
            panic!("a writer beside a reader")
        };
        assert!(busy.holder.unwrap().as_str() == "tester" && busy.remaining.unwrap() > secs(10));
        let token_only = Ticket { share: Share::Exclusive, fence: None, ..reader.ticket.clone() };
        assert!(matches!(store.release(&token_only).await, Err(Error::Unsupported { .. })));
        let renewed = store.renew(&[(token_only, reader.ttl)]).await.remove(0);
        assert!(matches!(renewed, Err(Error::Unsupported { .. })), "{renewed:?}");
        assert_eq!(store.inspect(&"z".parse().unwrap()).await.unwrap().unwrap().holders.len(), 1);
        assert_eq!(store.evict(&"z".parse().unwrap()).await.unwrap().holders.len(), 1);
        assert!(!is_busy(&*store, "z").await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_shortens_nothing_and_makes_nothing_again() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = bare(&server).await;
        let ticket = taken(&*store, "x").await;
        for (ttl, least) in [(secs(60), 59_000), (secs(5), 55_000), (secs(20), 50_000)] {
            let due = [(ticket.clone(), Ttl::new(ttl).unwrap())];
            assert!(matches!(store.renew(&due).await[0], Ok(Renewed::Until(_))));
            assert!(int(&server, &["PTTL", "lock:x"]) > least, "{kind:?}: {ttl:?}");
        }
        let due = [(ticket.clone(), Ttl::new(secs(60)).unwrap())];
        for (command, loss) in [
            (&["DEL", "lock:x"][..], Loss::Deleted),
            (&["SET", "lock:x", "theirs", "PX", "9000"], Loss::Taken),
        ] {
            server.command(command).unwrap();
            assert_eq!(store.renew(&due).await[0], Ok(Renewed::Lost(loss)));
            assert_eq!(store.detach(&ticket, due[0].1).await, Ok(Renewed::Lost(loss)));
            assert_eq!(store.release(&ticket).await, Ok(Released::NotHeld));
            assert!(int(&server, &["PTTL", "lock:x"]) <= 9_000, "{kind:?}: made, or prolonged");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_where_the_clock_does_not() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, scripted) = (bare(&server).await, Redis::open(&server.url()).await.unwrap());
        // The highest there was, from before a clock was set back by years.
        let ahead: u64 = 1 << 52;
        server.command(&["SET", "{lock:}:fence", &format!("{ahead:x}")]).unwrap();
        let fences = [
            taken(&*store, "a").await.fence.unwrap().get(),
            taken(&scripted, "b").await.fence.unwrap().get(),
            granted(&*store, &Claim { fences: 16, ..claim("c", secs(20), Wait::Never) }).await.fence.get(),
            taken(&scripted, "d").await.fence.unwrap().get(),
        ];
        assert_eq!(fences, [ahead + 1, ahead + 2, ahead + 3, ahead + 19], "{kind:?}");
        store.evict(&"nobody".parse().unwrap()).await.unwrap();
        // And where the server forgets.
        server.command(&["FLUSHALL"]).unwrap();
        assert!(taken(&*store, "e").await.fence.unwrap().get() > ahead + 15);
    }
}

/// Each its own names, so that nobody excludes anybody: but for the one key that all of them raise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fence_is_given_twice_by_many_at_once() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        // Where the clock cannot help.
        let ahead: u64 = 1 << 52;
        server.command(&["SET", "{lock:}:fence", &format!("{ahead:x}")]).unwrap();
        let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(Redis::open(&server.url()).await.unwrap())];
        for _ in 0..3 {
            stores.push(bare(&server).await);
        }
        let names = 50;
        let takers = stores.into_iter().enumerate().map(|(number, store)| {
            tokio::spawn(async move {
                let mut fences = Vec::new();
                for name in 0..names {
                    fences.push(taken(&*store, &format!("{number}-{name}")).await.fence.unwrap().get());
                }
                fences
            })
        });
        let mut fences = Vec::new();
        for taker in takers.collect::<Vec<_>>() {
            let given = taker.await.unwrap();
            assert!(given.is_sorted(), "{kind:?}: {given:?}");
            fences.extend(given);
        }
        fences.sort_unstable();
        assert_eq!(fences, (1..=4 * names).map(|n| ahead + n).collect::<Vec<_>>(), "{kind:?}");
    }
}

/// Whoever waits by a script is not passed, and is told of a release at once, not after a third of its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_waits_by_a_script_is_neither_passed_nor_forgotten() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, scripted) = (bare(&server).await, Arc::new(Redis::open(&server.url()).await.unwrap()));
        for is_known in [true, false] {
            let ticket = taken(&*store, "x").await;
            let waiting = claim("x", secs(120), Wait::Forever);
            let waiter = tokio::spawn({
                let (scripted, waiting) = (scripted.clone(), waiting.clone());
                async move { scripted.acquire(&waiting).await }
            });
            until("in line", || int(&server, &["LLEN", "{lock:x}:line"]) == 1).await;
            let ticket = Ticket { fence: ticket.fence.filter(|_| is_known), ..ticket };
            assert_eq!(store.release(&ticket).await.unwrap(), Released::Released);
            let granted = tokio::time::timeout(PATIENCE, waiter).await.expect("told").unwrap().unwrap();
            assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
            scripted.release(&waiting.ticket).await.unwrap();
        }
    }
}

/// It arrives long after whoever sent it has gone, and after the clean-up: it finds what it watched touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_under_way_when_it_is_withdrawn_does_not_happen() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let store = Arc::new(Bare::open(&format!("{}?timeout=20000", proxy.url())).await.unwrap());
        let other = bare(&server).await;
        assert!(store.capabilities().late_window.is_zero());
        // Whether or not a fence has ever been given.
        for _ in 0..2 {
            let before = proxy.counts().commands.get("EXEC").copied().unwrap_or(0);
            proxy.set(Toward::Server, Flow::Delay(ms(1_000)));
            let claim = claim("x", secs(20), Wait::Never);
            let request = tokio::spawn({
                let (store, claim) = (store.clone(), claim.clone());
                async move { store.acquire(&claim).await }
            });
            let sent = || proxy.counts().commands.get("EXEC").copied().unwrap_or(0) > before;
            until("under way", sent).await;
            proxy.set(Toward::Server, Flow::Hold);
            request.abort();
            assert!(request.await.unwrap_err().is_cancelled());
            assert_eq!(other.release(&claim.ticket).await.unwrap(), Released::NotHeld);
            let released = server.calls().unwrap().get("exec").copied().unwrap_or(0);
            proxy.set(Toward::Server, Flow::Pass);
            let exec = || server.calls().unwrap().get("exec").copied().unwrap_or(0);
            until("it has arrived", || exec() > released).await;
            assert_eq!(int(&server, &["EXISTS", "lock:x"]), 0, "{kind:?}: taken for nobody");
            assert_eq!(other.release(&taken(&*other, "x").await).await.unwrap(), Released::Released);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_answer_is_lost_is_found_or_given_back() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let proxy = Proxy::to(server.addr()).unwrap();
        let store = Arc::new(Bare::open(&format!("{}?timeout=250", proxy.url())).await.unwrap());
        // Asked for again, it is the same.
        let lost = claim("x", secs(20), Wait::Never);
        proxy.arm_for("EXEC", Trick::LoseReply);
        assert!(store.acquire(&lost).await.unwrap_err().is_outcome_unknown());
        let value = server.command(&["GET", "lock:x"]).unwrap();
        let fence = granted(&*store, &lost).await.fence;
        assert!(value.text().unwrap().ends_with(&format!("#{:x}", fence.get())), "{value:?}");
        // One who waits finds it.
        let waiting = claim("x", secs(2), Wait::Forever);
        let waiter = tokio::spawn({
            let (store, waiting) = (store.clone(), waiting.clone());
            async move { granted(&*store, &waiting).await }
        });
        until("it looks", || server.calls().unwrap()["watch"] > 3).await;
        proxy.arm_for("EXEC", Trick::LoseReply);
        server.command(&["DEL", "lock:x"]).unwrap();
        let found = tokio::time::timeout(PATIENCE, waiter).await.expect("found").unwrap();
        assert!(found.fence > fence);
        assert_eq!(store.release(&waiting.ticket).await.unwrap(), Released::Released);
        // A client gives it back.
        let locks = Options::default().over(store.clone()).unwrap();
        proxy.arm_for("EXEC", Trick::LoseReply);
        assert!(locks.mutex("x").try_lock().await.unwrap_err().is_outcome_unknown());
        locks.settled().await;
        assert_eq!(int(&server, &["EXISTS", "lock:x"]), 0);
    }
}

/// The words of a server that is not here, put into the mouth of one that is; and then it is asked in none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_asked_in_the_words_it_knows_for_as_long_as_it_does() {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    proxy.arm_for("DELEX", Trick::Answer(b":0\r\n".to_vec()));
    let store = Bare::open(&proxy.url()).await.unwrap();
    assert!(format!("{store:?}").contains("Delex"), "{store:?}");
    let ticket = taken(&store, "x").await;
    proxy.arm_for("DELEX", Trick::Answer(b":1\r\n".to_vec()));
    assert_eq!(store.release(&ticket).await, Ok(Released::Released), "it said so");
    assert_eq!(int(&server, &["EXISTS", "lock:x"]), 1, "in one command");
    // It is not so any more: the same in a transaction, and nobody notices.
    assert_eq!(store.release(&ticket).await, Ok(Released::Released));
    assert_eq!(int(&server, &["EXISTS", "lock:x"]), 0);
    let asked = proxy.counts().commands["DELEX"];
    let ticket = taken(&store, "x").await;
    assert_eq!(store.release(&ticket).await, Ok(Released::Released));
    assert_eq!((proxy.counts().commands["DELEX"], asked), (3, 3));
}

/// As servers do that close what is idle, and whoever starts them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_closed_while_nobody_used_it_is_nobodys_trouble() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = connected(&off(&server)).await.0;
    for _ in 0..20 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        let lease = locks.mutex("x").lock().await.unwrap();
        lease.release().await.unwrap();
    }
}

/// What a cancelled request has watched is nobody else's trouble: whoever comes next gets through at the first attempt.
#[tokio::test]
async fn nothing_stays_watched_after_a_cancel() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = bare(&server).await;
        for microseconds in (0..600).step_by(20) {
            let claim = claim("x", secs(20), Wait::Never);
            let cut = tokio::time::sleep(Duration::from_micros(microseconds));
            tokio::select! {
                biased;
                () = cut => {}
                _ = store.acquire(&claim) => {}
            }
            store.release(&claim.ticket).await.unwrap();
            // Everything that may have been watched is touched.
            server.command(&["SET", "{lock:}:fence", "1"]).unwrap();
            server.command(&["SET", "lock:x", "theirs", "PX", "9000"]).unwrap();
            // Whoever only looked leaves nothing watched either.
            assert!(is_busy(&*store, "x").await);
            server.command(&["DEL", "lock:x"]).unwrap();
            server.forget_calls().unwrap();
            let ticket = taken(&*store, "x").await;
            assert_eq!(server.calls().unwrap()["exec"], 1, "{kind:?}, cut off after {microseconds} µs");
            store.release(&ticket).await.unwrap();
        }
    }
}

/// One operation of one client, with another client of the same server, cut off; and all that must be so after it.
async fn leaves_nothing(server: &Server, attempt: impl AsyncFn(&Actors) -> bool) -> bool {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("cut{}:", ATTEMPTS.fetch_add(1, Ordering::Relaxed));
    let url = format!("{}&timeout=2000&prefix={prefix}", off(server));
    let store = redis::open(&url).await.unwrap();
    let a = Options::default().owner("a").over(store.clone()).unwrap();
    let b = Options::default().owner("b").over(redis::open(&url).await.unwrap()).unwrap();
    let actors = Actors { store, a, b, held_for: ms(4), ttl: ms(150) };
    let finished = attempt(&actors).await;
    actors.a.settled().await;
    actors.b.settled().await;
    // The one that stays: there is one for all names.
    let fence = format!("{{{prefix}}}:fence");
    let left = || [keys(server, &format!("{prefix}*")), keys(server, &format!("{{{prefix}*"))].concat();
    until("nothing is left", || left().iter().all(|key| *key == fence)).await;
    server.command(&["DEL", &fence]).unwrap();
    drop(actors);
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until("no task is left", || alive() == 0).await;
    finished
}

#[test]
fn nothing_stays_of_an_operation_that_is_cancelled_at_any_await_point() {
    let need_scripts = [
        "read behind a writer",
        "write behind a reader",
        "acquire behind other permits",
        "downgrade",
        "upgrade",
        "upgrade beside a reader",
    ];
    let servers = Kind::ALL.map(|kind| Server::start(kind).unwrap());
    // Each waits most of the time, so they do it side by side.
    std::thread::scope(|scope| {
        for (what, operation) in OPERATIONS.iter().filter(|(what, _)| !need_scripts.contains(what)) {
            let servers = &servers;
            scope.spawn(move || {
                let delay = |point: usize| Duration::from_micros(60) * (point + point * point / 4) as u32;
                for round in 0..scaled(40) {
                    let server = &servers[round as usize % servers.len()];
                    at_every_await_point(what, delay, |cut| {
                        let runtime =
                            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                        runtime.block_on(leaves_nothing(server, async |actors| operation(actors, cut).await))
                    });
                }
            });
        }
    });
}

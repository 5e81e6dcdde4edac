//! What becomes of a server: forgetful, killed, full, busy, read-only, or touched by others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use leasehold::store::redis::Redis;
use leasehold::{Error, Loss, Released, Store, Ticket, Wait};
use leasehold_lab::{Client, Kind, Proxy, Server, Setup, Trick};

use super::{
    TIMEOUT_MS, behind_a_proxy, claim, client, fence_at, granted, int, is_empty, ms, open, soon, until,
    until_known, until_reachable, until_waiting, warm,
};

fn refusal(error: &Error) -> &str {
    match error {
        Error::Refused { why, .. } => why,
        other => panic!("not refused: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_its_scripts_all_the_time_is_told_again() {
    for kind in Kind::ALL {
        let server = Arc::new(Server::start(kind).unwrap());
        let store = open(&server.url()).await;
        let locks = client(&store, "a");
        let stops = Arc::new(AtomicBool::new(false));
        let flushing = std::thread::spawn({
            let (server, stops) = (server.clone(), stops.clone());
            move || {
                while !stops.load(Ordering::Relaxed) {
                    server.command(&["SCRIPT", "FLUSH"]).unwrap();
                }
            }
        });
        let tasks: Vec<_> = (0..4)
            .map(|n| {
                let locks = locks.clone();
                tokio::spawn(async move {
                    let mut fence = 0;
                    for _ in 0..50 {
                        let lease = locks.mutex(format!("x{}", n % 2)).strict_order().lock().await.unwrap();
                        assert!(lease.fence().get() > fence);
                        fence = lease.fence().get();
                        lease.extend(ms(10_000)).await.unwrap();
                        lease.release().await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            soon(task).await.unwrap();
        }
        stops.store(true, Ordering::Relaxed);
        flushing.join().unwrap();
        assert!(is_empty(&server));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_forgets_loses_its_leases_and_serves_its_waiters() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, other) = (open(&server.url()).await, open(&server.url()).await);
        let locks = client(&store, "a");
        let ttl = ms(3_000);
        let held = locks.mutex("x").ttl(ttl).lock().await.unwrap();
        let waiter = tokio::spawn(client(&other, "b").mutex("x").ttl(ttl).lock());
        until_known(&server, &other, "x", 1).await;
        server.kill().unwrap();
        let error = locks.mutex("y").try_lock().await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        server.restart().unwrap();
        // Nobody keeps a lock for one who has lost it; and the fence rises all the same.
        let lease = soon(waiter).await.unwrap().unwrap();
        assert!(lease.fence() > held.fence());
        assert_eq!(soon(held.lost()).await, Loss::Taken);
        // Messages arrive again: this is far below any look of its own.
        let next = tokio::spawn(locks.mutex("x").ttl(ms(60_000)).lock());
        until_waiting(&server, "x", 1).await;
        let began = Instant::now();
        lease.release().await.unwrap();
        soon(next).await.unwrap().unwrap().release().await.unwrap();
        assert!(began.elapsed() < ms(2_000));
        soon(locks.settled()).await;
        assert!(is_empty(&server));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_remembers_keeps_its_leases_and_its_line() {
    let server = Setup::new(Kind::Redis).durable().start().unwrap();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let locks = client(&store, "a");
    let ttl = ms(6_000);
    let held = locks.mutex("x").ttl(ttl).lock().await.unwrap();
    let waiter = tokio::spawn(client(&other, "b").mutex("x").ttl(ttl).lock());
    until_known(&server, &other, "x", 1).await;
    server.kill().unwrap();
    server.restart().unwrap();
    assert_eq!(fence_at(&server, "x"), Some(held.fence().get()));
    soon(async { while held.extend(ttl).await.is_err() {} }).await;
    assert_eq!(held.loss(), None);
    // Each on its own channel, and both on that of notices.
    let until_heard = || {
        let channels = server.command(&["PUBSUB", "CHANNELS"]).unwrap();
        matches!(channels, leasehold_lab::Reply::Array(channels) if channels.len() == 3)
    };
    until("both listen again", until_heard).await;
    held.release().await.unwrap();
    let lease = soon(waiter).await.unwrap().unwrap();
    assert_eq!(fence_at(&server, "x"), Some(lease.fence().get()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_will_pass_is_waited_for_and_reported_where_nobody_waits() {
    let (server, proxy, store, _) = behind_a_proxy().await;
    let locks = client(&store, "a");
    for says in [
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-BUSY Redis is busy running a script.\r\n",
    ] {
        let word = says[1..].split(' ').next().unwrap();
        for _ in 0..3 {
            proxy.arm_for("EVALSHA", Trick::Answer(says.into()));
        }
        let lease = soon(locks.mutex("x").lock()).await.unwrap();
        assert_eq!(proxy.armed(), 0, "{word}");
        lease.release().await.unwrap();
        for _ in 0..2 {
            proxy.arm_for("EVALSHA", Trick::Answer(says.into()));
        }
        let error = locks.mutex("x").strict_order().try_lock().await.unwrap_err();
        assert!(refusal(&error).starts_with(word), "{error}");
        // What the trick has answered in the server's place was executed.
        soon(async {
            while proxy.armed() > 0 {
                let _ = store.inspect(&"x".parse().unwrap()).await;
            }
        })
        .await;
        store.evict(&"x".parse().unwrap()).await.unwrap();
    }
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_waited_for_until_it_is_a_master() {
    for stale in ["yes", "no"] {
        let server = Server::start(Kind::Redis).unwrap();
        let store = open(&server.url()).await;
        let locks = client(&store, "a");
        server.command(&["CONFIG", "SET", "replica-serve-stale-data", stale]).unwrap();
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let error = locks.mutex("x").try_lock().await.unwrap_err();
        assert!(refusal(&error).contains(if stale == "yes" { "READONLY" } else { "MASTERDOWN" }), "{error}");
        let error = locks.mutex("x").wait(ms(300)).lock().await.unwrap_err();
        assert!(!matches!(error, Error::Lost { .. }), "{error}");
        let waiter = tokio::spawn(locks.mutex("x").lock());
        let asked = || server.calls().unwrap().get("evalsha").copied().unwrap_or(0);
        let before = asked();
        until("asked more than once", || asked() > before + 2).await;
        assert!(!waiter.is_finished());
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
        soon(waiter).await.unwrap().unwrap().release().await.unwrap();
        soon(locks.settled()).await;
        assert!(is_empty(&server));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_of_somebody_else_that_hangs_is_an_error_in_time_and_is_not_killed() {
    let server = Setup::new(Kind::Redis).line("busy-reply-threshold 50").start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = open(&proxy.url()).await;
    let locks = client(&store, "a");
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    let mut somebody = Client::tcp(server.addr()).unwrap();
    somebody.send(&Client::encoded(&["EVAL", "while true do end", "0"])).unwrap();
    let is_busy =
        || server.command(&["PING"]).unwrap().error().is_some_and(|error| error.starts_with("BUSY"));
    until("busy", is_busy).await;
    let began = Instant::now();
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(began.elapsed() < ms(10 * TIMEOUT_MS));
    assert!(error.to_string().contains("BUSY") || error.is_outcome_unknown(), "{error}");
    let waiter = tokio::spawn(locks.mutex("x").lock());
    let asked = || proxy.counts().commands.get("EVALSHA").copied().unwrap_or(0);
    let before = asked();
    until("asked more than once", || asked() > before + 2).await;
    assert!(is_busy(), "it still runs");
    server.command(&["SCRIPT", "KILL"]).unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
    assert!(!proxy.counts().commands.contains_key("SCRIPT"), "{:?}", proxy.counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_out_of_memory_takes_nothing_new_but_renews_releases_and_hands_over() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, other) = (open(&server.url()).await, open(&server.url()).await);
        let locks = client(&store, "a");
        let held = locks.mutex("x").lock().await.unwrap();
        let shared = locks.rwlock("y").read().await.unwrap();
        let waiter = tokio::spawn(client(&other, "b").mutex("x").lock());
        until_waiting(&server, "x", 1).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let error = locks.mutex("z").try_lock().await.unwrap_err();
        assert!(refusal(&error).starts_with("OOM"), "{kind:?}: {error}");
        let error = locks.mutex("z").lock().await.unwrap_err();
        assert!(refusal(&error).starts_with("OOM"), "{kind:?}: {error}");
        held.extend(ms(60_000)).await.unwrap();
        shared.extend(ms(60_000)).await.unwrap();
        shared.release().await.unwrap();
        held.release().await.unwrap();
        let lease = soon(waiter).await.unwrap().unwrap();
        assert_eq!(fence_at(&server, "x"), Some(lease.fence().get()), "{kind:?}");
        lease.release().await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        locks.mutex("z").lock().await.unwrap().release().await.unwrap();
        assert!(is_empty(&server), "{kind:?}");
    }
}

/// Its next look is refused: it leaves the line, and is not given what it does not wait for any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_refused_leaves_the_line() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    let held = client(&other, "b").mutex("x").lock().await.unwrap();
    let waiting = claim("x", ms(300), Wait::Forever);
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&waiting).await }
    });
    until_waiting(&server, "x", 1).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert!(refusal(&error).starts_with("OOM"), "{error}");
    assert_eq!(int(&server, &["EXISTS", "{lock:x}:line", "{lock:x}:wait"]), 0);
    held.release().await.unwrap();
    assert!(is_empty(&server), "nobody waits for it");
}

/// It is withdrawn until the server lets it go, or it would be given what nobody waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_refused_and_cannot_leave_the_line_leaves_it_later() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    let held = claim("x", ms(60_000), Wait::Never);
    granted(&other, &held).await;
    let locks = client(&store, "a");
    let waiter = tokio::spawn(locks.mutex("x").ttl(ms(1_500)).lock());
    until_known(&server, &store, "x", 1).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert!(error.is_outcome_unknown() && error.to_string().contains("NOREPLICAS"), "{error}");
    assert_eq!(int(&server, &["LLEN", "{lock:x}:line"]), 1, "it could not leave");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    soon(locks.settled()).await;
    assert_eq!(int(&server, &["EXISTS", "{lock:x}:line"]), 0);
    assert_eq!(other.release(&held.ticket).await.unwrap(), Released::Released);
    assert!(is_empty(&server), "given to nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_replicas_or_its_disk_says_so_and_the_ttl_ends_what_it_holds() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let first = claim("x", ms(1_500), Wait::Never);
    let grant = granted(&store, &first).await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { granted(&other, &claim("x", ms(20_000), Wait::Forever)).await }
    });
    until_waiting(&server, "x", 1).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    let error = store.acquire(&claim("y", ms(1_000), Wait::Never)).await.unwrap_err();
    assert!(refusal(&error).starts_with("NOREPLICAS"), "{error}");
    let error = store.release(&first.ticket).await.unwrap_err();
    assert!(refusal(&error).starts_with("NOREPLICAS"), "{error}");
    assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()), "not released");
    let ticket = Ticket { fence: Some(grant.fence), ..first.ticket.clone() };
    let error = store.renew(&[(ticket, first.ttl)]).await.remove(0).unwrap_err();
    assert!(refusal(&error).starts_with("NOREPLICAS"), "{error}");
    until("its TTL is over", || fence_at(&server, "x").is_none()).await;
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    // The waiter may have been refused meanwhile; what it was told, if anything, is true.
    if let Ok(grant) = soon(waiter).await {
        assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()));
    }
    proxy.arm_for("EVALSHA", Trick::Answer(b"-MISCONF Errors writing to the AOF file\r\n".to_vec()));
    let error = store.release(&first.ticket).await.unwrap_err();
    assert!(refusal(&error).starts_with("MISCONF"), "{error}");
    assert_eq!(store.release(&first.ticket).await.unwrap(), Released::NotHeld);
}

/// Its folder is gone, so that it can save nothing, and then it takes no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_write_its_data_down_takes_and_frees_nothing_and_says_why() {
    for kind in Kind::ALL {
        let server = Setup::new(kind).line("save 3600 1").start().unwrap();
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let held = locks.mutex("held").ttl(ms(1_000)).no_renewal().lock().await.unwrap();
        std::fs::remove_dir_all(server.folder().join("data")).unwrap();
        server.command(&["BGSAVE"]).unwrap();
        until("it has failed to save", || {
            server.info("persistence").unwrap().get("rdb_last_bgsave_status").is_some_and(|it| it == "err")
        })
        .await;
        for error in
            [locks.mutex("x").try_lock().await.unwrap_err(), soon(locks.mutex("x").lock()).await.unwrap_err()]
        {
            let why = refusal(&error);
            assert!(why.starts_with("MISCONF") && why.contains("see its log"), "{kind:?}: {error}");
        }
        // Good work is not called lost for it.
        let error = held.release().await.unwrap_err();
        assert!(error.is_outcome_unknown() && error.to_string().contains("MISCONF"), "{kind:?}: {error}");
        assert_eq!(int(&server, &["EXISTS", "lock:x", "{lock:x}:line", "{lock:x}:wait"]), 0, "{kind:?}");
        // Its TTL acts, and once the server takes writes again everything goes on.
        until("its TTL is over", || int(&server, &["EXISTS", "lock:held"]) == 0).await;
        assert!(server.command(&["CONFIG", "SET", "save", ""]).unwrap().is_ok());
        soon(locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_an_error_and_stays_as_it_is() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    let locks = client(&store, "a");
    for make in [
        ["LPUSH", "lock:x", "a"].as_slice(),
        &["SADD", "lock:x", "a"],
        &["HSET", "lock:x", "a", "b"],
        &["ZADD", "lock:x", "9e15", "a"],
    ] {
        server.command(make).unwrap();
        for error in [
            locks.mutex("x").try_lock().await.unwrap_err(),
            soon(locks.mutex("x").lock()).await.unwrap_err(),
            locks.rwlock("x").try_read().await.unwrap_err(),
        ] {
            let why = refusal(&error);
            assert!(why.contains("`lock:x`") && why.contains("no lock"), "{error}");
        }
        assert_eq!(int(&server, &["EXISTS", "lock:x"]), 1);
        assert_eq!(int(&server, &["EXISTS", "{lock:x}:line", "{lock:x}:wait"]), 0, "{make:?}");
        server.command(&["DEL", "lock:x"]).unwrap();
    }
    // Put in place of a lock while somebody waits for it.
    let held = client(&other, "b").mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("x").ttl(ms(600)).lock());
    until_waiting(&server, "x", 1).await;
    server.command(&["DEL", "lock:x"]).unwrap();
    server.command(&["LPUSH", "lock:x", "a"]).unwrap();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert!(refusal(&error).contains("list"), "{error}");
    held.release().await.unwrap_err();
    assert_eq!(int(&server, &["LLEN", "lock:x"]), 1);
    assert_eq!(int(&server, &["EXISTS", "{lock:x}:line", "{lock:x}:wait"]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_an_end_is_somebodys_and_never_taken() {
    let (server, _proxy, store, _) = behind_a_proxy().await;
    let locks = client(&store, "a");
    server.command(&["SET", "lock:x", "theirs"]).unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    let Error::Busy { busy, .. } = locks.mutex("x").wait(ms(400)).lock().await.unwrap_err() else { panic!() };
    assert_eq!(busy.holder.unwrap().as_str(), "another library, without an expiry");
    let error = locks.mutex("x").wait(ms(1)).lock().await.unwrap_err();
    assert!(error.to_string().ends_with("give it an end with `leasehold adopt`"), "{error}");
    let status = locks.inspect("x").await.unwrap().unwrap();
    assert!(status.holders[0].is_endless());
    assert_eq!((status.holders.len(), status.holders[0].fence), (1, None));
    assert_eq!(server.command(&["GET", "lock:x"]).unwrap().text(), Some("theirs"));
    assert_eq!(int(&server, &["PTTL", "lock:x"]), -1);
    // When it goes, whoever waits has it soon, though nobody tells.
    let waiter = tokio::spawn(locks.mutex("x").ttl(ms(60_000)).lock());
    until_waiting(&server, "x", 1).await;
    server.command(&["DEL", "lock:x"]).unwrap();
    let began = Instant::now();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
    assert!(began.elapsed() < ms(2_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_somebody_deletes_is_lost_within_one_renewal_and_not_made_again() {
    let (server, _proxy, store, _) = behind_a_proxy().await;
    let locks = client(&store, "a");
    let ttl = ms(1_500);
    for delete in [&["DEL", "lock:x"][..], &["FLUSHALL"]] {
        let held = locks.mutex("x").ttl(ttl).lock().await.unwrap();
        let fence = held.fence();
        server.command(delete).unwrap();
        let began = Instant::now();
        assert_eq!(soon(held.lost()).await, Loss::Deleted);
        assert!(began.elapsed() < ttl / 3 + ms(500), "{:?}", began.elapsed());
        assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        soon(locks.settled()).await;
        assert!(is_empty(&server));
        let next = locks.mutex("x").lock().await.unwrap();
        assert!(next.fence() > fence, "it rises, also after a flush");
        next.release().await.unwrap();
    }
    let held = locks.mutex("x").ttl(ttl).lock().await.unwrap();
    server.command(&["SET", "lock:x", "theirs", "PX", "60000"]).unwrap();
    assert_eq!(soon(held.lost()).await, Loss::Taken);
    drop(held);
    soon(locks.settled()).await;
    assert_eq!(server.command(&["GET", "lock:x"]).unwrap().text(), Some("theirs"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_subscription_is_killed_at_each_step_is_served() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let (store, other) = (open(&server.url()).await, open(&server.url()).await);
        let (locks, others) = (client(&store, "a"), client(&other, "b"));
        let kill = || server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        for step in 0..3 {
            let held = others.mutex("x").lock().await.unwrap();
            let waiter = tokio::spawn(locks.mutex("x").ttl(ms(3_000)).lock());
            until_known(&server, &store, "x", 1).await;
            if step == 0 {
                kill();
            }
            until_reachable(&store).await;
            until_reachable(&other).await;
            if step == 1 {
                kill();
            }
            // Its own connection may be one of those that were killed: then the janitor lets go.
            let _ = held.release().await;
            if step == 2 {
                kill();
            }
            let lease = soon(waiter).await.unwrap().unwrap();
            assert_eq!(fence_at(&server, "x"), Some(lease.fence().get()), "{kind:?} {step}");
            soon(async { while lease.extend(ms(3_000)).await.is_err() {} }).await;
            lease.release().await.unwrap();
            soon(others.settled()).await;
            assert!(is_empty(&server));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_no_room_for_another_client_says_so_and_nothing_leaks() {
    let server = Server::start(Kind::Redis).unwrap();
    let store = open(&server.url()).await;
    let locks = client(&store, "a");
    server.command(&["CONFIG", "SET", "maxclients", "2"]).unwrap();
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..5 {
        let error = Redis::open(&server.url()).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. } | Error::Unreachable { .. }), "{error}");
    }
    until("no task is left", || tokio::runtime::Handle::current().metrics().num_alive_tasks() <= before)
        .await;
    locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    server.command(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
    open(&server.url()).await;
}

/// It finds requests of clients that have given up: none of them takes anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_does_nothing_for_those_who_have_gone() {
    let server = Server::start(Kind::Redis).unwrap();
    let store = open(&server.url()).await;
    warm(&store).await;
    server.pause().unwrap();
    let began = Instant::now();
    let asked: Vec<_> = (0..3).map(|n| claim(&format!("x{n}"), ms(60_000), Wait::Never)).collect();
    for claim in &asked {
        assert!(store.acquire(claim).await.unwrap_err().is_outcome_unknown());
    }
    assert!(began.elapsed() < ms(10 * TIMEOUT_MS), "{:?}", began.elapsed());
    tokio::time::sleep(store.capabilities().late_window).await;
    server.resume().unwrap();
    until_reachable(&store).await;
    assert!(is_empty(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_at_its_deadline_though_the_server_is_gone() {
    let server = Server::start(Kind::Redis).unwrap();
    let (store, other) = (open(&server.url()).await, open(&server.url()).await);
    let _held = client(&other, "b").mutex("x").lock().await.unwrap();
    let (began, wait) = (Instant::now(), ms(1_500));
    let waiter = tokio::spawn(client(&store, "a").mutex("x").wait(wait).lock());
    until_known(&server, &store, "x", 1).await;
    server.kill().unwrap();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert!(error.is_outcome_unknown(), "an outage is not contention: {error}");
    assert!(began.elapsed() >= wait && began.elapsed() < wait + ms(1_500), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_of_a_grant_that_the_server_refuses_to_write_down() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    granted(&other, &claim("x", ms(60_000), Wait::Never)).await;
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&claim("x", ms(60_000), Wait::Forever)).await }
    });
    until_known(&server, &store, "x", 1).await;
    int(&server, &["PEXPIRE", "lock:x", "100"]);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    until("expired", || fence_at(&server, "x").is_none()).await;
    // Whoever comes now would have the waiter admitted.
    assert!(other.acquire(&claim("x", ms(1_000), Wait::Never)).await.is_err());
    tokio::time::sleep(ms(100)).await;
    let is_told =
        waiter.is_finished() && matches!(waiter.await.unwrap(), Ok(leasehold::Acquired::Granted(_)));
    assert!(!is_told, "the server has nothing of it: {:?}", fence_at(&server, "x"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_looks_like_ours_and_has_no_end_is_not_asked_for_all_the_time() {
    let (server, proxy, store, _other) = behind_a_proxy().await;
    server.command(&["SET", "lock:x", "job#7"]).unwrap();
    let asked = || proxy.counts().commands.get("EVALSHA").copied().unwrap_or(0);
    let before = asked();
    assert!(client(&store, "a").mutex("x").wait(ms(1_000)).lock().await.is_err());
    assert!(asked() - before < 50, "{} times in a second", asked() - before);
}

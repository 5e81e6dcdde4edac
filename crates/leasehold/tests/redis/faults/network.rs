//! A bad network between a client and its server.

use std::sync::Arc;
use std::time::Instant;

use leasehold::store::redis::Redis;
use leasehold::{Acquired, Converted, Error, Loss, Name, Released, Renewed, Share, Store, Ticket, Wait};
use leasehold_lab::{Cut, Flow, Server, Toward, Trick};

use super::{
    TIMEOUT_MS, behind_a_proxy, claim, client, fence_at, granted, int, is_empty, ms, open, soon, until,
    until_known, until_reachable, until_waiting,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answer_is_lost_is_an_error_and_leaves_nothing() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let (locks, others) = (client(&store, "a"), client(&other, "b"));
    proxy.arm_for("EVALSHA", Trick::LoseReply);
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    // Neither it nor anybody else is in its own way. The connection is deaf, which takes one more silence to find out.
    until_reachable(&store).await;
    let lease = soon(locks.mutex("x").lock()).await.unwrap();
    lease.release().await.unwrap();
    soon(others.mutex("x").lock()).await.unwrap().release().await.unwrap();
    soon(locks.settled()).await;
    assert!(is_empty(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_again_after_a_lost_answer_gets_the_same_fence() {
    let (server, proxy, store, _) = behind_a_proxy().await;
    let claim = claim("x", ms(5_000), Wait::Never);
    proxy.arm_for("EVALSHA", Trick::LoseReply);
    assert!(store.acquire(&claim).await.unwrap_err().is_outcome_unknown());
    let fence = fence_at(&server, "x").expect("it was executed");
    until_reachable(&store).await;
    assert_eq!(granted(&store, &claim).await.fence.get(), fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_answer_is_lost_has_the_fence_it_was_given() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let held = client(&other, "b").mutex("x").lock().await.unwrap();
    let ttl = ms(600);
    let waiting = claim("x", ttl, Wait::Forever);
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { granted(&store, &waiting).await }
    });
    until_known(&server, &store, "x", 1).await;
    // Nobody is told of this; the next look finds it, and is not answered.
    proxy.arm_for("EVALSHA", Trick::LoseReply);
    server.command(&["DEL", "lock:x"]).unwrap();
    until("granted", || fence_at(&server, "x").is_some()).await;
    let fence = fence_at(&server, "x").unwrap();
    assert_eq!(soon(waiter).await.unwrap().fence.get(), fence);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_after_its_ttl_does_not_touch_the_next_holder() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let first = claim("x", ms(400), Wait::Never);
    granted(&store, &first).await;
    proxy.set(Toward::Server, Flow::Hold);
    let error = store.release(&first.ticket).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error}");
    let next = claim("x", ms(20_000), Wait::Forever);
    let grant = soon(granted(&other, &next)).await;
    server.forget_calls().unwrap();
    proxy.set(Toward::Server, Flow::Pass);
    until("the release has arrived", || server.calls().unwrap().contains_key("evalsha")).await;
    assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()));
    assert_eq!(soon(store.release(&first.ticket)).await.unwrap(), Released::NotHeld);
    assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_arrives_after_its_time_takes_nothing() {
    let (server, proxy, store, _) = behind_a_proxy().await;
    let claim = claim("x", ms(20_000), Wait::Never);
    proxy.set(Toward::Server, Flow::Hold);
    assert!(store.acquire(&claim).await.unwrap_err().is_outcome_unknown());
    tokio::time::sleep(store.capabilities().late_window).await;
    server.forget_calls().unwrap();
    proxy.set(Toward::Server, Flow::Pass);
    until("it has arrived", || server.calls().unwrap().contains_key("evalsha")).await;
    assert!(is_empty(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_twice_is_done_once() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let twice = || {
        assert_eq!(proxy.armed(), 0, "the last one was not played");
        proxy.arm_for("EVALSHA", Trick::Duplicate);
    };
    let first = claim("x", ms(20_000), Wait::Never);
    twice();
    let grant = granted(&store, &first).await;
    assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()));
    let ticket = Ticket { fence: Some(grant.fence), ..first.ticket.clone() };
    twice();
    assert!(matches!(store.renew(&[(ticket.clone(), first.ttl)]).await[0], Ok(Renewed::Until(_))));
    twice();
    let Converted::Converted(shared) = store.convert(&ticket, Share::Shared).await.unwrap() else { panic!() };
    assert!(shared.fence > grant.fence);
    assert_eq!(int(&server, &["ZCARD", "lock:x"]), 1);
    let ticket = Ticket { fence: Some(shared.fence), share: Share::Shared, ..ticket };
    twice();
    assert!(matches!(store.detach(&ticket, first.ttl).await.unwrap(), Renewed::Until(_)));
    // In line once.
    let waiting = claim("x", ms(20_000), Wait::Forever);
    twice();
    let waiter = tokio::spawn({
        let (store, waiting) = (store.clone(), waiting.clone());
        async move { granted(&store, &waiting).await }
    });
    until("the duplicate has arrived", || proxy.armed() == 0).await;
    until_waiting(&server, "x", 1).await;
    // The second of these finds the next holder.
    twice();
    assert_eq!(store.release(&ticket).await.unwrap(), Released::Released);
    let next = soon(waiter).await.unwrap();
    assert_eq!(fence_at(&server, "x"), Some(next.fence.get()));
    twice();
    assert_eq!(store.release(&waiting.ticket).await.unwrap(), Released::Released);
    twice();
    assert!(store.evict(ticket.names.first()).await.unwrap().holders.is_empty());
    drop(other);
    assert!(is_empty(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_costs_a_time_out_and_a_new_connection() {
    for deaf in [vec![Toward::Client], vec![Toward::Server], vec![Toward::Client, Toward::Server]] {
        let (server, proxy, store, _) = behind_a_proxy().await;
        let locks = client(&store, "a");
        let lease = locks.mutex("held").lock().await.unwrap();
        deaf.iter().for_each(|toward| proxy.set(*toward, Flow::Swallow));
        // Two silences, and there is no connection.
        for _ in 0..3 {
            let began = Instant::now();
            let error = locks.mutex("x").try_lock().await.unwrap_err();
            assert!(error.is_outcome_unknown(), "{deaf:?}: {error}");
            assert!(began.elapsed() < ms(10 * TIMEOUT_MS), "{deaf:?}: {:?}", began.elapsed());
        }
        let before = proxy.counts().connections;
        assert!(before >= 2, "{deaf:?}: no other connection was tried");
        proxy.heal().unwrap();
        let next = soon(async {
            loop {
                match locks.mutex("x").lock().await {
                    Ok(lease) => return lease,
                    Err(error) => assert!(error.is_outcome_unknown(), "{deaf:?}: {error}"),
                }
            }
        })
        .await;
        assert!(lease.is_valid(), "{deaf:?}: its TTL is far longer than that");
        next.release().await.unwrap();
        lease.release().await.unwrap();
        soon(locks.settled()).await;
        assert!(is_empty(&server), "{deaf:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_silences_at_once_cost_one_connection() {
    let (_server, proxy, _, _) = behind_a_proxy().await;
    // A busy machine makes a connection within 2 s: an attempt that times out would be counted as a connection.
    let store = Arc::new(Redis::open(&format!("{}?timeout=2000", proxy.url())).await.unwrap());
    let before = proxy.counts();
    proxy.set(Toward::Client, Flow::Swallow);
    // One task sends all requests at its first poll, so that none of them finds the next connection.
    let asking = store.clone();
    let silent = tokio::spawn(async move {
        let names: Vec<Name> = (0..20).map(|n| format!("x{n}").parse().unwrap()).collect();
        futures_util::future::join_all(names.iter().map(|name| asking.inspect(name))).await
    });
    // From here on the connection passes no reply, also of requests that are still under way.
    until("the connection is silent", || proxy.counts().silenced > before.silenced).await;
    proxy.set(Toward::Client, Flow::Pass);
    for answer in soon(silent).await.unwrap() {
        answer.unwrap_err();
    }
    until_reachable(&store).await;
    for _ in 0..20 {
        store.inspect(&"x".parse().unwrap()).await.unwrap();
    }
    assert_eq!(proxy.counts().connections, before.connections + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_is_made_again_and_waiters_stay_in_line() {
    for by in [Cut::Reset, Cut::Finish] {
        let (server, proxy, store, other) = behind_a_proxy().await;
        let held = client(&other, "b").mutex("x").lock().await.unwrap();
        let locks = client(&store, "a");
        let kept = locks.mutex("kept").lock().await.unwrap();
        let waiter = tokio::spawn(locks.mutex("x").lock());
        until_known(&server, &store, "x", 1).await;
        for _ in 0..5 {
            let before = proxy.counts().connections;
            proxy.cut(by).unwrap();
            until("another connection", || proxy.counts().connections > before).await;
        }
        // It is told of the hand-over on the new connection, or finds it by looking there.
        held.release().await.unwrap();
        let lease = soon(waiter).await.unwrap().unwrap();
        assert_eq!(fence_at(&server, "x"), Some(lease.fence().get()));
        assert!(kept.is_valid());
        kept.extend(ms(30_000)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_whose_message_is_lost_is_found_by_looking() {
    let (server, proxy, store, other) = behind_a_proxy().await;
    let held = client(&other, "b").mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(client(&store, "a").mutex("x").lock());
    until_known(&server, &store, "x", 1).await;
    proxy.set(Toward::Client, Flow::Hold);
    held.release().await.unwrap();
    // The server has told it, and counts it as the holder.
    let fence = fence_at(&server, "x").expect("handed over");
    proxy.cut(Cut::Reset).unwrap();
    proxy.heal().unwrap();
    assert_eq!(soon(waiter).await.unwrap().unwrap().fence().get(), fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_nobody_tells_looks_by_itself_every_third_of_its_ttl() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    let _held = client(&other, "b").mutex("x").lock().await.unwrap();
    let ttl = ms(1_500);
    let waiter = tokio::spawn(client(&store, "a").mutex("x").ttl(ttl).lock());
    until_waiting(&server, "x", 1).await;
    server.command(&["DEL", "lock:x"]).unwrap();
    let began = Instant::now();
    let _lease = soon(waiter).await.unwrap().unwrap();
    assert!(began.elapsed() < ttl / 3 + ms(500), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_an_unknown_outcome_and_leaves_nothing() {
    let (server, proxy, _, _) = behind_a_proxy().await;
    let nested = "*1\r\n".repeat(1_000);
    let garbage: [&[u8]; 16] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0\r\n",
        b":not a number\r\n",
        b"$-7\r\n",
        b"$99999999999999999999\r\n",
        b"$4000000000\r\nabc",
        b"*2000000000\r\n:1\r\n",
        b"%2000000000\r\n",
        b"*3\r\n$7\r\ngranted\r\n$1\r\n0\r\n:1\r\n",
        b"*3\r\n$7\r\ngranted\r\n$2\r\n-5\r\n:1\r\n",
        b"*1\r\n$7\r\ngranted\r\n",
        b"*1\r\n$7\r\nmistake\r\n",
        b"*0\r\n",
        b"+OK\r\n",
        b"_\r\n",
        nested.as_bytes(),
    ];
    for bytes in garbage {
        let shown = bytes[..bytes.len().min(40)].escape_ascii();
        let store = open(&proxy.url()).await;
        let locks = client(&store, "a");
        proxy.arm_for("EVALSHA", Trick::Answer(bytes.to_vec()));
        let error = soon(locks.mutex("x").try_lock()).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{shown}: {error}");
        assert!(error.to_string().len() < 400, "{shown}: {error}");
        until_reachable(&store).await;
        soon(locks.settled()).await;
        assert!(is_empty(&server), "{shown}");
        soon(locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_make_no_sense_are_passed_over() {
    let (server, _proxy, store, other) = behind_a_proxy().await;
    let held = client(&other, "b").mutex("x").lock().await.unwrap();
    let waiting = claim("x", ms(20_000), Wait::Forever);
    let waiter = tokio::spawn({
        let (store, waiting) = (store.clone(), waiting.clone());
        async move { granted(&store, &waiting).await }
    });
    until_waiting(&server, "x", 1).await;
    let leasehold_lab::Reply::Array(channels) = server.command(&["PUBSUB", "CHANNELS"]).unwrap() else {
        panic!()
    };
    let token = waiting.ticket.token.expose();
    for channel in &channels {
        let channel = channel.text().unwrap();
        for message in
            ["", "\n\n", "x\n1\n1", &format!("{token}\n0\n1"), &format!("{token}\n-1\n99999999"), token]
        {
            server.command(&["PUBLISH", channel, message]).unwrap();
        }
        // A forged or late grant, older than what the waiter was told when it came: not believed.
        server.command(&["PUBLISH", channel, &format!("{token}\n1\n1")]).unwrap();
    }
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished(), "somebody else holds it");
    held.release().await.unwrap();
    let grant = soon(waiter).await.unwrap();
    assert_eq!(fence_at(&server, "x"), Some(grant.fence.get()));
}

/// Cuts the connection after every byte of a request, and of its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_cut_at_any_byte_is_held_with_an_end_or_not_at_all() {
    async fn cut(server: &Server, store: &Redis, after: usize) -> bool {
        let claim = claim("x", ms(20_000), Wait::Never);
        let answer = soon(store.acquire(&claim)).await;
        let ttl = int(server, &["PTTL", "lock:x"]);
        assert!(ttl == -2 || ttl > 0, "cut after {after} bytes: a key without an end");
        let is_through = match answer {
            Ok(Acquired::Granted(_)) => true,
            Ok(busy) => panic!("cut after {after} bytes: {busy:?}"),
            Err(error) => {
                assert!(error.is_outcome_unknown(), "cut after {after} bytes: {error}");
                false
            }
        };
        soon(async { while store.release(&claim.ticket).await.is_err() {} }).await;
        assert!(is_empty(server), "cut after {after} bytes");
        is_through
    }
    let (server, proxy, _, _) = behind_a_proxy().await;
    for after in 0.. {
        let store = open(&proxy.url()).await;
        proxy.arm_for("EVALSHA", Trick::CutReply { after, by: Cut::Reset });
        // The whole answer may arrive before the end does.
        if cut(&server, &store, after).await {
            assert!(after > 15, "an answer of {after} bytes");
            break;
        }
    }
    for after in 0.. {
        let store = open(&proxy.url()).await;
        let before = proxy.counts().bytes_from_clients;
        proxy.arm_for("EVALSHA", Trick::CutRequest { after, by: Cut::Finish });
        if cut(&server, &store, after).await {
            break;
        }
        // What was sent since then has the whole request in it, and more: beyond that there is nothing to cut.
        let sent = proxy.counts().bytes_from_clients - before;
        if after as u64 > sent {
            break;
        }
    }
}

/// As if the server's clock had been set forward by some 25 years since the connection was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_was_set_forward_still_grants() {
    let (server, proxy, _, _) = behind_a_proxy().await;
    proxy.arm_for("TIME", Trick::Answer(b"*2\r\n$10\r\n1000000000\r\n$1\r\n0\r\n".to_vec()));
    let store = open(&proxy.url()).await;
    assert_eq!(proxy.armed(), 0);
    let locks = client(&store, "a");
    let lease = soon(locks.mutex("x").try_lock()).await.unwrap().expect("nobody else holds it");
    assert_eq!(fence_at(&server, "x"), Some(lease.fence().get()));
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_always_comes_too_late_is_refused_in_the_end() {
    let (server, proxy, store, _) = behind_a_proxy().await;
    for _ in 0..3 {
        proxy.arm_for("EVALSHA", Trick::Answer(b"*2\r\n$4\r\nlate\r\n$1\r\n5\r\n".to_vec()));
    }
    let error = soon(store.acquire(&claim("x", ms(20_000), Wait::Never))).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("timeout"), "{error}");
    assert!(is_empty(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_trickle_in_are_understood_or_time_out() {
    let (server, _proxy, _, _) = behind_a_proxy().await;
    let slow = trickle(server.addr(), ms(1)).await;
    let store = Arc::new(Redis::open(&format!("redis://{slow}?timeout=5000")).await.unwrap());
    let locks = client(&store, "a");
    let lease = soon(locks.mutex("x").lock()).await.unwrap();
    soon(lease.release()).await.unwrap();
    let slower = trickle(server.addr(), ms(400)).await;
    let began = Instant::now();
    let error = Redis::open(&format!("redis://{slower}?timeout={TIMEOUT_MS}")).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(began.elapsed() < ms(10 * TIMEOUT_MS));
}

/// A proxy that lets answers through byte by byte.
async fn trickle(server: std::net::SocketAddr, pause: std::time::Duration) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            client.set_nodelay(true).unwrap();
            let server = tokio::net::TcpStream::connect(server).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                while let Ok(byte) = from_server.read_u8().await {
                    tokio::time::sleep(pause).await;
                    if to_client.write_u8(byte).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

/// One renewal that fails is tried again; a lease whose renewals all fail is lost at its deadline, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_tried_again_to_the_deadline() {
    let (_server, proxy, store, _) = behind_a_proxy().await;
    let locks = client(&store, "a");
    let ttl = ms(3_000);
    let lease = locks.mutex("x").ttl(ttl).lock().await.unwrap();
    let before = proxy.counts().commands["EVALSHA"];
    proxy.arm_for("EVALSHA", Trick::LoseReply);
    until("renewed again", || proxy.counts().commands["EVALSHA"] >= before + 2).await;
    until("renewed", || lease.remaining() > ttl / 2).await;
    assert_eq!(lease.loss(), None);
    let began = Instant::now();
    proxy.set(Toward::Server, Flow::Swallow);
    assert_eq!(soon(lease.lost()).await, Loss::Unreachable);
    assert!(began.elapsed() > ttl / 3 && began.elapsed() < ttl + ms(500), "{:?}", began.elapsed());
}

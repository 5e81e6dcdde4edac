//! The line before a name: what of it is lost, and who comes back to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::store::redis::Redis;
use leasehold::{Acquired, Claim, Names, Permits, Share, Store, Ttl, Wait};
use leasehold_lab::{Kind, Reply, Server};
use tokio::join;
use tokio::task::JoinHandle;

use super::{claim, client, granted, int, is_empty, ms, open, soon, until, until_waiting};

/// The lines of a queue entry (`prelude.lua`) that these tests read.
const ENTRY_EXPIRY: usize = 4;
const ENTRY_ARRIVAL: usize = 7;

fn in_line(server: &Server) -> Vec<String> {
    let Reply::Array(tokens) = server.command(&["LRANGE", "{lock:x}:line", "0", "-1"]).unwrap() else {
        panic!("no line")
    };
    tokens.iter().map(|token| token.text().unwrap().to_owned()).collect()
}

/// They were not there when their turn came; some of those behind them are still waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_come_back_have_their_places_again_in_whatever_order_they_do() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        let mut held = claim("x", ms(60_000), Wait::Never);
        granted(&store, &held).await;
        // By the long way, which is the one for whoever asks again.
        let each: Vec<Claim> =
            (0..8).map(|_| Claim { detached: true, ..claim("x", ms(60_000), Wait::Forever) }).collect();
        for (arrival, claim) in (1..).zip(&each[..5]) {
            let entry = format!("x\n1\n1\n1\n1000\n60000\n{{lock:}}:nobody\n{arrival}\nlock:x");
            server.command(&["HSET", "{lock:x}:away", claim.ticket.token.expose(), &entry]).unwrap();
        }
        // Of this one nothing is known.
        server.command(&["RPUSH", "{lock:x}:line", "00000000000000000000000000000000@nobody"]).unwrap();
        let mut waiting: Vec<_> = each.iter().map(|_| None).collect();
        for (place, count) in [5, 6, 7, 2, 0, 4, 1, 3].into_iter().zip(1..) {
            let (store, claim) = (store.clone(), each[place].clone());
            waiting[place] = Some(tokio::spawn(async move { store.acquire(&claim).await }));
            until("in line", || {
                in_line(&server).iter().filter(|token| !token.ends_with("@nobody")).count() == count
            })
            .await;
        }
        let tokens: Vec<&str> = each.iter().map(|claim| claim.ticket.token.expose()).collect();
        let mut line = in_line(&server);
        line.retain(|token| !token.ends_with("@nobody"));
        assert_eq!(line, tokens, "{kind:?}");
        for (next, waiter) in each.into_iter().zip(waiting) {
            store.release(&held.ticket).await.unwrap();
            assert!(
                matches!(soon(waiter.unwrap()).await.unwrap().unwrap(), Acquired::Granted(_)),
                "{kind:?}"
            );
            held = next;
        }
        store.release(&held.ticket).await.unwrap();
        assert!(is_empty(&server), "{kind:?}");
    }
}

/// Whoever waits is served all the same, alone, at its next look at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_which_a_part_is_lost_serves_everybody() {
    for kind in Kind::ALL {
        for lost in ["{lock:x}:line", "{lock:x}:wait"] {
            let server = Server::start(kind).unwrap();
            let store = open(&server.url()).await;
            let locks = client(&store, "a");
            let held = locks.mutex("x").ttl(ms(60_000)).lock().await.unwrap();
            let inside = Arc::new(AtomicUsize::new(0));
            let waiters: Vec<_> = (0..5)
                .map(|_| {
                    let (mutex, inside) = (locks.mutex("x").ttl(ms(1_500)).strict_order(), inside.clone());
                    tokio::spawn(async move {
                        let lease = mutex.lock().await.unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        lease.release().await.unwrap();
                    })
                })
                .collect();
            until_waiting(&server, "x", 5).await;
            server.command(&["DEL", lost]).unwrap();
            held.release().await.unwrap();
            for waiter in waiters {
                soon(waiter).await.unwrap();
            }
            locks.settled().await;
            assert!(is_empty(&server), "{kind:?}, without {lost}");
        }
    }
}

/// A claim of two names.
fn claim_of_both(ttl: Duration, wait: Wait) -> Claim {
    let mut claim = claim("x", ttl, wait);
    claim.ticket.names = Names::new(["x", "y"].map(|name| name.parse().unwrap())).unwrap();
    claim
}

fn waiting(store: &Arc<Redis>, claim: &Claim) -> JoinHandle<Acquired> {
    let (store, claim) = (store.clone(), claim.clone());
    tokio::spawn(async move { store.acquire(&claim).await.unwrap() })
}

/// Each of two who want both names is served, in turn.
async fn both_are_served(store: &Arc<Redis>, held: &Claim, waiters: [(&Claim, JoinHandle<Acquired>); 2]) {
    store.release(&held.ticket).await.unwrap();
    let [(one, of_one), (other, of_other)] = waiters;
    soon(async {
        join!(
            async {
                assert!(matches!(of_one.await.unwrap(), Acquired::Granted(_)));
                store.release(&one.ticket).await.unwrap();
            },
            async {
                assert!(matches!(of_other.await.unwrap(), Acquired::Granted(_)));
                store.release(&other.ticket).await.unwrap();
            },
        )
    })
    .await;
}

/// Were each of them before the other in one line, both would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_want_the_same_names_do_not_wait_for_each_other_when_a_part_of_one_line_is_lost() {
    for kind in Kind::ALL {
        for lost in ["{lock:x}:line", "{lock:x}:wait"] {
            let server = Server::start(kind).unwrap();
            let store = open(&server.url()).await;
            let held = claim_of_both(ms(60_000), Wait::Never);
            granted(&store, &held).await;
            // The one who came later looks again earlier.
            let (early, late) =
                (claim_of_both(ms(6_000), Wait::Forever), claim_of_both(ms(1_500), Wait::Forever));
            let of_early = waiting(&store, &early);
            until_waiting(&server, "y", 1).await;
            let of_late = waiting(&store, &late);
            until_waiting(&server, "y", 2).await;
            server.command(&["DEL", lost]).unwrap();
            until("both have come back", || int(&server, &["HLEN", "{lock:x}:wait"]) == 2).await;
            both_are_served(&store, &held, [(&early, of_early), (&late, of_late)]).await;
            assert!(is_empty(&server), "{kind:?}, without {lost}");
        }
    }
}

/// Its place is remembered at one of its names only: the other has forgotten it when its time was over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_who_want_the_same_names_do_not_wait_for_each_other_when_one_comes_back_late() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        let held = claim_of_both(ms(60_000), Wait::Never);
        granted(&store, &held).await;
        let (back, there) =
            (claim_of_both(ms(6_000), Wait::Forever), claim_of_both(ms(6_000), Wait::Forever));
        let of_there = waiting(&store, &there);
        until_waiting(&server, "y", 1).await;
        let entry = "x\n1\n0\n2\n1000\n6000\n{lock:}:nobody\n1\nlock:x\nlock:y";
        server.command(&["HSET", "{lock:x}:away", back.ticket.token.expose(), entry]).unwrap();
        let of_back = waiting(&store, &back);
        until_waiting(&server, "y", 2).await;
        both_are_served(&store, &held, [(&back, of_back), (&there, of_there)]).await;
        assert!(is_empty(&server), "{kind:?}");
    }
}

/// Once it is out of one line it is out of all, whichever of them was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_leaves_every_line_also_if_one_of_them_has_forgotten_it() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        let held = claim_of_both(ms(60_000), Wait::Never);
        granted(&store, &held).await;
        let given_up = claim_of_both(ms(60_000), Wait::Forever);
        let waiter = waiting(&store, &given_up);
        until_waiting(&server, "y", 1).await;
        waiter.abort();
        server.command(&["DEL", "{lock:x}:wait", "{lock:x}:line"]).unwrap();
        store.release(&given_up.ticket).await.unwrap();
        assert_eq!(int(&server, &["LLEN", "{lock:y}:line"]), 0, "{kind:?}");
        store.release(&held.ticket).await.unwrap();
        assert!(is_empty(&server), "{kind:?}");
    }
}

/// A waiter that steps aside comes back to the place of its arrival, so a repeated request must not move that arrival.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_keeps_the_arrival_of_the_first() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        let held = claim("x", ms(60_000), Wait::Never);
        granted(&store, &held).await;
        let twice = claim("x", ms(60_000), Wait::Forever);
        let token = twice.ticket.token.expose();
        let entry = || {
            let entry = server.command(&["HGET", "{lock:x}:wait", token]).unwrap();
            entry.text().unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = waiting(&store, &twice);
        until_waiting(&server, "x", 1).await;
        first.abort();
        // The second request may reach the server in the same millisecond as the first and would then write the same entry.
        // An expiry that is one second earlier makes the second write visible.
        let mut earlier = entry();
        earlier[ENTRY_EXPIRY] = (earlier[ENTRY_EXPIRY].parse::<u64>().unwrap() - 1_000).to_string();
        server.command(&["HSET", "{lock:x}:wait", token, &earlier.join("\n")]).unwrap();
        let again = waiting(&store, &twice);
        until("the second request has written its entry", || entry() != earlier).await;
        assert_eq!(entry()[ENTRY_ARRIVAL], earlier[ENTRY_ARRIVAL], "{kind:?}");
        store.release(&held.ticket).await.unwrap();
        assert!(matches!(soon(again).await.unwrap(), Acquired::Granted(_)), "{kind:?}");
    }
}

/// Whoever comes then makes it anew, and it is to end if everybody forgets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_was_lost_and_made_again_ends_by_itself() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        granted(&store, &claim("x", ms(60_000), Wait::Never)).await;
        let _first = waiting(&store, &claim("x", ms(60_000), Wait::Forever));
        until_waiting(&server, "x", 1).await;
        server.command(&["DEL", "{lock:x}:line"]).unwrap();
        let _second = waiting(&store, &claim("x", ms(60_000), Wait::Forever));
        until_waiting(&server, "x", 1).await;
        assert!(int(&server, &["PTTL", "{lock:x}:line"]) > 0, "{kind:?}");
    }
}

/// Those who may pass others are counted; one too many, and everybody's look would go through the whole line for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_may_pass_are_counted_once_also_if_the_line_was_lost() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        let barging = |wait| {
            let mut claim = claim("x", ms(1_500), wait);
            claim.ticket.share = Share::Permits(Permits::new(1, 1).unwrap().barging());
            claim
        };
        let held = Claim { ttl: Ttl::new(ms(60_000)).unwrap(), ..barging(Wait::Never) };
        granted(&store, &held).await;
        let each = [barging(Wait::Forever), barging(Wait::Forever)];
        let waiters = each.each_ref().map(|claim| waiting(&store, claim));
        until_waiting(&server, "x", 2).await;
        server.command(&["DEL", "{lock:x}:line"]).unwrap();
        until_waiting(&server, "x", 2).await;
        let counted = server.command(&["HGET", "{lock:x}:wait", "#b"]).unwrap();
        assert_eq!(counted.text(), Some("2"), "{kind:?}");
        waiters.iter().for_each(JoinHandle::abort);
        for claim in each.iter().chain([&held]) {
            store.release(&claim.ticket).await.unwrap();
        }
        assert!(is_empty(&server), "{kind:?}");
    }
}

/// Nobody is kept waiting by how many they are. Were each judged anew, or each of the dead searched for, a look would take several
/// times as long as a request may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_a_long_line_of_those_who_may_pass_is_answered_in_time() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = Redis::open(&format!("{}?timeout=3000", server.url())).await.unwrap();
        let line =
            "for i = 1, 200 do redis.call('ZADD', 'lock:x', 99999999999999, 'p1/200b:' .. i .. '@h#1') end
            redis.call('PEXPIRE', 'lock:x', 600000)
            for i = 1, 20000 do
              local ends = i > 10000 and ARGV[1] == 'dead' and 1000 or 99999999999999
              redis.call('RPUSH', '{lock:x}:line', 'a token as long as they are, mostly ' .. i)
              redis.call('HSET', '{lock:x}:wait', 'a token as long as they are, mostly ' .. i,
                'p1/200b\\n1\\n0\\n1\\n' .. ends .. '\\n60000\\nc\\n' .. i .. '\\nlock:x')
            end
            redis.call('HSET', '{lock:x}:wait', '#b', 20000)";
        for which in ["alive", "dead"] {
            server.command(&["EVAL", line, "0", which]).unwrap();
            let mut claim = claim("x", ms(60_000), Wait::Never);
            claim.ticket.share = Share::Permits(Permits::new(1, 200).unwrap().barging());
            assert!(matches!(store.acquire(&claim).await.unwrap(), Acquired::Busy(_)), "{kind:?}, {which}");
            server.command(&["FLUSHALL"]).unwrap();
        }
    }
}

/// The server would be kept in a script that never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_makes_no_sense_is_passed_over() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let store = open(&server.url()).await;
        server.command(&["RPUSH", "{lock:x}:line", "odd"]).unwrap();
        server.command(&["HSET", "{lock:x}:wait", "odd", "x\n1\n0\n1\n1000\n60000\nc\n1\n"]).unwrap();
        granted(&store, &claim("x", ms(60_000), Wait::Never)).await;
        assert_eq!(int(&server, &["LLEN", "{lock:x}:line"]), 0, "{kind:?}");
    }
}

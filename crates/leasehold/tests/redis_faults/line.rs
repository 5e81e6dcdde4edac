//! The line before a name: what of it is lost, and who comes back to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::{Acquired, Claim, Store, Wait};
use leasehold_lab::{Kind, Reply, Server};

use super::{claim, client, granted, is_empty, ms, open, soon, until, until_waiting};

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

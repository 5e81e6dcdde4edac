//! States of a server that clients have made, kept to be put back again and again.

use std::sync::Arc;
use std::time::Instant;

use leasehold::store::redis::Redis;
use leasehold::{Claim, Share, Store, Ticket, Ttl, Wait};
use leasehold_lab::{Client, Reply, Server};

use super::{claim, ms, permits};

/// Everything a server has, as clients have left it.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) what: &'static str,
    /// What the clients hold and wait for.
    pub(crate) tickets: Vec<Ticket>,
    /// Each key with its serialized value and its TTL in ms.
    kept: Vec<(String, Vec<u8>, String)>,
}

pub(crate) fn keys(server: &Server) -> Vec<String> {
    let Reply::Array(keys) = server.command(&["KEYS", "*"]).unwrap() else { panic!("no list of keys") };
    let mut keys: Vec<String> = keys.iter().map(|key| key.text().unwrap().to_owned()).collect();
    keys.sort();
    keys
}

pub(crate) fn type_of(server: &Server, key: &str) -> String {
    server.command(&["TYPE", key]).unwrap().text().unwrap().to_owned()
}

impl State {
    /// Takes what the server has.
    pub(crate) fn taken(server: &Server, what: &'static str, tickets: Vec<Ticket>) -> State {
        let kept = keys(server).into_iter().map(|key| {
            let Reply::Bulk(value) = server.command(&["DUMP", &key]).unwrap() else {
                panic!("no dump of {key}")
            };
            let ttl = server.command(&["PTTL", &key]).unwrap().int().unwrap().max(0);
            (key, value, ttl.to_string())
        });
        State { what, tickets, kept: kept.collect() }
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.kept.iter().map(|(key, ..)| key.clone()).collect()
    }

    /// The commands that put it back in place of all that the server has.
    pub(crate) fn commands(&self) -> Vec<Vec<u8>> {
        let restores = self.kept.iter().map(|(key, value, ttl)| {
            Client::encoded(&[b"RESTORE", key.as_bytes(), ttl.as_bytes(), value.as_slice()])
        });
        [Client::encoded(&["FLUSHALL"])].into_iter().chain(restores).collect()
    }

    pub(crate) fn restore(&self, server: &Server) {
        server.command(&["FLUSHALL"]).unwrap();
        for (key, value, ttl) in &self.kept {
            let restore: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), ttl.as_bytes(), value];
            assert!(server.command(&restore).unwrap().is_ok());
        }
    }

    /// Some wait for what another holds, and their tasks have ended since: what the server knows of them stays.
    pub(crate) async fn with_waiters(
        server: &Server,
        store: &dyn Store,
        held: &Claim,
        waiters: &[Claim],
    ) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let grant = store.acquire(held).await.unwrap();
        let leasehold::Acquired::Granted(grant) = grant else { panic!("it is free") };
        tickets.push(Ticket { fence: Some(grant.fence), ..held.ticket.clone() });
        for waiter in waiters {
            let before = server.calls().unwrap().get("evalsha").copied().unwrap_or(0);
            let since = Instant::now();
            let asked = || server.calls().unwrap().get("evalsha").copied().unwrap_or(0) > before;
            let answered = async {
                while !asked() {
                    assert!(since.elapsed().as_secs() < 20);
                    tokio::time::sleep(ms(1)).await;
                }
            };
            tokio::select! {
                answer = store.acquire(waiter) => panic!("it was not its turn: {answer:?}"),
                () = answered => {}
            }
            tickets.push(waiter.ticket.clone());
        }
        tickets
    }

    /// A name `x` in the ways in which it can be held and waited for, alone and with `y`.
    pub(crate) async fn of_locks(server: &Server, store: &Redis) -> Vec<State> {
        let short = Ttl::new(ms(20)).unwrap();
        let barging = || Share::Permits(leasehold::Permits::new(1, 2).unwrap().barging());
        let forever = |share| claim(&["x"], share, Wait::Forever);
        let both = |wait| claim(&["x", "y"], Share::Exclusive, wait);
        let cases: [(&str, Claim, Vec<Claim>); 6] = [
            ("exclusive", claim(&["x"], Share::Exclusive, Wait::Never), vec![forever(Share::Exclusive); 1]),
            (
                "several waiters",
                claim(&["x"], Share::Exclusive, Wait::Never),
                vec![
                    Claim { fences: 16, ..forever(Share::Exclusive) },
                    Claim { detached: true, ..forever(Share::Exclusive) },
                    forever(Share::Shared),
                    Claim { ttl: short, ..forever(Share::Exclusive) },
                ],
            ),
            (
                "readers",
                claim(&["x"], Share::Shared, Wait::Never),
                vec![forever(Share::Exclusive), forever(Share::Shared)],
            ),
            (
                "permits",
                claim(&["x"], permits(2, 2), Wait::Never),
                vec![forever(permits(1, 2)), forever(barging())],
            ),
            ("two names", both(Wait::Never), vec![both(Wait::Forever), forever(Share::Exclusive)]),
            (
                "readers of two names",
                claim(&["x", "y"], Share::Shared, Wait::Never),
                vec![both(Wait::Forever)],
            ),
        ];
        let mut states = Vec::new();
        for (what, held, waiters) in cases {
            server.command(&["FLUSHALL"]).unwrap();
            let tickets = State::with_waiters(server, store, &held, &waiters).await;
            states.push(State::taken(server, what, tickets));
        }
        // The client of the waiters has gone, so that they are passed over.
        server.command(&["FLUSHALL"]).unwrap();
        let listeners = || match server.command(&["PUBSUB", "CHANNELS"]).unwrap() {
            Reply::Array(channels) => channels.len(),
            other => panic!("{other:?}"),
        };
        let before = listeners();
        let gone = Arc::new(super::open(server).await);
        let held = claim(&["x"], Share::Exclusive, Wait::Never);
        let waiters = [forever(Share::Exclusive), forever(Share::Exclusive)];
        let mut tickets = State::with_waiters(server, &*gone, &held, &waiters).await;
        drop(gone);
        let since = Instant::now();
        while listeners() > before {
            assert!(since.elapsed().as_secs() < 20, "the client has not gone");
            tokio::time::sleep(ms(1)).await;
        }
        let last = claim(&["x"], Share::Exclusive, Wait::Forever);
        store.release(&tickets[0]).await.unwrap();
        tickets.push(last.ticket.clone());
        store.acquire(&last).await.unwrap();
        states.push(State::taken(server, "waiters who were absent", tickets));
        states
    }
}

//! A request that a network kept: what it is granted when its client waits no more is given back.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use common::{ms, secs};
use leasehold_lab::{Kind, Reply, Server};

#[tokio::test]
async fn a_grant_that_nobody_awaits_any_more_is_given_back() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let list = |command: &[&str]| -> Vec<String> {
            let reply = server.command(command).unwrap();
            let Reply::Array(items) = reply else { panic!("{reply:?}") };
            items.iter().map(|text| text.text().unwrap().to_owned()).collect()
        };
        let near = leasehold::connect(&server.url()).await.unwrap();
        let far = leasehold::connect(&format!("{}?timeout=100", server.url())).await.unwrap();
        let lease = near.mutex("x").ttl(secs(60)).lock().await.unwrap();
        let waiter = tokio::spawn(far.mutex("x").ttl(secs(60)).lock());
        let entry = loop {
            let entry = list(&["HGETALL", "{lock:x}:wait"]);
            if !entry.is_empty() {
                break entry;
            }
            tokio::time::sleep(ms(1)).await;
        };
        let place = list(&["LRANGE", "{lock:x}:line", "0", "-1"]);
        server.forget_calls().unwrap();
        waiter.abort();
        // It is withdrawn at once, and again when nothing of it can be under way any more.
        while server.calls().unwrap().get("evalsha").copied().unwrap_or(0) < 2 {
            tokio::time::sleep(ms(5)).await;
        }
        assert_eq!(server.command(&["EXISTS", "{lock:x}:line", "{lock:x}:wait"]).unwrap().int(), Some(0));
        // Its request comes once more, against all odds.
        server.command(&["RPUSH", "{lock:x}:line", &place[0]]).unwrap();
        server.command(&["HSET", "{lock:x}:wait", &entry[0], &entry[1]]).unwrap();
        lease.release().await.unwrap();
        let lease = near.mutex("x").ttl(secs(60)).wait(secs(20)).lock().await.unwrap();
        lease.release().await.unwrap();
    }
}

//! `adopt`: a key without an end gets one, and nothing else changes.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use common::{ms, secs};
use leasehold::{Adopted, Error, Locks};
use leasehold_lab::{Kind, Server};

async fn start(kind: Kind) -> (Server, Locks) {
    let server = Server::start(kind).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    (server, locks)
}

#[tokio::test]
async fn without_scripts_it_is_the_same() {
    for kind in Kind::ALL {
        let (server, scripted) = start(kind).await;
        let locks = leasehold::connect(&format!("{}?scripts=off", server.url())).await.unwrap();
        server.command(&["SET", "lock:x", "theirs"]).unwrap();
        let adopted = locks.adopt("x", secs(60)).await.unwrap();
        assert!(
            matches!(&adopted, Adopted::Adopted { holder } if holder.as_str() == "another library"),
            "{adopted:?}"
        );
        assert!((30_000..=60_000).contains(&left_ms(&server, "lock:x")));
        assert_eq!(server.command(&["GET", "lock:x"]).unwrap().text(), Some("theirs"));
        // What has an end keeps it, be it one holder's or several's.
        assert!(matches!(locks.adopt("x", secs(600)).await.unwrap(), Adopted::Ends { .. }));
        assert!(left_ms(&server, "lock:x") <= 60_000);
        let _read = scripted.rwlock("shared").owner("bert").ttl(secs(60)).read().await.unwrap();
        let Adopted::Ends { holder, remaining } = locks.adopt("shared", secs(1)).await.unwrap() else {
            panic!()
        };
        assert_eq!(holder.as_str(), "bert");
        assert!(remaining > secs(30), "{remaining:?}");
        assert_eq!(locks.adopt("nothing", secs(1)).await.unwrap(), Adopted::NotHeld);
        server.command(&["LPUSH", "lock:list", "a"]).unwrap();
        assert!(matches!(locks.adopt("list", secs(1)).await, Err(Error::Refused { .. })));
    }
}

fn left_ms(server: &Server, key: &str) -> i64 {
    server.command(&["PTTL", key]).unwrap().int().unwrap()
}

#[tokio::test]
async fn a_key_without_an_end_gets_one_and_whoever_waits_has_it_then() {
    for kind in Kind::ALL {
        let (server, locks) = start(kind).await;
        server.command(&["SET", "lock:x", "theirs"]).unwrap();
        let waiter = tokio::spawn(locks.mutex("x").ttl(secs(60)).lock());
        let waits = async { while locks.inspect("x").await.unwrap().unwrap().waiters.is_empty() {} };
        tokio::time::timeout(secs(20), waits).await.expect("it stands in line");
        let adopted = locks.adopt("x", ms(300)).await.unwrap();
        assert!(
            matches!(&adopted, Adopted::Adopted { holder } if holder.as_str() == "another library"),
            "{adopted:?}"
        );
        let left = left_ms(&server, "lock:x");
        assert!((1..=300).contains(&left), "{left}");
        assert_eq!(server.command(&["GET", "lock:x"]).unwrap().text(), Some("theirs"));
        let lease = tokio::time::timeout(secs(20), waiter).await.expect("it ends").unwrap().unwrap();
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_has_an_end_keeps_it() {
    for kind in Kind::ALL {
        let (server, locks) = start(kind).await;
        server.command(&["SET", "lock:theirs", "theirs", "PX", "60000"]).unwrap();
        for ttl in [secs(1), secs(600)] {
            let Adopted::Ends { holder, remaining } = locks.adopt("theirs", ttl).await.unwrap() else {
                panic!()
            };
            assert_eq!(holder.as_str(), "another library");
            assert!(remaining <= secs(60) && remaining > secs(30), "{remaining:?}");
            assert!((30_000..=60_000).contains(&left_ms(&server, "lock:theirs")));
        }
        // Our own, by one and by several.
        let lease = locks.mutex("ours").owner("anna").ttl(secs(60)).lock().await.unwrap();
        let Adopted::Ends { holder, .. } = locks.adopt("ours", secs(1)).await.unwrap() else { panic!() };
        assert_eq!(holder.as_str(), "anna");
        lease.release().await.unwrap();
        let lease = locks.rwlock("shared").owner("bert").ttl(secs(60)).read().await.unwrap();
        let Adopted::Ends { holder, remaining } = locks.adopt("shared", secs(1)).await.unwrap() else {
            panic!()
        };
        assert_eq!(holder.as_str(), "bert");
        assert!(remaining > secs(30), "{remaining:?}");
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_made_of_nothing_and_no_lock_of_something_else() {
    for kind in Kind::ALL {
        let (server, locks) = start(kind).await;
        assert_eq!(locks.adopt("x", secs(1)).await.unwrap(), Adopted::NotHeld);
        assert_eq!(server.command(&["EXISTS", "lock:x"]).unwrap().int(), Some(0));
        server.command(&["LPUSH", "lock:list", "a"]).unwrap();
        server.command(&["ZADD", "lock:set", "99999999999999", "a"]).unwrap();
        for (name, word) in [("list", "list"), ("set", "zset")] {
            let error = locks.adopt(name, secs(1)).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains(word), "{error}");
            assert_eq!(left_ms(&server, &format!("lock:{name}")), -1);
        }
    }
}

#[tokio::test]
async fn a_store_on_which_everything_ends_has_nothing_to_adopt() {
    let locks = leasehold::connect("memory:").await.unwrap();
    let error = locks.adopt("x", secs(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let error = locks.adopt("x", ms(0)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

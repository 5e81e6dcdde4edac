//! What needs no lock: counters, cells, optimistic updates, scripts, writes under a fence.
#![cfg(all(feature = "redis", feature = "file", feature = "json", target_os = "linux"))]

use leasehold_testkit as common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::stores::{on_every_store_and_server, plain_client};
use common::{home_in_memory, ms, secs};
use leasehold::cells::store::{Key, Kind as Use, Put};
use leasehold::store::redis::Redis;
use leasehold::{Error, Fence, Name, Next, Options, Store};
use leasehold_lab::{Kind, Proxy, Server, Setup, Trick};

type Stock = HashMap<String, u32>;

#[test]
fn a_counter_is_added_to_and_says_what_it_comes_to() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cells().counter("x"), b.cells().counter("x"));
        assert_eq!(theirs.get().await.unwrap(), 0, "there is none");
        assert_eq!(mine.add(40).await.unwrap(), 40);
        assert_eq!(theirs.add(-50).await.unwrap(), -10);
        assert_eq!(mine.get().await.unwrap(), -10);
        assert_eq!(mine.add(i64::MIN + 10).await.unwrap(), i64::MIN);
        let error = theirs.add(-1).await.unwrap_err();
        assert!(matches!(&error, Error::Refused { why, .. } if why.contains("can hold")), "{error}");
        assert_eq!(theirs.get().await.unwrap(), i64::MIN, "it did not turn over");
        mine.reset().await.unwrap();
        assert_eq!(theirs.add(1).await.unwrap(), 1);
        mine.reset().await.unwrap();
        // The end it was made with, which adding to it does not move.
        let short = a.cells().counter("y").ttl(ms(300));
        assert_eq!(short.add(1).await.unwrap(), 1);
        let mut last = 1;
        while last != 0 {
            tokio::time::sleep(ms(20)).await;
            let sum = b.cells().counter("y").ttl(secs(100)).add(0).await.unwrap();
            assert!(sum <= last);
            last = sum;
        }
        mine.reset().await.unwrap();
        b.cells().counter("y").reset().await.unwrap();
        for bad in ["", "a{b"] {
            assert!(matches!(a.cells().counter(bad).add(1).await, Err(Error::Invalid { .. })), "{bad}");
        }
        assert!(matches!(a.cells().counter("x").ttl(ms(1)).add(1).await, Err(Error::Invalid { .. })));
    });
}

/// An update has a connection of its own while it is under way, and there are few of them.
#[test]
fn updates_that_are_kept_and_not_polled_do_not_block_other_updates() {
    on_every_store_and_server(|a, _| async move {
        let cells: Vec<_> = (0..6).map(|i| a.cells().bytes(format!("x:{i}"))).collect();
        let mut kept: Vec<_> = cells.iter().map(|cell| Box::pin(cell.update(|_| vec![1]))).collect();
        for update in &mut kept {
            let _ = common::polled_once(update.as_mut()).await;
        }
        let other = a.cells().bytes("y");
        let start = std::time::Instant::now();
        while let Err(error) = other.update(|_| vec![1]).await {
            assert!(start.elapsed() < secs(20), "it waits for futures that nobody polls: {error}");
        }
        drop(kept);
        for cell in cells.iter().chain([&other]) {
            cell.delete().await.unwrap();
        }
    });
}

#[test]
fn a_cell_is_compared_and_set() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cells().cell::<Stock>("x"), b.cells().cell::<Stock>("x"));
        // Enough that no two hash maps have them in the same order.
        let stock = |count: u32| -> Stock { (0..20).map(|item| (format!("item {item}"), count)).collect() };
        assert_eq!(mine.get().await.unwrap(), None);
        assert!(!mine.compare_and_set(&stock(0), &stock(1)).await.unwrap(), "there is none");
        assert!(mine.set_if_absent(&stock(1)).await.unwrap());
        assert!(!theirs.set_if_absent(&stock(2)).await.unwrap());
        for count in 1..20 {
            // Written in whatever order, it is the same.
            assert!(theirs.compare_and_set(&stock(count), &stock(count + 1)).await.unwrap(), "{count}");
            assert!(!mine.compare_and_set(&stock(count), &stock(9)).await.unwrap());
        }
        assert_eq!(mine.get().await.unwrap(), Some(stock(20)));
        assert!(!mine.compare_and_delete(&stock(19)).await.unwrap());
        assert!(mine.compare_and_delete(&stock(20)).await.unwrap());
        assert_eq!(theirs.get().await.unwrap(), None);
        // What another program wrote, with spaces; and bytes, which are what they are.
        let bytes = a.cells().bytes("x");
        bytes.set(&b"{ \"a\" : 1 }".to_vec()).await.unwrap();
        let one: Stock = [("a".to_owned(), 1)].into();
        assert!(!bytes.compare_and_set(&b"{\"a\":1}".to_vec(), &vec![0]).await.unwrap());
        assert!(theirs.compare_and_set(&one, &stock(1)).await.unwrap());
        // What is none of these is said to be, and not shown.
        for (odd, said) in [("{\"a\":\"secret\"}", "another form"), ("secret", "no JSON")] {
            bytes.set(&odd.into()).await.unwrap();
            for error in [mine.get().await.unwrap_err(), mine.update(|_| stock(1)).await.unwrap_err()] {
                let error = error.to_string();
                assert!(
                    error.contains(said) && error.contains("`x`") && !error.contains("secret"),
                    "{error}"
                );
            }
        }
        mine.delete().await.unwrap();
        mine.delete().await.unwrap();
        // An end with each write.
        let short = a.cells().bytes("x").ttl(ms(100));
        assert!(short.set_if_absent(&vec![1]).await.unwrap());
        assert!(short.compare_and_set(&vec![1], &vec![2]).await.unwrap());
        while theirs.place_is_taken().await {
            tokio::time::sleep(ms(5)).await;
        }
    });
}

trait Look {
    async fn place_is_taken(&self) -> bool;
}

impl<T> Look for leasehold::Cell<T> {
    /// Whatever it is.
    async fn place_is_taken(&self) -> bool {
        !matches!(self.get().await, Ok(None))
    }
}

#[test]
fn whoever_has_lost_its_lease_does_not_overwrite_its_successor() {
    on_every_store_and_server(|a, b| async move {
        let (mine, theirs) = (a.cells().cell::<String>("x"), b.cells().cell::<String>("x"));
        let old = a.mutex("x").lock().await.unwrap();
        mine.set_fenced(old.fence(), &"old".into()).await.unwrap();
        mine.set_fenced(old.fence(), &"old again".into()).await.unwrap();
        b.evict("x").await.unwrap();
        let new = b.mutex("x").lock().await.unwrap();
        // The successor has not written yet: the last word is the old one's still.
        mine.set_fenced(old.fence(), &"old".into()).await.unwrap();
        theirs.set_fenced(new.fence(), &"new".into()).await.unwrap();
        for refused in [
            mine.set_fenced(old.fence(), &"late".into()).await.unwrap_err(),
            mine.delete_fenced(old.fence()).await.unwrap_err(),
        ] {
            let named =
                Error::Stale { name: Name::new("x").unwrap(), fence: old.fence(), newer: new.fence() };
            assert_eq!(refused, named);
            assert!(refused.to_string().contains(&format!("under fence {}", new.fence())), "{refused}");
        }
        assert_eq!(mine.get().await.unwrap().as_deref(), Some("new"));
        theirs.delete_fenced(new.fence()).await.unwrap();
        assert!(
            mine.set_fenced(old.fence(), &"late".into()).await.is_err(),
            "a value that is gone keeps its fence"
        );
        assert!(matches!(
            mine.clone().fence_kept_for(Duration::ZERO).set_fenced(old.fence(), &"x".into()).await,
            Err(Error::Invalid { .. })
        ));
        drop(old.release().await);
        new.release().await.unwrap();
    });
}

/// Somebody else writes while an update thinks: from a thread of its own, as from another process.
fn interfere(url: &str, name: &str, value: i64) {
    let (url, name) = (url.to_owned(), name.to_owned());
    let write = move || leasehold::blocking::connect(&url)?.cells().cell(name.as_str()).set(&value);
    std::thread::spawn(write).join().unwrap().unwrap();
}

#[tokio::test]
async fn an_update_that_was_overtaken_begins_again_and_in_the_end_names_the_alternative() {
    let home = home_in_memory("overtaken");
    let (redis, valkey) = (Server::start(Kind::Redis).unwrap(), Server::start(Kind::Valkey).unwrap());
    for url in [redis.url(), valkey.url(), format!("file:{}", home.path().display())] {
        let locks = leasehold::connect(&url).await.unwrap();
        let cell = locks.cells().cell::<i64>("x");
        cell.set(&1).await.unwrap();
        let mut looks = Vec::new();
        let updated = cell
            .update(|seen| {
                looks.push(seen);
                if looks.len() < 4 {
                    interfere(&url, "x", looks.len() as i64 * 100);
                }
                seen.unwrap() + 1
            })
            .await
            .unwrap();
        assert_eq!((updated.value, updated.tries), (Some(301), 4), "{url}");
        assert_eq!(looks, [Some(1), Some(100), Some(200), Some(300)]);
        // Also if it is as it was: nobody can tell what has gone on meanwhile. (By comparison it does not matter.)
        let mut looks = 0;
        let updated = cell.update(|seen| {
            looks += 1;
            if looks == 1 {
                interfere(&url, "x", 301);
            }
            seen.unwrap() + 1
        });
        let tries = updated.await.unwrap().tries;
        assert_eq!(tries, if url.starts_with("file:") { 1 } else { 2 }, "{url}");
        // And if nobody lets it through.
        let mut looks = 0;
        let error = cell
            .clone()
            .tries(5)
            .update(|seen| {
                looks += 1;
                interfere(&url, "x", 1_000 + i64::from(looks));
                seen.unwrap() + 1
            })
            .await
            .unwrap_err();
        assert_eq!(error, Error::Contended { name: Name::new("x").unwrap(), tries: 5 });
        assert!(error.to_string().contains("take a lock"), "{error}");
        assert_eq!((looks, cell.get().await.unwrap()), (5, Some(1_005)), "{url}");
        // To delete it, and to leave it.
        assert_eq!(cell.update(|_| Next::Leave).await.unwrap().value, None);
        assert_eq!(cell.get().await.unwrap(), Some(1_005));
        assert_eq!(cell.update(|_| Next::Delete).await.unwrap().value, None);
        assert_eq!(cell.get().await.unwrap(), None);
        assert!(matches!(cell.tries(0).update(|_| 1).await, Err(Error::Invalid { .. })));
    }
}

#[tokio::test]
async fn an_update_without_an_answer_is_not_repeated() {
    let server = Server::start(Kind::Redis).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let locks = leasehold::connect(&format!("redis://{}?timeout=300", proxy.addr())).await.unwrap();
    let cell = locks.cells().cell::<u32>("x");
    cell.set(&1).await.unwrap();
    let calls = AtomicU32::new(0);
    let count = |seen: Option<u32>| {
        calls.fetch_add(1, Ordering::SeqCst);
        seen.unwrap() + 1
    };
    // It was executed, and nobody heard of it.
    let error = cell.update(|seen| {
        proxy.arm(Trick::LoseReply);
        count(seen)
    });
    let error = error.await.unwrap_err();
    assert!(matches!(error, Error::Unknown { what: "change", .. }), "{error}");
    assert!(error.is_outcome_unknown() && error.to_string().contains("look at it before"), "{error}");
    assert_eq!(
        (calls.swap(0, Ordering::SeqCst), cell.get().await.unwrap()),
        (1, Some(2)),
        "once, and once only"
    );
    // It was not, and nobody can tell.
    let cut = Trick::CutRequest { after: 20, by: leasehold_lab::Cut::Reset };
    let error = cell.update(|seen| {
        proxy.arm(cut.clone());
        count(seen)
    });
    assert!(matches!(error.await, Err(Error::Unknown { what: "change", .. })));
    assert_eq!((calls.swap(0, Ordering::SeqCst), cell.get().await.unwrap()), (1, Some(2)));
    // Nor is anything else that changes something.
    locks.cells().counter("n").add(1).await.unwrap();
    proxy.arm(Trick::LoseReply);
    assert!(matches!(locks.cells().counter("n").add(1).await, Err(Error::Unknown { .. })));
    assert_eq!(server.command(&["GET", "counter:n"]).unwrap().text(), Some("2"));
    // What was only looked for is unreachable, and nobody was asked.
    server.pause().unwrap();
    let error = cell.update(count).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    server.resume().unwrap();
}

#[tokio::test]
async fn a_server_that_has_forgotten_a_script_is_told_it_again() {
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let cells = locks.cells();
        let (cell, add) =
            (cells.cell::<u32>("x"), cells.script("return redis.call('INCRBY', KEYS[1], ARGV[1])"));
        for round in 1..=3 {
            assert!(server.command(&["SCRIPT", "FLUSH"]).unwrap().is_ok());
            cell.update(|seen| seen.unwrap_or(0) + 1).await.unwrap();
            assert_eq!(cell.get().await.unwrap(), Some(round));
            assert!(server.command(&["SCRIPT", "FLUSH"]).unwrap().is_ok());
            let sum: i64 = add.call().counter("n").arg(2).run().await.unwrap();
            assert_eq!(sum, 2 * i64::from(round));
        }
        server.forget_calls().unwrap();
        add.call().counter("n").arg(1).run::<()>().await.unwrap();
        let calls = server.calls().unwrap();
        assert_eq!((calls.get("evalsha"), calls.get("eval")), (Some(&1), None), "by its digest: {calls:?}");
    }
}

#[tokio::test]
async fn a_script_has_its_keys_in_one_slot_and_its_answers_typed() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let cells = locks.cells();
    let all = cells.script("return {KEYS[1], KEYS[2], ARGV[1], ARGV[2]}");
    let both = all.call().cell("x").key("{cell:x}:log").arg(-7).arg("text");
    let answer: Vec<String> = both.run().await.unwrap();
    assert_eq!(answer, ["cell:x", "{cell:x}:log", "-7", "text"]);
    assert!(matches!(both.run::<i64>().await, Err(Error::Invalid { what: "answer of a script", .. })));
    // Nothing is sent where it could not run, on this server or on another.
    server.forget_calls().unwrap();
    for (call, named) in [
        (all.call().cell("x").cell("y"), "cell:x and cell:y"),
        (all.call().cell("x").counter("x"), "cell:x and counter:x"),
        (all.call().arg(1), "none"),
        (all.call().cell("a{b").cell("x"), "a{b"),
    ] {
        let error = call.run::<()>().await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { .. }) && error.to_string().contains(named), "{error}");
    }
    assert!(!server.calls().unwrap().keys().any(|name| name.starts_with("eval")));
    // As the server has it.
    let answer = async |source: &str| cells.script(source).call().key("k").run::<Option<Vec<u8>>>().await;
    assert_eq!(answer("return false").await.unwrap(), None);
    assert_eq!(answer("return 'a\\0b'").await.unwrap(), Some(b"a\0b".to_vec()));
    let number = async |source: &str| cells.script(source).call().key("k").run::<i64>().await;
    assert_eq!(number("return 7").await.unwrap(), 7);
    assert_eq!(number("return '9007199254740993'").await.unwrap(), 9_007_199_254_740_993);
    let fence = Fence::new(Fence::MAX).unwrap();
    let shown = cells.script("return ARGV[1]").call().key("k").arg(fence).arg(vec![0]);
    assert_eq!(shown.run::<String>().await.unwrap(), Fence::MAX.to_string());
    assert!(
        cells.script("return redis.call('SETNX', KEYS[1], '1')").call().key("k").run::<bool>().await.unwrap()
    );
    assert!(
        !cells
            .script("return redis.call('SETNX', KEYS[1], '1')")
            .call()
            .key("k")
            .run::<bool>()
            .await
            .unwrap()
    );
    // It says what is wrong with it.
    for wrong in
        ["return redis.call('LPUSH', KEYS[1], '1')", "return nonsense(", "return redis.error_reply('no')"]
    {
        assert!(matches!(number(wrong).await, Err(Error::Refused { .. })), "{wrong}");
    }
}

#[tokio::test]
async fn what_a_store_does_not_offer_is_refused_with_the_reason() {
    let server = Server::start(Kind::Redis).unwrap();
    let home = home_in_memory("unsupported");
    let file = format!("file:{}", home.path().display());
    for url in ["memory:", &file] {
        let locks = leasehold::connect(url).await.unwrap();
        let error = locks.cells().script("return 1").call().cell("x").run::<()>().await.unwrap_err();
        let says = "`update` does the same";
        assert!(
            matches!(&error, Error::Unsupported { what: "scripts", why, .. } if why.contains(says)),
            "{error}"
        );
    }
    let locks = leasehold::connect(&format!("{}?scripts=off", server.url())).await.unwrap();
    let cells = locks.cells();
    let refusals = [
        cells.counter("x").add(1).await.unwrap_err(),
        cells.counter("x").get().await.unwrap_err(),
        cells.cell::<u32>("x").get().await.unwrap_err(),
        cells.cell::<u32>("x").update(|_| 1).await.unwrap_err(),
        cells.script("return 1").call().cell("x").run::<()>().await.unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(error, Error::Unsupported { store: "redis", .. }), "{error}");
    }
    let (store, plain) = plain_client();
    assert!(store.cells().is_none());
    assert!(matches!(plain.cells().bytes("x").get().await, Err(Error::Unsupported { .. })));
    locks.close().await;
    assert_eq!(cells.counter("x").add(1).await, Err(Error::Closed));
}

/// Whose connection is given has no other to watch on; it compares.
#[tokio::test]
async fn over_a_given_connection_updates_compare() {
    let server = Server::start(Kind::Redis).unwrap();
    let connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let store: std::sync::Arc<dyn Store> =
        std::sync::Arc::new(Redis::with_connection(connection, "").await.unwrap());
    let locks = Options::default().over(store.clone()).unwrap();
    let cell = locks.cells().cell::<i64>("x");
    cell.set(&1).await.unwrap();
    let mut looks = 0;
    let url = server.url();
    let updated = cell.update(|seen| {
        looks += 1;
        if looks == 1 {
            interfere(&url, "x", 10);
        }
        seen.unwrap() + 1
    });
    let updated = updated.await.unwrap();
    assert_eq!((updated.value, updated.tries), (Some(11), 2));
    let key = Key::new(Use::Cell, Name::new("x").unwrap());
    let mut nothing = |_: Option<&[u8]>| -> Option<Put> { None };
    store.cells().unwrap().change(&key, &mut nothing).await.unwrap();
    assert!(!server.calls().unwrap().contains_key("watch"));
}

/// The least rights are those that `docs/cells.md` names.
#[tokio::test]
async fn a_user_with_the_rights_of_the_page_may_do_all_of_it() {
    let page = include_str!("../../../../docs/cells.md");
    let rights =
        page.split("ACL SETUSER cells ").nth(1).unwrap().split("```").next().unwrap().replace("\\\n", " ");
    let rules = rights.replace(">PASSWORD", ">secret");
    let server = Setup::new(Kind::Redis).user("cells", rules.trim()).start().unwrap();
    let url = format!("redis://cells:secret@{}", server.addr());
    let locks = leasehold::connect(&url).await.unwrap();
    let cells = locks.cells();
    cells.counter("n").ttl(secs(10)).add(1).await.unwrap();
    let cell = cells.cell::<u32>("x").ttl(secs(10));
    cell.set(&1).await.unwrap();
    cell.update(|seen| seen.unwrap() + 1).await.unwrap();
    cell.update(|_| Next::Leave).await.unwrap();
    assert!(cell.compare_and_set(&2, &3).await.unwrap());
    let lease = locks.mutex("x").lock().await.unwrap();
    cell.set_fenced(lease.fence(), &4).await.unwrap();
    assert!(cell.set_fenced(Fence::new(1).unwrap(), &5).await.is_err());
    cell.delete_fenced(lease.fence()).await.unwrap();
    lease.release().await.unwrap();
}

#[test]
fn code_that_is_not_async_has_all_of_it() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::blocking::connect(&server.url()).unwrap();
    let cells = locks.cells();
    let counter = cells.counter("n").ttl(secs(100));
    assert_eq!((counter.add(3).unwrap(), counter.get().unwrap()), (3, 3));
    counter.reset().unwrap();
    let cell = cells.cell::<u32>("x").ttl(secs(100)).tries(3).fence_kept_for(secs(10));
    assert_eq!(cell.get().unwrap(), None);
    assert!(cell.set_if_absent(&1).unwrap() && cell.compare_and_set(&1, &2).unwrap());
    let updated = cell.update(|seen| seen.unwrap() + 1).unwrap();
    assert_eq!((updated.value, updated.tries), (Some(3), 1));
    let lease = locks.mutex("x").lock().unwrap();
    cell.set_fenced(lease.fence(), &4).unwrap();
    assert!(matches!(cell.set_fenced(Fence::new(1).unwrap(), &5), Err(Error::Stale { .. })));
    assert!(cell.compare_and_delete(&4).unwrap());
    cell.set(&5).unwrap();
    cell.delete().unwrap();
    cell.delete_fenced(lease.fence()).unwrap();
    lease.release().unwrap();
    let bytes = cells.bytes("y");
    bytes.clone().set(&vec![0, 255]).unwrap();
    assert_eq!(bytes.get().unwrap(), Some(vec![0, 255]));
    let script = cells.script("return redis.call('STRLEN', KEYS[1])");
    assert_eq!(script.call().cell("y").run::<i64>().unwrap(), 2);
    assert_eq!(script.call().counter("y").run::<i64>().unwrap(), 0);
    assert_eq!(script.call().key("cell:y").arg(1).run::<i64>().unwrap(), 2);
}

/// What the page says of each store is what the store does.
#[tokio::test]
async fn the_page_says_what_the_stores_do() {
    let page = include_str!("../../../../docs/cells.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| | `memory:`")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 5);
    let (server, home) = (Server::start(Kind::Redis).unwrap(), home_in_memory("page"));
    let file = format!("file:{}", home.path().display());
    for (column, url) in
        ["memory:", &file, &server.url(), &format!("{}?scripts=off", server.url())].iter().enumerate()
    {
        let locks = leasehold::connect(url).await.unwrap();
        let cells = locks.cells();
        for row in &rows {
            server.forget_calls().unwrap();
            let tried = match row[0] {
                "counter" => cells.counter("x").add(1).await.map(drop),
                "cell" => cells.cell::<u32>("x").set(&1).await,
                "update" => cells.cell::<u32>("x").update(|_| 1).await.map(drop),
                "set_fenced" => cells.cell::<u32>("x").set_fenced(Fence::new(1).unwrap(), &1).await,
                "script" => cells.script("return 1").call().cell("x").run().await,
                other => panic!("nobody knows `{other}`"),
            };
            let found = match tried {
                Ok(()) if row[0] == "update" => match server.calls().unwrap().contains_key("watch") {
                    true => "by `WATCH`".to_owned(),
                    false => "by comparison".to_owned(),
                },
                Ok(()) => "yes".to_owned(),
                Err(Error::Unsupported { why, .. }) => format!("no: {}", why.split(';').next().unwrap()),
                Err(error) => panic!("{} on {url}: {error}", row[0]),
            };
            assert_eq!(row[column + 1], found, "{} on {url}", row[0]);
        }
    }
}

/// Also where adding is no script: whoever watches is told, and does not have to look.
#[tokio::test]
async fn whoever_watches_a_counter_is_told_of_its_sums() {
    let server = Server::start(Kind::Redis).unwrap();
    let (watching, adding) =
        (Redis::open(&server.url()).await.unwrap(), Redis::open(&server.url()).await.unwrap());
    let key = Key::new(Use::Counter, Name::new("n").unwrap());
    for ttl in [None, Some(leasehold::Ttl::DEFAULT)] {
        let adding = adding.cells().unwrap();
        let known = adding.add(&key, 1, ttl).await.unwrap().to_string();
        server.forget_calls().unwrap();
        let until = watching.clock().now().plus(secs(60));
        let watch = watching.cells().unwrap().changed(&key, Some(known.as_bytes()), until);
        let added = async {
            // It is in the list of those who are told.
            while server.command(&["EXISTS", "{counter:n}:watch"]).unwrap().int() != Some(1) {
                tokio::task::yield_now().await;
            }
            adding.add(&key, 1, ttl).await.unwrap();
        };
        let (changed, ()) = tokio::join!(watch, added);
        changed.unwrap();
        assert!(watching.clock().now() < until);
        assert_eq!(server.calls().unwrap().get("publish"), Some(&1), "with {ttl:?}");
        assert_eq!(server.command(&["EXISTS", "{counter:n}:watch"]).unwrap().int(), Some(0));
        server.command(&["DEL", "counter:n"]).unwrap();
    }
}

/// What nobody uses any more leaves no key, also if nobody comes to find it: each write gives the fence its end.
#[tokio::test]
async fn what_a_server_remembers_of_a_fence_has_an_end_unless_its_value_has_none() {
    let server = Server::start(Kind::Redis).unwrap();
    let locks = leasehold::connect(&server.url()).await.unwrap();
    let left_ms = || server.command(&["PTTL", "{cell:x}:fence"]).unwrap().int().unwrap();
    let (nine, eight) = (Fence::new(9).unwrap(), Fence::new(8).unwrap());
    let cell = locks.cells().cell::<u32>("x").fence_kept_for(secs(1_000));
    let short = cell.clone().ttl(secs(500));
    let (beyond, both) = (900_000..=1_000_000, 1_400_000..=1_500_000);
    short.set_fenced(nine, &1).await.unwrap();
    assert!(both.contains(&left_ms()), "{}", left_ms());
    cell.delete_fenced(nine).await.unwrap();
    assert!(beyond.contains(&left_ms()), "{}", left_ms());
    // Whoever writes without a fence moves its end too.
    cell.set(&1).await.unwrap();
    assert_eq!(left_ms(), -1, "as long as the value");
    assert!(short.compare_and_set(&1, &2).await.unwrap());
    assert!(both.contains(&left_ms()), "{}", left_ms());
    cell.update(|seen| seen.unwrap() + 1).await.unwrap();
    assert_eq!(left_ms(), -1);
    cell.delete().await.unwrap();
    assert!(beyond.contains(&left_ms()), "{}", left_ms());
    assert!(matches!(cell.set_fenced(eight, &1).await, Err(Error::Stale { .. })));
    // A value that another program removed: whoever is refused next sees to it.
    cell.set_fenced(nine, &1).await.unwrap();
    server.command(&["DEL", "cell:x"]).unwrap();
    assert_eq!(left_ms(), -1);
    assert!(matches!(cell.set_fenced(eight, &1).await, Err(Error::Stale { .. })));
    assert!(beyond.contains(&left_ms()), "{}", left_ms());
}
